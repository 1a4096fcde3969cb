"""Pickles of strangers: arrays come out, nothing else is looked up, and nothing runs."""

import io
import os
import pickle
import pickletools
from collections import OrderedDict

import numpy as np
import pytest

from codecl.data.readers import unpickle
from codecl.errors import DataError
from tests.data.canonical import python2_pickle

HELD = {
    "data": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "turned": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "labels": [1, 2, np.int64(3)],
    "raw": b"\xff\x00",
    "more": (None, True, 2.5, "text", {"a": OrderedDict(b=1)}),
    "list": [np.zeros((2, 2), np.float32), np.ones(3, np.int32), np.ones(3, ">i4")],
}


def equal(found, wanted):
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(equal(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(equal, found, wanted))
    kinds = [getattr(thing, "dtype", np.dtype("V")).newbyteorder("=") for thing in (found, wanted)]
    return np.array_equal(found, wanted) and kinds[0] == kinds[1]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("home", ["numpy._core", "numpy.core"], ids=["numpy 2", "numpy 1"])
def test_arrays_and_plain_containers_of_every_protocol(protocol, home):
    data = pickle.dumps(HELD, protocol)
    if home == "numpy.core" and protocol < 4:  # names are lines of text there
        data = data.replace(b"cnumpy._core.", b"cnumpy.core.")
        assert b"_core" not in data
    assert equal(unpickle.load(data, "x"), HELD)


def test_what_python_2_wrote():
    held = {b"data": np.arange(24, dtype=np.uint8).reshape(4, 6), b"labels": [3, 1, 2, 0]}
    data = python2_pickle(held)
    pickletools.dis(data, out=io.StringIO())  # it is a pickle
    found = unpickle.load(data, "x")
    assert equal(found, held)
    assert equal(unpickle.field(found, "labels", "x"), [3, 1, 2, 0])
    with pytest.raises(DataError, match="x: there is no 'images' in it"):
        unpickle.field(found, "images", "x")


class Calls:
    """Pickles as a call of `function`."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def hostile(kind, mark):
    command = f"touch {mark}"
    python = f"open({str(mark)!r}, 'w').close()"
    inside = np.array([Calls(os.system, command)], object)
    return {
        "system": Calls(os.system, command),
        "eval": Calls(eval, python),
        "exec": {"data": [Calls(exec, python)]},
        "object array": {"data": inside},
        "import": Calls(__import__, "os"),
        "numpy load": Calls(np.load, str(mark)),
    }[kind]


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize(
    ("kind", "asks"),
    [
        ("system", "posix.system"),
        ("eval", "eval"),
        ("exec", "exec"),
        ("object array", "array of 'O8'"),
        ("import", "__import__"),
        ("numpy load", "numpy.*load"),
    ],
)
def test_nothing_hostile_runs(kind, asks, protocol, tmp_path):
    mark = tmp_path / "ran"
    data = pickle.dumps(hostile(kind, mark), protocol)
    with pytest.raises(DataError, match=rf"^train\.pkl: the pickle asks for .*{asks}; only .*arrays .* are admitted"):
        unpickle.load(data, "train.pkl")
    assert not mark.exists()
    if kind in ("system", "eval", "exec", "object array"):  # it would have run
        pickle.loads(data)
        assert mark.exists()


@pytest.mark.parametrize("code", ["O", "V8", "O8", "S5", "M8[ns]", "u1,O"])
def test_arrays_of_anything_but_numbers_are_refused(code, tmp_path):
    """numpy's `scalar(dtype('O'), bytes)` once unpickled the bytes; a forged dtype makes an address of them."""
    inner = pickle.dumps(Calls(os.system, f"touch {tmp_path / 'ran'}"))
    data = pickle.dumps(Calls(np._core.multiarray.scalar, Calls(np.dtype, code, False, True), inner))
    with pytest.raises(DataError, match="only arrays of numbers are admitted"):
        unpickle.load(data, "x")
    assert not (tmp_path / "ran").exists()


def test_a_forged_dtype_does_not_make_objects_of_bytes():
    """The state of a dtype names its fields: here one object, whose address is in the bytes."""
    forged = Calls(np.dtype, "u8", False, True)
    forged.call += ((4, "|", None, ("a",), {"a": (np.dtype("u8"), 0)}, 8, 8, 0),)
    data = pickle.dumps(Calls(np._core.multiarray.scalar, forged, b"\x08" * 8))
    assert unpickle.load(data, "x") == 0x0808080808080808


def test_a_list_that_holds_itself_is_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(DataError, match="not a whole pickle"):
        unpickle.load(pickle.dumps(loop), "x")


def test_codecs_other_than_latin1_are_not_looked_up():
    import _codecs

    with pytest.raises(DataError, match="asks for text in 'zlib'"):
        unpickle.load(pickle.dumps(Calls(_codecs.encode, "x", "zlib")), "x")


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\x80\x04", pickle.dumps(HELD)[:-20], b"\x80\x02}(U"])
def test_broken_pickles_are_one_line(data):
    with pytest.raises(DataError, match=r"^x: not a whole pickle \(.*\)$"):
        unpickle.load(data, "x")
