"""Names -> things: a table of our own, or `file.py:name` / `package.module:name` for a user's."""

import difflib
import importlib
import importlib.util
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
    except (ImportError, OSError) as error:
        raise ConfigError(f"{what}: {name!r}: cannot import {where}: {error}") from error
    if not hasattr(module, attribute):
        raise ConfigError(f"{what}: {name!r}: {where} has no {attribute!r}")
    return getattr(module, attribute)


def _module_of_file(path: Path) -> Any:
    if not path.is_file():
        raise OSError("no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
