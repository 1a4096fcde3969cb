"""The run folders of agents that were on several machines, in one place."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from codecl.errors import ConfigError, DataError

AGENT = re.compile(r"agent-(\d+)")


def gather(places: Sequence[str], out: Path) -> dict[Path, list[int]]:
    """Copy every `<config>/seed-<s>/agent-<i>` under these places into `out`; the runs, and the agents of each that are
    there now. A folder that is there already is replaced."""
    runs: set[Path] = set()
    with tempfile.TemporaryDirectory() as fetched:
        for number, place in enumerate(places):
            top = _fetched(place, Path(fetched) / str(number))
            found = [path.parent for path in top.rglob("events.jsonl") if AGENT.fullmatch(path.parent.name)]
            if not found:
                raise DataError(f"{place}: holds no run of an agent (…/seed-<s>/agent-<i>/events.jsonl)")
            for folder in found:
                run = out / folder.parent.parent.name / folder.parent.name
                if (run / folder.name).resolve() != folder.resolve():
                    shutil.rmtree(run / folder.name, ignore_errors=True)
                    shutil.copytree(folder, run / folder.name)
                runs.add(run)
    return {
        run: sorted(int(path.name[6:]) for path in run.iterdir() if AGENT.fullmatch(path.name)) for run in sorted(runs)
    }


def _fetched(place: str, into: Path) -> Path:
    """The folder itself, or a copy of one on another machine."""
    if Path(place).is_dir():
        return Path(place)
    host, _, folder = place.partition(":")
    if not host or not folder or "/" in host:
        raise DataError(f"{place}: no such folder; write HOST:FOLDER for one on another machine")
    try:
        subprocess.run(["scp", "-r", "-q", "--", place, str(into)], check=True)
    except FileNotFoundError:
        raise ConfigError(f"{place}: there is no scp here to fetch it with; copy the folder yourself") from None
    except subprocess.CalledProcessError as error:
        raise DataError(f"{place}: scp could not fetch it (exit code {error.returncode})") from None
    return into
