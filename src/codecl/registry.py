"""Names -> things: a table of our own, or `file.py:name` / `package.module:name` for a user's."""

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from codecl.errors import ConfigError

OWN_MODULE = "codecl_own_"  # the name of a user's file as a module begins so


def lookup(what: str, table: Mapping[str, Any], name: str, forms: Sequence[str] = ()) -> Any:
    """The entry of `table` with this name, or the user's own object that the name points at. `forms`: what else it may
    be, for who mistyped it."""
    if name in table:
        return table[name]
    if is_code(table, name):
        return _own(what, name)
    raise ConfigError(f"{what}: {name!r} is unknown{near(name, table)}; there are {', '.join([*table, *forms])}")


def is_code(table: Mapping[str, Any], name: str) -> bool:
    """Whether a name stands for code of a user's own, which `lookup` would import."""
    return name not in table and ":" in name


def near(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f", did you mean {close[0]!r}?" if close else ""


def _own(what: str, name: str) -> Any:
    where, _, attribute = name.rpartition(":")
    try:
        module = _module_of_file(Path(where).resolve()) if where.endswith(".py") else importlib.import_module(where)
    except Exception as error:  # whatever the user's file raises is the user's to read
        raise ConfigError(f"{what}: {name!r}: cannot import {where}: {reason(error)}") from error
    if not callable(getattr(module, attribute, None)):
        raise ConfigError(f"{what}: {name!r}: {where} has no class or function {attribute!r} at its top level")
    return getattr(module, attribute)


def reason(error: Exception) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def own_files() -> list[Path]:
    """The users' files that this process has imported."""
    return [Path(str(module.__file__)) for name, module in list(sys.modules.items()) if name.startswith(OWN_MODULE)]


def import_files(paths: Sequence[Path]) -> None:
    """In a process that was not forked: what is unpickled next may be of a class in one of them."""
    for path in paths:
        _module_of_file(path)


@cache
def _module_of_file(path: Path) -> Any:
    """A user's file as a module, run once, under a name that no other file or package has."""
    if not path.is_file():
        raise OSError("no such file")
    name = f"{OWN_MODULE}{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def source_digest(what: str, table: Mapping[str, Any], name: str) -> str | None:
    """A digest of the code behind a user's own name: a run of other code is another run. None for our own names."""
    if not is_code(table, name):
        return None
    thing, where = _own(what, name), name.rpartition(":")[0]
    if where.endswith(".py"):
        return hashlib.sha256(Path(where).read_bytes()).hexdigest()[:16]
    return code_digest(thing)


def name_of(what: str, thing: Any) -> str:
    """`package.module:name`, by which a caller's own function or class is found again."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if module is None or name is None or getattr(sys.modules.get(module), name, None) is not thing:
        raise ConfigError(
            f"{what}: {name or type(thing).__name__} cannot be found by a name; write it as a function at the top level"
            " of a module or notebook"
        )
    return f"{module}:{name}"


def code_digest(thing: Any) -> str:
    """Of the file that defines a class or function; of its compiled functions where there is none (a notebook)."""
    try:
        code = Path(inspect.getfile(thing)).read_bytes()
    except (OSError, TypeError):
        functions = [part.__code__ for part in (thing, *vars(thing).values()) if inspect.isfunction(part)]
        code = repr([(f.co_name, f.co_code, f.co_names, _constants(f)) for f in functions]).encode()
    return hashlib.sha256(code).hexdigest()[:16]


def _constants(code: Any) -> list[Any]:
    """Constants of compiled code; code inside it by what it does, not by its address."""
    return [(c.co_code, c.co_names, _constants(c)) if inspect.iscode(c) else c for c in code.co_consts]
