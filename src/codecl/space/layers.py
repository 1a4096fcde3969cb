"""Which weights of any nn.Module carry coordinates, and their inputs as columns. No change to the module's code.

Calls of linear and convolution are watched as they happen, so a weight is known by its use: padding modes, weights that
are used twice and weights that are used in ways we cannot follow show themselves.

Shapes: G groups, O outputs of a group, N inputs (the bias is one more input that is always 1), P patches or rows.
"""

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from codecl.errors import ConfigError
from codecl.space import tracing as watch
from codecl.space.tracing import Use, Watch, logits

NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class Layer(NamedTuple):
    """A weight (and bias) that carries coordinates."""

    name: str
    weight: str
    bias: str | None
    shape: torch.Size  # of the weight
    groups: int
    rows: int  # how many rows or patches an image gives it
    owned: bool  # used by calling the plain Linear or convolution that it belongs to, and in no other way

    @property
    def linear(self) -> bool:
        """Whether it may take the factored form."""
        return self.owned and len(self.shape) == 2

    @property
    def inputs(self) -> int:
        """N: of a group, a bias's constant 1 counted."""
        return self.shape[1:].numel() + (self.bias is not None)

    @property
    def outputs(self) -> int:
        """O: of a group."""
        return self.shape[0] // self.groups

    @property
    def owner(self) -> str:
        """The path of the module that the weight belongs to."""
        return self.weight.rpartition(".")[0]

    def join(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Parameters -> W [G, O, N]. Law: split undoes it."""
        weight = parameters[self.weight].reshape(self.groups, self.shape[0] // self.groups, -1)
        if self.bias is None:
            return weight
        return torch.cat([weight, parameters[self.bias].reshape(self.groups, -1, 1)], -1)

    def split(self, weight_GON: Tensor) -> dict[str, Tensor]:
        """W [G, O, N] -> parameters; any dimensions in front stay in front."""
        front = weight_GON.shape[:-3]
        if self.bias is None:
            return {self.weight: weight_GON.reshape(*front, *self.shape)}
        return {
            self.weight: weight_GON[..., :-1].reshape(*front, *self.shape),
            self.bias: weight_GON[..., -1].reshape(*front, self.shape[0]),
        }


class ParameterRoles(NamedTuple):
    """Every parameter of a module in its place."""

    layers: tuple[Layer, ...]  # carry coordinates, in the order of their first call
    head: tuple[str, ...]  # parameters that each task has of its own
    dense: tuple[str, ...]  # train whole in every task
    first: tuple[str, ...]  # train in the first task only: norms, and what the user calls frozen
    constant: tuple[str, ...]  # never train (requires_grad is off)
    outputs: int  # numbers that the module gives for an image


def parameter_roles(
    module: nn.Module,
    images: Tensor,
    head: str | None = "auto",
    dense: Collection[str] = (),
    frozen: Collection[str] = (),
) -> ParameterRoles:
    """Find the place of every parameter by running `images` through the module once.

    `head` names the Linear that each task has of its own ("auto": the last layer called; None: one head for all tasks,
    constrained like any layer)."""
    names = dict(module.named_parameters(remove_duplicate=False))
    first_name: dict[int, str] = {}
    aliases = {}
    for name, parameter in names.items():
        known = first_name.setdefault(id(parameter), name)
        if known != name:
            aliases[name] = known
    _known("dense", dense, names)
    _known("frozen", frozen, names)
    both = set(dense) & set(frozen)
    if both:
        raise ConfigError(f"dense and frozen: {min(both)!r} is in both; it can be one or the other")
    asked = {aliases.get(name, name) for name in (*dense, *frozen)}

    calls, strangers, outputs = _watch(module, images)
    layers: dict[str, Layer] = {}
    refused: dict[str, str] = {}
    for use, inside in calls:
        layer = _layer(module, use, inside, first_name, asked, len(images), tied=set(aliases.values()))
        if layer is None:
            continue
        before = layers.get(layer.weight)
        if before and (layer.bias, layer.groups) != (before.bias, before.groups):
            refused[layer.weight] = "is used with different biases or groups"
        if layer.bias and any(other.bias == layer.bias for other in layers.values() if other.weight != layer.weight):
            refused[layer.weight] = f"shares its bias {layer.bias!r} with another layer"
        if before:
            layer = before._replace(rows=before.rows + layer.rows, owned=before.owned and layer.owned)
        layers[layer.weight] = layer
    for identity, how in strangers.items():
        refused[first_name[identity]] = f"is also used by {how}(), which codecl cannot follow"

    for weight in {first_name.get(identity, "") for identity in _used_otherwise(module, images)} & set(layers):
        layers[weight] = layers[weight]._replace(owned=False)

    called = [(first_name.get(id(use.weight), ""), use) for use, _ in calls]
    head_names = _head(module, head, called, aliases, outputs)
    if head_names & asked:
        raise ConfigError(
            f"dense and frozen: {min(head_names & asked)!r} is the head's, which each task has of its own"
        )
    places = _place(module, layers, head_names, set(dense), asked)
    used_oddly = [n for layer in layers.values() for n in (layer.weight, layer.bias) if n in refused]
    if used_oddly:
        raise ConfigError(f"model: parameter {used_oddly[0]!r} {refused[str(used_oddly[0])]}; {_offer(used_oddly[:1])}")
    kept = tuple(layer for layer in layers.values() if places[layer.weight] == "layer")

    def named(place: str) -> tuple[str, ...]:
        return tuple(name for name, where in places.items() if where == place)

    if set(places.values()) <= {"constant"}:
        raise ConfigError("model: nothing in it trains (every parameter has requires_grad off)")
    return ParameterRoles(kept, named("head"), named("dense"), named("first"), named("constant"), outputs)


def _offer(names: Collection[str | None]) -> str:
    return f"name it in dense={names} (always sent whole, may forget) or frozen={names} (trains in the first task only)"


def _place(
    module: nn.Module, layers: Mapping[str, Layer], head: Collection[str], dense: set[str], asked: set[str]
) -> dict[str, str]:
    """The place of each parameter: layer, head, dense, first or constant. One that has none is an error."""
    carried = {name for layer in layers.values() for name in (layer.weight, layer.bias) if name}
    norms = {
        f"{prefix}.{name}" if prefix else name
        for prefix, part in module.named_modules()
        if isinstance(part, NORMS)
        for name, _ in part.named_parameters(recurse=False)
    }
    places = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            places[name] = "constant"
        elif name in head:
            places[name] = "head"
        elif name in asked:
            places[name] = "dense" if name in dense else "first"
        elif name in carried:
            places[name] = "layer"
        elif name in norms:
            places[name] = "first"
    lost = [name for name, _ in module.named_parameters() if name not in places]
    if lost:
        owner = type(module.get_submodule(lost[0].rpartition(".")[0])).__name__
        more = f" and {len(lost) - 1} more have no place: each" if len(lost) > 1 else " has no place: it"
        raise ConfigError(
            f"model: parameter {lost[0]!r} (of {owner}){more} is neither a weight that a Linear, Conv1d or Conv2d used,"
            f" nor the bias beside one, nor a norm's; {_offer(lost)}"
        )
    return places


def _layer(
    module: nn.Module,
    use: Use,
    inside: nn.Module | None,
    names: Mapping[int, str],
    asked: Collection[str],
    images: int,
    tied: Collection[str],
) -> Layer | None:
    """The layer behind a call that was made `inside` a layer's own forward; None where its weight has another place."""
    weight = names.get(id(use.weight))
    if weight is None or weight in asked or not use.weight.requires_grad or use.weight.ndim < 2:
        return None
    bias = names.get(id(use.bias)) if use.bias is not None and use.bias.requires_grad else None
    bias = None if bias in asked else bias
    owner, _, attribute = weight.rpartition(".")
    part = module.get_submodule(owner)
    name = owner if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d) and attribute == "weight" else weight
    if use.weight.numel() == 0:
        raise ConfigError(f"model: parameter {weight!r} has no elements (its shape is {list(use.weight.shape)})")
    plain = type(part) in (nn.Linear, nn.Conv1d, nn.Conv2d) and inside is part and "forward" not in vars(part)
    owned = plain and weight not in tied and (bias is None) == (use.bias is None)
    return Layer(name or weight, weight, bias, use.weight.shape, use.groups, use.rows // images, owned)


def _head(
    module: nn.Module, head: str | None, called: list[tuple[str, Use]], aliases: Mapping[str, str], outputs: int
) -> set[str]:
    """The parameters of the head."""
    if head is None:
        return set()
    if head == "auto":
        if not called or called[-1][1].kind != "linear" or called[-1][1].weight.shape[0] != outputs:
            raise ConfigError(
                "head: the last layer that the model calls is not a Linear that gives its outputs; name the head, or"
                " share one head for all tasks (head=None; on the command line --set head=null)"
            )
        head = called[-1][0].rpartition(".")[0]
        if not called[-1][0]:
            raise ConfigError("head: the last Linear's weight is computed, not a parameter; name the head")
    linear = dict(module.named_modules()).get(head)
    if not isinstance(linear, nn.Linear):
        found = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
        raise ConfigError(f"head: {head!r} is not a Linear layer of the model; there are {', '.join(found) or 'none'}")
    names = {f"{head}.{name}".lstrip(".") for name, _ in linear.named_parameters()}
    if names & (set(aliases) | set(aliases.values())):
        raise ConfigError(f"head: {head!r} shares its weight with another layer; pass head=None or another head")
    return names


def _known(field: str, asked: Collection[str], names: Mapping[str, Any]) -> None:
    for name in asked:
        if name not in names:
            raise ConfigError(f"{field}: the model has no parameter {name!r}; there are {', '.join(names)}")


def _watch(module: nn.Module, images: Tensor) -> tuple[list[tuple[Use, nn.Module | None]], dict[int, str], int]:
    """(calls in order, each with the layer whose forward made it; parameters that were used some other way and how;
    numbers that come out for an image)."""
    calls: list[tuple[Use, nn.Module | None]] = []
    strangers: dict[int, str] = {}
    parameters = {id(parameter) for parameter in module.parameters()}

    def other(function: str, tensors: list[Tensor]) -> None:
        strangers.update({id(tensor): function for tensor in tensors if id(tensor) in parameters})

    def used(use: Use) -> None:
        calls.append((use, active[-1] if active else None))

    with watch.evaluating(module), watch.calling(module) as active, Watch(used, other):
        outputs = logits(module, images)
    return calls, strangers, outputs.shape[1]


def _used_otherwise(module: nn.Module, images: Tensor) -> set[int]:
    """Parameters that training uses other than by calling the layer that owns them."""
    others: set[int] = set()
    trial = copy.deepcopy(module).train()  # it may change its buffers
    originals = {id(new): id(old) for new, old in zip(trial.parameters(), module.parameters(), strict=True)}

    def used(use: Use) -> None:
        if not active or active[-1].weight is not use.weight:
            others.add(id(use.weight))

    devices = [images.device] if images.device.type == "cuda" else []
    elsewhere = Watch(used, lambda _, tensors: others.update(map(id, tensors)))
    with torch.random.fork_rng(devices), watch.calling(trial) as active, elsewhere:
        logits(trial, images)
    return {originals[identity] for identity in others if identity in originals}


def record(
    run: Callable[[], Any], layers: Collection[Layer], parameters: Mapping[str, Tensor]
) -> list[tuple[Layer, Use]]:
    """Each use of these layers' weights while `run` uses `parameters`. A weight that is used twice shows up twice."""
    by_weight = {id(parameters[layer.weight]): layer for layer in layers}
    uses: list[Use] = []
    with torch.no_grad(), Watch(uses.append, lambda *_: None):
        run()
    return [(by_weight[id(use.weight)], use) for use in uses if id(use.weight) in by_weight]


def columns(layer: Layer, use: Use, images: int, wanted: int) -> Tensor:
    """The inputs of a use as columns [G, N, P] for `wanted` of the `images` that went in; a bias's constant 1 last."""
    inputs = use.inputs
    if wanted < images:
        lengths = list(inputs.shape[:-1])
        exact = [d for d, length in enumerate(lengths) if length == images]
        where = exact or [d for d, length in enumerate(lengths) if length and length % images == 0]
        if where:  # images lie in the first dimension of their number, or of a multiple of it
            inputs = inputs.narrow(where[0], 0, lengths[where[0]] // images * wanted)
    columns_GNP = watch.columns(use._replace(inputs=inputs))
    if layer.bias is None:
        return columns_GNP
    return torch.cat([columns_GNP, torch.ones_like(columns_GNP[:, :1])], 1)
