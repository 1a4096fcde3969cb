"""What each parameter of any nn.Module is for: it carries coordinates, belongs to a task's head, trains whole, trains
in the first task only, or never. No change to the module's code.

Calls that multiply by a weight are traced as they happen, so a weight is known by its use: padding modes, weights that
are used twice and weights that are used in ways we cannot follow show themselves. What multiplies no inputs does as
norms do.
"""

import copy
import fnmatch
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from codecl.data.inputs import Inputs, count, tensors_of
from codecl.errors import ConfigError
from codecl.space import tracing
from codecl.space.calls import Call, has_storage
from codecl.space.layers import Layer
from codecl.space.tracing import CallTracer, logits

NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NAMED_BY_MODULE = (
    nn.Linear,
    *CONVOLUTIONS,
    nn.Embedding,
    nn.EmbeddingBag,
)  # a layer has the name of its module, not of the weight
Role = Literal["layer", "head", "dense", "first", "norm", "small", "constant"]


class ParameterRoles(NamedTuple):
    """Every parameter of a module in its role."""

    layers: tuple[Layer, ...]  # carry coordinates, in the order of their first call
    head: tuple[str, ...]  # parameters that each task has of its own
    dense: tuple[str, ...]  # train whole in every task
    first: tuple[str, ...]  # train in the first task only: norms, and what the user calls frozen
    norms: tuple[str, ...]  # of those, the norms' and the small ones: a task may have its own
    constant: tuple[str, ...]  # never train (requires_grad is off)
    outputs: int  # numbers that the module gives for an image
    small: tuple[str, ...] = ()  # multiply no inputs as a matrix (tokens, slopes, scales), and are treated as norms are

    def with_shared_norms(self) -> "ParameterRoles":
        """Norms train whole in every task, too."""
        first = tuple(name for name in self.first if name not in self.norms)
        return self._replace(dense=self.dense + self.norms, first=first, norms=())


class TracedCall(NamedTuple):
    """A call, and the layer inside whose own forward it was made."""

    call: Call
    inside: nn.Module | None


class Trace(NamedTuple):
    """What a module did with its parameters when images went through it once."""

    calls: list[TracedCall]
    other_uses: dict[int, str]  # parameters (by id) that another function used, and which
    outputs: int  # numbers that came out for an image


class Names(NamedTuple):
    """Names of a module's parameters."""

    by_id: dict[int, str]  # the first name of each
    aliases: dict[str, str]  # of a parameter that has several: each further name -> the first

    @property
    def tied(self) -> set[str]:
        return set(self.aliases.values())


def parameter_roles(
    module: nn.Module,
    images: Inputs,
    head: str | None = "auto",
    dense: Collection[str] = (),
    frozen: Collection[str] = (),
) -> ParameterRoles:
    """Find the role of every parameter by running `images` through the module once.

    `head` names the Linear that each task has of its own ("auto": the last layer called; None: one head for all tasks,
    constrained like any layer)."""
    names = _names(module)
    asked = _asked(module, names, dense, frozen)
    trace = _trace(module, images)
    head_names = _head(module, head, trace, names)
    by_name = head_names & asked.keys() & {*dense, *frozen}
    if by_name:
        raise ConfigError(f"dense and frozen: {min(by_name)!r} is the head's, which each task has of its own")
    asked = {name: role for name, role in asked.items() if name not in head_names}  # a pattern leaves the head out
    layers, refused = _layers(module, trace, names, asked, count(images))
    for identity in _used_otherwise(module, images):
        weight = names.by_id.get(identity, "")
        if weight in layers:
            layers[weight] = layers[weight]._replace(owned=False)
    roles = _roles(module, layers, head_names, asked)
    for name in (name for layer in layers.values() for name in (layer.weight, layer.bias) if name in refused):
        raise ConfigError(f"model: parameter {name!r} {refused[str(name)]}; {_offer([name])}")
    if set(roles.values()) <= {"constant"}:
        raise ConfigError("model: nothing in it trains (every parameter has requires_grad off)")

    def with_role(*wanted: Role) -> tuple[str, ...]:
        return tuple(name for name, role in roles.items() if role in wanted)

    return ParameterRoles(
        layers=tuple(layer for layer in layers.values() if roles[layer.weight] == "layer"),
        head=with_role("head"),
        dense=with_role("dense"),
        first=with_role("first", "norm", "small"),
        norms=with_role("norm", "small"),
        constant=with_role("constant"),
        outputs=trace.outputs,
        small=with_role("small"),
    )


def _names(module: nn.Module) -> Names:
    names = Names({}, {})
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first = names.by_id.setdefault(id(parameter), name)
        if first != name:
            names.aliases[name] = first
    return names


def matching(module: nn.Module, field: str, wanted: Collection[str]) -> list[str]:
    """The module's parameters with these names, or of these patterns; one that matches nothing is refused."""
    known, out = dict(module.named_parameters(remove_duplicate=False)), []
    for name in wanted:
        matches = [name] if name in known else fnmatch.filter(known, name)
        if not matches:
            raise ConfigError(f"{field}: the model has no parameter {name!r}; there are {', '.join(known)}")
        out += matches
    return out


def _asked(
    module: nn.Module, names: Names, dense: Collection[str], frozen: Collection[str]
) -> dict[str, Literal["dense", "first"]]:
    """The parameters whose role the user has said, by name or by a pattern, by their first names."""

    def found(field: str, wanted: Collection[str]) -> set[str]:
        return {names.aliases.get(match, match) for match in matching(module, field, wanted)}

    to_train, to_freeze = found("dense", dense), found("frozen", frozen)
    if to_train & to_freeze:
        raise ConfigError(f"dense and frozen: {min(to_train & to_freeze)!r} is in both; it can be one or the other")
    return {**dict.fromkeys(to_train, "dense"), **dict.fromkeys(to_freeze, "first")}


def _layers(
    module: nn.Module, trace: Trace, names: Names, asked: Collection[str], images: int
) -> tuple[dict[str, Layer], dict[str, str]]:
    """(layers by their weight; weights and biases that cannot be followed, and why)."""
    layers: dict[str, Layer] = {}
    refused: dict[str, str] = {}
    for traced in trace.calls:
        layer = _layer(module, traced, names, asked, images)
        if layer is None:
            continue
        before = layers.get(layer.weight)
        if before and (layer.bias, layer.groups) != (before.bias, before.groups):
            refused[layer.weight] = "is used with different biases or groups"
        elif before and (layer.form, layer.one_hot) != (before.form, before.one_hot):
            refused[layer.weight] = "is used in two forms (as it is and transposed, or for tokens and as a matrix)"
        elif traced.call.refusal:
            refused[layer.weight] = traced.call.refusal
        elif not all(map(has_storage, traced.call.inputs)):
            refused[layer.weight] = "is used inside torch.vmap, which codecl cannot follow"
        if layer.bias and any(other.bias == layer.bias for other in layers.values() if other.weight != layer.weight):
            refused[layer.weight] = f"shares its bias {layer.bias!r} with another layer"
        if before:
            layer = before._replace(rows=before.rows + layer.rows, owned=before.owned and layer.owned)
        layers[layer.weight] = layer
    for identity, function in trace.other_uses.items():
        refused[names.by_id[identity]] = f"is also used by {function}(), which codecl cannot follow"
    return layers, refused


def _layer(module: nn.Module, traced: TracedCall, names: Names, asked: Collection[str], images: int) -> Layer | None:
    """The layer behind a call; None where its weight has another role."""
    call = traced.call
    weight = names.by_id.get(id(call.weight))
    if weight is None or weight in asked or not call.weight.requires_grad:
        return None
    if call.weight.numel() == 0:
        raise ConfigError(f"model: parameter {weight!r} has no elements (its shape is {list(call.weight.shape)})")
    bias = _bias(call, names, asked)
    owner, _, attribute = weight.rpartition(".")
    owning = module.get_submodule(owner)
    name = owner if isinstance(owning, NAMED_BY_MODULE) and attribute == "weight" else weight
    is_plain = type(owning) in (nn.Linear, nn.Conv1d, nn.Conv2d) and "forward" not in vars(owning)
    owned = is_plain and traced.inside is owning and weight not in names.tied and (bias is None) == (call.bias is None)
    shape, form = call.weight.shape, call.form
    plain = not form.order and form.groups * form.outputs == shape[0]
    return Layer(
        name=name or weight,
        weight=weight,
        bias=bias,
        shape=shape,
        groups=form.groups,
        rows=call.rows // images,
        owned=owned,
        form=None if plain else form,
        one_hot=call.kind == "tokens",
        padding=call.padding,
    )


def _bias(call: Call, names: Names, asked: Collection[str]) -> str | None:
    """The bias that is one more input of the layer: a number for each output."""
    bias = call.bias
    if bias is None or not bias.requires_grad or bias.shape != (call.form.groups * call.form.outputs,):
        return None
    name = names.by_id.get(id(bias))
    return None if name in asked else name


def _head(module: nn.Module, head: str | None, trace: Trace, names: Names) -> set[str]:
    """The parameters of the head."""
    if head is None:
        return set()
    if head == "auto":
        last = trace.calls[-1].call if trace.calls else None
        if last is None or last.kind != "linear" or last.weight.shape[0] != trace.outputs:
            raise ConfigError(
                "head: the last layer that the model calls is not a Linear that gives its outputs; name the head, or"
                " share one head for all tasks (head=None; on the command line --set head=null)"
            )
        weight = names.by_id.get(id(last.weight))
        if weight is None:
            raise ConfigError("head: the last Linear's weight is computed, not a parameter; name the head")
        owners = [n for n, part in module.named_modules() if isinstance(part, nn.Linear) and part.weight is last.weight]
        head = owners[0] if owners else weight.rpartition(".")[0]
    linear = dict(module.named_modules()).get(head)
    if not isinstance(linear, nn.Linear):
        linears = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
        raise ConfigError(
            f"head: {head!r} is not a Linear layer of the model; there are {', '.join(linears) or 'none'}"
        )
    head_names = {f"{head}.{name}".lstrip(".") for name, _ in linear.named_parameters()}
    if head_names & (set(names.aliases) | names.tied):
        raise ConfigError(f"head: {head!r} shares its weight with another layer; pass head=None or another head")
    return head_names


def _roles(
    module: nn.Module,
    layers: Mapping[str, Layer],
    head: Collection[str],
    asked: Mapping[str, Literal["dense", "first"]],
) -> dict[str, Role]:
    """The role of each parameter."""
    carried = {name for layer in layers.values() for name in (layer.weight, layer.bias) if name}
    norms = {
        f"{prefix}.{name}" if prefix else name
        for prefix, norm in module.named_modules()
        if isinstance(norm, NORMS)
        for name, _ in norm.named_parameters(recurse=False)
    }
    roles: dict[str, Role] = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            roles[name] = "constant"
        elif name in head:
            roles[name] = "head"
        elif name in asked:
            roles[name] = asked[name]
        elif name in carried:
            roles[name] = "layer"
        elif name in norms:
            roles[name] = "norm"
        elif ".parametrizations." in f".{name}":
            raise ConfigError(
                f"model: parameter {name!r} makes a weight by a parametrization, which codecl cannot follow;"
                f" {_offer([name])}"
            )
        else:
            roles[name] = "small"
    return roles


def _offer(names: Collection[Any]) -> str:
    return f"name it in dense={names} (always sent whole, may forget) or frozen={names} (trains in the first task only)"


def _trace(module: nn.Module, images: Inputs) -> Trace:
    """What the module does with its parameters, in evaluation mode."""
    calls: list[TracedCall] = []
    other_uses: dict[int, str] = {}

    def on_other(function: str, tensors: list[Tensor]) -> None:
        other_uses.update({id(tensor): function for tensor in tensors})

    def on_call(call: Call) -> None:
        calls.append(TracedCall(call, active[-1] if active else None))

    tracer = CallTracer(module.parameters(), on_call, on_other)
    with tracing.evaluating(module), tracing.calling(module) as active, tracer:
        outputs = logits(module, images)
    return Trace(calls, other_uses, outputs.shape[1])


def _used_otherwise(module: nn.Module, images: Inputs) -> set[int]:
    """Parameters that training uses other than by calling the layer that owns them."""
    others: set[int] = set()
    trial = copy.deepcopy(module).train()  # it may change its buffers
    originals = {id(new): id(old) for new, old in zip(trial.parameters(), module.parameters(), strict=True)}

    def on_call(call: Call) -> None:
        if not active or active[-1].weight is not call.weight:
            others.add(id(call.weight))

    device = tensors_of(images)[0].device
    devices = [device] if device.type == "cuda" else []
    tracer = CallTracer(trial.parameters(), on_call, lambda _, tensors: others.update(map(id, tensors)))
    with torch.random.fork_rng(devices), tracing.calling(trial) as active, tracer:
        logits(trial, images)
    return {originals[identity] for identity in others if identity in originals}
