"""Kernels for stacked agents equal PyTorch's layers, agent by agent. Without a GPU Triton interprets them."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional

pytest.importorskip("triton", reason="needs Triton, which has no build for this system")

from codecl.exchange import kernels as few_bits
from codecl.exchange import quantised, rounding
from codecl.exchange.base import Heard
from codecl.train import kernels
from codecl.train.execution import multiplying
from codecl.train.kernels import conv, norm
from tests.problems import config, furthest, tasks, trajectory

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EXAMPLES = settings().max_examples // 2  # interpreted, or compiled for every shape: slow either way
EXACT = 1e-5


@pytest.fixture(scope="module", autouse=True)
def _interpreted_sums_wrap():
    """As on a GPU. Triton 3.7, which PyTorch 2.13 asks for, interprets an int32 sum past its range as an error."""
    from triton.runtime.interpreter import ReduceOps

    given = ReduceOps.to_tensor
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReduceOps, "to_tensor", lambda self, ret, dtype: given(self, _wrapped(ret, dtype), dtype))
        yield


def _wrapped(total, dtype):
    return np.int64(total).astype(np.int32) if dtype.is_int32() and np.ndim(total) == 0 else total


def apart(ours, exact):
    ours, exact = ours.detach().double(), exact.detach()
    return float((ours - exact).norm() / exact.norm().clamp(min=1e-9))


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def backwards(out, inputs, seed):
    above = drawn(*out.shape, seed=seed).to(out.dtype)
    return torch.autograd.grad(out, inputs, above)


SHAPES = st.fixed_dictionaries(
    {
        "agents": st.integers(1, 3),
        "images": st.integers(1, 3),
        "channels": st.sampled_from([1, 2, 3, 4, 5, 8, 20, 33]),
        "outs": st.sampled_from([1, 3, 16, 20, 40, 70]),
        "maps": st.tuples(st.integers(4, 11), st.integers(4, 11)),
        "size": st.tuples(st.integers(1, 4), st.integers(1, 4)),
        "stride": st.tuples(st.integers(1, 3), st.integers(1, 3)),
        "padding": st.tuples(st.integers(0, 2), st.integers(0, 2)),
        "last": st.booleans(),
        "weights_last": st.booleans(),
    }
)


@settings(max_examples=EXAMPLES)
@given(SHAPES)
@example(
    {"agents": 2, "images": 1, "channels": 1, "outs": 16, "maps": (5, 5), "size": (1, 4), "stride": (1, 1)}
    | {"padding": (2, 2), "last": False, "weights_last": False}
)
def test_stacked_convolutions_equal_separate_ones(case):
    agents, images, channels = case["agents"], case["images"], case["channels"]
    x = drawn(agents, images, channels, *case["maps"])
    if case["last"]:  # channels last in memory
        x = x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    weight = drawn(agents, case["outs"], channels, *case["size"], seed=1)
    if case["weights_last"]:
        weight = weight.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    ours, exact = (
        [x.to(kind).requires_grad_(), weight.to(kind).requires_grad_()] for kind in (torch.float, torch.double)
    )
    assert ours[1].permute(0, 1, 3, 4, 2).is_contiguous() or not case["weights_last"]
    out = conv.Stacked.apply(*ours, conv.Shape(case["size"], case["stride"], case["padding"]), "ieee")
    expected = torch.stack(
        [functional.conv2d(*pair, stride=case["stride"], padding=case["padding"]) for pair in zip(*exact, strict=True)]
    )
    assert apart(out, expected) < EXACT
    for a, b in zip(backwards(out, ours, 2), backwards(expected, exact, 2), strict=True):
        assert apart(a, b) < EXACT


@settings(max_examples=EXAMPLES)
@given(
    st.integers(1, 3),
    st.integers(2, 9),
    st.sampled_from([1, 3, 5, 20, 64, 130]),
    st.sampled_from([(), (1, 1), (4, 7), (30, 33)]),
    st.sampled_from([0.0, 100.0]),
)
def test_stacked_norms_equal_separate_ones(agents, images, channels, maps, offset):
    x = drawn(agents, images, channels, *maps) + offset
    weight, bias = drawn(agents, channels, seed=1), drawn(agents, channels, seed=2)
    ours, exact = (
        [value.to(kind).requires_grad_() for value in (x, weight, bias)] for kind in (torch.float, torch.double)
    )
    out = norm.Stacked.apply(*ours, 1e-5)
    each = zip(*exact, strict=True)
    expected = torch.stack([functional.batch_norm(a, None, None, w, b, True) for a, w, b in each])
    assert apart(out, expected) < (1e-3 if offset else EXACT)  # float32 itself loses the offset's digits
    found, right = backwards(out, ours, 3), backwards(expected, exact, 3)
    if images * max(1, torch.tensor(maps).prod()) > 4:  # of few values the gradient is nearly nothing
        assert all(apart(a, b) < (1e-3 if offset else 1e-4) for a, b in zip(found, right, strict=True))


def small():
    return nn.Sequential(
        nn.Conv2d(3, 5, 3, padding=1),
        nn.BatchNorm2d(5, track_running_stats=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(5, 4, 2, stride=2, bias=False),
        nn.Conv2d(4, 4, 1, groups=2),
        nn.Flatten(),
        nn.Linear(16, 6),
        nn.BatchNorm1d(6, track_running_stats=False),
        nn.Linear(6, 2),
    ).to(DEVICE)


@pytest.mark.parametrize("shared", [False, True])
def test_a_module_with_kernels_gives_what_it_gave(shared):
    """Through vmap, with a bias, with norms that agents share, and with a layer that the kernels do not know."""
    module, changed = small(), small()
    parts = kernels.install(changed, "highest")
    assert [type(part).__name__ for part in parts] == ["Conv2d", "BatchNorm2d", "Conv2d", "BatchNorm1d"]
    names = [name for name, _ in module.named_parameters() if not (shared and name.startswith("1."))]
    own = {name: drawn(3, *module.get_parameter(name).shape, seed=len(name)).requires_grad_() for name in names}
    constant = {"1.weight": drawn(5, seed=7), "1.bias": drawn(5, seed=8)} if shared else {}
    images = drawn(3, 6, 3, 8, 8)

    def losses(net):
        def loss(mine, some):
            return functional_call(net, {**constant, **mine}, (some,)).square().mean()

        return vmap(loss)(own, images)

    with multiplying("highest", DEVICE):
        ours, expected = losses(changed), losses(module)
        grads = [torch.autograd.grad(loss.sum(), list(own.values())) for loss in (ours, expected)]
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-6)


def test_layers_that_are_not_plain_stay_as_they_are():
    class Mine(nn.Conv2d):
        pass

    odd = nn.Sequential(
        Mine(3, 4, 3),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.BatchNorm2d(4, affine=False, track_running_stats=False),
        nn.BatchNorm2d(4),
    )
    assert kernels.install(odd, "highest") == []


def test_a_kernel_without_stacked_agents_says_so():
    net = nn.Conv2d(3, 4, 3).to(DEVICE)
    kernels.install(net, "highest")
    with pytest.raises(NotImplementedError, match="called for one agent"):
        net(drawn(2, 3, 8, 8))


@pytest.mark.parametrize("method", ["codec", pytest.param("codec-full", marks=pytest.mark.long)])
def test_training_with_kernels_follows_training_without(method, monkeypatch):
    """Two tasks: whole weights, then weights that are built in the order that the kernels read."""

    def net():
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 5, 3, stride=2),
            nn.Conv2d(5, 6, (1, 2), bias=False),
            nn.Flatten(),
            nn.Linear(12, 3),
        )

    runs = []
    for wanted in (True, False):
        monkeypatch.setattr(kernels, "available", lambda *_, wanted=wanted: wanted)
        settings = config(dtype="float32", method=method, train={"precision": "highest", "epochs": 1, "lr": 0.02})
        runs.append(list(trajectory(net(), tasks(2), settings, DEVICE)))
    assert max(furthest(a, b) for a, b in zip(*runs, strict=True)) < 1e-4


# interpreted by NumPy, a NaN becomes an integer with a warning in some versions of Triton
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")
@settings(max_examples=EXAMPLES)
@given(
    st.sampled_from([16, 8, 4, 3, 2]),
    st.sampled_from([1, 7, 1023, 1024, 2500]),
    st.integers(1, 3),
    st.sampled_from(["near", "far", "not finite"]),
)
def test_messages_in_few_bits_are_the_same_bit_for_bit(bits, size, heard, case):
    """Bytes, mixed rows and memory, round after round, with neighbours in and out of reach."""
    agents = 3
    rows = (drawn(1, size) + 0.01 * drawn(agents, size, seed=1)).to(DEVICE)
    if case == "not finite":
        rows[1, -1] = float("nan")
    senders = torch.tensor([[(agent + 1 + k) % agents for k in range(heard)] for agent in range(agents)], device=DEVICE)
    weights = torch.full((agents, heard), 0.3, device=DEVICE)
    weights[0, -1] = 0
    memory = quantised.Memory.new(rows, 5)
    start = memory._replace(expected_AC=memory.expected_AC + (1e-4 if case == "far" else 0.05)).joined()
    start[0, 2 * rounding.chunks(size)] = -20  # somebody asks for a wider pitch
    start[:, rounding.chunks(size)] = 0.001  # a chunk that moved
    results = {}
    for ops in (quantised, few_bits):
        now, known, results[ops] = rows, start, []
        for _ in range(2):
            packed = ops.encode(now, known, 11, bits)
            mixed, known = ops.mix(
                now, packed, Heard(packed, senders, weights), known, quantised.Pace(0.5, 3, 2), 11, bits
            )
            now = mixed + 0.001 * drawn(agents, size, seed=2)
            known = ops.moved(known, mixed, now)
            results[ops] += [packed, mixed, known]
    whole = slice(None, None, 2 if case == "not finite" else 1)  # that agent's own part may differ
    for ours, exact in zip(*results.values(), strict=True):
        assert torch.equal(ours[whole], exact[whole])


def test_how_far_long_rows_moved_is_the_same_bit_for_bit():
    rows = drawn(2, 65 * 1024 + 3)
    after, memory = rows + drawn(2, 65 * 1024 + 3, seed=1), quantised.Memory.new(rows, 2).joined()
    assert torch.equal(few_bits.moved(memory, rows, after), quantised.moved(memory, rows, after))
