"""The next task of a fleet: `fleet.yaml` of a stopped one names it, and each agent goes on from what it has learned,
or from what its neighbours have; old training data is not needed. Beside that of one at work lies `next.yaml`, which
takes its place when the agent has ended."""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

from codecl.data.past import PastTask, past_task
from codecl.data.task import Task, TaskInfo
from codecl.errors import ConfigError, DataError
from codecl.files import is_locked, write_text
from codecl.peers import fleet
from codecl.peers.fleet import Earlier, Fleet, Member, check_offered
from codecl.runs import code, yamlfile
from codecl.runs import config as configs
from codecl.runs.build import task_options
from codecl.runs.config import RunConfig
from codecl.runs.growing import amended
from codecl.runs.next_task import added_tasks, extended, old_tests
from codecl.runs.reader import read_events, read_files, read_metrics, read_tasks
from codecl.runs.writer import folder_of, write_begun
from codecl.train.events import LinksClosed, RunEnded, RunStarted
from codecl.train.state import Setup

COMMITS = "commits"  # the folder of what each task left, in a run's own
ENDED = ("complete", "degraded")
NEXT = "next.yaml"  # beside a fleet.yaml: the fleet with one more task


class Before(NamedTuple):
    """What an agent's fleet had learned before its newest task was added."""

    config: RunConfig
    tasks: Sequence[TaskInfo]
    folder: Path  # of this agent's run then; it may be gone
    member: Member

    @property
    def files(self) -> dict[str, str]:
        return read_files(self.folder)

    @property
    def degraded(self) -> bool:
        with suppress(DataError):
            return read_metrics(self.folder).status != "complete"
        return True

    def past_tasks(self, config: RunConfig, device: torch.device) -> list[PastTask]:
        tests, options = old_tests(self.config, len(self.tasks), self.files), task_options(config, device)
        return [past_task(index, about, tests.get(index), options) for index, about in enumerate(self.tasks)]

    def added(self, config: RunConfig) -> list[Task]:
        return added_tasks(self.config, config, len(self.tasks))

    def begin(self, folder: Path, config: RunConfig, setup: Setup) -> bool:
        """The new run's folder, with what this agent recorded before; False: it has nothing."""
        if not was_at_work(self.folder, self.member):
            return False
        heads = sum(value.numel() for head in setup.heads[len(self.tasks) :] for value in head.values())
        recorded = [event for event in read_events(self.folder) if not isinstance(event, LinksClosed | RunEnded)]
        shutil.rmtree(folder / COMMITS, ignore_errors=True)
        if (self.folder / COMMITS).is_dir():
            shutil.copytree(self.folder / COMMITS, folder / COMMITS)
        write_begun(folder, config, [amended(event, config, len(setup.heads), heads) for event in recorded], None)
        return True


def before(member: Member, config: RunConfig, out: Path | None) -> Before | None:
    """None: the fleet has its first tasks."""
    if not member.fleet.earlier:
        return None
    earlier = member.fleet.earlier[-1]
    old = with_own_data(earlier.run_config(), member)
    return Before(old, earlier.tasks, run_folder(member, old, out), member)


def run_folder(member: Member, config: RunConfig, out: Path | None) -> Path:
    return folder_of(config, out or Path(member.settings.out)) / f"agent-{member.identity.agent}"


def with_own_data(config: RunConfig, member: Member) -> RunConfig:
    """A config of the fleet, with this agent's own data."""
    if member.settings.data.local_path is None:
        return config
    mine = str((member.folder / member.settings.data.local_path).resolve())
    return configs.validate(configs.merge(config.model_dump(mode="json"), {"data": {"local_path": mine}}))


def was_at_work(folder: Path, member: Member) -> bool:
    """Whether this agent of this very fleet was at work here before."""
    with suppress(DataError):
        first = read_events(folder)[:1]
        return any(isinstance(event, RunStarted) and event.fleet == member.fleet.name for event in first)
    return False


class Added(NamedTuple):
    """A task that a fleet was given."""

    fleet: Fleet
    tasks: int  # that it had before
    written: Sequence[Path]  # each a fleet.yaml, or a next.yaml
    at_work: bool  # agents go on by themselves when they have ended


def check_code(known: Fleet, source: Path, allow_code: bool) -> None:
    """Refuse code that a fleet's config names, now or before tasks were added, unless it is allowed."""
    for config in (known.run_config(), *(version.run_config() for version in known.earlier)):
        code.check(config, source, allow_code)


def learn(folder: Path, task: str, out: Path | None = None, allow_code: bool = False) -> Added:
    """Give a fleet its next task. `folder`: the fleet's, or that of an agent; `out`: where its runs are."""
    agents = sorted(folder.glob("agent-*/agent.yaml")) or [folder / "agent.yaml"]
    members = [fleet.read(path) for path in agents]
    known = members[0].fleet
    for member in members:
        check_code(member.fleet, folder, allow_code)
    config = known.run_config()
    runs = [run_folder(member, with_own_data(config, member), out) for member in members]
    begun = [run for run in runs if _is_here(run)]
    if not begun:
        raise ConfigError(f"{folder}: no agent of this fleet has a run here (no {runs[0]}); say where: --out")
    at_work = any(map(is_locked, runs))
    tasks = read_tasks(begun[0])
    next_config = extended(config, task, read_files(begun[0]), _local_path(members))
    check_offered(next_config)
    fields = {"config": next_config.model_dump(mode="json"), "digest": next_config.digest()}
    earlier = (*known.earlier, Earlier(config=known.config, tasks=tuple(tasks)))
    changed = Fleet.model_validate({**known.model_dump(by_alias=True), **fields, "earlier": earlier})
    shared = [folder / "fleet.yaml"] if (folder / "fleet.yaml").is_file() else []
    files = [*([] if at_work else shared), *(member.folder / member.settings.fleet for member in members)]
    written = list(dict.fromkeys(path.with_name(NEXT) if at_work else path for path in files))
    for path in written:
        if at_work and path.is_file():
            raise ConfigError(f"{path}: a next task is waiting there already; give another one when that is begun")
        write_text(path, changed.dump())
    return Added(changed, len(tasks), written, at_work)


def take_next(member: Member) -> bool:
    """When an agent has ended: whether it was given a next task meanwhile, which its fleet.yaml then names."""
    path = member.folder / member.settings.fleet
    waiting = path.with_name(NEXT)
    if not waiting.is_file():
        return yamlfile.read(Fleet, path, fleet.AGAIN).digest != member.fleet.digest
    known, given = member.fleet, yamlfile.read(Fleet, waiting, fleet.AGAIN)
    if (given.name, given.addresses) != (known.name, known.addresses) or given.earlier[:-1] != known.earlier:
        raise ConfigError(f"{waiting}: is not the next task of fleet {known.name}; remove it, or run peer learn again")
    os.replace(waiting, path)
    return True


def _is_here(run: Path) -> bool:
    """Whether an agent's run is here, finished or at work; one that was stopped in the middle is refused."""
    if is_locked(run):
        return (run / "model" / "tasks.json").is_file()
    if not run.is_dir():
        return False
    with suppress(DataError):
        if read_metrics(run).status in ENDED:
            return True
    raise ConfigError(f"{run}: this agent has not ended; start it again, and give the next task when it has")


def _local_path(members: Sequence[Member]) -> str | None:
    """Of the first agent here that has its own data."""
    paths = [member.folder / member.settings.data.local_path for member in members if member.settings.data.local_path]
    return str(paths[0].resolve()) if paths else None
