"""Code that a config names. A user's own command or call may name any; a folder that somebody made names some only with
the user's leave."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from codecl.data.streams import PLUS, STREAMS
from codecl.errors import ConfigError
from codecl.exchange.topology import TOPOLOGIES
from codecl.methods import METHODS
from codecl.models import MODELS
from codecl.registry import is_code
from codecl.runs.config import RunConfig
from codecl.train.objective import LOSSES, SCORES

Named = tuple[str, str]  # a field and the `file.py:name` or `package.module:name` that stands in it


def named(config: RunConfig) -> Sequence[Named]:
    """All that would be imported to use a config."""
    names: list[tuple[str, Mapping[str, Any], str]] = [
        ("method", METHODS, config.method.name),
        ("model", MODELS, config.model.name),
        ("topology", TOPOLOGIES, config.topology.name),
        *(("data.stream", STREAMS, part) for part in config.data.stream.split(PLUS)),
        ("train.loss", LOSSES, config.train.loss),
        ("train.score", SCORES, config.train.score),
    ]
    return [(field, name) for field, table, name in names if is_code(table, name)]


def check(config: RunConfig, source: Path | str, allow_code: bool, own: Collection[str] = ()) -> None:
    """Refuse the config of a folder that names code, but for `own`: names that the user gave in this very call."""
    refuse(named(config), source, allow_code, own)


def check_model(config: RunConfig, source: Path | str, allow_code: bool, own: Collection[str] = ()) -> None:
    """The same where nothing but its model is built."""
    found = [(field, name) for field, name in named(config) if field == "model"]
    refuse(found, source, allow_code, own, way="or pass the model: codecl.load(run, task, model)")


def names(config: RunConfig) -> list[str]:
    """The code of a config that the user gave, or has allowed."""
    return [name for _, name in named(config)]


def refuse(
    found: Sequence[Named], source: Path | str, allow_code: bool, own: Collection[str] = (), way: str = ""
) -> None:
    """Say what of `found` would run, and what to do."""
    strange = [(field, name) for field, name in found if name not in own]
    if strange and not allow_code:
        field, name = strange[0]
        ways = f"look at it, then allow it with --allow-code (in Python allow_code=True){', ' if way else ''}{way}"
        raise ConfigError(f"{source}: its config names code, {field}: {name}, which would run here; {ways}")
