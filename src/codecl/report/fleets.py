"""The agents of a fleet -> one run: what they sent is added up, the worst of their states is the fleet's."""

import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from codecl.runs.metrics import Status

Run = dict[str, Any]
WORST: tuple[Status, ...] = ("partial", "degraded", "complete")


def together(runs: Sequence[tuple[Path, Run]]) -> list[tuple[Path, Run]]:
    """Runs as they are; those of `seed-<s>/agent-<i>` as one run `seed-<s>`."""
    out: list[tuple[Path, Run]] = []
    fleets: dict[Path, list[Run]] = {}
    for folder, run in runs:
        if "agent" in run and re.fullmatch(r"agent-\d+", folder.name):
            if folder.parent not in fleets:
                out.append((folder.parent, {}))
            fleets.setdefault(folder.parent, []).append(run)
        else:
            out.append((folder, run))
    return [(folder, run or _one(fleets[folder])) for folder, run in out]


def _one(agents: Sequence[Run]) -> Run:
    """Accuracies are means over the agents whose records are here: those that hold the same model score alike."""
    first = max(agents, key=lambda run: len(run["accuracy_matrix"]))
    status = next(status for status in WORST if any(run["status"] == status for run in agents))
    sums = {key: sum(run["traffic"][key] for run in agents) for key in ("train_bytes", "boundary_bytes", "full_bytes")}
    sent = sums["train_bytes"] + sums["boundary_bytes"]
    traffic = {**first["traffic"], **sums, "cc": sums["full_bytes"] / sent if sent else None}
    traffic["wire_bytes"] = sum(run["traffic"]["wire_bytes"] or 0 for run in agents)
    return {
        **{key: value for key, value in first.items() if key not in ("agent", "links")},
        "status": status,
        "acc": _mean([run["acc"] for run in agents]),
        "bwt": _mean([run["bwt"] for run in agents]),
        "traffic": traffic,
        "missed": sum(run.get("missed", 0) for run in agents),
        "here": len(agents),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
