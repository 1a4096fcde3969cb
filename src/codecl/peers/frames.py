"""What travels between peers: a small protobuf header and raw tensor bytes. Nothing is unpickled, and nothing is
believed before it is checked: a frame that does not fit is refused with a reason.

A frame is the header's length (4 bytes), the header, and the tensors that it lists, one after another.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from torch import Tensor

LENGTH = 4
MAX_HEADER = 4 << 20  # a manifest names every tensor of a model
MAX_DIMENSIONS, MAX_TENSORS, LONGEST = 8, 1 << 14, 1 << 40
DTYPES = {str(kind).removeprefix("torch."): kind for kind in (torch.float32, torch.float64, torch.int64, torch.uint8)}
TEXT, BYTES, NUMBER, YES = "string", "bytes", "uint64", "bool"
MESSAGES: dict[str, list[tuple[str, str, bool]]] = {  # name, type, repeated; numbered from 1 in this order, for ever
    "Form": [("name", TEXT, False), ("dtype", TEXT, False), ("shape", NUMBER, True)],
    "Header": [
        ("kind", NUMBER, False),
        ("fleet", TEXT, False),
        ("sender", NUMBER, False),
        ("task", NUMBER, False),
        ("step", NUMBER, False),
        ("chart", BYTES, False),
        ("busy", YES, False),
        ("degraded", YES, False),
        ("hears", YES, False),
        ("beats", NUMBER, True),
        ("places", NUMBER, True),
        ("root", NUMBER, False),
        ("number", NUMBER, False),
        ("history", BYTES, True),
        ("manifest", BYTES, False),
        ("signature", BYTES, False),
        ("tensors", "Form", True),
    ],
}


class BadFrame(Exception):
    """What arrived does not fit: the link that it came from is closed."""


class Kind(IntEnum):
    BEAT = 1  # a sign of life, and where the sender is
    ROW = 2  # coordinates of a step
    LATE = 3  # the answer to a row of a past step
    WANT = 4  # send me the charts that I lack
    CHART = 5  # a flood, or a part of one: what a task left
    SUM = 6  # sums on their way up a tree


class Frame(NamedTuple):
    """A frame as it arrived, checked for itself: its header, and tensors that fill what came after it."""

    kind: Kind
    header: Any
    tensors: dict[str, Tensor]
    size: int  # bytes of the tensors

    @property
    def at(self) -> tuple[int, int]:
        return self.header.task, self.header.step


def encode(kind: Kind, tensors: Mapping[str, Tensor] | None = None, **fields: Any) -> bytes:
    """Law: decode undoes it."""
    listed = [(name, value.detach().cpu().contiguous()) for name, value in (tensors or {}).items()]
    forms = [
        _kinds()["Form"](name=name, dtype=str(value.dtype).removeprefix("torch."), shape=value.shape)
        for name, value in listed
    ]
    header = _kinds()["Header"](kind=kind, tensors=forms, **fields).SerializeToString()
    parts = [value.reshape(-1).view(torch.uint8).numpy().data for _, value in listed]
    return b"".join([len(header).to_bytes(LENGTH, "big"), header, *parts])


def decode(data: bytes, most: int) -> Frame:
    """The frame, or BadFrame. `most`: bytes that its tensors may have. What a header claims is not allocated for."""
    if len(data) < LENGTH:
        raise BadFrame(f"{len(data)} bytes are no frame")
    length = int.from_bytes(data[:LENGTH], "big")
    if length > MAX_HEADER or length > len(data) - LENGTH:
        raise BadFrame(f"a header of {length} bytes in a frame of {len(data)}")
    try:
        header = _kinds()["Header"].FromString(data[LENGTH : LENGTH + length])
        kind = Kind(header.kind)
    except (DecodeError, ValueError) as error:
        raise BadFrame(f"its header cannot be read ({error})") from error
    if len(header.tensors) > MAX_TENSORS:
        raise BadFrame(f"{len(header.tensors)} tensors; {MAX_TENSORS} are the most that fit")
    sizes = [_size(form) for form in header.tensors]
    rest = len(data) - LENGTH - length
    if sum(sizes) > most:
        raise BadFrame(f"it claims {sum(sizes)} bytes of tensors; {most} are the most that fit")
    if sum(sizes) != rest:
        raise BadFrame(f"it claims {sum(sizes)} bytes of tensors and has {rest}")
    if len({form.name for form in header.tensors}) != len(header.tensors):
        raise BadFrame("it names a tensor twice")
    return Frame(kind, header, _tensors(data, LENGTH + length, header.tensors, sizes), rest)


def _tensors(data: bytes, start: int, forms: Sequence[Any], sizes: Sequence[int]) -> dict[str, Tensor]:
    out = {}
    for form, size in zip(forms, sizes, strict=True):
        kind = DTYPES[form.dtype]
        if size:
            piece = bytearray(memoryview(data)[start : start + size])  # a copy that is ours, and aligned
            out[form.name] = torch.frombuffer(piece, dtype=kind).view(tuple(form.shape))
        else:
            out[form.name] = torch.empty(tuple(form.shape), dtype=kind)
        start += size
    return out


def _size(form: Any) -> int:
    if form.dtype not in DTYPES:
        raise BadFrame(f"a tensor of type {form.dtype[:20]!r}")
    if len(form.shape) > MAX_DIMENSIONS or prod(max(1, length) for length in form.shape) >= LONGEST:
        raise BadFrame(f"a tensor of {len(form.shape)} dimensions, up to {max(form.shape)} long")
    return int(prod(form.shape)) * DTYPES[form.dtype].itemsize


@cache
def _kinds() -> dict[str, Any]:
    """The message classes, from the table above."""
    field = descriptor_pb2.FieldDescriptorProto
    types = {TEXT: field.TYPE_STRING, BYTES: field.TYPE_BYTES, NUMBER: field.TYPE_UINT64, YES: field.TYPE_BOOL}
    file = descriptor_pb2.FileDescriptorProto(name="codecl/peers.proto", package="codecl", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (called, kind, repeated) in enumerate(fields, 1):
            label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            added = message.field.add(name=called, number=number, label=label)
            added.type = types.get(kind, field.TYPE_MESSAGE)
            if kind in MESSAGES:
                added.type_name = f".codecl.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"codecl.{name}")) for name in MESSAGES}
