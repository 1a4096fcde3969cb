"""The paper's figures in the paper's form: lines over the epochs of a task, bars a task."""

from collections.abc import Callable, Mapping, Sequence

from codecl.report.configurations import Configuration, common_tasks
from codecl.report.figures import Bars, Curve, Lines, Series, finite
from codecl.report.figures.epochs import Value, consensus_error
from codecl.report.figures.sending import in_categories
from codecl.runs.metrics import traffic
from codecl.runs.reader import Run
from codecl.train.events import EpochEnded

TASKS = (2, 9)  # of which the paper shows epochs
COMPRESSION: Mapping[str, int] = {"five-datasets": 3, "split-cifar100": 5, "split-miniimagenet": 6}  # its figures
Configurations = Sequence[Configuration]


def consensus(configurations: Configurations) -> Lines:
    return Lines(
        "consensus",
        "Consensus error with and without constraints",
        "After each epoch of a task, with a cosine schedule: codec has constraints, dpsgd none. The paper's Figure 2.",
        "epoch of the task",
        "consensus error",
        _by_task(configurations, consensus_error),
        log=True,
    )


def compression(configurations: Configurations) -> Bars:
    """Counted as the authors do: every message carries all heads and norms."""
    several = len({configuration.metrics.topology for configuration in configurations}) > 1
    lines = []
    for configuration in configurations:
        run = configuration.metrics
        name = f"{run.topology} {run.agents}" if several else f"{run.agents} agents"
        lines.append(Series.over_seeds(name, map(_reference, configuration.runs)))
    tasks = common_tasks(configurations)
    return Bars(
        "compression",
        "Compression of each task",
        "Full communication / sent while each task is learned, counted as the authors do: with all heads and norms in"
        " every message. The paper's Figures 3, 5 and 6.",
        "cc_reference",
        tasks,
        [in_categories(line, len(tasks)) for line in lines if line.x],
    )


def loss(configurations: Configurations) -> Lines:
    return Lines(
        "loss",
        "Training loss with and without compression",
        "Of agent 0 after each epoch of a task; codec-full sends whole weights. The paper's Figure 7.",
        "epoch of the task",
        "training loss",
        _by_task(configurations, lambda epoch: finite(epoch.loss[0])),
    )


def _by_task(configurations: Configurations, value: Value) -> list[Series]:
    """Of the paper's tasks; of a shorter stream the second and the last."""
    last = min(len(configuration.tasks) for configuration in configurations)
    lines = []
    for task in sorted({min(number, last) - 1 for number in TASKS}):
        for configuration in configurations:
            epochs = [[event for event in run.of(EpochEnded) if event.task == task] for run in configuration.runs]
            curves: list[Curve] = [{event.epoch + 1: value(event) for event in of_run} for of_run in epochs]
            lines.append(Series.over_seeds(f"task {task + 1}, {configuration.metrics.method}", curves))
    return [line for line in lines if line.x]


def _reference(run: Run) -> Curve:
    by_task = run.metrics.traffic.cc_reference_by_task
    if by_task is None:  # recorded before it was
        by_task = traffic(run.events).cc_reference_by_task or ()
    return {task: ratio for task, ratio in zip(run.opened, by_task, strict=False) if ratio is not None}


def paper_figures(benchmark: str) -> Mapping[str, tuple[str, Callable[[Configurations], Lines | Bars]]]:
    """What it shows -> (file name, what draws it). A benchmark that is not in the paper has its compression as the main
    text does."""
    number = COMPRESSION.get(benchmark, 3)
    return {
        "consensus": ("figure-2-consensus", consensus),
        "compression": (f"figure-{number}-compression", compression),
        "loss": ("figure-7-loss", loss),
    }
