"""Names -> things: a table of our own, or `file.py:name` / `package.module:name` for a user's."""

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from codecl.errors import ConfigError


def lookup(what: str, table: Mapping[str, Any], name: str) -> Any:
    """The entry of `table` with this name, or the user's own object that the name points at."""
    if name in table:
        return table[name]
    if ":" in name:
        return _own(what, name)
    raise ConfigError(f"{what}: {name!r} is unknown{near(name, table)}; there are {', '.join(table)}")


def near(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f", did you mean {close[0]!r}?" if close else ""


def _own(what: str, name: str) -> Any:
    where, _, attribute = name.rpartition(":")
    try:
        module = _module_of_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except Exception as error:  # whatever the user's file raises is the user's to read
        reason = " ".join(str(error).split())
        raise ConfigError(f"{what}: {name!r}: cannot import {where}: {type(error).__name__}: {reason}") from error
    if not callable(getattr(module, attribute, None)):
        raise ConfigError(f"{what}: {name!r}: {where} has no class or function {attribute!r} at its top level")
    return getattr(module, attribute)


def source_digest(what: str, table: Mapping[str, Any], name: str) -> str | None:
    """A digest of the code behind a user's own name: a run of other code is another run. None for our own names."""
    if name in table or ":" not in name:
        return None
    thing = _own(what, name)
    return code_digest(thing)


def code_digest(thing: Any) -> str:
    """Of the file that defines a class or function, or of what can be known of it where there is none."""
    try:
        text = Path(inspect.getfile(thing)).read_text(encoding="utf-8")
    except (OSError, TypeError):
        text = repr(getattr(thing, "__qualname__", thing))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _module_of_file(path: Path) -> Any:
    if not path.is_file():
        raise OSError("no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # so that the source of what is in it can be found
    spec.loader.exec_module(module)
    return module
