"""YAML files as checked models: what is off in one is said in one line, which starts with the file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from codecl.errors import ConfigError
from codecl.registry import near

Model = TypeVar("Model", bound=BaseModel)


def read(kind: type[Model], path: Path, way_out: str) -> Model:
    """The model that a file holds."""
    try:
        fields = yaml.safe_load(read_bytes(path, way_out).decode())
    except (yaml.YAMLError, ValueError) as error:
        said = " ".join(str(error).split())[:120]
        raise ConfigError(f"{path}: is not readable as YAML ({said}); {way_out}") from error
    if not isinstance(fields, dict) or not all(isinstance(key, str) for key in fields):
        raise ConfigError(f"{path}: should hold fields and values; {way_out}")
    return checked(kind, fields, path)


def read_bytes(path: Path, way_out: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}); {way_out}") from error


def checked(kind: type[Model], fields: Mapping[str, Any], where: Path | str) -> Model:
    """A model with these fields; ConfigError names the first that is off."""
    try:
        return kind(**fields)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        path, message = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            known = {field.alias or key: None for key, field in kind.model_fields.items()}
            message = f"there is no such field{near(path, known)}"
        elif path and first["type"] != "missing":
            message = f"{str(first['input'])[:60]!r} is not allowed: {message.replace('Input should', 'it should')}"
        raise ConfigError(": ".join(filter(None, (str(where), path, message)))) from error


def dump(fields: Mapping[str, Any]) -> str:
    return yaml.dump(fields, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Text of several lines is written line by line."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
