"""The laws of what peers send each other; no network here."""

import random
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("grpc")

from codecl.peers import frames
from codecl.peers.frames import BadFrame, FrameKind

MAX_BYTES = 1 << 20
START = bytes(32)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.integers(0, 2**64 - 1)


@st.composite
def tensors(draw, max_size=4):
    """Of every type that travels; bytes of any kind, so with every value that there is."""
    out = {}
    for name in draw(st.lists(words, max_size=max_size, unique=True)):
        kind = draw(st.sampled_from(list(frames.DTYPES.values())))
        shape = draw(st.lists(st.integers(0, 3), max_size=4))
        data = torch.randint(0, 256, (int(np.prod(shape)) * kind.itemsize,), dtype=torch.uint8)
        out[name] = data.view(kind).view(shape)
    return out


fields = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("sender", "stage", "step", "root", "number"), numbers),
        **dict.fromkeys(("commit", "manifest", "signature"), st.binary(max_size=40)),
        **dict.fromkeys(("busy", "degraded", "hears"), st.booleans()),
        **dict.fromkeys(("beats", "positions"), st.lists(numbers, max_size=4)),
        "history": st.lists(st.binary(max_size=33), max_size=3),
        "fleet": words,
    },
)


def bits(found):
    """Tensors as what can be compared, NaN and all."""
    return {
        name: (value.dtype, tuple(value.shape), value.contiguous().reshape(-1).view(torch.uint8).tolist())
        for name, value in found.items()
    }


@given(st.sampled_from(FrameKind), tensors(), fields)
def test_decode_undoes_encode(kind, values, about):
    data = frames.encode(kind, values, **about)
    found = frames.decode(data, MAX_BYTES)
    assert found.kind is kind
    assert bits(found.tensors) == bits(values)
    assert {name: getattr(found.header, name) for name in about} == about
    assert frames.tensor_bytes(data) == sum(value.numel() * value.element_size() for value in values.values())
    assert found.position == (about.get("stage", 0), about.get("step", 0))


def test_what_is_decoded_is_ones_own():
    """Nothing that is done to a tensor reaches the bytes that it came in."""
    data = frames.encode(FrameKind.ROW, {"row": torch.ones(3)})
    frames.decode(data, MAX_BYTES).tensors["row"].zero_()
    assert frames.decode(data, MAX_BYTES).tensors["row"].tolist() == [1, 1, 1]


def frame_or_refused(data):
    """Whether it is a frame. What refuses it can be logged: one line, and not a long one."""
    try:
        return isinstance(frames.decode(data, MAX_BYTES), frames.Frame)
    except BadFrame as error:
        reason = str(error)
    assert "\n" not in reason
    assert len(reason) < 600
    return False


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_refused(data):
    frame_or_refused(data)
    frame_or_refused(len(data).to_bytes(4, "big") + data)


def valid_frames():
    some = {"a/weight": torch.arange(6.0).view(2, 3), "b": torch.empty(0, 4), "c": torch.tensor(7)}
    about = {"fleet": "0123456789ab", "sender": 3, "stage": 1, "step": 300, "commit": START, "beats": [1, 2**40, 3]}
    yield frames.encode(FrameKind.BEAT, **about, positions=[5, 6, 7], busy=True)
    yield frames.encode(FrameKind.ROW, {"row": torch.randn(20)}, **about)
    yield frames.encode(FrameKind.COMMIT, some, **about, manifest=b'{"stage": 1}', signature=bytes(70))
    yield frames.encode(FrameKind.REQUEST, **about, history=[START, bytes(range(32))], number=1)
    yield frames.encode(FrameKind.SUM, some, **about, root=2, number=9)
    yield frames.encode(FrameKind.POOL, **about, history=[b'{"kind": "vote"}', bytes(70)])


def mutated(data, rng):
    """A few bytes flipped, put in, taken out or cut off; more often in the front, where the header is."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = min(int(len(out) * rng.random() ** 2), max(0, len(out) - 1))
        way = rng.randrange(8)
        if way < 4 and out:
            out[at] ^= 1 << rng.randrange(8)
        elif way < 5:
            out[at:at] = rng.randbytes(rng.randint(1, 4))
        elif way < 7:
            del out[at : at + rng.randint(1, 4)]
        else:
            del out[at:]
    return bytes(out)


def test_mutated_frames_are_frames_or_refused():
    rng, valid = random.Random(1), list(valid_frames())
    assert all(frame_or_refused(data) for data in valid)
    found = [frame_or_refused(mutated(valid[number % len(valid)], rng)) for number in range(12_000)]
    assert 500 < sum(found) < 11_500  # both happen


def claimed(*shapes, dtype="float32", rest=b""):
    """A frame whose header claims tensors of these shapes."""
    types = frames._message_types()
    specs = [types["TensorSpec"](name=str(n), dtype=dtype, shape=shape) for n, shape in enumerate(shapes)]
    header = types["Header"](kind=FrameKind.ROW, tensors=specs).SerializeToString()
    return len(header).to_bytes(4, "big") + header + rest


CLAIMS = {
    "10 GB": claimed((10 << 30,), dtype="uint8", rest=bytes(100)),
    "10 GB in two dimensions": claimed((50_000, 50_000), rest=bytes(100)),
    "1 GB ten times": claimed(*[(1 << 28,)] * 10, rest=bytes(100)),
    "as much as can be written": claimed(*[((1 << 40) - 1,) * 8] * 10),
    "nothing, but long": claimed((0, *[(1 << 40) - 1] * 7)),
    "one beyond all numbers": claimed((1 << 63,), (0,)),
    "nine dimensions": claimed((1,) * 9, rest=bytes(4)),
    "very many, all empty": claimed(*[(0,)] * 100_000),
    "a long header": (1 << 31).to_bytes(4, "big") + bytes(100),
    "a header alone": b"\xff\xff\xff\xff",
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_is_claimed_is_refused_and_not_allocated(claim):
    data = CLAIMS[claim]
    frame_or_refused(data)  # what is made once is made
    tracemalloc.start()
    try:
        with pytest.raises(BadFrame):
            frames.decode(data, MAX_BYTES)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(data) + 100_000
    finally:
        tracemalloc.stop()


def test_a_tensor_that_is_named_twice_is_refused():
    data = frames.encode(FrameKind.SUM, {"a": torch.ones(1), "b": torch.ones(1)})
    assert frames.decode(data, MAX_BYTES).tensors.keys() == {"a", "b"}
    with pytest.raises(BadFrame, match="twice"):
        frames.decode(data.replace(b"\n\x01b", b"\n\x01a"), MAX_BYTES)
