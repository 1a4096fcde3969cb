"""Presets, and what a command line makes of one: a config for each combination of its lists."""

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import yaml

from codecl.errors import ConfigError
from codecl.registry import near
from codecl.runs.config import Fields, MethodChoice, RunConfig, merge, validate


class Preset(NamedTuple):
    """A named starting point."""

    fields: Fields
    about: str
    methods: Sequence[str]  # that it runs by default
    paper: str  # the paper's name for this benchmark, where it has it
    by_method: Mapping[str, Fields] = {}  # what single methods change in the fields
    by_agents: Mapping[int, Fields] = {}  # and from so many agents on


def presets() -> dict[str, str]:
    """Names of the presets inside the package -> what they are."""
    folder = resources.files("codecl.runs") / "presets"
    names = sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))
    return {name: preset(name).about for name in names}


def preset(name: str) -> Preset:
    file = resources.files("codecl.runs") / "presets" / f"{name}.yaml"
    if not file.is_file():
        known = presets()
        raise ConfigError(f"preset: {name!r} is unknown{near(name, known)}; there are {', '.join(known)}")
    raw = yaml.safe_load(file.read_text(encoding="utf-8"))
    base: Fields = preset(raw.pop("base"))._asdict() if "base" in raw else {"fields": {}, "paper": name}
    own = {key: raw.pop(key) for key in Preset._fields if key in raw}
    for key in ("by_method", "by_agents"):
        own[key] = merge(base.get(key, {}), own.get(key, {}))
    return Preset(**{**base, **own, "fields": merge(base["fields"], {**raw, "preset": name})})


def resolve(start: Preset, changes: Fields) -> RunConfig:
    """The config of a preset with these changes (nested fields)."""
    method = changes.get("method", {}).get("name", start.fields.get("method", {}).get("name", start.methods[0]))
    fields = merge(start.fields, {"method": {"name": method}})
    fields = merge(fields, start.by_method.get(method, {}))
    agents = changes.get("agents", start.fields.get("agents"))
    for min_agents, others in sorted(start.by_agents.items()):
        if isinstance(agents, int) and agents >= min_agents:
            fields = merge(fields, others)
    return validate(merge(fields, changes))


def setting(text: str) -> dict[str, Any]:
    """`train.lr=0.05` -> {"train": {"lr": 0.05}}. Values are YAML."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f"--set {text!r}: write it as field=value, for example --set train.lr=0.05")
    try:
        out: Any = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {text!r}: the value is not readable: {str(error).splitlines()[0]}") from error
    if isinstance(out, str) and re.fullmatch(r"[-+]?\d+e[-+]?\d+", out, re.IGNORECASE):
        out = float(out)  # YAML 1.1 takes 1e-3 for a word
    keys = path.strip().split(".")
    if keys in (["method"], ["model"], ["topology"]):
        out = {"name": out}
    for key in reversed(keys):
        out = {key: out}
    return dict(out)


def grid(
    benchmark: str, method: str | None, agents: str | None, topology: str | None, seeds: str | None, settings: list[str]
) -> Iterator[RunConfig]:
    """Every combination of the comma lists, each a checked config; a method takes the options that it has."""
    start = preset(benchmark)
    changes: dict[str, Any] = {}
    for text in settings:
        changes = merge(changes, setting(text))
    options = changes.pop("method", {})
    names = words(method) or ([options["name"]] if "name" in options else list(start.methods))
    known = {name: set(MethodChoice(name=str(name)).kind().model_fields) for name in names}
    odd = set(options) - set().union(*known.values())  # what none of them has goes to all, to be refused
    own = {name: {key: value for key, value in options.items() if key in known[name] | odd} for name in names}
    lists = (
        [{"topology": {"name": word}} for word in words(topology)] or [{}],
        [{"agents": number("--agents", word)} for word in words(agents)] or [{}],
        [{"method": {**own[name], "name": name}} for name in names],
        [{"seed": number("--seeds", word)} for word in words(seeds)] or [{}],
    )
    for combination in itertools.product(*lists):
        yield resolve(start, functools.reduce(merge, combination, changes))


def words(text: str | None) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in (text or "").split(",") if word.strip()))


def number(option: str, word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise ConfigError(f"{option}: {word!r} is not a whole number") from None
