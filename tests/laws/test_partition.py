"""Laws of dealing images to agents: which of them, and how many."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.data.heterogeneity import heterogeneity
from codecl.data.partition import parse, partition
from codecl.data.sizes import MIN_IMAGES, apportioned, equal, sizes, turns
from codecl.data.sizes import parse as parse_sizes
from codecl.errors import ConfigError
from tests.problems import config

UNEQUAL = st.sampled_from(["dirichlet(0.001)", "dirichlet(0.3)", "dirichlet(5)", "dirichlet(1e6)"])
HOW = st.sampled_from(["iid", "skew(0)", "skew(0.3)", "skew(1)", "dirichlet(0.01)", "dirichlet(1)", "dirichlet(1e6)"])


def classes_of(shards, labels):
    return [torch.bincount(labels[shard], minlength=int(labels.max()) + 1) for shard in shards]


@given(HOW, st.integers(1, 12), st.integers(0, 40), st.integers(1, 6), st.integers(0, 9))
def test_every_image_goes_to_one_agent_and_shards_are_of_equal_size(how, agents, more, classes, seed):
    labels = torch.randint(classes, (agents + more,), generator=torch.Generator().manual_seed(seed))
    shards = partition(how, labels, agents, seed, 0)
    assert sorted(torch.cat(list(shards)).tolist()) == list(range(len(labels)))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    again = partition(how, labels, agents, seed, 0)
    assert all(torch.equal(a, b) for a, b in zip(shards, again, strict=True))


@given(st.integers(1, 9), st.integers(9, 60), st.integers(0, 9))
def test_no_skew_is_iid(agents, images, seed):
    labels = torch.arange(images) % 3
    for a, b in zip(
        partition("skew(0)", labels, agents, seed, 1), partition("iid", labels, agents, seed, 1), strict=True
    ):
        assert torch.equal(a, b)


def test_whole_skew_gives_an_agent_as_few_classes_as_there_can_be():
    labels = torch.arange(400) % 10
    counts = classes_of(partition("skew(1)", labels, 5, 0, 0), labels)
    assert [(count > 0).sum().item() for count in counts] == [2] * 5
    half = classes_of(partition("skew(0.5)", labels, 5, 0, 0), labels)
    assert all((count > 0).sum() > 2 for count in half)
    assert all(count.max() > 18 for count in half)  # of two classes half of all 40 images, and some of the others


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 60), st.integers(1, 6), st.integers(0, 9))
def test_shards_are_stretches_of_the_images_in_the_order_of_their_labels(agents, each, more, classes, seed):
    count = agents * each
    labels = torch.randint(classes, (count + more,), generator=torch.Generator().manual_seed(seed))
    dealt = partition(f"shards({each})", labels, agents, seed, 0)
    assert sorted(torch.cat(list(dealt)).tolist()) == list(range(len(labels)))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= each
    edges = max(len(stretch) for stretch in torch.arange(len(labels)).tensor_split(count))
    least = int(torch.bincount(labels)[labels.unique()].min())
    if least >= edges:  # a stretch lies in at most two classes
        assert all(len(labels[shard].unique()) <= 2 * each for shard in dealt)


def test_two_shards_an_agent_are_two_classes_where_they_fit():
    labels = torch.arange(5000) % 10
    counts = classes_of(partition("shards(2)", labels, 50, 0, 0), labels)
    assert {(count > 0).sum().item() for count in counts} == {1, 2}
    assert all(count.sum() == 100 for count in counts)
    with pytest.raises(ConfigError, match=r"data.partition: shards\(2\) needs 100 images a task, there are 90"):
        partition("shards(2)", labels[:90], 50, 0, 0)


def test_a_small_alpha_gives_few_classes_and_a_large_one_all_alike():
    labels = torch.arange(4000) % 10

    def largest_part(alpha):
        counts = classes_of(partition(f"dirichlet({alpha})", labels, 8, 1, 0), labels)
        return sum((count.max() / count.sum()).item() for count in counts) / 8

    assert largest_part(1000) < 0.15 < largest_part(1) < largest_part(0.05)
    assert largest_part(0.05) > 0.5


def test_tasks_and_seeds_are_dealt_differently():
    labels = torch.arange(100) % 4
    for how in ("iid", "skew(0.5)", "dirichlet(0.5)", "shards(2)", "classes(2)"):
        dealt = [partition(how, labels, 4, seed, task)[0].tolist() for seed, task in ((0, 0), (0, 1), (1, 0))]
        assert dealt[0] != dealt[1] != dealt[2] != dealt[0]


@given(
    HOW | st.sampled_from(["shards(1)", "shards(3)"]),
    UNEQUAL,
    st.integers(1, 12),
    st.integers(3, 40),
    st.integers(0, 9),
)
def test_with_unequal_sizes_every_image_goes_to_one_agent_and_each_has_as_many_as_is_said(
    how, many, agents, mean, seed
):
    images = agents * mean + seed
    labels = torch.randint(4, (images,), generator=torch.Generator().manual_seed(seed))
    dealt = partition(how, labels, agents, seed, 0, many)
    assert sorted(torch.cat(list(dealt)).tolist()) == list(range(images))
    said = sizes(many, images, agents, seed, 0)
    if said != equal(images, agents) or "shards" not in how:
        assert [len(shard) for shard in dealt] == said


@given(UNEQUAL, st.integers(1, 40), st.integers(0, 3000), st.integers(0, 9))
def test_sizes_add_up_and_nobody_has_less_than_the_least(many, agents, more, seed):
    images = agents + more
    said = sizes(many, images, agents, seed, 0)
    assert sum(said) == images
    assert min(said) >= max(1, min(MIN_IMAGES, images // (2 * agents)))
    assert said == sizes(many, images, agents, seed, 0)
    assert sizes("equal", images, agents, seed, 0) == [len(part) for part in torch.arange(images).tensor_split(agents)]


def test_a_small_alpha_makes_sizes_unequal_and_a_large_one_equal():
    spread = [np.std(sizes(f"dirichlet({alpha})", 8000, 8, 1, 0)) / 1000 for alpha in (0.1, 1, 10, 1e6)]
    assert spread == sorted(spread, reverse=True)
    assert spread[0] > 1
    assert spread[-1] < 0.01
    assert sizes("dirichlet(1)", 8000, 8, 1, 0) != sizes("dirichlet(1)", 8000, 8, 1, 1), "another task"


@given(st.integers(0, 500), st.lists(st.integers(1, 50), min_size=1, max_size=12))
def test_what_is_apportioned_adds_up_and_is_rounded_up_or_down(count, weights):
    parts = apportioned(count, weights)
    assert sum(parts) == count
    assert all(
        abs(part - count * weight / sum(weights)) < 1 + 1e-9 for part, weight in zip(parts, weights, strict=True)
    )


@given(st.lists(st.integers(1, 30), min_size=1, max_size=9))
def test_agents_take_turns_in_step_with_their_sizes(sizes):
    order = turns(sizes)
    assert np.bincount(order).tolist() == sizes
    taken = np.zeros(len(sizes))
    for agent in order:
        taken[agent] += 1
        part = taken / sizes
        assert part.max() - part.min() <= max(1 / size for size in sizes) + 1e-9
    assert turns(equal(sum(sizes), len(sizes))).tolist() == [turn % len(sizes) for turn in range(sum(sizes))]


@given(st.integers(1, 12), st.integers(1, 8), st.integers(1, 8), st.integers(0, 30), UNEQUAL | st.just("equal"))
def test_classes_gives_every_agent_so_many_classes_each_held_by_equally_many(agents, classes, each, more, many):
    each = min(classes, max(each, -(-classes // agents)))  # as few and as many as there can be
    labels = torch.cat([torch.arange(agents * classes) % classes, torch.arange(more) % 2 % classes])
    dealt = partition(f"classes({each})", labels, agents, more, 0, many)
    assert sorted(torch.cat(list(dealt)).tolist()) == list(range(len(labels)))
    counts_AC = torch.stack(classes_of(dealt, labels))
    assert (counts_AC > 0).sum(1).tolist() == [each] * agents
    holders = (counts_AC > 0).sum(0)
    assert holders.max() - holders.min() <= 1
    if many == "equal":
        least = counts_AC.masked_fill(counts_AC == 0, len(labels)).min(0).values
        assert (counts_AC.max(0).values - least).max() <= 1, "a class is split equally"


def test_classes_that_would_leave_images_out_or_are_more_than_there_are_are_refused():
    labels = torch.arange(100) % 10
    with pytest.raises(
        ConfigError, match=r"classes\(2\) lets 4 agents hold 8 of the 10 classes of task 2; use classes\(3\)"
    ):
        partition("classes(2)", labels, 4, 0, 1)
    with pytest.raises(ConfigError, match=r"classes\(11\) is more than the 10 classes of task 1"):
        partition("classes(11)", labels, 4, 0, 0)
    with pytest.raises(ConfigError, match=r"gives a class of task 1 to 12 agents, and class 0 has 10 images; use"):
        partition("classes(10)", labels, 12, 0, 0)


def test_agents_with_unequal_sizes_get_as_much_of_a_class_as_they_have_of_all():
    """Where everyone has all classes, sizes are as they were said, but for rounding."""
    labels = torch.arange(4000) % 10
    dealt = partition("classes(10)", labels, 5, 0, 0, "dirichlet(1)")
    said = sizes("dirichlet(1)", 4000, 5, 0, 0)
    assert max(abs(len(shard) - size) for shard, size in zip(dealt, said, strict=True)) <= 10
    assert max(said) > 1.5 * min(said)


@given(st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=1, max_size=8), st.integers(2, 9))
def test_heterogeneity_lies_between_none_and_one_and_looks_at_mixes_alone(counts, times):
    counts_AC = torch.tensor(counts)
    if not counts_AC.any():
        return
    found = heterogeneity(counts_AC)
    assert -1e-12 <= found.distance <= 1
    assert heterogeneity(times * counts_AC).distance == pytest.approx(found.distance)
    alike = heterogeneity(counts_AC.sum(0).expand(4, -1))
    assert alike.distance == pytest.approx(0)
    assert alike.part == 0


def test_heterogeneity_of_what_is_dealt():
    labels = torch.arange(4000) % 10

    def of(how, agents=10, many="equal"):
        return heterogeneity(torch.stack(classes_of(partition(how, labels, agents, 0, 0, many), labels)))

    assert of("classes(1)").distance == pytest.approx(of("classes(1)").one_class_each) == pytest.approx(0.9)
    assert of("classes(3)").distance == pytest.approx(0.7)
    assert of("classes(1)").part == pytest.approx(1)
    assert min(of(how).part for how in ("classes(2)", "skew(1)", "shards(2)")) > 0.75
    assert of("dirichlet(0.05)").part > 0.5 > of("dirichlet(1)").part
    assert max(of(how).part for how in ("iid", "dirichlet(3)", "skew(0.2)", "classes(8)")) < 0.4
    assert of("iid").part == 0
    few = of("iid", 400, "dirichlet(0.3)")  # ten images each on average: all by chance
    assert 0.3 < few.distance < few.by_chance


@pytest.mark.parametrize(
    "many", ["", "dirichlet", "dirichlet(0)", "dirichlet(-1)", "dirichlet(1e999)", "equal(2)", "iid"]
)
def test_sizes_that_cannot_be_are_refused(many):
    with pytest.raises(ValueError):
        parse_sizes(many)
    with pytest.raises(ConfigError, match=r"data.sizes: .* is not allowed: it should be equal, or dirichlet\(α\)"):
        config(data={"sizes": many})


UNSHARED = ["shards", "shards(0)", "shards(1.5)", "shards(1e999)", "classes", "classes(0)", "classes(1.5)"]
REFUSED = [*UNSHARED, "", "dirichlet", "dirichlet(0)", "dirichlet(-1)", "dirichlet(1e999)", "dirichlet(1-1)"]


@pytest.mark.parametrize(
    "how",
    [
        *REFUSED,
        "skew",
        "skew(1.5)",
        "skew(nan)",
        "shards",
        "shards(0)",
        "shards(1.5)",
        "shards(1e999)",
        "iid(3)",
        "even",
    ],
)
def test_what_cannot_be_dealt_is_refused(how):
    with pytest.raises(ValueError):
        parse(how)
    with pytest.raises(ConfigError, match=r"data.partition: .* is not allowed: it should be iid, dirichlet\(α\)"):
        config(data={"partition": how})
