"""What a run has other than its preset, in words."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from codecl.errors import CodeclError
from codecl.methods import METHODS
from codecl.runs.config import RunConfig, preset, resolve
from codecl.runs.reader import read_config

LONGEST = 40  # of what is said about a variant
# in columns of their own, longer than words can be, or an agent's own
LEFT_OUT = ("preset", "seed", "agents", "method.name", "topology.name", "topology.edges", "data.local_path", "sources")


def variant(folder: Path, run: Mapping[str, Any]) -> str:
    """`penalty_step=implicit`; where the config cannot say it, the digest at the end of the configuration's folder."""
    digest = folder.parent.name.partition(f"{run['topology']}{run['agents']}-")[2]
    if (fleet := sorted(folder.glob("agent-*/config.yaml"))) and run.get("exchange") == "peers":
        folder = fleet[0].parent
    try:
        words = in_words(read_config(folder)) or digest
    except CodeclError:  # no config, or a preset that is not here
        words = digest
    return ", ".join(filter(None, [str(run.get("exchange") or ""), words]))


def shortened(full: Sequence[str]) -> list[str]:
    """What is said about variants, cut where that leaves them different."""
    short = [text if len(text) <= LONGEST else text[: LONGEST - 1] + "…" for text in full]
    return short if len(set(short)) == len(set(full)) else list(full)


def in_words(config: RunConfig) -> str:
    """Fields that the preset has otherwise for this method and number of agents."""
    return ", ".join(f"{field.removeprefix('method.')}={value}" for field, value in changed(config).items())


def changed(config: RunConfig) -> dict[str, str]:
    """The same as `--set` takes it; none for a method of the user's own, whose code is not run to look at a table."""
    if config.method.name not in METHODS:
        return {}
    named = {"method": {"name": config.method.name}, "agents": config.agents}
    start = _flat(resolve(preset(config.preset), named))
    return {field: _value(value) for field, value in _flat(config).items() if start.get(field) != value}


def _flat(config: RunConfig) -> dict[str, Any]:
    """Fields by their dotted names."""

    def walk(value: Any, path: str) -> dict[str, Any]:
        if path in LEFT_OUT:
            return {}
        if not isinstance(value, dict):
            return {path: value}
        return {k: v for key, part in value.items() for k, v in walk(part, f"{path}.{key}".strip(".")).items()}

    return walk(config.model_dump(mode="json"), "")


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
