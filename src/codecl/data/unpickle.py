"""Pickles of strangers: numpy arrays and plain containers come out, nothing else is ever looked up or called."""

import io
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np

from codecl.errors import DataError


def _bytes(text: str, encoding: str = "latin1") -> bytes:
    """How Python 3 writes bytes into the older pickles."""
    if encoding not in ("latin1", "latin-1"):
        raise DataError(f"the pickle asks for text in {encoding!r}; only latin1 is admitted")
    return text.encode("latin1")


def _array(data: bytes, dtype: Any, shape: Any, order: Any) -> Any:
    """How numpy writes arrays into the newer pickles."""
    return np.frombuffer(data, dtype).reshape(shape, order=order)


def _empty(kind: Any, shape: Any, dtype: Any) -> Any:
    """How numpy writes arrays into the older pickles: an empty one first."""
    return np.ndarray.__new__(np.ndarray, (0,), "b")


def _scalar(dtype: Any, data: Any = b"\0") -> Any:
    return np.frombuffer(data, dtype)[0]


ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _bytes,
    ("collections", "OrderedDict"): OrderedDict,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _empty for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _array for core in ("core", "_core")},
    **{(home, "bytearray"): bytearray for home in ("builtins", "__builtin__")},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise DataError(f"the pickle asks for {module}.{name}; only numpy arrays and plain containers are admitted")
        return ADMITTED[module, name]


def load(data: bytes, what: str) -> Any:
    """What is pickled in `data` (Python 2's strings come out as bytes); `what` names it in errors."""
    try:
        return _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{what}: {error}") from None
    except Exception as error:  # a broken pickle can raise anything
        raise DataError(f"{what}: not a whole pickle ({error})") from error


def field(held: Any, name: str, what: str) -> Any:
    """An entry of an unpickled dict, whether its keys are text or Python 2's bytes."""
    for key in (name, name.encode()):
        if isinstance(held, dict) and key in held:
            return held[key]
    raise DataError(f"{what}: there is no {name!r} in it")
