"""Methods by name. A method is a small frozen record of its options with four verbs (base.Method)."""

from codecl.methods.base import Method, TaskEnd, TaskEndSize, TaskSizes
from codecl.methods.codec import Codec
from codecl.methods.codec_full import CodecFull
from codecl.methods.dpsgd import Dpsgd, Stl
from codecl.methods.ewc import DEwc

METHODS: dict[str, type[Method]] = {
    "codec": Codec,
    "codec-full": CodecFull,
    "dpsgd": Dpsgd,
    "stl": Stl,
    "d-ewc": DEwc,
}

__all__ = ["METHODS", "Codec", "CodecFull", "DEwc", "Dpsgd", "Method", "Stl", "TaskEnd", "TaskEndSize", "TaskSizes"]
