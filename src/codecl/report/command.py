"""A recorded run -> what to type to go on with it."""

import shlex
from pathlib import Path

from codecl.errors import CodeclError
from codecl.report.variant import changed
from codecl.runs import grid
from codecl.runs.config import RunConfig
from codecl.runs.folder import folder_of
from codecl.runs.reader import read_config

SAME = "the command that started it goes on where it stopped"


def way_on(folder: Path) -> str:
    """The command, where it can be told from the folder and gives this very run; otherwise words."""
    try:
        config = read_config(folder)
        command, made = _command(config, folder.parents[1])
        if made.decisive() != config.decisive() or folder_of(made, folder.parents[1]) != folder:
            return SAME
    except (CodeclError, IndexError):
        return SAME
    return f"go on with `{shlex.join(command)}`"


def _command(config: RunConfig, out: Path) -> tuple[list[str], RunConfig]:
    """The command of a config, and the config that the command gives."""
    settings = [f"{field}={value}" for field, value in changed(config).items()]
    method, agents, topology, seed = config.method.name, str(config.agents), config.topology.name, str(config.seed)
    (made,) = grid.configs(config.preset, method, agents, topology, seed, settings)
    named = ["--method", method, "--agents", agents, "--topology", topology, "--seeds", seed]
    changes = [word for text in settings for word in ("--set", text)]
    elsewhere = ["--out", str(out)] if out != Path("runs") else []
    return ["codecl", "run", config.preset, *named, *changes, *elsewhere], made
