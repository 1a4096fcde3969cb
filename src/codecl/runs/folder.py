"""What a run is called, and where its folder lies."""

from pathlib import Path

from codecl.errors import ConfigError
from codecl.runs.config import RunConfig, preset, resolve
from codecl.runs.schema import Labels


def folder_of(config: RunConfig, out: Path) -> Path:
    """<out>/<preset>-<method>-<topology><agents>[-<digest>]/seed-<s>; the digest where more differs from the preset."""
    name = f"{config.preset}-{word(config.method.name)}-{word(config.topology.name)}{config.agents}"
    if not _as_preset(config):
        name += f"-{config.digest()[:6]}"
    return out / name / f"seed-{config.seed}"


def labels_of(config: RunConfig, tasks: int, each_task_alone: bool = False, agent: int | None = None) -> Labels:
    """What metrics and the first event call a run; `agent`: of a peer."""
    return Labels(
        benchmark=config.preset,
        method=word(config.method.name),
        agents=config.agents,
        topology=word(config.topology.name),
        seed=config.seed,
        tasks=tasks,
        each_task_alone=each_task_alone,
        exchange=None if agent is None else "peers",
        agent=agent,
    )


def word(name: str) -> str:
    """A name that fits in a folder's: of `path/file.py:Thing`, the thing."""
    return name.rpartition(":")[2].replace("/", "_")


def _as_preset(config: RunConfig) -> bool:
    try:
        start = preset(config.preset)
    except ConfigError:  # a name of the caller's own: nothing to compare with
        return False
    named = {
        "seed": config.seed,
        "agents": config.agents,
        "method": {"name": config.method.name},
        "topology": {"name": config.topology.name},
    }
    return resolve(start, named).decisive() == config.decisive()
