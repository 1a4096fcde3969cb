"""One agent of a fleet: the loop of `train.py` on its own machine, with a record of what it heard and missed."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from codecl.errors import ConfigError, DataError
from codecl.exchange import digest
from codecl.files import replacing
from codecl.peers import fleet as fleets
from codecl.peers import history as charts
from codecl.peers import rejoin as returning
from codecl.peers.exchange import OutOfSync, Peers
from codecl.peers.fleet import Member
from codecl.peers.frames import BadFrame
from codecl.peers.history import Archive, Chart
from codecl.peers.links import Keys, Links, Listener
from codecl.peers.membership import Rules, Self
from codecl.peers.node import Mailbox
from codecl.peers.rejoin import Joined
from codecl.runs import config as configs
from codecl.runs.build import build_setup, compute_settings, device_of, seeded, task_data
from codecl.runs.config import RunConfig
from codecl.runs.folder import folder_of as run_folder_of
from codecl.runs.folder import labels_of
from codecl.runs.reader import read_events, recorded
from codecl.runs.schema import Metrics
from codecl.runs.writer import RunWriter
from codecl.train.events import (
    Agreed,
    EpochEnded,
    Event,
    Flooded,
    LinkBytes,
    LinksClosed,
    MemberChanged,
    RunStarted,
    Status,
)
from codecl.train.loop import evaluate, train
from codecl.train.state import Setup, State, TaskPosition
from codecl.train.task_end import unpack

OnEvent = Callable[[Event], None]
CLEAN = {"connected", "disconnected"}  # changes that cost nothing by themselves


class Taken(NamedTuple):
    """How an agent's part ended."""

    metrics: Metrics
    folder: Path


def folder_of(config: RunConfig, out: Path, agent: int) -> Path:
    return run_folder_of(config, out) / f"agent-{agent}"


def take_part(member: Member, out: Path | None = None, again: bool = False, on_event: OnEvent | None = None) -> Taken:
    """Train as this agent of the fleet, with its neighbours, to the end; or give back what is recorded already."""
    config, agent = _own(member), member.identity.agent
    device = device_of(member.settings.device)
    folder = folder_of(config, out or Path(member.settings.out), agent)
    done = recorded(folder, config)
    if done is not None and not again:
        return Taken(done, folder)
    data = task_data(config, None, device, alone=True)
    rules = member.fleet.peers
    times = Rules(rules.deadline, rules.silence, rules.meet)
    with compute_settings(device), seeded(config.seed, "trial", device):
        peers = partial(Peers, me=who(member), rules=times)
        setup, state = build_setup(config, data, device, exchange=peers)
    _check_images(setup, agent, rules.min_images)
    if config.train.execution == "auto":  # one agent: nothing to stack
        setup = setup._replace(execution="loop")
    going_on = not again and _begun(folder, member)
    writer = _open(folder, config, setup, agent, going_on)
    archive = _archive(setup, state, config, folder / "charts", member, going_on)
    with compute_settings(device), seeded(config.seed, f"dropout/{agent}", device):
        return _Part(setup, state, archive, writer, member, on_event).run()


def _check_images(setup: Setup, agent: int, least: int) -> None:
    """What an agent grows goes to strangers: it needs more images than would be shown by it."""
    growth = setup.growth.model_copy(update={"min_images": max(least, setup.growth.min_images)})
    for data in setup.tasks if setup.method.grows else ():
        growth.check(data.name, len(data.partition[agent]))


def who(member: Member) -> Self:
    """Who this agent is, and how it signs and checks what others signed."""
    sign, check = partial(fleets.sign, member.identity.key), partial(_signed, member)
    return Self(member.identity.agent, member.fleet.name, sign, check)


def connected(member: Member, box: Mailbox) -> Links:
    """Links that fill this mailbox."""
    fleet, me = member.fleet, member.identity
    names = partial(fleets.name_of, fleet.name), partial(fleets.agent_of, fleet.name)
    keys = Keys(me.key, me.certificate, me.authority, *names)
    places = {number: place.address for number, place in enumerate(fleet.places)} | member.settings.reach
    listener = Listener(box.heard, box.link_changed, box.admits)
    return Links(me.agent, keys, places, member.listen, listener, box.most, 2 * box.ahead)


def _own(member: Member) -> RunConfig:
    """The fleet's config, with this agent's own data."""
    config = member.fleet.run_config()
    if config.train.norm_statistics == "task":
        raise ConfigError(
            "train.norm_statistics: task needs sums over all agents, which peers do not offer; it should be batch"
        )
    if member.settings.data.local_path is None:
        return config
    mine = str((member.folder / member.settings.data.local_path).resolve())
    return configs.validate(configs.merge(config.model_dump(mode="json"), {"data": {"local_path": mine}}))


def _signed(member: Member, agent: int, data: bytes, signature: bytes) -> bool:
    return fleets.signed_by(member.fleet.places[agent].certificate, data, signature)


def _begun(folder: Path, member: Member) -> bool:
    """Whether this agent of this very fleet was at work here before."""
    try:
        first = read_events(folder)[:1]
    except DataError:
        return False
    return any(isinstance(event, RunStarted) and event.fleet == member.fleet.name for event in first)


def _open(folder: Path, config: RunConfig, setup: Setup, agent: int, going_on: bool) -> RunWriter:
    labels = labels_of(config, len(setup.tasks), setup.method.each_task_alone, agent)
    writer = (RunWriter.append if going_on else RunWriter.new)(folder, config, labels)
    writer.environment(setup.tasks[0].train[1].device)
    writer.tasks([data.describe() for data in setup.tasks])
    return writer


def _archive(setup: Setup, state: State, config: RunConfig, folder: Path, member: Member, kept: bool) -> Archive:
    """The charts that this agent holds on disk, checked like those that arrive."""
    begin = {**state.parameters, **{f"{n}/{name}": v for n, head in enumerate(setup.heads) for name, v in head.items()}}
    start = hashlib.sha256(f"{member.fleet.name} {config.digest()} {config.seed} {digest(begin)}".encode()).digest()
    archive = Archive(start, {f"weights/{name}" for name in setup.roles.head})
    for number in range(len(setup.tasks) if kept else 0):
        try:
            chart = _read(folder / f"{number + 1}.safetensors")
            charts.checked(chart, member.fleet.name, config.agents, partial(_signed, member))
        except (OSError, SafetensorError, KeyError, ValueError, BadFrame):
            break
        if archive.take(chart) is None:
            break
    while not archive.whole:
        archive.charts.pop()
    return archive


def _write(chart: Chart, path: Path) -> None:
    about = {"manifest": chart.manifest.decode(), "signature": chart.signature.hex()}
    with replacing(path) as unfinished:
        save_file(dict(chart.tensors), unfinished, about)


def _read(path: Path) -> Chart:
    with safe_open(path, "pt") as file:
        about = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return Chart(about["manifest"].encode(), bytes.fromhex(about["signature"]), tensors)


class _Part:
    """An agent's part in a run."""

    def __init__(
        self,
        setup: Setup,
        start: State,
        archive: Archive,
        writer: RunWriter,
        member: Member,
        on_event: OnEvent | None,
    ) -> None:
        self.setup, self.first, self.archive, self.writer, self.member = setup, start, archive, writer, member
        assert isinstance(setup.exchange, Peers)
        self.peers: Peers = setup.exchange
        self.on_event, self.missed = on_event, 0

    def run(self) -> Taken:
        finished = False
        self._begin()
        try:
            self.peers.box.open(
                self.archive, len(self.setup.tasks), _most(self.setup, self.first), partial(connected, self.member)
            )
            returning.meet(self.peers)
            self._train()
            returning.linger(self.peers)
            finished = True
        finally:
            if hasattr(self.peers.box, "links"):
                self.peers.box.close()
            self._notes()
            status: Status = "degraded" if self.peers.box.degraded else "complete"
            links = {str(peer): LinkBytes(**count) for peer, count in sorted(self.peers.box.bytes.items())}
            self.writer.event(LinksClosed(links=links, missed=self.missed))
            metrics = self.writer.close(status if finished else "partial")
        return Taken(metrics, self.writer.folder)

    def _begin(self) -> None:
        topology = self.setup.topology
        if self.writer.events or self.archive.charts:
            self.peers.box.degraded = True
            self.writer.event(MemberChanged(agent=self.peers.me, state="restarted"))
        started = self.writer.labels.started(
            edges=topology.edges,
            contraction=topology.contraction,
            digest=self.writer.config.digest(),
            execution=self.setup.execution,
            fleet=self.member.fleet.name,
        )
        self.writer.event(started)

    def _train(self) -> None:
        """The loop, taken up again wherever the others are when they went on without us."""
        position: TaskPosition | None = None
        while len(self.archive.charts) < len(self.setup.tasks):
            try:
                for event in train(self.setup, self._state(), position):
                    self._record(event)
                return
            except OutOfSync:
                position = self._rejoin()

    def _rejoin(self) -> TaskPosition | None:
        self.peers.box.degraded = True
        had = self.archive.ids
        joined = returning.rejoin(self.peers, self._rounds)
        self._notes()
        if self.archive.ids != had:
            self._keep()
            state = self._state()
            self.writer.state = state
            self._record(evaluate(self.setup, state, len(state.heads) - 1))
        return self._middle(joined) if joined else None

    def _rounds(self, task: int) -> tuple[int, int]:
        training = self.setup.train.epochs * self.setup.tasks[task].steps(self.setup.train.batch_size)
        return training, training + self.setup.topology.agree_rounds

    def _middle(self, joined: Joined) -> TaskPosition:
        row_D = joined.row_D.to(self.peers.device)
        if self.setup.train.momentum:
            row_D = torch.cat([row_D, torch.zeros_like(row_D)])
        carry = row_D.expand(self.setup.topology.agents, -1)
        if joined.agreed:
            return TaskPosition(self.setup.train.epochs, carry, agreed=True)
        steps = self.setup.tasks[self.peers.box.task].steps(self.setup.train.batch_size)
        return TaskPosition(joined.step // steps, carry, joined.step % steps)

    def _state(self) -> State:
        """From the charts alone: agents that hold the same ones hold the same state."""
        state = self.first
        for chart in self.archive.charts:
            tensors = {name: value.to(self.peers.device) for name, value in chart.tensors.items()}
            state = unpack(self.setup, state, tensors)._replace(norms=(*state.norms, {}))
        return state

    def _record(self, event: Event) -> None:
        self._notes()
        if isinstance(event, EpochEnded | Agreed):
            missed, self.peers.missed = self.peers.missed, []
            self.missed += len(missed)
            self.peers.box.degraded |= bool(missed)
            own = {"disagreement": event.consensus_error, "consensus_error": None, "missed": spans(missed)}
            self.writer.event(event.model_copy(update=own))
        else:
            self.writer.event(event)
        if isinstance(event, Flooded):
            self._keep()
        if self.on_event:
            self.on_event(event)

    def _notes(self) -> None:
        notes = self.peers.box.notes
        while notes:
            note = notes.popleft()
            self.peers.box.degraded |= note["state"] not in CLEAN
            self.writer.event(MemberChanged(**note))

    def _keep(self) -> None:
        """The charts on disk, for a restart."""
        for number, chart in enumerate(self.archive.charts, 1):
            _write(chart, self.writer.folder / "charts" / f"{number}.safetensors")


def spans(missed: Iterable[tuple[int, int]]) -> dict[str, list[tuple[int, int]]]:
    """(step, neighbour) -> by neighbour, (first, last) of the steps in which it was not heard."""
    out: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for step, peer in sorted(missed):
        known = out[str(peer)]
        if known and step <= known[-1][1] + 1:
            known[-1] = known[-1][0], step
        else:
            known.append((step, step))
    return dict(out)


def _most(setup: Setup, start: State) -> int:
    """Bytes that the tensors of a message can have: weights and heads, a method's memory of as many or of a basis."""
    whole = sum(value.numel() for value in (*start.parameters.values(), *setup.heads[0].values()))
    whole += max(sum(value.numel() for value in head.values()) for head in setup.heads)
    inputs = [(layer.groups, layer.shape[1:].numel() + 1) for layer in setup.roles.layers]
    return 8 * (3 * whole + sum(groups * count * count for groups, count in inputs)) + (1 << 16)
