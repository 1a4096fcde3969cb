"""codecl: communication-efficient decentralized continual learning."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "MODELS",
    "STREAMS",
    "TOPOLOGIES",
    "CodeclError",
    "ConfigError",
    "DataError",
    "Learner",
    "Method",
    "Result",
    "RunFailed",
    "Task",
    "TaskEnd",
    "fit",
    "load",
]

if TYPE_CHECKING:
    from codecl.api import Result, fit
    from codecl.data.streams import STREAMS
    from codecl.data.task import Task
    from codecl.errors import CodeclError, ConfigError, DataError, RunFailed
    from codecl.exchange.topology import TOPOLOGIES
    from codecl.learner import Learner
    from codecl.methods import METHODS, Method, TaskEnd
    from codecl.models import MODELS
    from codecl.runs.model import load

_HOMES = {
    "CodeclError": "errors",
    "ConfigError": "errors",
    "DataError": "errors",
    "RunFailed": "errors",
    "METHODS": "methods",
    "MODELS": "models",
    "STREAMS": "data.streams",
    "TOPOLOGIES": "exchange.topology",
    "Learner": "learner",
    "Method": "methods",
    "Result": "api",
    "Task": "data.task",
    "TaskEnd": "methods",
    "fit": "api",
    "load": "runs.model",
}


def __getattr__(name: str) -> Any:
    """Names are looked up when they are first used, so that `codecl --help` does not import torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'codecl' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"codecl.{_HOMES[name]}"), name)
