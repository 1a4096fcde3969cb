"""A caller's own module, method and tasks: what they are known by in a config, and whether a module is that of a
recorded run."""

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from codecl.data import forms
from codecl.data.inputs import named_tensors
from codecl.data.items import Items
from codecl.data.task import Task, about_of
from codecl.errors import ConfigError, ConfigWarning
from codecl.exchange import digest
from codecl.methods import METHODS, Method
from codecl.registry import code_digest, name_of
from codecl.runs.config import RunConfig, merge

Function = Callable[[Tensor, Tensor], Any]  # a loss or a score, of outputs and targets
Structure = Mapping[str, Sequence[str]]  # of each module inside: what it is, a digest of its attributes, of its code


def loaded(number: int, task: Any, config: RunConfig) -> Task:
    """A caller's task with its data as tensors, or as items where they are to be streamed."""
    try:
        task = task if isinstance(task, Task) else Task(*task)
    except TypeError as error:
        raise ConfigError(f"tasks: number {number} is {task!r:.60}; give codecl.Task(train, test, classes)") from error
    data, targets = config.data, config.train.targets
    train = forms.loaded(task.train, about_of(number, task, "training", targets), data.loading, data.workers)
    test = forms.loaded(task.test, about_of(number, task, "test", targets), data.loading, data.workers)
    collate = task.collate or forms.collate_of(task.train) or forms.collate_of(task.test)
    return task._replace(train=train, test=test, collate=collate)


def task_digest(task: Task) -> str:
    """Of a loaded task's tensors: another image is another run. Of streamed items, which are not all read: how many
    there are, the code of the data set, and a sample of them, from the first to the last, under fixed seeds."""
    values: dict[str, Tensor] = {}
    code = []
    for data, inputs, labels in ((task.train, "train", "labels"), (task.test, "test", "truth")):
        if isinstance(data, Items):
            code.append(forms.code_of(data))
            data = data.sample
        values |= {**named_tensors(data[0], inputs), labels: data[1]}
    text = " ".join([digest(values), repr((task.classes, task.mean, task.std)), *code])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def with_functions(settings: Mapping[str, Any], **functions: str | Function | None) -> dict[str, Any]:
    """The settings with fields of `train` for a caller's own functions: each is known by where it lives, and its code
    by a digest."""
    given = {field: function for field, function in functions.items() if function is not None}
    named = {field: one if isinstance(one, str) else name_of(field, one) for field, one in given.items()}
    return merge({"train": named}, settings)


def method_fields(method: str | Method) -> dict[str, Any]:
    """A method by name, or one of the caller's own with its options: then it is known by where its class lives."""
    if isinstance(method, str):
        return {"name": method}
    if not isinstance(method, Method):
        raise ConfigError(
            f"method: {method!r} is neither a name nor a Method with its options, such as DEwc(penalty=100)"
        )
    kind = type(method)
    known = {entry: name for name, entry in METHODS.items()}
    return {"name": known.get(kind, f"{kind.__module__}:{kind.__qualname__}"), **method.model_dump(mode="json")}


def model_fields(model: nn.Module) -> dict[str, str]:
    return {"name": "own", "type": type(model).__name__, "digest": model_digest(model)}


def model_digest(model: nn.Module) -> str:
    """Of what decides what a caller's module computes: structure, code, plain attributes, weights, what trains."""
    check_not_lazy(model)
    parts = []
    for name, part in model.named_modules():
        code = "" if _is_torch(part) else code_digest(type(part))
        parts.append((name, type(part).__qualname__, code, part.extra_repr(), sorted(_plain(part).items())))
    trains = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    values = digest({**dict(model.named_parameters()), **dict(model.named_buffers())})
    return hashlib.sha256(repr((parts, trains, values)).encode()).hexdigest()[:16]


def check_not_lazy(model: nn.Module) -> None:
    if any(is_lazy(value) for value in (*model.parameters(), *model.buffers())):
        raise ConfigError("model: it has lazy layers without weights yet; run it once on a batch before fitting it")


def _plain(part: nn.Module) -> dict[str, Any]:
    plain = {k: v for k, v in vars(part).items() if isinstance(v, bool | int | float | str | tuple)}
    plain.pop("training", None)  # training sets the mode itself
    return plain


def _is_torch(part: nn.Module) -> bool:
    return type(part).__module__.startswith("torch.")


def structure(model: nn.Module) -> dict[str, list[str]]:
    """What a module computes but for its weights, by the names of the modules inside it."""
    out = {}
    for name, part in model.named_modules():
        trains = [key for key, value in part.named_parameters(recurse=False) if value.requires_grad]
        plain = {} if _is_torch(part) else _plain(part)  # torch's own change with its version; extra_repr has them
        code = "" if _is_torch(part) else code_digest(type(part))
        attributes = hashlib.sha256(repr((trains, sorted(plain.items()))).encode()).hexdigest()[:16]
        out[name] = [f"{type(part).__qualname__}({part.extra_repr()})", attributes, code]
    return out


def check_structure(recorded: Structure, model: nn.Module, source: str) -> None:
    """Refuse a module that computes something else than the recorded one, whatever its weights; say what differs."""
    ours = structure(model)
    for name in {**recorded, **ours}:
        title = f"model: {name or type(model).__name__!r}"
        before, now = recorded.get(name), ours.get(name)
        if before is None or now is None:
            there, here = ("is not", "is") if before is None else ("is", "is not")
            raise ConfigError(f"{title} {here} in this module, but {there} in that of {source}")
        if before[0] != now[0]:
            raise ConfigError(f"{title} is {now[0]}, but {before[0]} in {source}; pass a module of the same structure")
        if before[1] != now[1]:
            raise ConfigError(f"{title} has other attributes, or trains other parameters, than in {source}")
    changed = [recorded[name][0].split("(")[0] for name in recorded if recorded[name][2] != ours[name][2]]
    if changed:
        line = f"model: the file with the code of {changed[0]} has changed since {source}; it should compute the same"
        warnings.warn(line, ConfigWarning, stacklevel=3)


def check_shapes(parameters: Mapping[str, Tensor], model: nn.Module, source: str) -> None:
    """Refuse a module whose parameters are not those that were recorded."""
    ours = dict(model.named_parameters())
    for name in {**parameters, **ours}:
        before, now = (list(each[name].shape) if name in each else "not there" for each in (parameters, ours))
        if before != now:
            raise ConfigError(
                f"model: {name!r} is {now}, but {before} in {source}; pass a module of the same structure"
            )
