"""`codecl peer`: a fleet of agents, each on a machine of its own."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codecl.cli.common import AllowCode, Out, PresetName, Settings, app, console_for, group
from codecl.errors import ConfigError, RunFailed, printable

if TYPE_CHECKING:
    from codecl.peers.authority import Authority
    from codecl.peers.decisions import PeersConfig
    from codecl.runs.config import RunConfig

peer = group("peer", "Agents as peers, each on a machine of its own.")

FIRST_PORT, DEGRADED = 7700, 4
PASSPHRASE = "CODECL_PASSPHRASE"

OneMethod = Annotated[str | None, typer.Option("--method", help="Default: the preset's first.")]
OneNumber = Annotated[str | None, typer.Option("--agents", metavar="N", help="Number of agents.")]
OneGraph = Annotated[str | None, typer.Option("--topology", help="A topology or an edge-list file.")]
OneSeed = Annotated[int | None, typer.Option("--seed", help="Of everything random.")]
Deadline = Annotated[str | None, typer.Option(help="Seconds a step waits for a neighbour; none: for ever.")]
Silence = Annotated[str | None, typer.Option(help="Seconds without a sign of life: an agent is dead.")]
At = Annotated[list[str] | None, typer.Option("--at", metavar="HOST:PORT", help="Of each agent, in order.")]
Hosts = Annotated[Path | None, typer.Option("--hosts", metavar="FILE", help="The same from a file, a line each.")]


@peer.command()
def init(
    preset: PresetName = "quickstart",
    method: OneMethod = None,
    agents: OneNumber = None,
    topology: OneGraph = None,
    seed: OneSeed = None,
    settings: Settings = None,
    at: At = None,
    hosts: Hosts = None,
    deadline: Deadline = None,
    silence: Silence = None,
    out: Annotated[Path, typer.Option("--out", help="The fleet's folder: new or empty.")] = Path("fleet"),
    passphrase: Annotated[
        bool, typer.Option("--passphrase", help="Encrypt the authority's key; asks, or takes $CODECL_PASSPHRASE.")
    ] = False,
) -> None:
    """Make a fleet: keys, certificates and a folder for each agent's machine. Without addresses: on this machine."""
    from rich.table import Column, Table
    from rich.text import Text

    from codecl.peers import fleet
    from codecl.runs import code

    given = _addresses(at or [], hosts)
    if given and agents is None:
        agents = str(len(given))  # as many as there are addresses
    config = _one_config(preset, method, agents, topology, seed, settings or [])
    addresses = given or [("127.0.0.1", FIRST_PORT + agent) for agent in range(config.agents)]
    secret = _passphrase(new=True) if passphrase else ""
    made = fleet.init(config, addresses, _peers(deadline, silence), out, secret)
    known = fleet.read(made[0]).fleet
    table = Table(Column("agent", justify="right"), "address", "folder", box=None, pad_edge=False)
    for agent, (address, path) in enumerate(zip(known.addresses, made, strict=True)):
        table.add_row(str(agent), Text(address.target), Text(str(path.parent)))
    console = console_for(False)
    console.print(table)
    console.print(f"fleet {known.name}, in {out}", highlight=False, markup=False, soft_wrap=True)
    typer.echo(f"next: copy each folder to its machine and run there, for example, `codecl agent {made[0]}`")
    for file in fleet.own_files(config):
        typer.echo(f"{file} is code of your own: copy it too, and start each agent in the folder where {file} is found")
    if code.named(config):
        typer.echo("its agents run code of your own: start them with `codecl agent --allow-code …`")
    typer.echo(f"keep {out / 'authority' / 'key.pem'} away from them: who has it can make agents of this fleet")


@peer.command()
def local(
    preset: PresetName = "quickstart",
    method: OneMethod = None,
    agents: OneNumber = None,
    topology: OneGraph = None,
    seed: OneSeed = None,
    settings: Settings = None,
    deadline: Deadline = None,
    silence: Silence = None,
    out: Out = Path("runs"),
    again: Annotated[bool, typer.Option("--again", help="Repeat a run that is complete; start anew.")] = False,
) -> None:
    """Run a whole fleet on this machine, an agent a process, on loopback ports: to try out, and to break."""
    from codecl.cli.live import following
    from codecl.peers import local as fleets
    from codecl.runs.writer import folder_of

    config = _one_config(preset, method, agents, topology, seed, settings or [])
    console = console_for(False)
    fleet = f"{config.agents} peers on {config.topology.name}"
    console.print(f"{config.preset}: {config.method.name}, {fleet}, seed {config.seed}", markup=False, highlight=False)
    with following(console) as show:
        codes = fleets.run(config, _peers(deadline, silence), out, again, show)
    folder = folder_of(config, out)
    console.print(f"recorded in {folder}", style="dim", highlight=False, soft_wrap=True)
    lost = {agent: code for agent, code in enumerate(codes) if code not in (0, DEGRADED)}
    for agent, code in lost.items():
        line = f"agent {agent} was lost ({fleets.ending(code)}); see {folder}/agent-{agent}.log"
        if len(lost) == len(codes):
            raise RunFailed(line)
        print(f"codecl: {line}", file=sys.stderr)
    if lost or DEGRADED in codes:
        raise typer.Exit(DEGRADED)


@peer.command()
def learn(
    folder: Annotated[Path, typer.Argument(metavar="FLEET", help="The fleet's folder, or that of one agent.")],
    task: Annotated[str, typer.Option(help="A data set's name, a stream as in data.stream, or next: of its own.")],
    out: Annotated[Path | None, typer.Option("--out", help="Where its runs are. Default: as agent.yaml says.")] = None,
    allow_code: AllowCode = False,
) -> None:
    """Give a fleet its next task, which needs no old data: agents at work go on with it, others when started again."""
    from codecl.peers import next_task

    added = next_task.learn(folder, task, out, allow_code)
    typer.echo(f"fleet {added.fleet.name} has {added.tasks} tasks; next: {task}")
    for path in added.written:
        typer.echo(f"{'wrote' if added.at_work else 'changed'} {path}")
    if added.at_work:
        typer.echo(
            f"copy {added.written[0]} beside each agent.yaml elsewhere; agents go on with it when they have ended"
        )
    else:
        typer.echo(
            f"copy {added.written[0]} over the one beside each agent.yaml elsewhere, and start every agent again"
        )


FleetFolder = Annotated[Path, typer.Argument(metavar="[FLEET]", help="The fleet's folder, with its authority.")]


@peer.command()
def renew(
    folder: FleetFolder = Path("fleet"),
    agents: Annotated[list[int] | None, typer.Argument(metavar="[AGENT]…", help="Default: all.")] = None,
) -> None:
    """Give agents new keys and certificates, valid for a year; one at work takes up the files when they are copied."""
    from codecl.peers import authority

    made = authority.renew(_authority(folder), agents or [])
    for path in made:
        typer.echo(f"new key and certificate in {path}")
    typer.echo("copy key.pem and certificate.pem over those beside the agent.yaml of each; agents at work take them up")


@peer.command()
def revoke(
    agents: Annotated[list[int], typer.Argument(metavar="AGENT…", help="Whose keys may have got out.")],
    folder: Annotated[Path, typer.Option("--fleet", metavar="FLEET", help="The fleet's folder.")] = Path("fleet"),
) -> None:
    """Take the certificates of agents back: the others close their links to them, and go on as if they were dead."""
    from codecl.peers import authority

    written = authority.revoke(_authority(folder), agents)
    names = ", ".join(map(str, sorted(set(agents))))
    typer.echo(f"revoked: agent {names}; the list is {written[0]}")
    typer.echo("copy it beside the agent.yaml of any agent at work, as revoked.pem: it passes it on to all others")
    typer.echo(f"back in: `codecl peer renew {folder} {' '.join(map(str, sorted(set(agents))))}`")


def _authority(folder: Path) -> "Authority":
    """Of the fleet in this folder, its passphrase asked for where its key has one."""
    from codecl.peers import authority

    secret = _passphrase(new=False) if authority.is_encrypted(folder) else ""
    return authority.open_authority(folder, secret)


def _passphrase(new: bool) -> str:
    """Of the authority's key: from the environment, or typed."""
    import os
    import sys

    given = os.environ.get(PASSPHRASE)
    if given is None and not sys.stdin.isatty():
        raise ConfigError(f"passphrase: there is nobody here to type it; set {PASSPHRASE}")
    if given is None:
        given = typer.prompt("passphrase of the authority's key", hide_input=True, confirmation_prompt=new)
    if not given:
        raise ConfigError(f"{PASSPHRASE}: is empty; it should be the passphrase of the authority's key")
    return given


@peer.command()
def gather(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="PLACES…", help="Folders with the runs of agents, here, or HOST:FOLDER to fetch by scp."
        ),
    ],
    out: Out = Path("runs"),
) -> None:
    """Bring the run folders of a fleet's agents together, as if all had run here, and show what came out."""
    from codecl.peers.gather import gather as gather_runs
    from codecl.report import formats
    from codecl.report.configurations import finished
    from codecl.report.tables import results

    runs = gather_runs(places, out)
    for run, agents in runs.items():
        typer.echo(printable(f"{run}: agents {', '.join(map(str, agents))}"))
    formats.show(results(finished(list(runs))), console_for(False))


@app.command()
def agent(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An agent.yaml of `codecl peer init`.")],
    out: Annotated[Path | None, typer.Option("--out", help="Where run folders go. Default: as the file says.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Repeat a run that is complete; start anew.")] = False,
    allow_code: AllowCode = False,
) -> None:
    """Take part in a fleet as one of its agents: find the neighbours, train with them, survive their loss."""
    import logging

    from codecl.peers import agent as peer

    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    for metrics, folder in peer.take_part_on(file, out, again, allow_code):
        score = "-" if metrics.acc is None else format(metrics.acc, ".2f" if metrics.in_percent else ".4g")
        typer.echo(f"agent {metrics.agent}: {metrics.status}, ACC {score}, {folder}")
    if metrics.status == "degraded":
        raise typer.Exit(DEGRADED)


def _one_config(
    preset: str, method: str | None, agents: str | None, topology: str | None, seed: int | None, settings: list[str]
) -> "RunConfig":
    """A preset with several methods gives its first."""
    from codecl.runs.grid import grid

    configs = list(grid(preset, method, agents, topology, None if seed is None else str(seed), settings))
    if method is None:
        configs = [config for config in configs if config.method.name == configs[0].method.name]
    if len(configs) > 1:
        raise ConfigError(f"a fleet runs one config, these are {len(configs)}: give one --method, --agents, --topology")
    return configs[0]


def _addresses(at: list[str], hosts: Path | None) -> list[tuple[str, int]]:
    from codecl.peers.fleet import address_of

    if at and hosts:
        raise ConfigError("--at and --hosts: both say where agents are; choose one")
    if hosts is None:
        return [address_of(text, "--at") for text in at]
    try:
        lines = hosts.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        why = f"cannot be read ({getattr(error, 'strerror', None) or 'not a text file'})"
        raise ConfigError(f"--hosts: {hosts} {why}; it should hold a line HOST:PORT an agent") from error
    texts = [(number, line.split("#")[0].strip()) for number, line in enumerate(lines, 1)]
    addresses = [address_of(text, f"{hosts}:{number}") for number, text in texts if text]
    if not addresses:
        raise ConfigError(f"--hosts: {hosts} holds no addresses; write a line HOST:PORT for each agent")
    return addresses


def _peers(deadline: str | None, silence: str | None) -> "PeersConfig":
    from codecl.peers.decisions import PeersConfig
    from codecl.runs import yamlfile

    given = {"deadline": deadline, "silence": silence}
    fields = {name: None if value == "none" else value for name, value in given.items() if value is not None}
    return yamlfile.checked(PeersConfig, fields, "peers")
