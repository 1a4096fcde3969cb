"""Comma lists of the command line -> every combination, each a checked config."""

import functools
import itertools
from collections.abc import Iterator
from typing import Any

from codecl.errors import ConfigError
from codecl.runs import config as presets
from codecl.runs.config import RunConfig


def configs(
    preset: str, method: str | None, agents: str | None, topology: str | None, seeds: str | None, settings: list[str]
) -> Iterator[RunConfig]:
    """Every combination of the comma lists, each a checked config."""
    start = presets.preset(preset)
    changes: dict[str, Any] = {}
    for text in settings:
        changes = presets.merge(changes, presets.setting(text))
    options = changes.pop("method", {})
    names = words(method) or ([options["name"]] if "name" in options else list(start.methods))
    lists = (
        [{"topology": {"name": word}} for word in words(topology)] or [{}],
        [{"agents": number("--agents", word)} for word in words(agents)] or [{}],
        [{"method": fields} for fields in _method_fields(names, options)],
        [{"seed": number("--seeds", word)} for word in words(seeds)] or [{}],
    )
    for combination in itertools.product(*lists):
        yield presets.resolve(start, functools.reduce(presets.merge, combination, changes))


def _method_fields(names: list[str], options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each method with those of the options that it has; an option that none of them has goes to all, to be refused."""
    known = {name: set(presets.MethodChoice(name=str(name)).kind().model_fields) for name in names}
    odd = set(options) - set().union(*known.values())
    for name in names:
        yield {**{key: value for key, value in options.items() if key in known[name] | odd}, "name": name}


def words(text: str | None) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in (text or "").split(",") if word.strip()))


def number(option: str, word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise ConfigError(f"{option}: {word!r} is not a whole number") from None
