"""The laws of charts. Float64; shapes, ranks and seeds by hypothesis."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from codecl.space import chart as charts

TIGHT = {"rtol": 0, "atol": 1e-10}


def generator(seed):
    return torch.Generator().manual_seed(seed)


def orthonormal(n, f, seed):
    return torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator(seed)))[0][:, :f]


@st.composite
def some_charts(draw, most_groups=3):
    g, o, n = draw(st.integers(1, most_groups)), draw(st.integers(1, 5)), draw(st.integers(1, 8))
    dims = [draw(st.integers(0, n)) for _ in range(g)]
    seed = draw(st.integers(0, 10**6))
    anchor = torch.randn(g, o, n, dtype=torch.float64, generator=generator(seed))
    return charts.chart(anchor, [orthonormal(n, f, seed + i) for i, f in enumerate(dims)]), seed


def coordinates(chart, seed):
    return torch.randn(charts.size(chart), dtype=torch.float64, generator=generator(seed + 99))


@given(some_charts())
def test_encode_and_decode_are_inverse(case):
    chart, seed = case
    coords = coordinates(chart, seed)
    torch.testing.assert_close(charts.encode(charts.decode(coords, chart), chart), coords, **TIGHT)


@given(some_charts())
def test_start_is_the_anchor(case):
    chart, _ = case
    assert torch.equal(charts.decode(charts.start(chart), chart), chart.anchor_GON)
    everything = charts.full(chart.anchor_GON)
    assert torch.equal(charts.decode(charts.start(everything), everything), chart.anchor_GON)


@given(some_charts())
def test_rows_are_decoded_each_by_itself(case):
    chart, seed = case
    rows = torch.stack([coordinates(chart, seed + i) for i in range(3)])
    together = charts.decode(rows, chart)
    assert together.shape == (3, *chart.anchor_GON.shape)
    for row, weight in zip(rows, together, strict=True):
        torch.testing.assert_close(weight, charts.decode(row, chart), **TIGHT)


@given(some_charts())
def test_flatten_undoes_unflatten(case):
    chart, seed = case
    coords = coordinates(chart, seed)
    assert torch.equal(charts.flatten(charts.unflatten(coords, chart), chart), coords)


@given(some_charts())
def test_gradient_by_coordinates_is_the_projected_gradient(case):
    """∂loss/∂c, decoded, equals g O Oᵀ: Algorithm 1, line 6."""
    chart, seed = case
    coords = coordinates(chart, seed).requires_grad_()
    weight = charts.decode(coords, chart)
    grad = torch.randn(weight.shape, dtype=torch.float64, generator=generator(seed + 5))
    if charts.size(chart) == 0:
        assert torch.equal(charts.project(grad, chart), torch.zeros_like(grad))
        return
    (by_coords,) = torch.autograd.grad((weight * grad).sum(), coords)
    back = charts.decode(by_coords, chart) - chart.anchor_GON
    torch.testing.assert_close(back, charts.project(grad, chart), **TIGHT)


@given(some_charts())
def test_project_is_idempotent_and_symmetric(case):
    chart, seed = case
    a, b = torch.randn(2, *chart.anchor_GON.shape, dtype=torch.float64, generator=generator(seed))
    once = charts.project(a, chart)
    torch.testing.assert_close(charts.project(once, chart), once, **TIGHT)
    torch.testing.assert_close((once * b).sum(), (a * charts.project(b, chart)).sum(), **TIGHT)


@given(some_charts(most_groups=1), st.booleans(), st.integers(1, 4))
def test_factored_equals_linear(case, bias, rows):
    chart, seed = case
    if charts.size(chart) == 0 or (bias and chart.anchor_GON.shape[2] == 1):
        return
    coords = coordinates(chart, seed)
    weight = charts.decode(coords, chart)[0]
    x = torch.randn(rows, weight.shape[1] - bias, dtype=torch.float64, generator=generator(seed + 1))
    y = functional.linear(x, weight[:, :-1], weight[:, -1]) if bias else functional.linear(x, weight)
    factored = charts.factored(x, charts.unflatten(coords, chart)[0], chart, bias)
    torch.testing.assert_close(factored, y, **TIGHT)


@st.composite
def growths(draw):
    n, seed = draw(st.integers(1, 10)), draw(st.integers(0, 10**6))
    f = draw(st.integers(0, n))
    rank, columns = draw(st.integers(0, n)), draw(st.integers(1, 20))
    left = torch.randn(n, rank, dtype=torch.float64, generator=generator(seed))
    inputs = left @ torch.randn(rank, columns, dtype=torch.float64, generator=generator(seed + 1))
    return orthonormal(n, f, seed + 2), inputs, draw(st.floats(0.01, 1.0))


@given(growths())
def test_grown_basis_is_orthonormal_and_inside_the_old_free_space(case):
    free, inputs, threshold = case
    new = charts.grow(free, *charts.moment(inputs, free), threshold)
    eye = torch.eye(new.shape[1], dtype=torch.float64)
    torch.testing.assert_close(new.mT @ new, eye, **TIGHT)
    torch.testing.assert_close(free @ (free.mT @ new), new, **TIGHT)


@given(growths())
def test_energy_kept_reaches_the_threshold_and_is_minimal(case):
    free, inputs, threshold = case
    total = inputs.square().sum()
    new = charts.grow(free, *charts.moment(inputs, free), threshold)

    def lost(basis):
        return (basis.mT @ inputs).square().sum()

    assert lost(new) <= ((1 - threshold) + 1e-9) * total
    if new.shape[1] < free.shape[1] and total > 0:  # one direction fewer in the core would be too few
        values = torch.linalg.eigvalsh((free.mT @ inputs) @ (free.mT @ inputs).mT).clamp(min=0)
        assert values[: new.shape[1] + 1].sum() > (1 - threshold) * total


@given(growths())
def test_growth_equals_the_svd_of_the_residual(case):
    """GPM as printed: SVD of R - M MᵀR, least k with energy of M and of the k leading directions >= ε."""
    free, inputs, threshold = case
    total = inputs.square().sum()
    new = charts.grow(free, *charts.moment(inputs, free), threshold)
    residual = free @ (free.mT @ inputs)
    u, s, _ = torch.linalg.svd(residual)
    known = total - residual.square().sum()
    gap = s.square() / total.clamp(min=1e-300)
    if (
        total == 0
        or ((known + gap.cumsum(0) * total) / total - threshold).abs().min() < 1e-9
        or (known / total - threshold).abs() < 1e-9
    ):
        return  # a tie within rounding
    k = 0
    while (known + s[:k].square().sum()) / total < threshold and k < min(free.shape[1], len(s)):
        k += 1
    assert new.shape[1] == free.shape[1] - k
    if k and (k == len(s) or s[k - 1] - s[k] > 1e-6):
        torch.testing.assert_close(
            new.mT @ u[:, :k], torch.zeros(new.shape[1], k, dtype=torch.float64), rtol=0, atol=1e-6
        )


@given(growths(), st.integers(0, 20))
def test_moments_of_parts_add_up(case, cut):
    free, inputs, _ = case
    whole = charts.moment(inputs, free)
    for a, b, c in zip(charts.moment(inputs[:, :cut], free), charts.moment(inputs[:, cut:], free), whole, strict=True):
        torch.testing.assert_close(a + b, c, **TIGHT)


def test_zero_input_grows_nothing():
    free, nothing = orthonormal(5, 3, 0), torch.zeros(5, 4, dtype=torch.float64)
    assert torch.equal(charts.grow(free, *charts.moment(nothing, free), 0.97), free)


def test_threshold_one_takes_exactly_the_directions_that_occur():
    """Near ε = 1 adding up the leading part goes wrong; deciding by the tail does not."""
    inputs = torch.randn(40, 7, dtype=torch.float64) @ torch.randn(7, 500, dtype=torch.float64)
    free = torch.eye(40, dtype=torch.float64)
    assert charts.grow(free, *charts.moment(inputs, free), 1.0).shape[1] == 33


@given(st.integers(1, 40), st.data(), st.integers(0, 99))
def test_a_rounded_basis_becomes_the_nearest_orthonormal_one(n, data, seed):
    rounded = orthonormal(n, data.draw(st.integers(0, n)), seed).float()
    exact = charts.orthonormal(rounded)
    u, _, v = torch.linalg.svd(rounded.double(), full_matrices=False)
    torch.testing.assert_close(exact, u @ v, rtol=0, atol=1e-13)
    torch.testing.assert_close(exact.mT @ exact, torch.eye(exact.shape[1], dtype=torch.float64), rtol=0, atol=1e-13)


def test_orthogonality_does_not_decay_over_a_hundred_growths_in_float32():
    """Each growth starts from the flooded float32 basis, made orthonormal again in float64."""
    free = torch.eye(220)
    for task in range(100):
        inputs = torch.randn(220, 2, dtype=torch.float64, generator=generator(task))
        exact = charts.orthonormal(free)
        free = charts.grow(exact, *charts.moment(inputs, exact), 0.999).float()
    assert free.shape[1] == 20
    wide = free.double()
    assert (wide.mT @ wide - torch.eye(20, dtype=torch.float64)).abs().max() < 3e-7


@given(st.integers(1, 500), st.integers(1, 100), st.integers(1, 100), st.integers(1, 100))
def test_factored_pays_by_counting(rows, outputs, inputs, free):
    free = min(free, inputs)
    forward = rows * (outputs * inputs + inputs * free + free * outputs)
    backward = rows * (outputs * inputs + inputs * free + 2 * free * outputs)
    built = 3 * rows * outputs * inputs + 2 * outputs * inputs * free
    assert charts.factored_pays(rows, outputs, inputs, free) == (forward + backward < built)
    assert not charts.factored_pays(rows, outputs, inputs, 0)


@given(some_charts(), st.integers(0, 10**6))
def test_the_projected_gradient_is_a_descent_direction(case, seed):
    """Lemma 1: ⟨g, g̃⟩ = ‖g̃‖²; and ‖g̃‖ = ‖g O‖, the gradient by coordinates."""
    chart, _ = case
    grad = torch.randn(chart.anchor_GON.shape, dtype=torch.float64, generator=generator(seed))
    inside = charts.project(grad, chart)
    torch.testing.assert_close((grad * inside).sum(), inside.square().sum(), **TIGHT)
    bases = [basis[:, :dim] for basis, dim in zip(chart.free_GNF, chart.dims, strict=True)]
    mu = charts.constrained({"layer": grad[None]}, {"layer": bases})
    torch.testing.assert_close(mu, (inside.norm() / grad.norm())[None], **TIGHT)
    assert float(mu) <= 1 + 1e-12


def test_how_constrained_a_gradient_is_counts_all_layers_with_bases_and_no_others():
    grads = {
        "a": torch.tensor([3.0, 4.0]).view(1, 1, 1, 2),
        "b": torch.full((1, 1, 1, 2), 12.0),
        "c": torch.ones(1, 1, 1, 1),
    }
    first, none = torch.tensor([[1.0], [0.0]]), torch.zeros(2, 0)
    assert float(charts.constrained(grads, {"a": [first]})) == pytest.approx(3 / 5)
    assert float(charts.constrained(grads, {"a": [first], "b": [none]})) == pytest.approx(3 / (25 + 288) ** 0.5)
    assert float(charts.constrained({"a": torch.zeros(1, 1, 1, 2)}, {"a": [first]})) == 0


@st.composite
def token_charts(draw):
    o, v, seed = draw(st.integers(1, 4)), draw(st.integers(1, 9)), draw(st.integers(0, 10**6))
    tokens = torch.tensor(sorted(draw(st.sets(st.integers(0, v - 1)))), dtype=torch.int64)
    anchor = torch.randn(1, o, v, dtype=torch.float64, generator=generator(seed))
    columns = torch.eye(v, dtype=torch.float64)[:, tokens]
    return charts.chart(anchor, [tokens]), charts.chart(anchor, [columns]), seed


@given(token_charts())
def test_a_chart_of_tokens_is_the_chart_of_their_columns_of_the_identity(case):
    tokens, dense, seed = case
    assert charts.size(tokens) == charts.size(dense)
    assert torch.equal(charts.decode(charts.start(tokens), tokens), tokens.anchor_GON)
    rows = torch.stack([coordinates(tokens, seed + i) for i in range(3)])
    torch.testing.assert_close(charts.decode(rows, tokens), charts.decode(rows, dense), **TIGHT)
    weight = charts.decode(rows[0], tokens)
    torch.testing.assert_close(charts.encode(weight, tokens), rows[0], **TIGHT)
    grad = torch.randn(weight.shape, dtype=torch.float64, generator=generator(seed + 5))
    torch.testing.assert_close(charts.project(grad, tokens), charts.project(grad, dense), **TIGHT)
    if charts.size(tokens):
        coords = rows[0].requires_grad_()
        (by_coords,) = torch.autograd.grad((charts.decode(coords, tokens) * grad).sum(), coords)
        torch.testing.assert_close(charts.decode(by_coords, tokens) - tokens.anchor_GON, charts.project(grad, tokens))
    bases = tokens.tokens_F, dense.free_GNF[0]
    mus = [charts.constrained({"a": grad[None]}, {"a": [basis]}) for basis in bases]
    torch.testing.assert_close(*mus, **TIGHT)
    inside = [charts.inside(grad, basis) for basis in bases]
    torch.testing.assert_close(*inside, **TIGHT)
    back = [charts.along(inside[0], basis, grad.shape[-1]) for basis in bases]
    torch.testing.assert_close(*back, **TIGHT)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=9), st.sets(st.integers(0, 8)), st.floats(0.01, 1.0), st.booleans()
)
def test_tokens_that_stay_free_are_those_seen_least(counts, free, threshold, is_whole):
    """Enough energy joins the core, no token to spare; the lower count stays free, then the lower id."""
    counts = torch.tensor(counts, dtype=torch.float64)
    tokens = torch.tensor([token for token in range(len(counts)) if is_whole or token in free], dtype=torch.int64)
    moment, energy = charts.token_moment(counts, tokens)
    kept = charts.grow(tokens, moment, energy, threshold)
    assert set(kept.tolist()) <= set(tokens.tolist())
    assert kept.tolist() == sorted(kept.tolist())
    if energy == 0:
        assert torch.equal(kept, tokens)
        return
    assert counts[kept].sum() <= (1 - threshold + 1e-9) * energy
    gone = sorted((float(counts[token]), token) for token in set(tokens.tolist()) - set(kept.tolist()))
    if gone:
        assert counts[kept].sum() + gone[0][0] > (1 - threshold) * energy
        assert all((float(counts[token]), token) < gone[0] for token in kept.tolist())
