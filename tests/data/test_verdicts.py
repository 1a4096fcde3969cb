"""Verdicts that are kept beside data set files: as good as made anew, and never in a run's way."""

import json
from dataclasses import replace

import pytest

from codecl.data import store, verdicts
from codecl.data.catalogue import CATALOGUE
from codecl.data.config import DataConfig
from codecl.data.verify import content_digest, verify
from tests.data.canonical import arrays

MADE = arrays("mnist", 40, 20)


@pytest.fixture(autouse=True)
def made(monkeypatch, tmp_path):
    """A data folder with an mnist that was made up, and that the catalogue knows as a near copy."""
    monkeypatch.setenv("CODECL_DATA", str(tmp_path / "data"))
    store.write("mnist", MADE)
    know(monkeypatch, near_copies={content_digest(MADE): "made up"})


def know(monkeypatch, **facts):
    monkeypatch.setitem(CATALOGUE, "mnist", replace(CATALOGUE["mnist"], counts=((40, 20),), **facts))


@pytest.fixture
def looks(monkeypatch):
    """The names of the data sets that are looked at anew."""
    names = []
    monkeypatch.setattr(verdicts, "verify", lambda name: names.append(name) or verify(name))
    return names


def test_a_file_is_looked_at_once(looks):
    first = verdicts.kept("mnist")
    assert (first.status, first.reason) == ("near", "not the original: made up")
    assert verdicts.kept("mnist") == first
    assert looks == ["mnist"]
    assert store.names() == ["mnist"]


def test_another_file_and_new_knowledge_are_looked_at_anew(looks, monkeypatch):
    verdicts.kept("mnist")
    store.write("mnist", replace(MADE, train_images=MADE.train_images ^ 1))
    assert verdicts.kept("mnist").status == "wrong"
    know(monkeypatch, exact=False)
    assert verdicts.kept("mnist").status == "fits"
    store.write("mnist", MADE)
    know(monkeypatch, near_copies={}, digests=(content_digest(MADE),))
    assert verdicts.kept("mnist").status == "ok"
    assert looks == ["mnist"] * 4


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"of": "another"}'])
def test_a_broken_verdict_is_made_again(looks, text):
    first = verdicts.kept("mnist")
    verdicts.path_of("mnist").write_text(text)
    assert verdicts.kept("mnist") == first
    assert json.loads(verdicts.path_of("mnist").read_text())["status"] == "near"
    assert looks == ["mnist"] * 2


def test_where_nothing_can_be_written_it_is_made_again(looks):
    verdicts.path_of("mnist").mkdir()
    assert verdicts.kept("mnist") == verdicts.kept("mnist")
    assert looks == ["mnist"] * 2
    assert not list(store.folder().glob("*.part"))


@pytest.mark.parametrize(
    ("stream", "names"),
    [
        ("split(mnist, 5)", ["mnist"]),
        ("split(mnist, 5) + quickstart + whole(mine) + whole(mnist)", ["mnist"]),
        ("split(mine, 5)", None),
        ("quickstart", None),
        ("own", None),
        ("mine.py:tasks", None),
        ("split(notmnist, 5)", None),  # it is not there
    ],
)
def test_the_data_sets_of_the_catalogue_that_a_stream_reads(stream, names, looks):
    store.write("mine", MADE)
    found = verdicts.of_stream(DataConfig(stream=stream))
    assert (list(found) if found else None) == names
    assert looks == (names or [])


def test_an_agents_own_files_are_not_looked_at(looks, tmp_path):
    data = DataConfig(stream="split(mnist, 5)", local_path=str(tmp_path / "data"), steps_per_epoch=3)
    assert verdicts.of_stream(data) is None
    assert looks == []
