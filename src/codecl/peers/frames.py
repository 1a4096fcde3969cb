"""What travels between peers: a small protobuf header and raw tensor bytes. Nothing is unpickled, and nothing is
believed before it is checked: a frame that does not fit is refused with a reason.

A frame is the header's length (4 bytes), the header, and the tensors that it lists, one after another.
"""

import re
from collections.abc import Mapping
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
MAX_DIMENSIONS, MAX_TENSORS, MAX_NUMBERS = 8, 1 << 14, 1 << 40
DTYPES = {str(kind).removeprefix("torch."): kind for kind in (torch.float32, torch.float64, torch.int64, torch.uint8)}
PROTO = """
message TensorSpec { string name = 1; string dtype = 2; repeated uint64 shape = 3; }
message Header {
  uint64 kind = 1; string fleet = 2; uint64 sender = 3; uint64 stage = 4; uint64 step = 5; bytes commit = 6;
  bool busy = 7; bool degraded = 8; bool hears = 9; repeated uint64 beats = 10; repeated uint64 positions = 11;
  uint64 root = 12; uint64 number = 13; repeated bytes history = 14; bytes manifest = 15; bytes signature = 16;
  repeated TensorSpec tensors = 17; string roster = 18;
}
"""


class BadFrame(Exception):
    """What arrived does not fit: the link that it came from is closed."""


class FrameKind(IntEnum):
    BEAT = 1  # a sign of life, and where the sender is
    ROW = 2  # coordinates of a step
    LATE = 3  # the answer to a row of a past step
    REQUEST = 4  # send me the commits that I lack
    COMMIT = 5  # a flood, or some of its tensors: what a stage left
    SUM = 6  # sums on their way up a tree
    FULL = 7  # coordinates in full, for one who joins where rows are bytes
    JOIN = 8  # wait for my rows again, from the next step on
    POOL = 9  # what was said of sums under masks
    KEYS = 10  # the list of revoked certificates, and those of agents that are back


class Position(NamedTuple):
    """How far an agent is. A stage ends with a commit: what a task left, or the directions that one starts with."""

    stage: int
    step: int

    @property
    def next(self) -> "Position":
        return self._replace(step=self.step + 1)


class Frame(NamedTuple):
    """A frame as it arrived, checked for itself: its header, and tensors that fill what came after it."""

    kind: FrameKind
    header: Any
    tensors: dict[str, Tensor]

    @property
    def position(self) -> Position:
        return Position(self.header.stage, self.header.step)

    @property
    def row(self) -> Tensor:
        """What a row has: one tensor of one dimension."""
        row = self.tensors.get("row")
        if row is None or row.ndim != 1 or len(self.tensors) != 1:
            raise BadFrame("a row that is none")
        return row


def encode(kind: FrameKind, tensors: Mapping[str, Tensor] | None = None, **fields: Any) -> bytes:
    """Law: decode undoes it."""
    values = {name: value.detach().cpu().contiguous() for name, value in (tensors or {}).items()}
    specs = [
        _message_types()["TensorSpec"](name=name, dtype=str(value.dtype).removeprefix("torch."), shape=value.shape)
        for name, value in values.items()
    ]
    header = _message_types()["Header"](kind=kind, tensors=specs, **fields).SerializeToString()
    contents = [value.reshape(-1).view(torch.uint8).numpy().data for value in values.values()]
    return b"".join([len(header).to_bytes(LENGTH, "big"), header, *contents])


def with_hears(data: bytes, hears: bool) -> bytes:
    """A frame of ours, for one whom we count in or one whom we do not."""
    start = LENGTH + int.from_bytes(data[:LENGTH], "big")
    header = _message_types()["Header"].FromString(data[LENGTH:start])
    header.hears = hears
    changed = header.SerializeToString()
    return b"".join([len(changed).to_bytes(LENGTH, "big"), changed, memoryview(data)[start:]])


def tensor_bytes(data: bytes) -> int:
    """How many bytes of a frame are tensors, as it says itself."""
    return max(0, len(data) - LENGTH - int.from_bytes(data[:LENGTH], "big"))


def decode(data: bytes, max_bytes: int) -> Frame:
    """The frame, or BadFrame where its tensors are larger than `max_bytes` or anything is off. What a header claims is
    not allocated for."""
    if len(data) < LENGTH:
        raise BadFrame(f"{len(data)} bytes are no frame")
    length = int.from_bytes(data[:LENGTH], "big")
    if length > MAX_HEADER or length > len(data) - LENGTH:
        raise BadFrame(f"a header of {length} bytes in a frame of {len(data)}")
    try:
        header = _message_types()["Header"].FromString(data[LENGTH : LENGTH + length])
        kind = FrameKind(header.kind)
    except (DecodeError, ValueError) as error:
        raise BadFrame(f"its header cannot be read ({error})") from error
    if len(header.tensors) > MAX_TENSORS:
        raise BadFrame(f"{len(header.tensors)} tensors; {MAX_TENSORS} are the most that fit")
    claimed = sum(_size(spec) for spec in header.tensors)
    if claimed > max_bytes:
        raise BadFrame(f"it claims {claimed} bytes of tensors; {max_bytes} are the most that fit")
    if claimed != tensor_bytes(data):
        raise BadFrame(f"it claims {claimed} bytes of tensors and has {tensor_bytes(data)}")
    if len({spec.name for spec in header.tensors}) != len(header.tensors):
        raise BadFrame("it names a tensor twice")
    tensors, start = {}, LENGTH + length
    for spec in header.tensors:
        dtype, size = DTYPES[spec.dtype], _size(spec)
        content = bytearray(memoryview(data)[start : start + size])  # a copy that is ours, and aligned
        flat = torch.frombuffer(content, dtype=dtype) if size else torch.empty(0, dtype=dtype)
        tensors[spec.name] = flat.view(tuple(spec.shape))
        start += size
    return Frame(kind, header, tensors)


def _size(spec: Any) -> int:
    if spec.dtype not in DTYPES:
        raise BadFrame(f"a tensor of type {spec.dtype[:20]!r}")
    if len(spec.shape) > MAX_DIMENSIONS or prod(max(1, length) for length in spec.shape) >= MAX_NUMBERS:
        raise BadFrame(f"a tensor of {len(spec.shape)} dimensions, up to {max(spec.shape)} long")
    return int(prod(spec.shape)) * DTYPES[spec.dtype].itemsize


@cache
def _message_types() -> dict[str, Any]:
    """The message classes of PROTO."""
    types = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="codecl/peers.proto", package="codecl", syntax="proto3")
    for name, body in re.findall(r"message (\w+) {(.*?)}", PROTO, re.DOTALL):
        message = file.message_type.add(name=name)
        for repeated, kind, field, number in re.findall(r"(repeated )?(\w+) (\w+) = (\d+);", body):
            label = types.LABEL_REPEATED if repeated else types.LABEL_OPTIONAL
            type = getattr(types, f"TYPE_{kind.upper()}", types.TYPE_MESSAGE)
            message_name = f".codecl.{kind}" if type == types.TYPE_MESSAGE else None
            message.field.add(name=field, number=int(number), label=label, type=type, type_name=message_name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [message.name for message in file.message_type]
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"codecl.{name}")) for name in names}
