"""`Learner`: one task after another, as they arrive; its folder holds all that the next one needs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from codecl.api import Job, OnEvent, Result, own_config, train_in
from codecl.data.task import Task
from codecl.errors import ConfigError, DataError
from codecl.exchange.cluster.ranks import joined
from codecl.exchange.topology import Graph
from codecl.methods import Method
from codecl.registry import near
from codecl.runs import code, growing, next_task, own, reader
from codecl.runs.config import RunConfig
from codecl.runs.growing import Standing
from codecl.runs.machine import device_of
from codecl.runs.model import load
from codecl.runs.next_task import Tests
from codecl.runs.writer import folder_of
from codecl.space.wrapped import unwrapped

TestAgain = Sequence[Task] | Mapping[str | int, Any]


class Options(NamedTuple):
    """What does not change what is learned."""

    device: str
    exchange: str
    mu: bool
    on_event: OnEvent | None
    progress: bool


class Learner:
    """Learns one task after another, whenever they arrive, in this process or in another one.

    Law: it ends as a `fit` of all its tasks. What a next task needs is in `folder`, which may be copied to another
    machine; old training data is not needed."""

    def __init__(
        self,
        model: nn.Module,
        *,
        agents: int = 4,
        topology: str | Mapping[str, Any] | Graph = "ring",
        method: str | Method = "codec",
        out: str | Path = "runs",
        device: str = "auto",
        exchange: str = "auto",
        mu: bool = False,
        on_event: OnEvent | None = None,
        progress: bool = True,
        loss: str | own.Function | None = None,
        score: str | own.Function | None = None,
        **settings: Any,
    ) -> None:
        """The keywords are those of `fit`. Made again with the same ones, a learner goes on where it was."""
        self._allow_code = False
        model, settings = unwrapped(model), own.with_functions(settings, loss=loss, score=score)
        start = own_config(model, agents, topology, method, settings)
        self._take(folder_of(start, Path(out)), start, model, Options(device, exchange, mu, on_event, progress))

    @classmethod
    def open(
        cls,
        folder: str | Path,
        model: nn.Module | None = None,
        *,
        device: str = "auto",
        exchange: str = "auto",
        mu: bool = False,
        on_event: OnEvent | None = None,
        progress: bool = True,
        allow_code: bool = False,
    ) -> "Learner":
        """The learner of this folder. `model`: a module of the same structure, where it was made with one of your own;
        its weights come from the folder. `allow_code`: run the code that the folder's config names.

        A folder of `codecl.fit` or `codecl run` stays as it is: the learner goes on in a new one beside it."""
        learner, path = cls.__new__(cls), Path(folder)
        learner._allow_code = allow_code
        model = None if model is None else unwrapped(model)
        learner._take(path, None, model, Options(device, exchange, mu, on_event, progress))
        now = learner._now()
        if not now.tasks:
            raise DataError(
                f"{path}: its first task is not finished; go on with codecl.Learner(model, …) and that task"
            )
        past = path / reader.BEFORE if now.begun else path
        allowed = code.names(now.config)
        next_task.module_of(next_task.read_past(past), model, allowed)  # what does not fit is refused now
        return learner

    def _take(self, folder: Path, start: RunConfig | None, model: nn.Module | None, options: Options) -> None:
        self.folder, self.module, self._start, self._options = folder, model, start, options
        self._tests: dict[int, Any] = {}  # of tasks whose test data is here
        if folder.is_dir():
            with joined(options.exchange, device_of(options.device)) as ranks:
                ranks.broadcast(lambda: growing.tidy(folder))

    def _now(self) -> Standing:
        now = growing.standing(self.folder, self._start)
        code.check(now.config, self.folder, self._allow_code, code.names(self._start) if self._start else ())
        return now

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks that are learned."""
        return [about.name for about in self._now().tasks]

    @property
    def metrics(self) -> dict[str, Any]:
        """Of all tasks so far; empty before the first."""
        return reader.read_run(self.folder).metrics.dump() if self.tasks else {}

    def model(self, task: int | None = -1) -> nn.Module:
        """The trained module with the head of this task (from 0; -1: the last), ready for inference; None: one for
        images of any task, which finds it itself."""
        learned = len(self.tasks)  # which refuses code that is not allowed
        number = None if task is None else range(learned)[task]
        return load(self.folder, number, self.module, allow_code=True)

    def learn(self, task: Task, *, test_again: TestAgain = (), again: bool = False) -> Result:
        """Train this task after those before it, and score all whose test data is here.

        `test_again`: tasks that another process learned, or their test data by name or number (from 0); one without is
        not scored again. A task that is learned already is not learned twice, its result is given back (`again=True`
        learns it once more); one that was stopped goes on."""
        now = self._now()
        task = own.loaded(len(now.tasks), task, now.config)
        digest = own.task_digest(task)
        tests = {**self._tests, **_tests(test_again, now)}
        test = task if now.config.data.validation else task.test
        if digest in now.learned and not again:
            self._tests = tests | {number: test for known, number in now.numbers.items() if known == digest}
            return Result(self.metrics, self.folder, False, self.module)
        if now.begun not in (None, digest):
            raise ConfigError(
                f"learn: another task than {task.name!r} was begun in {self.folder}; learn that one to go on with it,"
                " or give it up with undo()"
            )
        result = self._train(task, now, digest, tests)
        self._tests = {**tests, len(now.tasks): test}
        return result

    def undo(self) -> None:
        """Give up a task that was begun and not finished: the folder is as it was after the last one."""
        now = self._now()
        if now.begun is None:
            raise ConfigError(f"undo: no task is begun in {self.folder}; one that is finished stays learned")
        if not now.tasks:
            raise ConfigError(f"undo: the first task is begun in {self.folder}; remove the folder instead")
        growing.restore(self.folder)

    def _train(self, task: Task, now: Standing, digest: str, tests: Tests) -> Result:
        config = now.config if now.begun else next_task.with_own(now.config, [digest])
        folder = self._next_folder(now, config)
        options = self._options
        with joined(options.exchange, device_of(options.device)) as ranks:
            done = None if folder == self.folder else reader.recorded(folder, config)
            if done is not None:
                self.folder = folder
                return Result(done.dump(), folder, False, self.module)
            job = Job(folder, config, self.module, [task], mu=options.mu, on_event=options.on_event)
            job = job._replace(progress=options.progress)
            if now.tasks:
                job = job._replace(after=self.folder, tests={**self._old_tests(now), **tests})
            try:
                result = train_in(job, ranks)
            finally:
                if ranks.is_main:
                    growing.tidy(folder)  # what was refused leaves nothing behind
        self.folder = folder
        return result

    def _next_folder(self, now: Standing, config: RunConfig) -> Path:
        """This one, unless a call of `fit` or `codecl run` would look for its run here."""
        if now.begun or not now.tasks:
            return self.folder
        place = self.folder.resolve()
        is_of_run = len(place.parts) > 2 and folder_of(now.config, place.parents[1]) == place
        return folder_of(config, self.folder.parent.parent) if is_of_run else self.folder

    def _old_tests(self, now: Standing) -> dict[int, Task]:
        """The tasks of a stream that the config names."""
        return next_task.old_tests(now.config, len(now.tasks), reader.read_files(self.folder))


def _tests(given: TestAgain, now: Standing) -> dict[int, Any]:
    """Test data by the number of its task."""
    names = [about.name for about in now.tasks]
    if isinstance(given, Mapping):
        return {_number(key, names): value for key, value in given.items()}
    out: dict[int, Any] = {}
    for place, one in enumerate(given):
        task = own.loaded(place, one, now.config)
        number = now.numbers.get(own.task_digest(task))
        out[_number(task.name, names) if number is None else number] = task
    return out


def _number(key: str | int, names: Sequence[str]) -> int:
    if isinstance(key, int) and 0 <= key < len(names):
        return key
    if key not in names or names.count(str(key)) > 1:
        why = "is the name of several tasks, give a number from 0" if key in names else "is not a task that is learned"
        hint = near(str(key), dict.fromkeys(names))
        raise ConfigError(f"test_again: {key!r} {why}{hint}; there are {', '.join(names) or 'none'}")
    return names.index(str(key))
