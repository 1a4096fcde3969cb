"""Pickles of strangers: arrays of numbers and plain containers come out, nothing else is ever looked up or called.

numpy's own classes are not let in either: a pickle sets their insides, down to where an object lies in memory. What
stands in for them here takes bytes and a plain kind of number, and becomes an array when all is read."""

import io
import itertools
import pickle
import pickletools
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from codecl.errors import DataError


class _Kind:
    """Stands in for numpy.dtype: a plain kind of number."""

    def __init__(self, code: str) -> None:
        if not re.fullmatch(r"[|<>=]?[?biuf]\d{0,2}", code):
            raise DataError(f"the pickle asks for an array of {code!r}; only arrays of numbers are admitted")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        order = _text(state[1])
        self.dtype = np.dtype(order + self.dtype.str[1:]) if order in ("<", ">") else self.dtype


class _Array:
    """Stands in for numpy.ndarray: empty at first, filled by its state (…, shape, kind, Fortran order, bytes)."""

    value: Any = None

    def __setstate__(self, state: Any) -> None:
        shape, kind, fortran, data = state[-4:]
        self.value = _from_bytes(data, kind, shape, "F" if fortran else "C").value


def _text(word: str | bytes) -> str:
    return word.decode("latin1") if isinstance(word, bytes) else word


def _kind(code: str | bytes, *_: Any) -> _Kind:
    return _Kind(_text(code))


def _empty(*_: Any) -> _Array:
    """How the older pickles begin an array."""
    return _Array()


def _from_bytes(data: Any, kind: _Kind, shape: Any, order: Any) -> _Array:
    """How the newer pickles hold an array."""
    array = _Array()
    array.value = np.frombuffer(data, kind.dtype).reshape(shape, order=order)
    return array


def _scalar(kind: _Kind, data: Any) -> Any:
    return np.frombuffer(data, kind.dtype)[0]


def _bytes(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes into the older pickles."""
    if encoding != "latin1":
        raise DataError(f"the pickle asks for text in {encoding!r}; only latin1 is admitted")
    return text.encode("latin1")


ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): "numpy.ndarray",  # only named, as the class to begin an array of
    ("numpy", "dtype"): _kind,
    ("_codecs", "encode"): _bytes,
    ("collections", "OrderedDict"): OrderedDict,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _empty for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_bytes for core in ("core", "_core")},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise DataError(f"the pickle asks for {module}.{name}; only numpy arrays and plain containers are admitted")
        return ADMITTED[module, name]


def load(data: bytes, what: str) -> Any:
    """What is pickled in `data` (Python 2's strings come out as bytes); `what` names it in errors."""
    try:
        _check_places(data)
        held, count = _Unpickler(io.BytesIO(data), encoding="bytes").load(), itertools.count()
        return _settle(held, lambda: next(count) > len(data))
    except DataError as error:
        raise DataError(f"{what}: {error}") from None
    except Exception as error:  # a broken pickle can raise anything
        raise DataError(f"{what}: not a whole pickle ({error})") from error


def _check_places(data: bytes) -> None:
    """Refuse a pickle that remembers things in places further than it is long: all places before take memory."""
    for code, argument, _ in pickletools.genops(data):
        if "PUT" in code.name and int(argument or 0) > len(data):
            raise DataError(f"the pickle asks for {argument:,} places; it has {len(data):,} bytes")


def _settle(held: Any, too_many: Callable[[], bool]) -> Any:
    """The same with arrays in place of what stood in for them. Each thing takes a byte of the pickle, unless it is
    there many times over."""
    if too_many():
        raise ValueError("it holds things many times over")
    if isinstance(held, _Array):
        return held.value
    if isinstance(held, dict):
        return {key: _settle(value, too_many) for key, value in held.items()}
    if isinstance(held, list | tuple):
        return type(held)(_settle(value, too_many) for value in held)
    return held


def field(held: Any, name: str, what: str) -> Any:
    """An entry of an unpickled dict, whether its keys are text or Python 2's bytes."""
    for key in (name, name.encode()):
        if isinstance(held, dict) and key in held:
            return held[key]
    raise DataError(f"{what}: there is no {name!r} in it")
