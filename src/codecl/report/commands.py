"""What a run's config has other than its preset, and the command that makes runs again."""

import json
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from codecl.errors import CodeclError, ConfigError
from codecl.exchange.topology import TOPOLOGIES
from codecl.methods import METHODS
from codecl.models import MODELS
from codecl.runs.code import named
from codecl.runs.config import RunConfig, flat
from codecl.runs.grid import grid, preset, resolve, setting
from codecl.runs.reader import Run

# fields that have columns of their own, are longer than words can be, or are an agent's own
NOT_SAID: Any = {
    **dict.fromkeys(("preset", "seed", "agents", "sources"), True),
    "method": {"name"},
    "topology": {"name", "edges"},
    "data": {"local_path"},
}


def changed(config: RunConfig) -> dict[str, str]:
    """Fields that the preset has otherwise for this method and number of agents, as `--set` takes them; none for a
    method of the user's own, whose code is not run to look at a table."""
    if config.method.name not in METHODS:
        return {}
    named = {"method": {"name": config.method.name}, "agents": config.agents}
    start = flat(resolve(preset(config.preset), named).model_dump(mode="json"))
    fields = flat(config.model_dump(mode="json", exclude=NOT_SAID))
    changes = {field: value for field, value in fields.items() if start.get(field) != value}
    return {field: as_set(value) for field, value in changes.items()}


def as_set(value: Any) -> str:
    """As `--set` takes it: a word that it would take for something else in quotes."""
    if isinstance(value, str):
        with suppress(ConfigError):
            if setting(f"field={value}") == {"field": value}:
                return value
    return json.dumps(value)


def command(runs: Sequence[Run]) -> str | None:
    """The shortest command that makes the runs of a configuration again; None where there is none: of `codecl.fit`, of
    peers, of code or links of the user's own. Law: `grid` of its words gives the configs back."""
    configs = [run.config for run in runs if run.config is not None]
    seeds = sorted(config.seed for config in configs)
    if len(configs) < len(runs) or runs[0].metrics.exchange or not _in_tables(configs[0]):
        return None
    with suppress(CodeclError):
        config, start = configs[0], preset(configs[0].preset)
        usual = resolve(start, {})
        options = {
            "--method": "" if [config.method.name] == list(start.methods) else config.method.name,
            "--agents": "" if config.agents == usual.agents else str(config.agents),
            "--topology": "" if config.topology.name == usual.topology.name else config.topology.name,
            "--seeds": "" if seeds == [usual.seed] else ",".join(map(str, seeds)),
        }
        settings = [f"{field}={value}" for field, value in changed(config).items()]
        method, agents, topology, seed_list = options.values()
        again = list(grid(config.preset, method, agents, topology, seed_list, settings))
        if [_recorded(one) for one in again] == [_recorded(config) | {"seed": seed} for seed in seeds]:
            words = [f"{name} {text}" for name, text in options.items() if text]
            words += [f"--set {shlex.quote(text)}" for text in settings]
            return " ".join(["codecl run", config.preset, *words])
    return None


def _in_tables(config: RunConfig) -> bool:
    """Whether its method, model and topology are codecl's: code of a user's own is not run to look at a table."""
    in_tables = (config.method.name in METHODS, config.model.name in MODELS, config.topology.name in TOPOLOGIES)
    return all(in_tables) and not named(config)


def _recorded(config: RunConfig) -> dict[str, Any]:
    """What decides a run, but for digests of files, which need not be here."""
    return config.decisive() | {"sources": None}
