"""Data as people have it: every form gives the same tensors, and what cannot be used is named."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, WeightedRandomSampler, random_split

import codecl
from codecl.data import forms
from codecl.data.forms import loaded
from codecl.data.items import About, Items
from codecl.errors import DataError
from tests.data import sets
from tests.data.sets import CLASSES, Broken, Columns, Dicts, Odd, OneByOne, Pairs, Pictures, Reader, Sequences, padded

ABOUT = About("x", "training", CLASSES)
IMAGES = torch.stack([sets.values(index) for index in range(48)])
LABELS = torch.arange(48) % CLASSES
SMALL = {"agents": 2, "train": {"epochs": 2, "batch_size": 4}, "growth": {"images": 6}}

FORMS = {
    "tensors": lambda: (IMAGES, LABELS),
    "arrays": lambda: (IMAGES.numpy(), LABELS.numpy()),
    "a list of both": lambda: [IMAGES, LABELS],
    "TensorDataset": lambda: TensorDataset(IMAGES, LABELS),
    "columns": lambda: {"image": IMAGES, "label": LABELS},
    "lists": lambda: ([*IMAGES], LABELS.tolist()),
    "map-style": Pairs,
    "dicts": Dicts,
    "dicts of the hub": Columns,
    "NumPy": Odd,
    "a list of pairs": lambda: [*zip(IMAGES, LABELS.tolist(), strict=True)],
    "a list of dicts": lambda: [{"image": image, "labels": label} for image, label in zip(IMAGES, LABELS, strict=True)],
    "iterable": OneByOne,
    "a generator": lambda: (pair for pair in zip(IMAGES, LABELS, strict=True)),
    "loader": lambda: DataLoader(Pairs(), batch_size=5, shuffle=True),
    "loader of dicts": lambda: DataLoader(Dicts(), batch_size=5),
    "loader of tensors": lambda: DataLoader(TensorDataset(IMAGES, LABELS), batch_size=7),
    "loader of an iterable": lambda: DataLoader(OneByOne(), batch_size=5),
    "loader of items of an iterable": lambda: DataLoader(OneByOne(), batch_size=None),
    "a part": lambda: torch.utils.data.Subset(Pairs(60), range(48)),
    "two parts": lambda: torch.utils.data.ConcatDataset([Pairs(20), Pairs(28, first=20)]),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_tensors(form):
    images, labels = loaded(FORMS[form](), ABOUT)
    assert torch.equal(images, IMAGES)
    assert images.dtype == torch.float32
    assert torch.equal(labels.long(), LABELS)


def test_workers_read_a_data_set_into_memory_in_its_order():
    many = loaded(Pairs(600), ABOUT, "memory", workers=2)
    assert torch.equal(many[0], loaded(Pairs(600), ABOUT, "memory")[0])


def test_fit_takes_them_all_and_knows_that_they_are_the_same(tmp_path):
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 6), nn.Tanh(), nn.Linear(6, CLASSES))

    def fit(form):
        return codecl.fit(module, [codecl.Task(FORMS[form](), FORMS[form](), CLASSES)], out=tmp_path, **SMALL)

    assert fit("tensors").trained
    assert not any(fit(form).trained for form in FORMS)


@pytest.mark.parametrize(
    ("mode", "channels"), [("RGB", 3), ("L", 1), ("1", 1), ("P", 3), ("RGBA", 4), ("CMYK", 3), ("LA", 1)]
)
def test_pictures_become_bytes(mode, channels):
    images, labels = loaded(Pictures(mode), ABOUT)
    assert images.dtype == torch.uint8
    assert images.shape == (12, channels, 6, 5)
    assert labels.tolist() == [index % CLASSES for index in range(12)]
    if mode == "RGB":
        assert images[4, :, 0].tolist() == [[24, 255, 24, 24, 24]] * 3


def test_several_inputs_are_kept_apart():
    pair = loaded([((torch.zeros(2), torch.ones(3)), 0), ((torch.ones(2), torch.ones(3)), 1)], ABOUT)
    assert [list(part.shape) for part in pair[0]] == [[2, 2], [2, 3]]
    named, _ = loaded([{"a": [1, 2], "b": np.float32(3), "label": 0}] * 2, ABOUT)
    assert named["a"].tolist() == [[1, 2], [1, 2]]
    assert named["b"].tolist() == [3.0, 3.0]
    collated = DataLoader([((image, image), 0) for image in IMAGES], batch_size=5)
    assert isinstance(loaded(DataLoader(OneByOne(6, several=True), batch_size=4), ABOUT)[0], tuple)
    assert isinstance(loaded(collated, ABOUT)[0], tuple)
    assert loaded([((1.0, 2.0, 3.0), 0), ((1.0, 2.0, 4.0), 1)], ABOUT)[0].tolist() == [[1, 2, 3], [1, 2, 4]]
    assert loaded(({"a": IMAGES, "b": IMAGES}, LABELS), ABOUT)[0].keys() == {"a", "b"}
    assert isinstance(loaded(((IMAGES, IMAGES), LABELS), ABOUT)[0], tuple)


@pytest.mark.parametrize(("loading", "workers"), [("memory", 0), ("stream", 0), ("stream", 1)])
def test_sequences_of_different_lengths_reach_the_model_by_name(tmp_path, loading, workers):
    """A task's all are padded to the longest of all, those of a batch to the longest of it: a mask makes them equal."""
    torch.manual_seed(0)
    loader = DataLoader(Sequences(60), collate_fn=padded)
    task = codecl.Task(loader, DataLoader(Sequences(3), collate_fn=padded), CLASSES)  # 3: shorter ones
    settings = {**SMALL, "train": {"epochs": 12, "batch_size": 5, "lr": 1.0}, "dense": ["embedding.weight"]}
    settings["data"] = {"loading": loading, "workers": workers}
    result = codecl.fit(Reader(), [task, task], out=tmp_path, **settings)
    assert result.metrics["accuracy_matrix"][-1] == [100, 100]
    inputs, _ = padded([Sequences()[1], Sequences()[4]])
    assert result.model(0)(**inputs).argmax(1).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raises", "OSError: scan 17.png is truncated"),
        (
            "shape",
            r"it is float32 \[2, 5, 6\] .*, but item 0 is float32 \[2, 6, 6\] .*; make them alike, or pad them with",
        ),
        ("type", r"it is float64 \[2, 6, 6\] .*, but item 0 is float32"),
        ("kind", "its input is of type str, which is no tensor; leave it out, or make tensors of it with Task"),
        ("label", r"label 9 is outside 0 to 2 \(3 classes\)"),
        ("half", "its label 0.5 is not a whole number"),
        ("many", r"it is float32 \[2, 6, 6\] with a label \[2\], but item 0 is float32 \[2, 6, 6\] with a label \[\]"),
        ("nan", "it holds NaN or infinity"),
        ("single", r"it is of type Tensor; give \(inputs, label\) or a dict with 'label'"),
        ("triple", r"it is a tuple of 3; give \(inputs, label\)"),
        ("keys", "its keys are image, target; give inputs and either 'label' or 'labels'"),
    ],
)
@pytest.mark.parametrize("loading", ["memory", "stream"])
def test_a_bad_item_is_named(tmp_path, how, reason, loading):
    task = codecl.Task(Broken(how), Pairs(), CLASSES, "scans")
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, CLASSES))
    with pytest.raises(DataError, match=f"^task 'scans': training item 17: {reason}") as caught:
        codecl.fit(module, [task], out=tmp_path, data={"loading": loading}, **SMALL)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (3, "data is of type int, not \\(images, labels\\) nor a data set of such pairs"),
        ([], "data: there are no items"),
        (TensorDataset(IMAGES), "the TensorDataset holds 1 tensors"),
        (([[1, 2], [3]], [0, 1]), "sequences of different lengths need Task"),
        (
            Sequences(),
            r"item 1: it is int64 \[4\] .*, but item 0 is int64 \[3\] .*; make them alike, or pad them with Task",
        ),
        (DataLoader(Pairs(), sampler=SubsetRandomSampler(range(9))), "SubsetRandomSampler would not be used"),
        (
            DataLoader(Pairs(), sampler=WeightedRandomSampler([1.0] * 48, 9)),
            "give its data set, or torch.utils.data.Su",
        ),
        (([*IMAGES], [0, 1]), "data: 48 images but 2 labels"),
        (DataLoader(Pairs(), collate_fn=len), "collate fails on 32 of them: it is of type int; give"),
        (
            DataLoader(Pairs(), collate_fn=lambda items: (IMAGES, LABELS)),
            r"collate gives shapes \[48, 2, 6, 6\], \[48\]",
        ),
    ],
)
def test_what_is_no_data_set_of_pairs_is_refused(data, reason):
    with pytest.raises(DataError, match=f"^task 'x': training .*{reason}") as caught:
        loaded(data, ABOUT)
    assert "\n" not in str(caught.value)


def test_what_can_only_be_read_through_has_to_fit_in_memory(monkeypatch):
    def endless():
        while True:
            yield torch.zeros(1000), 0

    monkeypatch.setattr(forms, "LIMIT", 2**20)
    with pytest.raises(DataError, match=r"a generator is read into memory, .* give a data set with __getitem__ and"):
        loaded(endless(), ABOUT)


def test_an_iterable_that_breaks_says_where():
    def breaks():
        yield torch.zeros(2), 0
        yield torch.zeros(2), 1
        raise RuntimeError("cable")

    with pytest.raises(DataError, match="training item 2: RuntimeError: cable"):
        loaded(breaks(), ABOUT)


def test_auto_streams_what_is_random_or_large(monkeypatch):
    assert isinstance(loaded(sets.Noisy(), ABOUT), Items)
    assert not isinstance(loaded(sets.Noisy(), ABOUT, "memory"), Items)
    assert isinstance(loaded(Pairs(), ABOUT, "stream"), Items)
    assert not isinstance(loaded((IMAGES, LABELS), ABOUT, "stream"), Items), "tensors are in memory already"
    monkeypatch.setattr(forms, "SMALL", IMAGES.nbytes // 2)
    assert isinstance(loaded(Pairs(), ABOUT), Items)
    assert not isinstance(loaded(Pairs(12), ABOUT), Items)


def test_labels_are_taken_from_where_they_lie():
    whole, columns = sets.Labelled(), Columns()
    part, _ = random_split(sets.Labelled(60), [48, 12], torch.Generator().manual_seed(0))
    for data in (whole, columns, part):
        expected = [index % CLASSES for index in (part.indices if data is part else range(48))]
        assert forms.labels_of(Items(data, ABOUT), 0).tolist() == expected
    assert max(len(whole.reads), len(columns.reads), len(part.dataset.reads)) <= 32
    wrong = sets.Labelled(targets=[0] * 48)  # say, before a target_transform
    with pytest.warns(codecl.errors.ConfigWarning, match="all 48 items are read for them once"):
        assert torch.equal(forms.labels_of(Items(wrong, ABOUT), 0), LABELS)
