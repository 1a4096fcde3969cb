"""The named streams, as the paper has them, on small files of the right shapes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.data import store
from codecl.data.config import DataConfig
from codecl.data.split import measured
from codecl.data.store import ImageSet
from codecl.data.streams import FIVE, STREAMS, data_sets, digest, load, shaped
from codecl.data.task import Task, TaskData, TaskOptions
from codecl.errors import ConfigError, DataError
from codecl.runs.build import load_tasks
from codecl.runs.grid import preset, resolve
from tests.data.canonical import arrays


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("CODECL_DATA", str(tmp_path))
    return tmp_path


def keep(name, train=40, test=20):
    images = arrays(name, train, test)
    store.write(name, images)
    return images


def test_five_datasets_are_padded_by_two_and_repeated_to_three_channels():
    held = {name: keep(name) for name in FIVE}
    tasks = STREAMS["five-datasets"]()
    assert [task.name for task in tasks] == ["cifar10", "mnist", "svhn", "fashion-mnist", "notmnist"]
    for task in tasks:
        images, labels = task.train
        given = torch.from_numpy(held[task.name].train_images)
        assert images.shape == (40, 3, 32, 32)
        assert labels.tolist() == held[task.name].train_labels.tolist()
        assert (task.classes, len(task.labels), task.original) == (10, 10, tuple(given.shape[1:]))
        if given.shape[1] == 3:
            assert torch.equal(images, given)
            continue
        assert torch.equal(images[:, :1], images[:, 1:2])
        assert torch.equal(images[:, 2:, 2:-2, 2:-2], given)
        assert not images[:, :, :2].any()
        assert not images[..., -2:].any()


def test_five_datasets_are_normalised_by_the_papers_numbers():
    for name in FIVE:
        keep(name)
    tasks = {task.name: TaskData(0, task, TaskOptions(2, dtype=torch.float64)) for task in STREAMS["five-datasets"]()}
    white = torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)
    seen = {name: data.prepare(white).flatten().tolist() for name, data in tasks.items()}
    assert seen["mnist"] == pytest.approx([(1 - 0.1) / 0.2752] * 3)
    assert seen["cifar10"] == pytest.approx([(255 - 125.3) / 63.0, (255 - 123.0) / 62.1, (255 - 113.9) / 66.7])
    assert seen["svhn"] == pytest.approx([(1 - 0.4377) / 0.198, (1 - 0.4438) / 0.201, (1 - 0.4728) / 0.197])
    assert seen["fashion-mnist"] == pytest.approx([(1 - 0.2190) / 0.3318] * 3)
    assert seen["notmnist"] == pytest.approx([(1 - 0.4254) / 0.4501] * 3)


def test_split_miniimagenet_is_twenty_tasks_of_five_classes():
    held = keep("miniimagenet", 200, 100)
    tasks = STREAMS["split-miniimagenet"]()
    assert [task.classes for task in tasks] == [5] * 20
    assert tasks[3].train[0].shape == (10, 3, 84, 84)
    assert sorted(tasks[3].train[1].tolist()) == [label for label in range(5) for _ in range(2)]
    inside = (held.train_labels >= 15) & (held.train_labels < 20)
    assert torch.equal(tasks[3].train[0], torch.from_numpy(held.train_images[inside]))
    assert tasks[0].mean == (0.485, 0.456, 0.406)


PAPER = {  # of Table 1's benchmarks: tasks, epochs, batch, rate, d-ewc's rate, threshold, increment, augmentation
    "split-cifar100": ("alexnet", 100, 22, 0.01, 0.05, 0.97, 0.003, "crop-flip", 64),
    "split-miniimagenet": ("resnet18", 10, 10, 0.1, 0.03, 0.985, 0.0003, "none", 10),
    "five-datasets": ("resnet18", 50, 32, 0.1, 0.03, 0.965, 0.0, "none", 64),
}


@pytest.mark.parametrize("name", PAPER)
def test_presets_have_the_papers_settings(name):
    model, epochs, batch, rate, other, threshold, increment, augment, test_batch = PAPER[name]
    ours = resolve(preset(name), {})
    assert (ours.model.name, ours.data.augment, ours.data.partition) == (model, augment, "iid")
    train = ours.train
    assert (train.epochs, train.batch_size, train.lr, train.test_batch_size) == (epochs, batch, rate, test_batch)
    assert (train.milestones, train.gamma, train.schedule, train.momentum) == ((0.5, 0.75), 0.1, "steps", 0)
    assert (train.order, train.norm_statistics, train.label_smoothing) == ("paper", "batch", 0)
    assert (ours.growth.threshold, ours.growth.increment, ours.growth.subspace_from) == (threshold, increment, "one")
    d_ewc = resolve(preset(name), {"method": {"name": "d-ewc"}})
    assert (d_ewc.train.lr, d_ewc.method.options["penalty"]) == (other, 5000)
    assert d_ewc.method.options["penalty_step"] == "clipped"


def test_tuned_keeps_data_epochs_model_and_messages():
    tuned, ours = (resolve(preset(name), {}) for name in ("split-cifar100-tuned", "split-cifar100"))
    assert (tuned.model, tuned.growth) == (ours.model, ours.growth)
    assert tuned.data.model_copy(update={"crop_fill": ours.data.crop_fill}) == ours.data
    assert (tuned.train.epochs, tuned.train.batch_size) == (ours.train.epochs, ours.train.batch_size)
    assert preset("split-cifar100-tuned").paper == "split-cifar100"


def test_a_preset_may_change_with_the_number_of_agents():
    start = preset("split-cifar100")._replace(by_agents={8: {"train": {"lr": 0.2}}, 16: {"train": {"lr": 0.3}}})
    rates = [resolve(start, {"agents": agents}).train.lr for agents in (4, 8, 12, 16, 40)]
    assert rates == [0.01, 0.2, 0.2, 0.3, 0.3]
    assert resolve(start, {}).train.lr == 0.2  # its own number of agents
    assert resolve(start, {"agents": 16, "train": {"lr": 0.5}}).train.lr == 0.5


def test_any_data_set_can_be_split():
    pixels = torch.arange(24 * 3 * 4, dtype=torch.uint8).view(24, 3, 2, 2).numpy()
    labels = (torch.arange(24) % 6).numpy()
    store.write("birds", ImageSet(pixels, labels, pixels, labels, names=tuple("abcdef")))
    tasks = load("split(birds, 2)")
    assert [task.name for task in tasks] == ["classes 0-1", "classes 2-3", "classes 4-5"]
    assert tasks[1].labels == ("c", "d")
    assert tasks[0].mean == pytest.approx(measured(torch.from_numpy(pixels)).mean)
    settings = resolve(preset("quickstart"), {"data": {"stream": "split(birds, 2)"}})
    assert settings.sources["data"] == digest("split(birds,2)") is not None
    with pytest.raises(ConfigError, match="the 6 classes of 'birds' cannot be cut into tasks of 4"):
        load("split(birds, 4)")
    with pytest.raises(DataError, match="data set 'fish': there is no"):
        load("split(fish, 4)")


@given(st.integers(1, 4), st.integers(2, 5), st.integers(0, 2**40))
def test_a_random_order_has_every_class_once_and_its_own_images(each, count, seed):
    total = each * count
    labels = torch.arange(3 * total) % total
    pixels = labels.to(torch.uint8).view(-1, 1, 1, 1).numpy()  # an image shows its class
    names = tuple(f"bird {label}" for label in range(total))
    store.write("birds", ImageSet(pixels, labels.numpy(), pixels, labels.numpy(), names=names))
    plain, tasks, again = (
        load(f"{form}") for form in (f"split(birds, {each})", *2 * [f"shuffled(split(birds, {each}), {seed})"])
    )
    seen = []
    for task, same in zip(tasks, again, strict=True):
        assert all(torch.equal(a, b) for a, b in zip((*task.train, *task.test), (*same.train, *same.test), strict=True))
        assert (task.classes, task.mean, task.std) == (each, plain[0].mean, plain[0].std)
        for images, numbers in (task.train, task.test):
            for label in range(each):
                (shown,) = set(images[numbers == label].flatten().tolist())
                assert task.labels[label] == f"bird {shown}"
            assert len(numbers) == 3 * each
        seen += task.labels
    assert sorted(seen) == sorted(names)


def test_a_random_order_of_a_published_stream_keeps_its_scale_and_is_known_by_its_data_set():
    keep("miniimagenet", 200, 100)
    tasks = load("shuffled(split-miniimagenet, 1)")
    order = torch.randperm(100, generator=torch.Generator().manual_seed(1)).tolist()
    assert [task.name for task in tasks] == [
        f"classes {' '.join(map(str, order[k : k + 5]))}" for k in range(0, 100, 5)
    ]
    assert {task.mean for task in tasks} == {(0.485, 0.456, 0.406)}
    assert data_sets("shuffled(split-miniimagenet, 1) + quickstart") == ["miniimagenet"]
    plain, mixed = (
        resolve(preset("split-miniimagenet"), {"data": {"stream": stream}})
        for stream in ("split-miniimagenet", "shuffled(split-miniimagenet, 1)")
    )
    assert plain.sources == mixed.sources
    assert plain.digest() != mixed.digest()


def test_a_label_that_has_no_place_in_a_random_order_is_named():
    pixels, labels = torch.zeros(8, 1, 2, 2, dtype=torch.uint8).numpy(), torch.arange(8).numpy() % 4
    store.write("birds", ImageSet(pixels, labels, pixels, labels + 1))
    assert [len(task.test[1]) for task in load("split(birds, 2)")] == [2, 4]
    with pytest.raises(DataError, match=r"birds.safetensors: .*4"):
        load("shuffled(split(birds, 2), 1)")


@pytest.mark.parametrize(
    ("stream", "inner"),
    [
        ("five-datasets", "five-datasets"),
        ("whole(mnist)", "whole"),
        ("shuffled(split(mnist, 2), 1)", "shuffled"),
        ("birds", "birds"),
    ],
)
def test_only_classes_that_are_cut_into_tasks_have_an_order(stream, inner):
    with pytest.raises(
        ConfigError, match=rf"data.stream: shuffled\(.*, 3\): '{inner}.*' is not a data set cut into tasks"
    ):
        resolve(preset("quickstart"), {"data": {"stream": f"shuffled({stream}, 3)"}})
    with pytest.raises(ConfigError, match=r"is unknown; there are quickstart, .*, shuffled\(STREAM, SEED\)"):
        load("shuffled(split(mnist, 2))")
    with pytest.raises(ConfigError, match=r"a seed is less than 2\^63"):
        load(f"shuffled(split(mnist, 2), {2**63})")


def test_the_scale_of_many_images_is_that_of_all_of_them():
    images = torch.randint(256, (2300, 3, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, std = measured(images)
    values = images.double() / 255
    assert mean == pytest.approx(values.mean((0, 2, 3)).tolist())
    assert std == pytest.approx(values.std((0, 2, 3), correction=0).tolist())
    assert measured(torch.zeros(4, 1, 2, 2, dtype=torch.uint8)).std == pytest.approx((1e-3,))  # nothing divides by 0


def test_a_known_name_with_more_classes_is_numbered():
    pixels, labels = torch.zeros(24, 1, 28, 28, dtype=torch.uint8).numpy(), (torch.arange(24) % 12).numpy()
    store.write("mnist", ImageSet(pixels, labels, pixels, labels))
    assert load("whole(mnist)")[0].labels == tuple(map(str, range(12)))


def test_another_file_is_another_run_for_streams_of_several():
    for name in FIVE:
        keep(name)
    first = digest("five-datasets")
    assert first == digest("five-datasets")
    keep("svhn", 60)
    assert digest("five-datasets") != first
    store.path_of("svhn").unlink()
    assert digest("five-datasets") is None


def test_shapes_that_cannot_be_reached_are_refused():
    with pytest.raises(ConfigError, match=r"\[1, 28, 28\] cannot be padded and repeated to \[3, 20, 32\]"):
        shaped(torch.zeros(2, 1, 28, 28), (3, 20, 32))
    with pytest.raises(ConfigError, match="cannot be padded"):
        shaped(torch.zeros(2, 2, 28, 28), (3, 32, 32))


@given(st.integers(2, 6), st.integers(4, 30), st.floats(0.05, 0.6), st.integers(0, 5))
def test_a_validation_cut_is_of_the_training_images_and_of_each_class_alike(classes, each, part, seed):
    numbers = torch.arange(classes * each)
    task = Task((numbers, numbers % classes), (-numbers - 1, numbers % classes), classes)
    cut = TaskData(0, task, TaskOptions(1, seed=seed, config=DataConfig(validation=part)))
    kept, held = cut.train[0].tolist(), cut.test[0].tolist()
    assert sorted(kept + held) == numbers.tolist()  # no test image, nothing twice
    counts = torch.bincount(cut.test[1], minlength=classes).tolist()
    assert counts == [max(1, round(part * each))] * classes
    assert torch.equal(cut.test[1], cut.test[0] % classes)


def test_validation_is_off_unless_asked_for():
    numbers = torch.arange(40.0)[:, None]
    task = Task((numbers, torch.arange(40) % 2), (-numbers, torch.arange(40) % 2), 2)
    plain, cut = (
        TaskData(0, task, TaskOptions(2, dtype=torch.float64, config=DataConfig(validation=v))) for v in (0, 0.25)
    )
    assert set(next(plain.test_images(8))[0].flatten().tolist()) == set((-numbers).flatten().tolist())
    assert len(cut.test[1]) == 10
    assert len(cut.train[1]) == 30
    assert set(next(cut.test_images(8))[0].flatten().tolist()) < set(numbers.flatten().tolist())


def test_some_tasks_of_a_stream():
    assert len(load_tasks(resolve(preset("quickstart"), {"data": {"tasks": 2}}))) == 2


def test_more_tasks_than_there_are_is_refused():
    with pytest.raises(ConfigError, match=r"data.tasks: 9 is more than the 5 tasks of the stream"):
        load_tasks(resolve(preset("quickstart"), {"data": {"tasks": 9}}))


def test_a_validation_cut_that_takes_all_and_data_that_does_not_fit():
    def dealt(images, labels, part):
        task = Task((images, labels), (images, labels), 2, "t")
        return TaskData(0, task, TaskOptions(1, dtype=torch.float64, config=DataConfig(validation=part)))

    images = torch.zeros(8, 3)
    with pytest.raises(ConfigError, match=r"data.validation: 0.99 leaves no training images of class 0 of task 't'"):
        dealt(images, torch.arange(8) % 2, 0.99)
    with pytest.raises(DataError, match="8 training images but 7 labels"):
        dealt(images, torch.arange(7) % 2, 0.2)
    with pytest.raises(DataError, match="it should be one number an image"):
        dealt(images, (torch.arange(8) % 2)[:, None], 0.2)
