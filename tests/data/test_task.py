"""Tasks, shards and batches."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset

from codecl.data.config import DataConfig
from codecl.data.forms import loaded
from codecl.data.items import About
from codecl.data.streams import STREAMS
from codecl.data.task import Task, TaskData, TaskOptions
from codecl.errors import ConfigError, DataError
from codecl.seeding import choose, derive, spawn


def numbered(images, classes=2):
    """Image i holds the number i."""
    pixels = torch.arange(images, dtype=torch.float64)[:, None]
    return Task((pixels, torch.arange(images) % classes), (pixels, torch.arange(images) % classes), classes, "numbers")


def dealt(images, agents, seed=0, **changes):
    return TaskData(0, numbered(images)._replace(**changes), TaskOptions(agents, seed=seed, dtype=torch.float64))


@given(st.integers(2, 60), st.integers(1, 8), st.integers(0, 5))
def test_shards_cover_without_overlap(images, agents, seed):
    if images < agents:
        with pytest.raises(ConfigError, match=f"agents: {agents} is more than the {images} training images"):
            dealt(images, agents, seed)
        return
    data = dealt(images, agents, seed)
    assert sorted(torch.cat(list(data.partition)).tolist()) == list(range(images))
    assert max(map(len, data.partition)) - min(map(len, data.partition)) <= 1


def test_who_holds_which_classes_is_known_where_they_are_dealt_unevenly():
    def counts(task, **fields):
        return TaskData(0, task, TaskOptions(2, config=DataConfig(**fields))).class_counts()

    task = numbered(12)
    assert counts(task) is None
    assert counts(task, partition="skew(1.0)") == {"0": [6, 0], "1": [0, 6]}
    assert counts(task._replace(labels=("even", "odd")), partition="shards(1)").keys() == {"even", "odd"}
    assert counts(task._replace(labels=("same", "same")), partition="dirichlet(9)").keys() == {"0", "1"}
    alone = {"local_path": "mine.safetensors", "steps_per_epoch": 3}
    assert counts(task, partition="skew(1.0)", **alone) is None, "an agent does not know others' images"
    own = TaskData(0, task, TaskOptions(2, config=DataConfig(partition="skew(1.0)", sizes="dirichlet(1)", **alone)))
    assert (own.own_class_counts(), own.images_of_agents()) == ({"0": 6, "1": 6}, None)


def test_agents_with_unequal_numbers_of_images_take_as_many_steps():
    """As many as they have on average; who has fewer sees them again, in another order."""
    task, batch = numbered(240), 10
    data = TaskData(0, task, TaskOptions(6, seed=1, config=DataConfig(sizes="dirichlet(1)")))
    sizes = data.images_of_agents()
    assert sum(sizes) == 240
    assert min(sizes) < 30
    assert max(sizes) > 60
    assert {len(shard) for shard in data.partition} == {*sizes}
    assert torch.tensor([*data.class_counts().values()]).sum(0).tolist() == sizes
    (indices_SABK,) = data.indices(0, range(6), batch)
    assert indices_SABK.shape == (data.steps(batch), 6, batch, 1) == (4, 6, 10, 1)
    for agent, shard in enumerate(data.partition):
        times = torch.bincount(indices_SABK[:, agent].flatten(), minlength=240)
        assert times.sum() == times[shard].sum() == 40
        assert times[shard].max() - times[shard].min() <= 1
    assert max(len(data.sample(agent, 30)) for agent in range(6)) == 30
    assert min(len(data.sample(agent, 30)) for agent in range(6)) == min(sizes)
    with pytest.raises(ConfigError, match=r"batch_size: 50 is more than the 40 images that an agent has on average of"):
        data.steps(50)


def test_an_agent_that_would_hold_out_all_of_its_images_is_told():
    with pytest.raises(
        ConfigError, match=r"data.held_out: 0.97 leaves agent 0, which has 10 images of task 'numbers',"
    ):
        TaskData(0, numbered(20), TaskOptions(2, config=DataConfig(held_out=0.97)))


@given(st.integers(4, 60), st.integers(1, 4), st.integers(1, 12), st.integers(0, 3))
def test_an_epoch_is_full_batches_of_a_fresh_shuffle(images, agents, batch, epoch):
    data = dealt(images, agents)
    shard = images // agents
    if batch > shard:
        with pytest.raises(ConfigError, match=f"train.batch_size: {batch} is more than the {shard} images"):
            data.steps(batch)
        return
    batches = list(data.epoch(epoch, range(agents), batch))
    assert len(batches) == shard // batch == data.steps(batch)
    for agent in range(agents):
        seen = torch.cat([b.images_AB[agent, :, 0] for b in batches]).long().tolist()
        assert len(set(seen)) == len(seen)
        assert set(seen) <= set(data.partition[agent].tolist())
    again = next(iter(data.epoch(epoch, range(agents), batch)))
    assert torch.equal(again.images_AB, batches[0].images_AB)


def stepped(images, agents, steps, augment="none"):
    config = DataConfig(steps_per_epoch=steps, augment=augment)
    task = coloured(images) if augment != "none" else numbered(images)
    return TaskData(0, task, TaskOptions(agents, dtype=torch.float64, config=config))


def cropped(task, agents=1, **fields):
    config = DataConfig(augment="crop-flip", **fields)
    return TaskData(0, task, TaskOptions(agents, dtype=torch.float64, config=config))


@given(st.integers(4, 40), st.integers(1, 4), st.integers(1, 12), st.integers(1, 12), st.integers(0, 3))
def test_stated_steps_take_each_image_of_a_shard_equally_often(images, agents, batch, steps, epoch):
    data = stepped(images, agents, steps)
    assert data.steps(batch) == steps
    (indices,) = data.indices(epoch, range(agents), batch)
    assert indices.shape == (steps, agents, batch, 1)
    for agent, shard in enumerate(data.partition):
        seen, size = indices[:, agent].flatten(), len(shard)
        counts = [int((seen == image).sum()) for image in shard]
        assert sum(counts) == steps * batch
        assert set(counts) <= {steps * batch // size, -(-steps * batch // size)}
        rounds = seen.split(size)
        assert all(len(set(part.tolist())) == len(part) for part in rounds)  # one shuffle after another
    assert torch.equal(indices, stepped(images, agents, steps).indices(epoch, range(agents), batch)[0])
    assert torch.equal(indices[:, -1:], data.indices(epoch, [agents - 1], batch)[0])


@given(st.integers(4, 40), st.integers(1, 4), st.integers(1, 10), st.sampled_from(["none", "crop-flip"]))
def test_stated_steps_that_need_no_repetition_change_nothing(images, agents, batch, augment):
    if batch > images // agents:
        return
    plain = stepped(images, agents, None, augment=augment)
    (whole_epoch,) = plain.indices(1, range(agents), batch)
    all_steps = stepped(images, agents, plain.steps(batch), augment=augment)
    assert torch.equal(all_steps.indices(1, range(agents), batch)[0], whole_epoch)
    (fewer,) = stepped(images, agents, 1, augment=augment).indices(1, range(agents), batch)
    assert torch.equal(fewer[..., 0], whole_epoch[:1, ..., 0])


@given(st.integers(4, 60), st.integers(1, 4), st.integers(1, 12), st.sampled_from(["none", "crop-flip"]))
def test_the_last_batch_may_be_smaller(images, agents, batch, augment):
    """Without drop_last an epoch shows all of the smallest shard, but for a single image, which norms cannot take; the
    full batches are those of drop_last."""
    shard = images // agents
    if batch > shard:
        return
    task = coloured(images) if augment != "none" else numbered(images)

    def dealt(drop_last):
        config = DataConfig(augment=augment, drop_last=drop_last)
        return TaskData(0, task, TaskOptions(agents, dtype=torch.float64, config=config))

    data, left = dealt(False), shard % batch
    full, *last = data.indices(2, range(agents), batch)
    assert torch.equal(full[..., 0], dealt(True).indices(2, range(agents), batch)[0][..., 0])
    assert [list(part.shape[:3]) for part in last] == ([[1, agents, left]] if left > 1 else [])
    batches = list(data.epoch(2, range(agents), batch))
    assert len(batches) == data.steps(batch) == shard // batch + (left > 1)
    for agent in range(agents):
        seen = [int(i) for part in (full, *last) for i in part[:, agent, :, 0].flatten()]
        assert len(set(seen)) == len(seen) == shard - (left == 1)
        assert set(seen) <= set(data.partition[agent].tolist())


def test_a_partition_and_a_sampler_of_ones_own():
    shards = (torch.tensor([3, 1]), torch.tensor([0]))

    def in_order(draw, images, count):
        return torch.arange(count) % images

    options = TaskOptions(2, config=DataConfig(steps_per_epoch=2), partition=shards, sampler=in_order)
    assert TaskData(0, numbered(4), options).indices(0, range(2), 2)[0][..., 0].tolist() == [[[3, 1], [0, 0]]] * 2


def test_each_round_through_a_shard_is_another_shuffle():
    first, second = stepped(40, 1, 2).indices(0, [0], 40)[0][:, 0, :, 0].tolist()
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != second


def test_epochs_agents_and_seeds_shuffle_differently():
    def first(seed, epoch):
        return next(iter(dealt(400, 2, seed).epoch(epoch, range(2), 50))).images_AB.tolist()

    assert first(0, 0) != first(0, 1) != first(1, 1)
    alone = next(iter(dealt(400, 2).epoch(0, [1], 50)))  # an agent's batches do not depend on who else is here
    assert alone.images_AB[0].tolist() == first(0, 0)[1]


def test_equal_paths_give_equal_streams_and_different_ones_do_not():
    draws = [
        torch.rand(4, generator=spawn(*path)).tolist()
        for path in ((1, "a", 2), (1, "a", 2), (1, "a", 3), (1, "b", 2), (2, "a", 2))
    ]
    assert draws[0] == draws[1]
    assert len({tuple(draw) for draw in draws}) == 4
    assert derive(7, "shards", 0) == 361076093109538813  # on every machine, in every version
    assert {choose(5, task, 4) for task in range(40)} == {0, 1, 2, 3}


def test_uint8_images_are_scaled_and_normalised():
    pixels = torch.full((4, 2, 1, 1), 255, dtype=torch.uint8)
    task = Task((pixels, torch.tensor([0, 1, 0, 1])), (pixels, torch.zeros(4)), 2, mean=(0.5, 0.0), std=(0.5, 2.0))
    data = TaskData(0, task, TaskOptions(1))
    assert data.prepare(pixels)[0].flatten().tolist() == pytest.approx([1.0, 0.5])
    assert data.prepare(pixels).dtype == torch.float32


class Pairs(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.full((2,), float(index)), index % 2


def test_data_sets_and_pairs_of_tensors_are_the_same_to_us():
    about = About("pairs", "training", 2)
    images, labels = loaded(Pairs(), about)
    for source in (TensorDataset(images, labels), (images, labels), (images.numpy(), labels.numpy())):
        again = loaded(source, about)
        assert torch.equal(again[0], images)
        assert torch.equal(again[1], labels)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"classes": 3}, "task 'numbers': class 2 has no training images"),
        ({"classes": 1}, "training label 1 is outside 0 to 0"),
        ({"train": (torch.zeros(5, 1), torch.zeros(4))}, "5 training images but 4 labels"),
        ({"test": (torch.zeros(0, 1), torch.zeros(0))}, "0 test images but 0 labels"),
        ({"test": (torch.zeros(4, 2), torch.zeros(4))}, r"training images are \[1\], test images \[2\]"),
        ({"test": (torch.zeros(4, 1), torch.zeros(4, 1))}, r"test labels have shape \[4, 1\]"),
        ({"train": (torch.full((4, 1), torch.nan), torch.arange(4) % 2)}, "NaN or infinity"),
    ],
)
def test_bad_data_is_named(changes, reason):
    with pytest.raises(DataError, match=reason):
        dealt(20, 2, **changes)


def test_the_quickstart_has_the_five_tasks_it_promises():
    stream = STREAMS["quickstart"]()
    names = ["digits", "clothes", "transposed digits", "upside-down clothes", "inverted mirrored digits"]
    assert [task.name for task in stream] == names
    pictures = [task.train[0] for task in stream]
    assert all(p.shape == (2000, 1, 28, 28) and p.dtype == torch.uint8 for p in pictures)
    assert all(task.test[0].shape == (500, 1, 28, 28) for task in stream)
    assert all(torch.bincount(task.train[1]).tolist() == [200] * 10 for task in stream)
    assert all(torch.bincount(task.test[1]).tolist() == [50] * 10 for task in stream)
    assert torch.equal(pictures[2], pictures[0].transpose(-1, -2))
    assert torch.equal(pictures[3], pictures[1].flip(-2))
    assert torch.equal(pictures[4], 255 - pictures[0].flip(-1))
    assert pictures[4].float().mean() > 200  # inverted: mostly bright


def coloured(images=12, side=6):
    """Images whose pixels are all different, so that a crop tells where it came from."""
    pixels = torch.randint(1, 256, (images, 3, side, side), generator=torch.Generator().manual_seed(0))
    labels = torch.arange(images) % 2
    return Task((pixels.to(torch.uint8), labels), (pixels.to(torch.uint8), labels), 2)


def test_every_image_gets_a_crop_and_a_mirroring_of_its_own():
    task = coloured()
    data = cropped(task, 2)
    padded = torch.nn.functional.pad(task.train[0], (4, 4, 4, 4))
    seen = set()
    for epoch in range(8):
        for indices in data.indices(epoch, range(2), 3)[0]:
            found, labels = data.batch(indices)
            for image, label, (which, down, right, mirrored) in zip(
                found.flatten(0, 1), labels.flatten(), indices.flatten(0, 1).tolist(), strict=True
            ):
                cut = padded[which, :, down : down + 6, right : right + 6]
                torch.testing.assert_close(image * 255, (cut.flip(-1) if mirrored else cut).double())
                assert label == task.train[1][which]
                seen.add((down, right, mirrored))
    downs, rights, mirrors = (set(part) for part in zip(*seen, strict=True))
    assert downs == rights == set(range(9))
    assert mirrors == {0, 1}
    assert len(seen) > 60  # of 162, in 96 draws: not one draw a batch


def test_past_the_edge_is_what_scaling_makes_0():
    """White images with a mean: black corners with `black`, 0 with `mean`, to the rounding of a stored byte."""
    white = (torch.full((6, 3, 6, 6), 255, dtype=torch.uint8), torch.arange(6) % 2)
    task = Task(white, white, 2, mean=(0.5, 0.25, 0.125), std=(0.5, 0.25, 0.25))
    for crop_fill, edges in (("black", (-1.0, -1.0, -0.5)), ("mean", (0.0, 0.0, 0.0))):
        data = cropped(task, crop_fill=crop_fill)
        found = torch.cat([data.batch(indices)[0].flatten(0, 1) for indices in data.indices(0, [0], 2)[0]])
        for channel, (edge, inner) in enumerate(zip(edges, (1.0, 3.0, 3.5), strict=True)):
            values = found[:, channel].unique()
            assert len(values) == 2
            torch.testing.assert_close(values, torch.tensor([edge, inner]).double(), atol=0.5 / 255 / 0.25, rtol=0)


def test_variations_depend_on_seed_agent_task_and_epoch_alone():
    data = cropped(coloured(), 2)
    assert torch.equal(data.indices(3, range(2), 3)[0], data.indices(3, range(2), 3)[0])
    assert torch.equal(data.indices(3, [1], 3)[0][:, 0], data.indices(3, range(2), 3)[0][:, 1])
    assert not torch.equal(data.indices(3, [1], 3)[0][..., 1:], data.indices(4, [1], 3)[0][..., 1:])


def test_tests_and_growth_see_images_as_they_are():
    task = coloured()
    data = cropped(task)
    ((held, _),) = data.test_images(4)
    assert sorted((held * 255).round().sum((1, 2, 3)).tolist()) == sorted(task.test[0].sum((1, 2, 3)).tolist())
    originals = {tuple(image.flatten().tolist()) for image in task.train[0].double()}
    assert all(tuple((image * 255).round().flatten().tolist()) in originals for image in data.sample(0, 5))


def test_crops_need_maps():
    flat = torch.ones(4, 5), torch.arange(4) % 2
    with pytest.raises(ConfigError, match=r"data.augment: crop-flip needs images .* 'flat' are \[5\]"):
        cropped(Task(flat, flat, 2, "flat"))
