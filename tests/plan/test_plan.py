"""`plan`: what it says exactly is what a run then records, byte for byte; what hurts is said exactly when it does."""

import itertools
import json
import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl import api
from codecl.data import store
from codecl.data.catalogue import CATALOGUE
from codecl.errors import ConfigError, ConfigWarning
from codecl.exchange.topology import TopologyConfig, build
from codecl.plan import forecast, plan
from codecl.plan.graph import graph_of, rounds, stable_below
from codecl.runs.build import build_model, build_setup, task_data
from codecl.runs.grid import grid, presets
from codecl.train.loop import train
from tests.data.canonical import arrays

CPU = torch.device("cpu")
TINY = ["data.tasks=2", "train.epochs=1", "train.batch_size=50", "growth.images=20", "train.execution=loop"]
FIVE = ["ring", "ring-undirected", "torus", "exponential", "star"]
METHODS = ["codec", "codec-full", "dpsgd", "d-ewc", "stl"]
QUIET = ("train.epochs=15", "train.batch_size=10")  # nothing to warn of


def config_of(*settings, method="codec", agents="4", topology="ring", preset="quickstart"):
    (config,) = grid(preset, method, agents, topology, None, [*TINY, *settings])
    return config


def facts(folder, kind):
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [fact for fact in map(json.loads, lines) if fact["kind"] == kind]


def about(warnings):
    return [line.partition(":")[0] for line in warnings]


def check_first_task(planned, folder):
    """What is exact without a recorded run."""
    (run,), tasks, epochs = facts(folder, "run"), facts(folder, "task"), facts(folder, "epoch")
    assert (planned.graph.edges, planned.graph.contraction) == (len(run["edges"]), run["contraction"])
    assert [part.steps for part in planned.tasks] == [task["steps"] for task in tasks]
    first = planned.tasks[0]
    assert (first.coordinates, first.full) == (tasks[0]["coordinates"], tasks[0]["full"])
    assert first.message_known == "exact"
    assert first.train_bytes == sum(fact["bytes"] for fact in epochs if fact["task"] == 0)
    assert first.agree_bytes == facts(folder, "agree")[0]["bytes"]
    assert [part.full for part in planned.tasks] == [task["full"] for task in tasks]


AT_THE_END = (("agree", "agree_bytes"), ("grow", "reduce_bytes"), ("flood", "flood_bytes"))  # of a task


def check_bounds(planned, folder):
    """Nothing that was sent is more than was planned."""
    for kind, field in AT_THE_END:
        for part, fact in zip(planned.tasks, facts(folder, kind), strict=True):
            assert fact["bytes"] <= getattr(part, field)
    for part, fact in zip(planned.tasks, facts(folder, "task"), strict=True):
        assert fact["coordinates"] <= part.coordinates
        assert fact["kept"] <= part.kept
    for fact in facts(folder, "directions"):
        assert fact["bytes"] <= planned.tasks[fact["task"]].opening_bytes


def check_all(planned, folder, traffic):
    assert planned.known == "exact"
    for kind, field in (("epoch", "train_bytes"), *AT_THE_END):
        assert [getattr(part, field) for part in planned.tasks] == [fact["bytes"] for fact in facts(folder, kind)]
    chosen = {fact["task"]: fact["bytes"] for fact in facts(folder, "directions")}
    assert [part.opening_bytes for part in planned.tasks] == [chosen.get(task, 0) for task in range(len(planned.tasks))]
    assert [part.kept for part in planned.tasks] == [task["kept"] for task in facts(folder, "task")]
    totals = ("train_bytes", "boundary_bytes", "full_bytes")
    assert [getattr(planned, name) for name in totals] == [traffic[name] for name in totals]


def check_run(config, out):
    """Gives the plan of before the run, and the run."""
    before = plan(config)
    result = api.run(config, out=out, device="cpu")
    check_first_task(before, result.folder)
    check_bounds(before, result.folder)
    check_all(plan(config, like=forecast.read(result.folder)), result.folder, result.metrics["traffic"])
    return before, result


CASES = [
    *(({"method": "codec", "topology": topology}, ()) for topology in FIVE),
    *(({"method": method, "topology": "torus"}, ()) for method in METHODS[1:]),
    ({"method": "codec"}, ("growth.subspace_from=all",)),
    ({"method": "codec-full"}, ("growth.subspace_from=all",)),
    ({"method": "codec"}, ("train.norm_statistics=task", "growth.subspace_from=all")),
    ({"method": "codec"}, ("own.directions=3", "growth.subspace_from=all", "growth.pool=masked")),
    ({"method": "d-ewc"}, ("train.norm_statistics=task", "dtype=float64")),
    ({"method": "codec"}, ("own.directions=5", "norms=own", "message.bits=4")),
    ({"method": "dpsgd"}, ("message.bits=3", "message.keep=0.25")),
    ({"method": "codec"}, ("message.bits=bfloat16",)),
    ({"method": "codec"}, ("own.share=0.2", "free.directions=4", "growth.subspace_from=all")),
    ({"method": "codec"}, ("free.directions=4", "free.first_task=true", "dtype=float64")),
    ({"method": "codec-full"}, ("own.directions=3", "free.directions=4")),
    ({"method": "codec"}, ("train.order=adapt-then-combine", "train.momentum=0.5", "head=null")),
    ({"method": "dpsgd", "agents": "1"}, ()),
    ({"method": "codec", "agents": "1"}, ()),
]


@pytest.mark.parametrize(
    ("named", "settings"), CASES, ids=lambda part: "-".join(part.values() if isinstance(part, dict) else part)
)
def test_a_run_records_what_was_planned(tmp_path, named, settings):
    config = config_of(*settings, **named)
    before, result = check_run(config, tmp_path)
    grows = config.method.kind().grows
    assert before.known == ("bound" if grows else "exact")
    if not grows:
        check_all(before, result.folder, result.metrics["traffic"])


def test_groups_biases_and_whole_parameters_are_counted_as_they_are_sent(tmp_path):
    source = """
import torch
from torch import nn

def grouped(shape, classes):
    layers = [nn.Conv2d(shape[0], 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(54, classes))
"""
    (tmp_path / "own.py").write_text(source)
    own = [f"model.name={tmp_path / 'own.py'}:grouped", "dense=['0.bias']", "growth.subspace_from=all"]
    for more in ([], ["own.directions=3", "free.directions=2", "norms=own"]):
        check_run(config_of(*own, "train.norm_statistics=task", *more), tmp_path)


OWN = """
from codecl import Method

class Counting(Method):
    def free(self, memory, layers):
        return {}

    def prepare(self, memory, layout):
        return None

    def step(self, task, base_AD, coords_AD, grad_AD, lr):
        return base_AD - lr * grad_AD

    def remember(self, end):
        return {"seen": end.coords_AD.new_zeros(7 * end.data.index + 3)}
"""


def test_what_an_own_method_remembers_is_known_from_a_run_of_it(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    config = config_of(method=f"{tmp_path / 'own.py'}:Counting")
    before = plan(config)
    assert (before.known, about(before.warnings)) == ("partly", ["mixing", "flood"])
    result = api.run(config, out=tmp_path, device="cpu")
    check_first_task(before, result.folder)
    assert [part.flood_bytes + 3 * 4 * extra for part, extra in zip(before.tasks, (3, 10), strict=True)] == [
        fact["bytes"] for fact in facts(result.folder, "flood")
    ]
    after = plan(config, like=forecast.read(result.folder))
    check_all(after, result.folder, result.metrics["traffic"])
    assert about(after.warnings) == ["mixing"]


@pytest.fixture(scope="module")
def made_data(tmp_path_factory):
    """Data set files of the right shapes for every preset, with few images."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CODECL_DATA", str(tmp_path_factory.mktemp("data")))
        for name, entry in CATALOGUE.items():
            store.write(name, arrays(name, 8 * entry.classes, 2 * entry.classes))
        yield


OTHERS = sorted(set(presets()) - {"quickstart", "split-cifar100-gpm"})  # of the last, one agent sends nothing
FEW = ("train.batch_size=5", "growth.images=2", "train.test_batch_size=8", "data.augment=none")


@pytest.mark.parametrize("topology", FIVE)
@pytest.mark.parametrize("preset", OTHERS)
@pytest.mark.long
@pytest.mark.usefixtures("made_data")
def test_a_run_of_every_preset_records_what_was_planned(tmp_path, preset, topology):
    check_run(config_of(*FEW, preset=preset, topology=topology), tmp_path)


SOME = [preset for preset in OTHERS if not preset.endswith("-authors")]  # those send as their bases do


@pytest.mark.parametrize(("preset", "topology"), list(zip(SOME, itertools.cycle(FIVE), strict=False)))
@pytest.mark.usefixtures("made_data")
def test_the_first_task_of_every_preset_sends_what_was_planned(preset, topology):
    config = config_of(*FEW, preset=preset, topology=topology)
    first = plan(config).tasks[0]
    events = train(*build_setup(config, task_data(config, None, CPU), CPU))
    opened, *_, epoch, agreed = itertools.islice(events, first.steps + 3)
    assert (opened.kind, epoch.kind, agreed.kind) == ("task", "epoch", "agree")
    assert (first.coordinates, first.full, first.steps) == (opened.coordinates, opened.full, opened.steps)
    assert (first.train_bytes, first.agree_bytes) == (epoch.bytes, agreed.bytes)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return api.run(config_of(), out=tmp_path_factory.mktemp("like"), device="cpu").folder


def test_a_run_like_it_is_estimated(recorded, tmp_path):
    like = forecast.read(recorded)
    config = config_of(agents="8", topology="exponential")
    planned, bound = plan(config, like=like), plan(config)
    assert [part.message_known for part in planned.tasks] == ["exact", "estimate"]
    assert [part.end_known for part in planned.tasks] == ["estimate", "estimate"]
    assert planned.train_bytes < bound.train_bytes
    assert planned.tasks[0].train_bytes == bound.tasks[0].train_bytes
    same = plan(config_of(), like=like)
    assert planned.tasks[1].coordinates == same.tasks[1].coordinates
    assert planned.tasks[1].flood_bytes * 3 == same.tasks[1].flood_bytes * 7
    longer = plan(config_of("data.tasks=3"), like=like)
    assert [part.message_known for part in longer.tasks] == ["exact", "estimate", "estimate"]


def test_pools_of_a_run_like_it_follow_from_its_free_directions(recorded, tmp_path):
    everyone = "growth.subspace_from=all"
    planned = plan(config_of(everyone), like=forecast.read(recorded))
    result = api.run(config_of(everyone), out=tmp_path, device="cpu")
    first, second = facts(result.folder, "grow")
    assert planned.tasks[0].reduce_bytes == first["bytes"]  # of the first task all is free
    assert planned.tasks[1].reduce_bytes == pytest.approx(second["bytes"], rel=0.5)


def test_a_run_that_is_not_like_it_is_refused(recorded):
    like = forecast.read(recorded)
    with pytest.raises(ConfigError, match="is a run of codec, not of dpsgd"):
        plan(config_of(method="dpsgd"), like=like)
    with pytest.raises(ConfigError, match="another model"):
        plan(config_of("model=mlp"), like=like)
    with pytest.raises(ConfigError, match="another model"):
        plan(config_of("model.hidden=7"), like=like)


@given(st.integers(2, 40))
def test_a_directed_ring_contracts_by_the_cosine(agents):
    graph = graph_of(build(TopologyConfig(name="ring"), agents, 0))
    assert graph.contraction == pytest.approx(abs(math.cos(math.pi / agents)), abs=1e-12)
    assert graph.gap == 1 - graph.contraction


@given(st.floats(0.01, 0.999), st.sampled_from([0.1, 1e-6]))
def test_so_many_rounds_suffice_and_no_fewer(contraction, to):
    count = rounds(contraction, to)
    assert contraction**count <= to * (1 + 1e-6)
    assert contraction ** (count - 1) > to * (1 - 1e-6)


@pytest.mark.parametrize(
    ("name", "agents", "limit"),
    [("ring", 8, 1.0), ("ring-undirected", 8, 2 / 3), ("torus", 8, 0.5), ("torus", 16, 0.4), ("complete", 8, 1.0)],
)
def test_the_limit_of_the_papers_order(name, agents, limit):
    mixing = build(TopologyConfig(name=name), agents, 0).mixing
    assert stable_below([mixing]) == pytest.approx(limit)
    assert stable_below([mixing], "adapt-then-combine") == 2


@given(st.sampled_from(["ring", "torus", "exponential", "star"]), st.sampled_from([4, 6, 8, 9]))
def test_steps_below_the_limit_shrink_an_error_and_above_it_do_not(name, agents):
    mixing = build(TopologyConfig(name=name), agents, 0).mixing
    limit = stable_below([mixing])

    def radius(step):
        return abs(torch.linalg.eigvals(torch.from_numpy(mixing) - step * torch.eye(agents, dtype=torch.float64))).max()

    assert radius(limit - 1e-3) < 1 < radius(limit + 1e-3)


def test_warnings_appear_exactly_when_they_should(recorded):
    assert about(plan(config_of(*QUIET)).warnings) == []
    assert about(plan(config_of("train.batch_size=40")).warnings) == ["mixing"]  # 12 steps against 7 rounds
    assert about(plan(config_of("train.batch_size=400", topology="complete")).warnings) == []  # one step, and one round
    assert about(plan(config_of(*QUIET, topology="torus", agents="16")).warnings) == ["lr"]
    after = "train.order=adapt-then-combine"
    assert about(plan(config_of(*QUIET, after, topology="torus", agents="16")).warnings) == []
    small = ("train.epochs=15", "train.batch_size=600", "data.steps_per_epoch=50")
    assert about(plan(config_of(*small)).warnings) == ["batch"]
    assert about(plan(config_of("train.epochs=15", "train.batch_size=500", "data.steps_per_epoch=50")).warnings) == []


def test_a_layer_without_free_directions_is_warned_of(tmp_path):
    all_kept = ("growth.threshold=1", "growth.images=125")
    config = config_of(*all_kept, "train.epochs=15", "train.batch_size=10")
    like = forecast.read(api.run(config_of(*all_kept), out=tmp_path, device="cpu").folder)
    full = [name for name, count in like.free[1].items() if count == 0]
    assert full
    (line,) = plan(config, like=like).warnings
    assert line.startswith(f"threshold: no free direction is left in {', '.join(full)} from task 2 on")


def test_a_shard_smaller_than_a_batch_is_refused_as_run_refuses_it():
    with pytest.raises(ConfigError, match=r"train.batch_size: 600 is more than the 500 images"):
        plan(config_of("train.batch_size=600"))


def test_images_steps_and_what_is_left_over():
    (first, _) = plan(config_of("train.batch_size=30")).tasks
    assert (first.images, first.shard, first.steps, first.left_over) == (2000, (500, 500), 16, (20, 20))
    skewed = plan(config_of("train.batch_size=10", "data.partition=dirichlet(0.5)")).tasks[0]
    least, most = skewed.shard
    assert skewed.left_over == (least - 10 * skewed.steps, most - 10 * skewed.steps)


def test_memory_holds_weights_coordinates_and_images():
    config = config_of()
    four, eight = plan(config), plan(config_of(agents="8"))
    assert four.agent_memory_bytes < four.memory_bytes < eight.memory_bytes
    numbers = sum(p.numel() for p in build_model(config, (1, 28, 28), 10).parameters())
    assert four.agent_memory_bytes > 5 * 4 * numbers  # anchor, built, coordinates, gradient, mixed
    assert plan(config_of("dtype=float64")).agent_memory_bytes > 1.3 * four.agent_memory_bytes
    assert plan(config_of("train.momentum=0.9")).memory_bytes == four.memory_bytes + 4 * 4 * four.tasks[0].coordinates


def test_time_of_messages_follows_from_the_busiest_way_out():
    one, two = plan(config_of(), bandwidth=1e7), plan(config_of(topology="complete"), bandwidth=1e7)
    first = one.tasks[0]
    gossip = first.message_bytes * (first.steps + one.graph.agree_rounds)
    assert first.messages_s == pytest.approx(8 * (gossip + first.flood_bytes) / 1e7)  # a ring: three hops
    first = two.tasks[0]
    gossip = 3 * first.message_bytes * (first.steps + two.graph.agree_rounds)
    assert first.messages_s == pytest.approx(8 * (gossip + first.flood_bytes) / 1e7)  # three, one after another
    assert one.messages_s == sum(part.messages_s for part in one.tasks)
    assert plan(config_of()).messages_s is None


def test_batch_norms_and_uneven_data_do_not_go_together():
    """Said where agents see under half of the classes, and only of batch norms."""
    uneven = ("data.partition=skew(1.0)", "model.name=alexnet", *QUIET)
    (line,) = plan(config_of(*uneven)).warnings
    assert re.match(
        r"norms: an agent's images of task 'digits' are of \d\.\d classes on average, of 10: .*group norms", line
    )
    assert about(plan(config_of("data.partition=iid", *uneven[1:])).warnings) == []
    assert about(plan(config_of("data.partition=skew(1.0)", *QUIET)).warnings) == []


@pytest.mark.parametrize(
    ("partition", "norms", "mixing"),
    [
        ("iid", False, False),
        ("dirichlet(1)", False, False),
        ("dirichlet(0.1)", True, False),
        ("classes(2)", True, True),
        ("shards(2)", True, True),
        ("skew(1)", True, True),
    ],
)
def test_uneven_data_is_warned_of_where_norms_or_the_graph_do_not_bear_it(partition, norms, mixing):
    """With its remedy; on a graph that mixes well, with a correction or without batch norms, not."""

    def warned(*settings, topology="ring"):
        planned = plan(config_of(f"data.partition={partition}", *settings, *QUIET, agents="8", topology=topology))
        lines = [line for line in planned.warnings if "classes on average" in line]
        return ["train.norm_statistics=group" in line for line in lines if line.startswith("norms: ")], [
            "--topology torus" in line for line in lines if line.startswith("mixing: ")
        ]

    pooled, group = "model.name=tests.problems:pooled", ("model.name=resnet18", "model.norm=group")
    assert warned(pooled) == ([True] * norms, [True] * mixing)
    assert warned() == ([], [True] * mixing)
    assert warned(topology="torus") == ([], [])
    if norms:
        assert warned(*group, "data.tasks=1", topology="torus") == ([], [])
        assert warned(pooled, "train.norm_statistics=group", topology="torus") == ([], [])
        assert warned(pooled, "train.norm_statistics=gossip", topology="torus") == ([], [])
    corrected = ("train.order=adapt-then-combine", "train.correction=gradient-tracking")
    assert warned(*corrected)[1] == []


def test_heterogeneity_is_a_number_of_each_task():
    def of(partition, agents="10"):
        return [task.heterogeneity for task in plan(config_of(f"data.partition={partition}", agents=agents)).tasks]

    assert of("classes(1)") == pytest.approx([0.9, 0.9])
    assert of("classes(5)") == pytest.approx([0.5, 0.5])
    assert max(of("iid")) < 0.15
    assert of("skew(1)", agents="1") == pytest.approx([0, 0])


def test_agents_with_unequal_numbers_of_images_are_planned_as_they_run(tmp_path):
    config = config_of("data.sizes=dirichlet(0.5)", "train.batch_size=40")
    planned, equal = plan(config), plan(config_of("train.batch_size=40"))
    least, most = planned.tasks[0].shard
    assert least < 300
    assert most > 700
    assert planned.tasks[0].steps == equal.tasks[0].steps == 12
    assert planned.tasks[0].left_over == (0, most - 480)
    assert planned.agent_memory_bytes > equal.agent_memory_bytes
    assert planned.memory_bytes == equal.memory_bytes
    folder = api.run(config, out=tmp_path, device="cpu").folder
    check_first_task(planned, folder)
    assert (min(facts(folder, "task")[0]["images"]), max(facts(folder, "task")[0]["images"])) == (least, most)


def test_growing_from_an_agent_with_few_images_is_warned_of():
    few = ("data.sizes=dirichlet(0.05)", "growth.images=100")
    (line,) = [line for line in plan(config_of(*few)).warnings if line.startswith("growth: ")]
    assert re.match(r"growth: the agent that grows the core space after task 'clothes' has \d\d images, and", line)
    assert not any("growth: " in line for line in plan(config_of(*few, "growth.subspace_from=all")).warnings)
    assert not any("growth: " in line for line in plan(config_of("growth.images=10000")).warnings), "no inequality"


def test_a_task_keeps_no_more_than_the_share_that_it_may():
    planned = plan(config_of("own.share=0.2"))
    assert [part.kept for part in planned.tasks[1:]] == [int(0.2 * planned.body)] * (len(planned.tasks) - 1)


def test_votes_of_agents_with_other_classes_are_warned_of():
    votes = ("growth.robust=vote", "data.partition=skew(1)")
    (line,) = [line for line in plan(config_of(*votes)).warnings if line.startswith("growth: ")]
    assert "may refuse what is honest; use growth.subspace_from=all" in line
    for better in (("growth.subspace_from=all",), ("data.partition=iid",), ("growth.robust=none",)):
        assert not any(line.startswith("growth: ") for line in plan(config_of(*votes, *better)).warnings)


def test_a_run_says_what_its_plan_says(tmp_path):
    config = config_of("train.batch_size=40", "train.epochs=1", "data.tasks=1")
    (line,) = plan(config).warnings
    with pytest.warns(ConfigWarning, match=re.escape(line)):
        api.run(config, out=tmp_path)
