"""The reference pages, made from the code while the site is built.

A line `<!-- made from the code: commands -->` in a page becomes what the function of that name returns, in Markdown.
"""

import inspect
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from docutils import nodes
from pydantic import BaseModel
from sphinx import addnodes
from sphinx.application import Sphinx
from typer.main import get_command

import codecl
from codecl.cli import app as cli
from codecl.methods import METHODS
from codecl.models import MODELS
from codecl.runs import config as configs
from codecl.runs import grid
from codecl.train import events as told

MARK = re.compile(r"^<!-- made from the code: (\w+) -->$", re.M)
SAID = {"float": "number", "int": "whole number", "str": "text", "bool": "true or false", "Path": "path"}
PLURAL = {"number": "numbers", "whole number": "whole numbers", "text": "texts", "pair": "pairs"}
BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


def plain(docstring: str | None) -> str:
    """A docstring as Markdown."""
    return inspect.cleandoc(docstring or "")


def type_in_words(kind: Any) -> str:
    """An annotation as one says it: `tuple[float, ...] | None` is a list of numbers or null."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is type(None):
        return "null"
    if origin is Annotated:
        return type_in_words(parts[0])
    if origin is Literal:
        return ", ".join(code(yaml.safe_dump(value).split("\n")[0]) for value in parts)
    if origin in (Union, types.UnionType):
        return " or ".join(map(type_in_words, parts))
    if origin in (dict, Mapping):
        return f"{type_in_words(parts[1])} by name"
    if origin is tuple and parts[-1] is not Ellipsis:
        return "pair" if len(parts) == 2 else "list"
    if origin is not None:
        of = type_in_words(parts[0])
        return f"list of {PLURAL.get(of, of)}"
    names = getattr(kind, "model_fields", None) or getattr(kind, "_fields", None)
    if names:
        return f"record ({', '.join(names)})"
    name = getattr(kind, "__name__", str(kind))
    return SAID.get(name, name)


def comments(kind: type) -> dict[str, str]:
    """What is written beside the fields of a record: `step: int  # from the task's start`."""
    return dict(re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(kind), re.M))


def commands() -> str:
    """Every command with its arguments and options, as `--help` has them."""
    return "\n".join(_commands(get_command(cli), "codecl", 2))


def _commands(command: Any, name: str, level: int) -> Iterator[str]:
    yield f"{'#' * level} `{name}`\n\n{plain(command.help)}\n"
    rows = [_parameter(parameter) for parameter in command.params]
    if rows:
        yield table(["", "what it is", "default"], rows)
    for short, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{name} {short}", 3 if level == 2 and name != "codecl" else 2)


def _parameter(parameter: Any) -> tuple[str, str, str]:
    if parameter.param_type_name == "argument":
        name = code(parameter.metavar or parameter.name.upper())
    else:
        takes = "" if parameter.is_flag else f" {parameter.metavar or '…'}"
        name = ", ".join(code(option + takes) for option in (*parameter.opts, *parameter.secondary_opts))
    if parameter.required:
        return name, parameter.help or "", "required"
    has_default = not (parameter.default is None or parameter.default is False)
    return name, parameter.help or "", code(parameter.default) if has_default else ""


def fields(values: BaseModel, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted name, field, value) of every field in a config, as `--set` names them."""
    for name, field in type(values).model_fields.items():
        value = getattr(values, name)
        if isinstance(value, BaseModel):
            yield from fields(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", field, value


def config() -> str:
    """Every field, a table for each part of the config, then the options of methods and models."""
    parts: dict[str, list[Sequence[str]]] = {}
    for name, field, default in fields(configs.RunConfig()):
        part = name.split(".")[0] if "." in name else ""
        parts.setdefault(part, []).append((code(name), _allowed(field), _yaml(default), field.description or ""))
    out = [table(["field", "type", "default", "what it is"], parts.pop(""))]
    for part, rows in parts.items():
        out.append(f"## {part}\n\n{table(['field', 'type', 'default', 'what it is'], rows)}")
        if part == "method":
            out.append(_method_options())
        if part == "model":
            out.append(_model_options())
    return "\n".join(out)


def _allowed(field: Any) -> str:
    limits = [f"{said} {value:g}" for key, said in BOUNDS.items() for value in _bound(field, key)]
    return ", ".join([type_in_words(field.annotation), *limits])


def _bound(field: Any, key: str) -> list[float]:
    return [getattr(rule, key) for rule in field.metadata if getattr(rule, key, None) is not None]


def _yaml(value: Any) -> str:
    """A default as `--set` takes it."""
    value = list(value) if isinstance(value, tuple) else value
    return code(yaml.safe_dump(value, default_flow_style=True, allow_unicode=True).split("\n")[0])


def _method_options() -> str:
    rows = [
        (code(f"method.{option}"), code(name), _allowed(field), _yaml(field.default), field.description or "")
        for name, method in METHODS.items()
        for option, field in method.model_fields.items()
    ]
    return "Options of the methods:\n\n" + table(["field", "of", "type", "default", "what it is"], rows)


def _model_options() -> str:
    rows = [
        (code(f"model.{option.name}"), code(name), _yaml(option.default))
        for name, model in MODELS.items()
        for option in list(inspect.signature(model).parameters.values())[2:]
    ]
    return "Options of the models:\n\n" + table(["field", "of", "default"], rows)


def events() -> str:
    """Every kind of line in events.jsonl, with its fields; those that all have come first."""
    out = [f"{plain(told.Event.__doc__)}\n\n{_event_fields(told.Event)}"]
    for kind in get_args(told.Recorded):
        own = _event_fields(kind, leave_out=told.Event.model_fields)
        out.append(f"## `{kind.model_fields['kind'].default}`\n\n{plain(kind.__doc__)}\n\n{own}")
    return "\n".join(out)


def _event_fields(kind: type[BaseModel], leave_out: Iterable[str] = ()) -> str:
    """Those that are recorded; others hold live objects."""
    said: dict[str, str] = {}
    for base in kind.__mro__[::-1]:
        said |= comments(base) if base.__module__ == told.__name__ else {}
    rows = [
        (code(name), type_in_words(field.annotation), said.get(name, ""))
        for name, field in kind.model_fields.items()
        if name not in leave_out and not field.exclude
    ]
    return table(["field", "type", "what it is"], rows)


def presets() -> str:
    return table(["preset", "what it is"], [(code(name), about) for name, about in grid.presets().items()])


def api() -> str:
    """What `codecl.__all__` exports: tables of names, then functions, records and errors."""
    values = {name: getattr(codecl, name) for name in codecl.__all__}
    return "\n".join(f"## {name}\n\n{_documented(name, value)}" for name, value in sorted(values.items(), key=_order))


def _order(item: tuple[str, Any]) -> tuple[int, str]:
    name, value = item
    ranks = (inspect.isfunction(value), name in ("Learner", "Task", "Result"), isinstance(value, dict))
    return ranks.index(True) if True in ranks else 3 + (inspect.isclass(value) and issubclass(value, Exception)), name


def _documented(name: str, value: Any) -> str:
    if isinstance(value, dict):
        rows = [(code(key), plain(entry.__doc__).split("\n\n")[0].replace("\n", " ")) for key, entry in value.items()]
        return table(["name", "what it is"], rows)
    if inspect.isfunction(value):
        return _autodoc("function", name)
    entries = {key: entry for key, entry in vars(value).items() if not key.startswith("_")}
    shown = (types.FunctionType, classmethod, property)
    own = [key for key, entry in entries.items() if isinstance(entry, shown)]
    text = _autodoc("exception" if issubclass(value, Exception) else "class", name, own)
    if hasattr(value, "_fields"):
        beside = comments(value)
        text += "\n" + table(["field", "what it is"], [(code(field), beside.get(field, "")) for field in value._fields])
    return text


def _autodoc(kind: str, name: str, members: Sequence[str] = ()) -> str:
    chosen = f"\n   :members: {', '.join(members)}" if members else ""
    return f"```{{eval-rst}}\n.. auto{kind}:: codecl.{name}{chosen}\n```\n"


PARTS: dict[str, Callable[[], str]] = {f.__name__: f for f in (api, commands, config, events, presets)}


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    """Puts what is made from the code where a page asks for it; lists the neighbours of a README as its chapters."""
    if MARK.search(source[0]):
        app.env.note_reread()  # the code may change while the page does not
        source[0] = MARK.sub(lambda match: PARTS[match[1]](), source[0])
    folder, _, name = docname.rpartition("/")
    if name == "README":
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n:glob:\n\n/{folder}/[!R]*\n```\n"


def unlink(app: Sphinx, doctree: nodes.document) -> None:
    """Folders, and pages of the repository that are not part of the site, are plain words here."""
    root, here = Path(app.srcdir), (Path(app.srcdir) / app.env.docname).parent
    for link in list(doctree.findall(addnodes.pending_xref)):
        if link["reftype"] == "myst":
            target = link["reftarget"]
            is_folder = link["refdomain"] is None and not target.startswith("#") and (here / target).is_dir()
            is_page = link["refdomain"] == "doc" and (root / f"{target}.md").is_file()
            if is_folder or (is_page and target not in app.env.found_docs):
                link.replace_self(link.children)


def literals(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are Markdown: `code` is code."""
    lines[:] = [re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line) for line in lines]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", fill)
    app.connect("doctree-read", unlink)
    app.connect("autodoc-process-docstring", literals)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
