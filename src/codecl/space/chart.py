"""Charts: anchor + free basis. Pure algebra, no agents, no tasks; each law is a test of the same name.

    W = anchor + c freeᵀ         the gradient by c is g · free: already the projected gradient (Algorithm 1, line 6)

Shapes: G groups of a convolution (1 elsewhere), O outputs of a group, N inputs, F free directions (of the group that
has most), D coordinates of this chart in a row, R rows of activations, P images or patches, V tokens.

Where inputs are tokens (one-hot, as an embedding's), a basis is a row of token ids [F]: those columns of W are free,
the others are the anchor's. Nothing of size V · V is ever made.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

TINY = 1e-30  # a squared norm below it is none
SLACK = 1e-12  # of the energy: what float64 may get wrong when a tail is compared with the budget
TURNS = 2  # to an orthonormal basis


class Chart(NamedTuple):
    """A layer's weights as coordinates. Without `free` the coordinates are the weights themselves (O = I)."""

    anchor_GON: Tensor
    free_GNF: Tensor | None  # columns past a group's own dimension are zero
    dims: tuple[int, ...]  # free directions of each group
    spread_GF: Tensor | None  # where groups differ: the place of each padded column among the real ones
    tokens_F: Tensor | None = None  # in place of `free`, where inputs are tokens: those that are free

    @property
    def is_whole(self) -> bool:
        return self.free_GNF is None and self.tokens_F is None


def full(weight_GON: Tensor) -> Chart:
    """The chart of a layer that is free as a whole."""
    groups, _, inputs = weight_GON.shape
    return Chart(weight_GON, None, (inputs,) * groups, None)


def chart(anchor_GON: Tensor, bases_G: Sequence[Tensor]) -> Chart:
    """The chart with this anchor and a basis [N, F] a group, or with free tokens [F]."""
    if is_tokens(bases_G[0]):
        return Chart(anchor_GON, None, (len(bases_G[0]),), None, bases_G[0].to(anchor_GON.device))
    dims = tuple(basis.shape[1] for basis in bases_G)
    widest = max(dims)
    free = torch.stack([functional.pad(basis, (0, widest - basis.shape[1])) for basis in bases_G])
    spread = None
    if len(set(dims)) > 1:
        column = torch.arange(widest)
        starts = torch.tensor([sum(dims[:g]) for g in range(len(dims))])
        real = column < torch.tensor(dims)[:, None]
        spread = torch.where(real, starts[:, None] + column, sum(dims)).to(anchor_GON.device)
    return Chart(anchor_GON, free.to(anchor_GON), dims, spread)


def size(chart: Chart) -> int:
    """How many coordinates: what a message carries for this layer."""
    return chart.anchor_GON.shape[1] * sum(chart.dims)


def start(chart: Chart) -> Tensor:
    """The coordinates of the anchor. Law: decode(start(chart), chart) == anchor."""
    if chart.is_whole:
        return chart.anchor_GON.flatten()
    return chart.anchor_GON.new_zeros(size(chart))


def decode(coords_D: Tensor, chart: Chart) -> Tensor:
    """Weights [G, O, N] at these coordinates; any dimensions in front stay in front.

    Laws: encode(decode(c), chart) == c; rows of coordinates are decoded each by itself."""
    if chart.is_whole:
        return coords_D.view(*coords_D.shape[:-1], *chart.anchor_GON.shape)
    coords_GOF = unflatten(coords_D, chart)
    if chart.free_GNF is None:
        assert chart.tokens_F is not None
        anchor = chart.anchor_GON.expand(*coords_D.shape[:-1], *chart.anchor_GON.shape)
        return anchor.index_add(-1, chart.tokens_F, coords_GOF)
    if len(chart.dims) == 1:  # without the group it is one plain product for all agents
        return (chart.anchor_GON[0] + coords_GOF.squeeze(-3) @ chart.free_GNF[0].mT).unsqueeze(-3)
    return chart.anchor_GON + coords_GOF @ chart.free_GNF.mT


def encode(weight_GON: Tensor, chart: Chart) -> Tensor:
    """Coordinates of these weights. Law: decode(encode(W), chart) == W for W - anchor in the free space."""
    if chart.is_whole:
        return weight_GON.flatten()
    moved_GON = weight_GON - chart.anchor_GON
    return flatten(moved_GON[..., chart.tokens_F] if chart.free_GNF is None else moved_GON @ chart.free_GNF, chart)


def project(grad_GON: Tensor, chart: Chart) -> Tensor:
    """The part of a gradient inside the free space, g O Oᵀ = g - g M Mᵀ. Law: project is idempotent and symmetric."""
    if chart.tokens_F is not None:
        return along(inside(grad_GON, chart.tokens_F), chart.tokens_F, grad_GON.shape[-1])
    return grad_GON if chart.free_GNF is None else grad_GON @ chart.free_GNF @ chart.free_GNF.mT


def is_tokens(basis: Tensor) -> bool:
    """Whether a basis is a row of token ids."""
    return not basis.is_floating_point()


def inside(values_N: Tensor, basis: Tensor) -> Tensor:
    """x B: rows of N inputs as seen in a basis [N, F], or of tokens [F]."""
    return values_N.index_select(-1, basis) if is_tokens(basis) else values_N @ basis


def along(coords_F: Tensor, basis: Tensor, inputs: int) -> Tensor:
    """c Bᵀ: the rows of N inputs that have these coordinates in a basis [N, F], or of tokens [F]."""
    if not is_tokens(basis):
        return coords_F @ basis.mT
    return coords_F.new_zeros(*coords_F.shape[:-1], inputs).index_copy(-1, basis, coords_F)


def constrained(grads_AGON: Mapping[str, Tensor], bases: Mapping[str, Sequence[Tensor]]) -> Tensor:
    """μ [A]: ‖g O‖ / ‖g‖ over all layers that have bases, a basis a group; 0 where the gradient is 0 (Assumption 4).

    Laws: at most 1; ‖g O‖² = ‖project(g)‖² = ⟨g, project(g)⟩ (Lemma 1)."""
    free: list[Tensor] = []
    for name, bases_G in bases.items():
        grad_GAON = grads_AGON[name].movedim(-3, 0)
        free += [
            inside(grad_AON, basis).square().sum((-2, -1)) for grad_AON, basis in zip(grad_GAON, bases_G, strict=True)
        ]
    all_of_it = [grads_AGON[name].square().sum((-3, -2, -1)) for name in bases]
    return (torch.stack(free).sum(0) / torch.stack(all_of_it).sum(0).clamp(min=TINY)).sqrt()


def unflatten(coords_D: Tensor, chart: Chart) -> Tensor:
    """Coordinates in a row -> [G, O, F], padded with zeros where groups differ. Law: flatten undoes it."""
    front, outputs = coords_D.shape[:-1], chart.anchor_GON.shape[1]
    if chart.spread_GF is None:
        return coords_D.view(*front, len(chart.dims), outputs, chart.dims[0])
    columns_SO = coords_D.view(*front, -1, outputs)
    padded_SO = torch.cat([columns_SO, columns_SO.new_zeros(*front, 1, outputs)], -2)
    return padded_SO[..., chart.spread_GF, :].mT


def flatten(coords_GOF: Tensor, chart: Chart) -> Tensor:
    """[G, O, F] -> coordinates in a row, the padding left out."""
    if chart.spread_GF is None:
        return coords_GOF.flatten()
    return torch.cat([coords.mT[:dim].flatten() for coords, dim in zip(coords_GOF, chart.dims, strict=True)])


def factored(rows_RN: Tensor, coords_OF: Tensor, chart: Chart, bias: bool) -> Tensor:
    """A linear layer without building its weight: y = x W0ᵀ + (x O) cᵀ.

    Law: factored(x, c) == linear(x, decode(c)). With `bias` the last input is the constant 1 and x leaves it out."""
    assert chart.free_GNF is not None
    anchor_ON, free_NF = chart.anchor_GON[0], chart.free_GNF[0]
    if bias:
        inside = functional.linear(rows_RN, free_NF[:-1].mT, free_NF[-1])
        return functional.linear(rows_RN, anchor_ON[:, :-1], anchor_ON[:, -1]) + functional.linear(inside, coords_OF)
    return functional.linear(rows_RN, anchor_ON) + functional.linear(functional.linear(rows_RN, free_NF.mT), coords_OF)


def factored_pays(rows: int, outputs: int, inputs: int, free: int, least: int = 0) -> bool:
    """Whether `factored` saves multiplications, more than `least`, over building W: forward and backward."""
    building = 3 * rows * outputs * inputs + 2 * outputs * inputs * free
    factoring = rows * (2 * outputs * inputs + 2 * inputs * free + 3 * outputs * free)
    return free > 0 and building - factoring > least


def orthonormal(free_NF: Tensor) -> Tensor:
    """The orthonormal basis nearest to this one, in float64 (polar factor): undoes the rounding of a flooded basis.

    Newton and Schulz: an error e is about e² after a turn, and that of a rounded basis is 1e-6."""
    free = free_NF.double()
    one_and_half = 1.5 * torch.eye(free.shape[1], dtype=free.dtype, device=free.device)
    for _ in range(TURNS):
        free = free @ (one_and_half - free.mT @ free / 2)
    return free


def moment(columns_NP: Tensor, free_NF: Tensor) -> tuple[Tensor, Tensor]:
    """(OᵀRRᵀO, ‖R‖²) of these columns, in float64. Law: moments of parts add up to the moment of the whole."""
    columns = columns_NP.double()
    inside_FP = free_NF.double().mT @ columns
    return inside_FP @ inside_FP.mT, columns.square().sum()


def grow(free_NF: Tensor, moment_FF: Tensor, energy: Tensor, threshold: float) -> Tensor:
    """The free basis that is left when the directions that matter join the core, in float64.

    Kept are the eigenvectors of the smallest eigenvalues that together hold at most (1 - ε) ‖R‖²: the rest, the core
    directions found before included, then holds at least ε of the energy, with no direction to spare. Of tokens [F]
    with the diagonal of their moment [F], those that came least often.
    Laws: the new basis is orthonormal and inside the old free space; energy kept >= ε and minimal."""
    if free_NF.shape[-1] == 0 or energy <= 0:
        return free_NF
    if is_tokens(free_NF):
        order_F = moment_FF.argsort(stable=True)  # of tokens that were seen equally often, the lower ids stay free
        return free_NF[order_F[: _spare(moment_FF[order_F], energy, threshold)]].sort().values
    values_F, vectors_FF = torch.linalg.eigh((moment_FF + moment_FF.mT) / 2)
    return free_NF.double() @ vectors_FF[:, : _spare(values_F.clamp(min=0), energy, threshold)]


def _spare(values_F: Tensor, energy: Tensor, threshold: float) -> int:
    """How many of these, the least first, hold at most (1 - ε) of the energy together."""
    return int((values_F.cumsum(0) <= ((1 - threshold) + SLACK) * energy).sum())


def token_moment(counts_V: Tensor, tokens_F: Tensor) -> tuple[Tensor, Tensor]:
    """`moment` of one-hot columns from how often (squared) each token came: a diagonal [F]."""
    return counts_V[tokens_F], counts_V.sum()
