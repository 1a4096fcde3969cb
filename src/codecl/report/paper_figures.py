"""The paper's figures in the paper's form: lines over the epochs of a task, bars a task."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from codecl.report.configurations import Configuration, Curve, common_tasks, known
from codecl.report.epochs import consensus_error
from codecl.report.figure import Bars, Lines, Number, Series
from codecl.report.gather import Fact, Run
from codecl.report.sending import in_categories

TASKS = (2, 9)  # of which the paper shows epochs
COMPRESSION: Mapping[str, int] = {"five-datasets": 3, "split-cifar100": 5, "split-miniimagenet": 6}  # its figures
Found = Sequence[Configuration]


def consensus(found: Found) -> Lines:
    return Lines(
        "consensus",
        "Consensus error with and without constraints",
        "After each epoch of a task, with a cosine schedule: codec (with constraints) comes to agree as fast as dpsgd"
        " (without). The paper's Figure 2.",
        "epoch of the task",
        "consensus error",
        _by_task(found, consensus_error),
        log=True,
    )


def compression(found: Found) -> Bars:
    """Counted as the authors do: every message carries all heads and norms."""
    lines = [configuration.series(_size(configuration, found), _reference) for configuration in found]
    tasks = common_tasks(found)
    return Bars(
        "compression",
        "Compression of each task",
        "Full communication / sent while each task is learned, counted as the authors do: with all heads and norms in"
        " every message. The paper's Figures 3, 5 and 6.",
        "CC",
        tasks,
        [in_categories(line, len(tasks)) for line in lines if line.x],
    )


def loss(found: Found) -> Lines:
    return Lines(
        "loss",
        "Training loss with and without compression",
        "Of agent 0 after each epoch of a task: codec lies on codec-full, which sends whole weights, so compression"
        " loses nothing. The paper's Figure 7.",
        "epoch of the task",
        "training loss",
        _by_task(found, _first_loss),
    )


def _first_loss(fact: Fact) -> Number:
    return known(fact["loss"][0])


def _by_task(found: Found, value: Callable[[Fact], Number]) -> list[Series]:
    tasks = _shown(found)
    lines = [
        configuration.series(f"task {task + 1}, {configuration.first.metrics['method']}", partial(_epochs, task, value))
        for task in tasks
        for configuration in found
    ]
    return [line for line in lines if line.x]


def _shown(found: Found) -> list[int]:
    """The paper's tasks; of a shorter stream the second and the last."""
    last = min(len(configuration.tasks) for configuration in found)
    return sorted({min(task, last) - 1 for task in TASKS})


def _epochs(task: int, value: Callable[[Fact], Number], run: Run) -> Curve:
    return {fact["epoch"] + 1: value(fact) for fact in run.facts("epoch") if fact["task"] == task}


def _reference(run: Run) -> Curve:
    return {
        fact["task"]: (fact["full"] + fact["reference_extra"]) / (fact["coordinates"] + fact["reference_extra"])
        for fact in run.facts("task")
        if int(run.metrics["agents"]) > 1
    }


def _size(configuration: Configuration, found: Found) -> str:
    """`8 agents`, with the topology where there are several."""
    topologies = {other.first.metrics["topology"] for other in found}
    of = configuration.first.metrics
    return f"{of['agents']} agents" if len(topologies) == 1 else f"{of['topology']} {of['agents']}"


def paper_figures(benchmark: str) -> Mapping[str, Callable[[Found], Lines | Bars]]:
    """File name -> what draws it. A benchmark that is not in the paper has its compression as the main text does."""
    number = COMPRESSION.get(benchmark, 3)
    return {
        "figure-2-consensus": consensus,
        f"figure-{number}-compression": compression,
        "figure-7-loss": loss,
    }
