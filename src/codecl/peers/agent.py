"""One agent of a fleet: the loop of `train.py` on its own machine, with a record of what it heard and missed."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from codecl.data import verdicts
from codecl.errors import RunFailed
from codecl.exchange import digest
from codecl.peers import fleet, next_task
from codecl.peers.decisions import Rounds
from codecl.peers.fleet import Member, check_offered
from codecl.peers.history import History, NodeIdentity
from codecl.peers.keys import Keys
from codecl.peers.links import Links
from codecl.peers.next_task import COMMITS, Before
from codecl.peers.node import Node
from codecl.peers.receiving import OutOfSync, Receiving
from codecl.runs.build import build_setup, task_data
from codecl.runs.config import RunConfig
from codecl.runs.machine import compute_settings, device_of, seeded
from codecl.runs.reader import read_events, recorded
from codecl.runs.schema import Metrics
from codecl.runs.writer import RunWriter, labels_of
from codecl.runs.writer import folder_of as run_folder_of
from codecl.space import norms
from codecl.train import events
from codecl.train.loop import at_rest, train
from codecl.train.privacy import SecretNoise
from codecl.train.scoring import evaluate
from codecl.train.state import Setup, State, TaskPosition
from codecl.train.task_end import unpack
from codecl.train.task_start import chooses, task_layout


class Start(NamedTuple):
    """What an agent goes on from."""

    restarted: bool = False  # in the middle of this run
    goes_on: bool = False  # with a next task, from what it learned before
    degraded: bool = False  # already
    links: events.LinksClosed | None = None  # of the tasks before


class Taken(NamedTuple):
    """How an agent's run ended."""

    metrics: Metrics
    folder: Path


def folder_of(config: RunConfig, out: Path, agent: int) -> Path:
    return run_folder_of(config, out) / f"agent-{agent}"


def take_part_on(path: Path, out: Path | None = None, again: bool = False, allow_code: bool = False) -> Iterator[Taken]:
    """As the agent that an agent.yaml describes: its run, and one more for each next task that it was given
    meanwhile. `allow_code`: run the code that the fleet's config names."""
    member = fleet.read(path)
    next_task.check_code(member.fleet, path, allow_code)
    yield take_part(member, out, again)
    while next_task.take_next(member):
        member = fleet.read(path)
        next_task.check_code(member.fleet, path, allow_code)
        yield take_part(member, out)


def take_part(member: Member, out: Path | None = None, again: bool = False) -> Taken:
    """Train as this agent of the fleet, with its neighbours, to the end; or give back what is recorded already."""
    config, agent = _own(member), member.identity.agent
    device = device_of(member.settings.device)
    folder = folder_of(config, out or Path(member.settings.out), agent)
    done = recorded(folder, config)
    if done is not None and not again:
        return Taken(done, folder)
    before = next_task.before(member, config, out)
    past = before.past_tasks(config, device) if before else []
    rules, identity = member.fleet.peers, identity_of(member)
    node = partial(Node, identity=identity, rules=rules, voting=config.growth.robust == "vote")
    with compute_settings(device):
        data = task_data(config, before.added(config) if before else None, device, alone=True, first=len(past))
        with seeded(config.seed, "trial", device):
            setup, state = build_setup(config, data, device, exchange=node, past=past)
    if setup.privacy.is_on:  # the seed is everyone's
        setup = setup._replace(noise=SecretNoise())
        for task in setup.tasks:
            task.draw_in_secret()
    growth = setup.growth.model_copy(update={"min_images": max(rules.min_images, setup.growth.min_images)})
    for task in setup.tasks if setup.method.grows else ():  # what an agent grows goes to strangers, and shows images
        growth.check(task.name, min(map(len, task.partition)))  # all agents refuse, and none waits for another
    if config.train.execution == "auto":  # one agent: nothing to stack
        setup = setup._replace(execution="loop")
    going_on = not again and next_task.was_at_work(folder, member)
    start = Start(restarted=going_on)
    if before and not going_on:
        start = _next_start(before, folder, config, setup)
    labels = labels_of(config, len(setup.heads), setup.method.each_task_alone, agent)
    writer = (RunWriter.append if going_on or start.goes_on else RunWriter.new)(folder, config, labels)
    writer.describe(device, setup, before.files if before else {})
    history = _new_history(setup, state, config, member)
    if going_on or start.goes_on:
        history.load(folder / COMMITS, identity.fleet, config.agents, identity.check)
    dropout = f"dropout/{agent}/{len(past)}" if past else f"dropout/{agent}"
    with compute_settings(device), seeded(config.seed, dropout, device):
        return PeerRun(setup, state, history, writer, member, start).run()


def _next_start(before: Before, folder: Path, config: RunConfig, setup: Setup) -> Start:
    """With a next task, after what this agent learned before, where it still has it."""
    if not before.begin(folder, config, setup):
        return Start()
    links = events.of_type(read_events(before.folder), events.LinksClosed)
    return Start(goes_on=True, degraded=before.degraded, links=links[-1] if links else None)


def identity_of(member: Member) -> NodeIdentity:
    """Who this agent is, and how it signs and checks what others signed."""
    keys = Keys(member)
    return NodeIdentity(member.identity.agent, member.fleet.name, keys.sign, keys.check, keys)


def connect(member: Member, node: Receiving) -> Links:
    """Links that fill this node."""
    addresses = {agent: address.target for agent, address in enumerate(member.fleet.addresses)}
    assert node.identity.keys is not None
    return Links(node, node.identity.keys, addresses | member.settings.reach, member.listen)


def _own(member: Member) -> RunConfig:
    """The fleet's config, with this agent's own data."""
    config = member.fleet.run_config()
    check_offered(config)
    return next_task.with_own_data(config, member)


def _new_history(setup: Setup, state: State, config: RunConfig, member: Member) -> History:
    """Without commits; its start is the digest of all that agents have to begin with alike."""
    versions = [*(earlier.run_config() for earlier in member.fleet.earlier), config]
    learned = [len(earlier.tasks) for earlier in member.fleet.earlier]
    first_heads = setup.heads[: learned[0]] if learned else setup.heads
    heads = {f"{n}/{name}": value for n, head in enumerate(first_heads) for name, value in head.items()}
    start = f"{member.fleet.name} {versions[0].digest()} {config.seed} {digest({**state.parameters, **heads})}"
    kept = {f"weights/{name}" for name in (*setup.roles.head, *setup.own_norms)}
    kept |= {f"weights/{name}.{norms.MOMENTS}" for name in norms.batch_norms(setup.module)}
    kept |= {f"own/{layer.name}/{group}" for layer in setup.roles.layers for group in range(layer.groups)}
    stages = stages_of(setup)
    openings = [number for number, stage in enumerate(stages) if stage.opens]
    over = [sum(stage.task < tasks for stage in stages) for tasks in learned]
    added = {count: version.digest() for count, version in zip(over, versions[1:], strict=True)}
    return History(hashlib.sha256(start.encode()).digest(), kept, openings, added)


class Stage(NamedTuple):
    """What a commit ends: the opening of a task, in which its directions are chosen, or the task itself."""

    task: int
    opens: bool


def stages_of(setup: Setup) -> list[Stage]:
    tasks = range(len(setup.heads))
    return [Stage(task, opens) for task in tasks for opens in (True, False) if not opens or chooses(setup, task)]


class PeerRun:
    """A run of one agent among peers."""

    def __init__(
        self, setup: Setup, first: State, history: History, writer: RunWriter, member: Member, start: Start
    ) -> None:
        self.setup, self.first, self.history, self.writer, self.member = setup, first, history, writer, member
        self.start = start
        assert isinstance(setup.exchange, Node)
        self.node: Node = setup.exchange
        self.stages = stages_of(setup)
        self.missed = start.links.missed if start.links else 0
        self._sizes: dict[bytes, int] = {}  # of a row, after this commit

    def run(self) -> Taken:
        finished, stages = False, len(self.stages)
        self.node.journal.degraded = self.start.restarted or self.start.degraded
        if self.start.restarted:
            self.writer.event(events.MemberChanged(agent=self.node.agent, state="restarted"))
        started = self.writer.labels.started(
            edges=self.setup.topology.edges,
            contraction=self.setup.topology.contraction,
            digest=self.writer.config.digest(),
            execution=self.setup.execution,
            fleet=self.member.fleet.name,
            data_sets=verdicts.of_stream(self.writer.config.data),
        )
        if not self.start.goes_on:
            self.writer.event(started)
        try:
            self.node.open(self.history, stages, _max_bytes(self.setup, self.first), partial(connect, self.member))
            self.node.meet()
            self._train()
            self.node.linger()
            finished = True
        finally:
            links = self.node.close()
            self._notes()
            status: events.Status = "degraded" if self.node.journal.degraded else "complete"
            before = self.start.links.links if self.start.links else {}
            self.writer.event(events.LinksClosed(links=added_up(before, links), missed=self.missed))
            metrics = self.writer.close(status if finished else "partial")
        return Taken(metrics, self.writer.folder)

    def _train(self) -> None:
        """The loop, taken up again wherever the others are when they went on without us."""
        position: TaskPosition | None = None
        while len(self.history.commits) < len(self.stages):
            if self._lacks_a_past_task:
                position = self._rejoin()
                if self._lacks_a_past_task:
                    task = self._task(len(self.history.commits)) + 1
                    raise RunFailed(f"task {task} was learned before, and no neighbour was met that still has it")
            try:
                for event in train(self.setup, self._state(), position):
                    self._record(event)
                return
            except OutOfSync:
                position = self._rejoin()

    @property
    def _lacks_a_past_task(self) -> bool:
        """Whether the others have learned what this agent cannot train any more."""
        return self._task(len(self.history.commits)) < len(self.setup.past)

    def _rejoin(self) -> TaskPosition | None:
        before = self.history.ids
        point = self.node.rejoin(self._rounds)
        self._notes()
        if self.history.ids != before:
            self.writer.attempt("commits", partial(self.history.save, self.writer.folder / COMMITS))
            state = self._state()
            if state.kept and self._ends(self.history.ids) != self._ends(before):
                self.writer.state = state
                self._record(evaluate(self.setup, state, len(state.kept) - 1))
        if point is None:
            return None
        row_AD = point.row_D.to(self.node.device).expand(self.setup.topology.agents, -1)
        train = self.setup.train
        step = point.step // train.messages_a_step
        carry_AE = at_rest(self.setup, row_AD, step * train.gossip_rounds).joined()
        if point.agreed:
            return TaskPosition(train.epochs, carry_AE, agreed=True)
        task = self.stages[len(self.history.commits)].task
        steps = self.setup.data(task).steps(train.batch_size)
        return TaskPosition(step // steps, carry_AE, step % steps)

    def _ends(self, ids: Sequence[bytes]) -> list[bytes]:
        """Of these commits, those that ended a task."""
        return [id for id, stage in zip(ids[1:], self.stages, strict=False) if not stage.opens]

    def _rounds(self, stage: int) -> Rounds:
        task, opens = self.stages[stage]
        if opens or task < len(self.setup.past):
            return Rounds(0, 0, 0)
        data, commit = self.setup.data(task), self.history.newest_id
        if commit not in self._sizes:
            self._sizes[commit] = task_layout(self.setup, self._state(), data).size
        train = self.setup.train
        step, training = train.messages_a_step, train.epochs * data.steps(train.batch_size) * train.messages_a_step
        return Rounds(training, training + self.setup.agree_rounds, self._sizes[commit], step, train.gossip_rounds)

    def _state(self) -> State:
        """From the commits alone: agents that hold the same ones hold the same state."""
        state = self.first
        for commit, stage in zip(self.history.commits, self.stages, strict=False):
            tensors = {name: value.to(self.node.device) for name, value in commit.tensors.items()}
            if stage.opens:
                state = state._replace(directions=tensors)
            else:
                state = unpack(self.setup, state, tensors, statistics={})
        return state

    def _record(self, event: events.Event) -> None:
        if isinstance(event, events.EpochEnded):
            unread = self.setup.messages(event.task).unread(event.live.carry.memory_AM)
            if unread:
                self.node.journal.note(self.node.position, "unread", self.node.agent, unread)
        self._notes()
        if isinstance(event, events.EpochEnded | events.Agreed):
            missed = self.node.journal.take_missed()
            self.missed += len(missed)
            own = {"disagreement": event.consensus_error, "consensus_error": None, "missed": spans(missed)}
            self.writer.event(event.model_copy(update=own))
        else:
            self.writer.event(event)
        if isinstance(event, events.Flooded | events.DirectionsChosen):
            self.writer.attempt("commits", partial(self.history.save, self.writer.folder / COMMITS))

    def _notes(self) -> None:
        for note in self.node.journal.take_notes():
            tasks = sorted({self._task(stage) for stage in note.tasks}) if note.tasks else None
            self.writer.event(note.model_copy(update={"task": self._task(note.task or 0), "tasks": tasks}))

    def _task(self, stage: int) -> int:
        return self.stages[stage].task if stage < len(self.stages) else len(self.setup.heads)


def added_up(*links: Mapping[str, events.LinkBytes]) -> dict[str, events.LinkBytes]:
    """By neighbour, what went over the links of several sessions."""
    out: dict[str, events.LinkBytes] = {}
    for peer, count in (item for of_session in links for item in of_session.items()):
        known = out.get(peer, events.LinkBytes())
        fields = events.LinkBytes.model_fields
        out[peer] = events.LinkBytes(**{name: getattr(known, name) + getattr(count, name) for name in fields})
    return out


def spans(missed: Iterable[tuple[int, int]]) -> dict[str, list[tuple[int, int]]]:
    """(step, neighbour) -> by neighbour, (first, last) of the steps in which it was not heard."""
    out: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for step, peer in sorted(missed):
        known = out[str(peer)]
        goes_on = known and step <= known[-1][1] + 1
        first = known.pop()[0] if goes_on else step
        known.append((first, step))
    return dict(out)


def _max_bytes(setup: Setup, start: State) -> int:
    """What the tensors of a message can have: weights and heads, a method's memory of as many or of a basis."""
    numbers = sum(value.numel() for value in (*start.parameters.values(), *setup.heads[0].values()))
    numbers += max(sum(value.numel() for value in head.values()) for head in setup.heads)
    bases = [layer.groups * (layer.inputs + 1) * (layer.direction_size + 1) for layer in setup.roles.layers]
    return 8 * (3 * numbers + sum(bases)) + (1 << 16)
