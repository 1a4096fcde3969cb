"""Fields as checked models, and YAML files of them: what is off is said in one line, which starts with the file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from codecl import files
from codecl.errors import ConfigError
from codecl.registry import near

MAX_BYTES, MAX_DEPTH = 8 << 20, 40  # of a file
Model = TypeVar("Model", bound=BaseModel)


def read(kind: type[Model], path: Path, way_out: str) -> Model:
    """The model that a file holds."""
    try:
        fields = load(read_bytes(path, way_out))
    except ValueError as error:
        said = " ".join(str(error).split())[:120]
        raise ConfigError(f"{path}: is not readable as YAML ({said}); {way_out}") from error
    if not isinstance(fields, dict) or not all(isinstance(key, str) for key in fields):
        raise ConfigError(f"{path}: should hold fields and values; {way_out}")
    return checked(kind, fields, path)


def read_bytes(path: Path, way_out: str) -> bytes:
    try:
        return files.read_bytes(path, MAX_BYTES)
    except ValueError as error:
        raise ConfigError(f"{path}: cannot be read ({error}); {way_out}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}); {way_out}") from error


def load(data: bytes) -> Any:
    """What a YAML file holds; ValueError says what is wrong with it."""
    try:
        return yaml.load(data.decode(), _Loader)  # a SafeLoader
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error


class _Loader(yaml.SafeLoader):
    """Without aliases, by which a short file could stand for a very long one, and not too deep."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not taken, write the value twice")
        if self.depth >= MAX_DEPTH:
            raise yaml.YAMLError("it is nested too deeply")
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def checked(kind: type[Model], fields: Mapping[str, Any], where: Path | str = "", field: str = "") -> Model:
    """A model with these fields, of a file or option (`where`) or of a config's `field`; one that is off is named."""
    try:
        return kind(**fields)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from error
    except ValidationError as error:
        first = error.errors()[0]
        path, owner, description = _located(kind, first["loc"])
        value = repr(str(first["input"])[:60]) if where else repr(first["input"])  # what stands in a file is text
        message = first["msg"].removeprefix("Value error, ").replace("Input should", "it should")
        if first["type"] == "extra_forbidden":
            unknown = str(first["loc"][-1])
            known = {entry.alias or key: None for key, entry in owner.model_fields.items()}
            path.append(unknown)
            message = f"there is no such field{near(unknown, known)}; there are {', '.join(known) or 'none'}"
        elif len(path) < len(first["loc"]) and description:
            # inside a field, or none of the types that it may have: say what the field is
            message = f"{value} is not allowed: {description}"
        elif (path or field) and first["type"] != "missing":
            message = f"{value} is not allowed: {message}"
        place = ".".join(filter(None, (field, *path)))
        raise ConfigError(": ".join(filter(None, (str(where), place, message)))) from error


def _located(kind: type[BaseModel], location: tuple[int | str, ...]) -> tuple[list[str], type[BaseModel], str | None]:
    """(path, the model it ends in, the field's description) of an error, without what pydantic adds for types."""
    path: list[str] = []
    owner, description, listed = kind, None, False
    for step in location:
        entry = next((entry for key, entry in owner.model_fields.items() if step in (key, entry.alias)), None)
        if entry is not None:
            path.append(str(step))
            kinds = (entry.annotation, *get_args(entry.annotation))  # a model, or several of one
            models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
            owner, description = models[0] if models else owner, entry.description
            listed = bool(models) and models[0] is not entry.annotation
        elif listed and isinstance(step, int):
            path.append(str(step))
    return path, owner, description


def dump(fields: Mapping[str, Any]) -> str:
    return yaml.dump(fields, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Values are written as often as they are there."""
        return True

    def text(self, text: str) -> yaml.ScalarNode:
        """Several lines are written line by line."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _Dumper.text)
