"""The runs of a grid side by side on this machine, each in a process of its own."""

import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from codecl.cli import common
from codecl.cli.run import Outcome, RunOptions, announce, folder_of, run_one, with_folder
from codecl.errors import CodeclError, ConfigError, ConfigWarning, DataError, RunFailed

if TYPE_CHECKING:
    from codecl.runs.config import RunConfig

LOOK_S = 0.5
GRACE_S = 30.0  # to record how far a run came; then its process is killed
KINDS: dict[int, type[CodeclError]] = {2: ConfigError, 3: DataError}  # by exit code; others failed as they ran


class Report(NamedTuple):
    """What a process has to say: a warning, or why its run failed."""

    text: str
    exit_code: int | None = None


class Job(NamedTuple):
    """A run under way, or one that has just ended."""

    folder: Path
    process: BaseProcess
    reports: Connection


def side_by_side(configs: Sequence["RunConfig"], options: RunOptions) -> Outcome:
    """Run all, `options.jobs` at a time. They have been checked; one that fails as it runs leaves the others alone."""
    from codecl import api
    from codecl.runs.build import load_tasks

    waiting = deque(enumerate(configs, 1))
    failed: dict[Path, RunFailed] = {}
    with _going(options) as jobs, _showing(options) as show:
        while waiting or jobs:
            while waiting and len(jobs) < options.jobs:
                number, config = waiting.popleft()
                announce(config, number, len(configs), options)
                if options.again or api.recorded(config, options.out, options.ranks) is None:
                    jobs.append(_begin(config, options))
                else:
                    run_one(config, options, load_tasks)  # says that it is complete
            wait([job.process.sentinel for job in jobs], LOOK_S)
            over = [job for job in jobs if job.process.exitcode is not None]
            show(jobs)
            for job in jobs:
                failure = _heard(job)
                if job in over and job.process.exitcode and not (failure or job.folder in failed):
                    failure = _unsaid(job)
                if failure is not None:
                    failed[job.folder] = failure
                    print(f"codecl: {failure}", file=sys.stderr)
            jobs[:] = [job for job in jobs if job not in over]
    results = [api.recorded(config, options.out, options.ranks) for config in configs]
    return Outcome([result for result in results if result is not None], next(reversed(failed.values()), None))


def _heard(job: Job) -> RunFailed | None:
    """Take what a process has said so far and show its warnings; why its run failed, if it did."""
    with suppress(EOFError):
        while job.reports.poll():
            report: Report = job.reports.recv()
            if report.exit_code in KINDS:  # the others would fail as well
                raise KINDS[report.exit_code](report.text)
            if report.exit_code is not None:
                return with_folder(RunFailed(report.text), job.folder)
            warnings.warn(report.text, ConfigWarning, stacklevel=2)
    return None


def _unsaid(job: Job) -> RunFailed:
    """Of a process that ended without a word."""
    from codecl.peers.local import ending

    assert job.process.exitcode is not None
    return RunFailed(
        f"{job.folder}: its process ended early ({ending(job.process.exitcode)}); the same command goes on with it"
    )


@contextmanager
def _going(options: RunOptions) -> Iterator[list[Job]]:
    """The runs under way. None is left behind: what still runs in the end is interrupted, and can go on later."""
    from codecl.runs.machine import processors

    jobs: list[Job] = []
    chosen = "OMP_NUM_THREADS" in os.environ
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, processors() // options.jobs)))
    try:
        yield jobs
    except KeyboardInterrupt:
        print(f"codecl: interrupted; {len(jobs)} runs were under way; the same command goes on", file=sys.stderr)
        sys.exit(common.INTERRUPTED)
    finally:
        if not chosen:
            del os.environ["OMP_NUM_THREADS"]
        for job in jobs:
            job.process.terminate()
        deadline = time.monotonic() + GRACE_S
        for job in jobs:
            job.process.join(max(0.0, deadline - time.monotonic()))
            job.process.kill()
            job.process.join()


@contextmanager
def _showing(options: RunOptions) -> Iterator[Callable[[Sequence[Job]], None]]:
    """Hands out what shows how runs go on, read from their folders."""
    from codecl.cli.live import following
    from codecl.files import is_locked
    from codecl.runs.follow import Follower, RunFolder

    shown: list[RunFolder] = []
    follower = Follower(options.out, known=shown)

    def look(jobs: Sequence[Job]) -> None:
        begun = [job for job in jobs if is_locked(job.folder) is not False or job.process.exitcode is not None]
        shown[:] = [RunFolder(job.folder) for job in begun]  # what the others' hold is of an earlier run
        if shown:
            show(follower.look())

    if options.quiet:
        yield lambda jobs: None
    else:
        with following(options.console) as show:
            yield look


def _begin(config: "RunConfig", options: RunOptions) -> Job:
    """Ctrl-C reaches every process of a terminal: this one alone heeds it, and ends the others."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe(duplex=False)
    given = {name: getattr(options, name) for name in ("out", "device", "again", "mu", "boards", "boards_to")}
    process = spawn.Process(target=_run, args=(config, given, there, multiprocessing.get_start_method()))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before)
    there.close()
    return Job(folder_of(config, options.out), process, here)


def _run(config: "RunConfig", given: dict[str, Any], reports: Connection, start_method: str) -> None:
    """In a process of its own, which ends as by Ctrl-C when the one that began it asks it to, or is gone."""
    from codecl.cli.terminal import PlainConsole
    from codecl.exchange.cluster.ranks import Ranks
    from codecl.runs.build import load_tasks
    from codecl.runs.machine import device_of

    def warn(message: Warning | str, *_: Any, **__: Any) -> None:
        reports.send(Report(str(message)))

    multiprocessing.set_start_method(start_method, force=True)  # of processes that read its data
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.showwarning = warn
    try:
        ranks = Ranks("simulated", device_of(given["device"]))
        run_one(config, RunOptions(ranks=ranks, console=PlainConsole(quiet=True), quiet=True, **given), load_tasks)
    except CodeclError as error:
        reports.send(Report(str(error), error.exit_code))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(common.INTERRUPTED)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
