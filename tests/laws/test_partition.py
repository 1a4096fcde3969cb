"""Laws of dealing images to agents."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.data.partition import parse, partition
from codecl.errors import ConfigError
from tests.problems import config

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
    for how in ("iid", "skew(0.5)", "dirichlet(0.5)", "shards(2)"):
        dealt = [partition(how, labels, 4, seed, task)[0].tolist() for seed, task in ((0, 0), (0, 1), (1, 0))]
        assert dealt[0] != dealt[1] != dealt[2] != dealt[0]


UNSHARED = ["shards", "shards(0)", "shards(1.5)", "shards(1e999)"]
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
