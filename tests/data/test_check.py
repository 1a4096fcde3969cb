"""The content digest and the verdict on a data set."""

from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codecl.data.catalogue import CATALOGUE, Entry, Verdict
from codecl.data.store import PARTS, ImageSet
from codecl.data.verify import content_digest, judge
from tests.data.canonical import arrays


@st.composite
def sets(draw):
    shape = draw(st.tuples(st.sampled_from((1, 3)), st.integers(1, 4), st.integers(1, 4)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))

    def split(count):  # few values, so that equal images come up
        return random.integers(0, 3, (count, *shape), np.uint8), random.integers(0, 3, count)

    return ImageSet(*split(draw(st.integers(1, 6))), *split(draw(st.integers(1, 6))))


@given(sets(), st.randoms(use_true_random=False))
def test_the_digest_does_not_depend_on_order(images, random):
    orders = [random.sample(range(len(labels)), len(labels)) for _, labels in images.splits().values()]
    mixed = [getattr(images, part)[orders[number // 2]] for number, part in enumerate(PARTS)]
    assert content_digest(ImageSet(*mixed)) == content_digest(images)


@given(sets(), st.data())
def test_the_digest_changes_with_any_pixel_or_label(images, data):
    part = data.draw(st.sampled_from(PARTS))
    changed = getattr(images, part).copy()
    place = data.draw(st.integers(0, changed.size - 1))
    changed.reshape(-1)[place] += data.draw(st.integers(1, 200))
    assert content_digest(replace(images, **{part: changed})) != content_digest(images)


def test_the_digest_is_written_down():
    """So that the catalogue's digests stay what they mean."""
    images = ImageSet(np.zeros((1, 1, 2, 2), np.uint8), np.array([1]), np.ones((1, 1, 2, 2), np.uint8), np.array([2]))
    train = sha256(b"\1\0\0\0\0\0\0\0" + b"\0\0\0\0").digest()
    test = sha256(b"\2\0\0\0\0\0\0\0" + b"\1\1\1\1").digest()
    assert content_digest(images) == sha256(train + test).hexdigest()


@pytest.fixture
def made():
    return arrays("mnist", 40, 20)


def entry(made, **changes):
    facts = {"name": "x", "shape": (1, 28, 28), "classes": 10, "counts": ((40, 20),)}
    return Entry(**{**facts, "digests": (content_digest(made),), **changes})


def test_ok_fits_own_and_wrong(made):
    other = replace(made, train_labels=np.roll(made.train_labels, 1))
    assert judge(made, entry(made)).status == "ok"
    assert judge(made, None).status == "own"
    fits = judge(made, entry(made, digests=()))
    assert fits.status == "fits"
    assert "has nothing to be compared with" in fits.reason
    assert judge(other, entry(made)).status == "fits"
    assert "is not that of the known copy" in judge(other, entry(made)).reason
    exact = judge(other, entry(made, exact=True))
    assert exact.status == "wrong"
    assert "images or labels are not the original's" in exact.reason
    assert judge(made, entry(made, counts=((1, 1), (40, 20)))).status == "ok"


@pytest.mark.parametrize("exact", [False, True])
@given(random=st.randoms(use_true_random=False), place=st.integers(0, 40 * 28 * 28 - 1))
def test_a_near_copy_is_near_in_any_order_and_nothing_else_is(exact, random, place):
    made, original = arrays("mnist", 40, 20), arrays("mnist", 40, 20, seed=1)
    known = entry(original, exact=exact, near_copies={content_digest(made): "compressed"})
    order = random.sample(range(40), 40)
    mixed = replace(made, train_images=made.train_images[order], train_labels=made.train_labels[order])
    assert judge(mixed, known) == Verdict("near", "not the original: compressed")
    assert judge(original, known).status == "ok"
    changed = made.train_images.copy()
    changed.reshape(-1)[place] ^= 1
    assert judge(replace(made, train_images=changed), known).status == ("wrong" if exact else "fits")


def test_a_near_copy_has_the_published_counts_too(made):
    known = entry(made, counts=((50, 20),), near_copies={content_digest(made): "compressed"})
    assert judge(made, known) == Verdict("wrong", "40 + 20 images, should be 50 + 20")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"counts": ((40, 21), (41, 20))}, "40 + 20 images, should be 40 + 21 or 41 + 20"),
        ({"shape": (3, 28, 28)}, "images are 1×28×28, should be 3×28×28"),
        ({"classes": 9}, "labels go up to 9, should be below 9"),
        ({"classes": 11}, "class 10 has no training images"),
    ],
)
def test_what_differs_from_the_published(made, changes, says):
    assert judge(made, entry(made, **changes)) == Verdict("wrong", says)


def test_what_no_data_set_may_have(made):
    def wrong(**changes):
        verdict = judge(replace(made, **changes), None)
        assert verdict.status == "wrong"
        return verdict.reason

    assert "train_images are float32" in wrong(train_images=made.train_images.astype(np.float32))
    assert "test_images are uint8 [20, 28, 28]" in wrong(test_images=made.test_images[:, 0])
    assert "test_labels are int64 [19], not int64 [20]" in wrong(test_labels=made.test_labels[1:])
    assert "train_labels are int32" in wrong(train_labels=made.train_labels.astype(np.int32))
    assert "train_labels go down to -1" in wrong(train_labels=made.train_labels - 1)
    assert "test images 1×27×28" in wrong(test_images=made.test_images[:, :, 1:])
    few = replace(made, test_labels=np.where(made.test_labels == 3, 4, made.test_labels))
    assert judge(few, None) == Verdict("wrong", "class 3 has no test images")
    assert judge(replace(made, train_labels=made.train_labels + 10**15), None).status == "wrong"


def test_the_catalogue_is_whole():
    assert len(CATALOGUE) == 7
    for entry in CATALOGUE.values():
        assert entry.files or entry.by_hand
        assert all(len(file.md5 or "0" * 32) == 32 for file in entry.files)
        assert all(url.endswith("/" + file.name) for file in entry.files for url in file.urls)
        assert all(len(digest) == 64 for digest in (*entry.digests, *entry.near_copies))
        assert not set(entry.digests) & set(entry.near_copies)
        assert all(0 < len(words) <= 100 and words.isprintable() for words in entry.near_copies.values())
        assert entry.digests or not entry.exact
