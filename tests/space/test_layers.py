"""Which weights carry coordinates, and the columns their inputs make."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from codecl.errors import ConfigError
from codecl.models import MODELS
from codecl.space import layers
from codecl.space.calling import call
from codecl.space.roles import parameter_roles
from codecl.space.tracing import without_running_statistics


@st.composite
def convolutions(draw):
    groups = draw(st.integers(1, 2))
    options = {
        "kernel_size": draw(st.integers(1, 3)),
        "stride": draw(st.integers(1, 2)),
        "padding": draw(st.sampled_from([0, 1, 2])),
        "dilation": draw(st.integers(1, 2)),
        "groups": groups,
        "bias": draw(st.booleans()),
        "padding_mode": draw(st.sampled_from(["zeros", "reflect", "circular", "replicate"])),
    }
    if draw(st.booleans()):
        options |= {"padding": draw(st.sampled_from(["same", "valid"])), "stride": 1}
    kind, shape = draw(st.sampled_from([(nn.Conv1d, (7,)), (nn.Conv2d, (7, 6))]))
    return kind(2 * groups, 3 * groups, **options).double(), shape


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@given(convolutions(), st.integers(0, 1000))
def test_columns_times_weights_are_the_output(case, seed):
    """W · columns, patch by patch, is what the convolution computes: bias and padding are in the columns."""
    conv, shape = case
    images = torch.randn(
        3, conv.in_channels, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    places = parameter_roles(nn.Sequential(conv, nn.Flatten()), images, head=None)
    (layer,) = places.layers
    parameters = dict(nn.Sequential(conv).named_parameters())
    ((_, use),) = layers.record(lambda: conv(images), [layer], parameters)
    columns_GNP = layers.columns(layer, use, 3, 3)
    out = (layer.join(parameters) @ columns_GNP).flatten(0, 1)  # [outputs, images · patches]
    expected = conv(images).transpose(0, 1).flatten(1)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-10)
    assert layer.rows == columns_GNP.shape[-1] // 3
    torch.testing.assert_close(layers.columns(layer, use, 3, 1), columns_GNP[..., : layer.rows])


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@given(convolutions())
def test_split_undoes_join(case):
    conv, shape = case
    module = nn.Sequential(conv, nn.Flatten())
    (layer,) = parameter_roles(module, torch.zeros(1, conv.in_channels, *shape).double(), head=None).layers
    parameters = dict(module.named_parameters())
    again = layer.split(layer.join(parameters))
    assert set(again) == set(parameters)
    assert all(torch.equal(again[name], parameters[name]) for name in parameters)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_of_ours_has_a_place_for_every_parameter(name):
    shape = (1, 28, 28) if name in ("mlp", "convnet") else (3, 32, 32)
    module = MODELS[name](shape, 10)
    places = parameter_roles(without_running_statistics(module), torch.randn(2, *shape))
    carried = {n for layer in places.layers for n in (layer.weight, layer.bias) if n}
    assert carried | set(places.head) | set(places.first) == set(dict(module.named_parameters()))
    assert all(n.startswith("head.") for n in places.head)
    counts = {"alexnet": (5, 406_784), "resnet18": (20, 1_090_140), "mlp": (2, 266_752), "convnet": (3, 19_872)}
    counts["vit"] = (17, 534_144)
    size = sum(module.get_parameter(n).numel() for n in carried)
    assert (len(places.layers), size) == counts[name]


@pytest.mark.parametrize("name", ["alexnet", "resnet18"])
@pytest.mark.parametrize("norm", ["group", "layer"])
def test_a_norm_that_does_not_mix_images_has_the_same_weights(name, norm):
    by_batch, ours = MODELS[name]((3, 32, 32), 10), MODELS[name]((3, 32, 32), 10, norm=norm).train()
    assert {key: value.shape for key, value in ours.state_dict().items()} == {
        key: value.shape for key, value in by_batch.state_dict().items()
    }
    images = torch.randn(3, 3, 32, 32)
    for part in ours.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    alone = torch.cat([ours(image[None]) for image in images])
    torch.testing.assert_close(ours(images), alone, rtol=1e-3, atol=1e-4)


class Tied(nn.Module):
    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.transposed = transposed
        self.one = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = torch.tanh(self.one(x))
        x = functional.linear(x, self.one.weight.T) if self.transposed else self.one(x)
        return self.head(x)


def test_a_weight_used_twice_pools_the_columns_of_every_use():
    module = Tied(transposed=False)
    images = torch.randn(3, 4)
    places = parameter_roles(module, images)
    (layer,) = places.layers
    assert (layer.name, layer.rows) == ("one", 2)
    uses = layers.record(lambda: module(images), places.layers, dict(module.named_parameters()))
    assert [found.name for found, _ in uses] == ["one", "one"]
    assert torch.equal(layers.columns(layer, uses[0][1], 3, 3)[0, :4], images.T)


def test_two_layers_that_share_a_parameter_are_one():
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False), nn.Linear(4, 2))
    module[2].weight = module[0].weight
    places = parameter_roles(module, torch.randn(3, 4))
    assert [layer.name for layer in places.layers] == ["0"]
    assert not places.layers[0].linear  # a shared weight is built, never factored


def refusal(module, images, **options):
    with pytest.raises(ConfigError) as caught:
        parameter_roles(module, images, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


class Giving(nn.Module):
    """Gives its outputs as a user's model does."""

    def __init__(self, form):
        super().__init__()
        self.fc, self.form = nn.Linear(4, 2), form

    def forward(self, x):
        return self.form(self.fc(x))


@pytest.mark.parametrize(
    "form",
    [
        lambda x: (x, x.sum()),
        lambda x: [x],
        lambda x: {"loss": x.sum(), "logits": x},
        lambda x: SimpleNamespace(logits=x, hidden=None),
    ],
)
def test_logits_are_found_in_what_a_model_gives(form):
    images, module = torch.randn(3, 4), Giving(form)
    assert torch.equal(call(module, {}, images), module.fc(images))
    assert torch.equal(call(module, {}, {"x": images}), module.fc(images))
    assert torch.equal(call(module, {}, (images,)), module.fc(images))
    assert parameter_roles(module, images).outputs == 2


def test_a_bias_of_two_layers_is_refused():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    module[1].bias = module[0].bias
    assert "shares its bias '0.bias' with another layer" in refusal(module, torch.randn(3, 4))


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (nn.Sequential(nn.Linear(5, 2)), "taking 3 images of shape [4] fails"),
        (nn.Sequential(nn.Linear(4, 2), nn.Flatten(0)), "for 3 images it gives [6]; it should give [3, classes]"),
        (Giving(lambda x: {"scores": x}), "it gives dict; it should give a tensor, a tuple that begins with one"),
    ],
)
def test_a_model_that_is_no_classifier_of_these_images_is_refused(module, says):
    assert says in refusal(module, torch.randn(3, 4))


def test_a_transposed_tie_is_refused_and_can_be_dense_or_frozen():
    message = refusal(Tied(transposed=True), torch.randn(3, 4))
    assert "'one.weight'" in message
    assert "dense=['one.weight']" in message
    assert "frozen=['one.weight']" in message
    places = parameter_roles(Tied(transposed=True), torch.randn(3, 4), dense=["one.weight"], frozen=["one.bias"])
    assert (places.dense, places.first, places.layers) == (("one.weight",), ("one.bias",), ())


class Token(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(x + self.token)


def test_a_parameter_that_multiplies_no_inputs_is_treated_as_a_norm():
    places = parameter_roles(Token(), torch.randn(3, 4))
    assert (places.small, places.norms, places.first) == (("token",),) * 3
    assert places.with_shared_norms().dense == ("token",)
    asked = parameter_roles(Token(), torch.randn(3, 4), dense=["token"])
    assert (asked.dense, asked.small, asked.norms) == (("token",), (), ())
    asked = parameter_roles(Token(), torch.randn(3, 4), frozen=["tok*"])
    assert (asked.first, asked.small, asked.norms) == (("token",), (), ())


class Calling(nn.Module):
    """Calls its parts one after another."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x):
        for part in self.parts:
            if not isinstance(part, nn.ModuleDict):
                x = part(x, x) if isinstance(part, nn.Bilinear) else part(x)
        return x


@pytest.mark.parametrize(
    ("parts", "small"),
    [
        ([nn.PReLU()], ["parts.0.weight"]),
        ([nn.Bilinear(4, 4, 4)], ["parts.0.weight", "parts.0.bias"]),
        ([nn.ConvTranspose1d(3, 3, 2), nn.Linear(5, 4)], ["parts.0.bias"]),
        ([nn.ModuleDict({"spare": nn.Linear(4, 4)})], ["parts.0.spare.weight", "parts.0.spare.bias"]),
    ],
    ids=["prelu", "bilinear", "bias of a transposed convolution", "never called"],
)
def test_parameters_that_multiply_no_inputs(parts, small):
    images = torch.randn(3, 3, 4) if isinstance(parts[0], nn.ConvTranspose1d) else torch.randn(3, 4)
    ends = [nn.Flatten(), nn.Linear(12, 2)] if images.ndim == 3 else [nn.Linear(4, 2)]
    assert list(parameter_roles(Calling(*parts, *ends), images).small) == small


@pytest.mark.parametrize("kind", [parametrizations.weight_norm, parametrizations.orthogonal])
def test_a_parametrized_weight_is_refused_by_name(kind):
    module = Calling(kind(nn.Linear(4, 4)), nn.Linear(4, 2))
    assert "'parts.0.parametrizations.weight.original" in refusal(module, torch.randn(3, 4))
    assert len(parameter_roles(module, torch.randn(3, 4), frozen=["parts.0.*"]).first) > 1


def test_patterns_say_what_parameters_are():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    places = parameter_roles(module, torch.randn(3, 4), dense=["0.*"], frozen=["1.w*"])
    assert (places.dense, places.first, places.small) == (("0.weight", "0.bias"), ("1.weight", "1.bias"), ("1.bias",))
    everything = parameter_roles(module, torch.randn(3, 4), frozen=["*"])
    assert (everything.layers, everything.head) == ((), ("2.weight", "2.bias"))
    assert "frozen: the model has no parameter 'enc*'" in refusal(module, torch.randn(3, 4), frozen=["enc*"])
    assert "'0.bias' is in both" in refusal(module, torch.randn(3, 4), dense=["0.*"], frozen=["*.bias"])
    assert "'2.bias' is the head's" in refusal(module, torch.randn(3, 4), frozen=["2.bias"])


def test_raw_parameters_that_are_used_as_weights_are_layers_too():
    class Raw(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ParameterDict({"a": nn.Parameter(torch.randn(5, 4)), "b": nn.Parameter(torch.randn(4, 5))})
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            x = functional.linear(x, self.inner["a"])
            return self.head(functional.linear(x, self.inner["b"]))

    assert [layer.name for layer in parameter_roles(Raw(), torch.randn(3, 4)).layers] == ["inner.a", "inner.b"]


def test_norms_train_in_the_first_task_and_constants_never():
    module = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 2))
    module[3].weight.requires_grad_(False)
    module[3].bias.requires_grad_(False)
    places = parameter_roles(module, torch.randn(3, 4))
    assert places.first == ("1.weight", "1.bias", "2.weight", "2.bias")
    assert places.constant == ("3.weight", "3.bias")
    assert [layer.name for layer in places.layers] == ["0"]


def test_the_head_is_the_last_linear_that_is_called():
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, 2)
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.out(self.inner(x))

    assert parameter_roles(Backwards(), torch.randn(2, 4)).head == ("out.weight", "out.bias")
    assert parameter_roles(Backwards(), torch.randn(2, 4), head="inner").head == ("inner.weight", "inner.bias")
    assert parameter_roles(Backwards(), torch.randn(2, 4), head=None).head == ()
    assert "there are out, inner" in refusal(Backwards(), torch.randn(2, 4), head="fc")
    assert "is not a Linear that gives its outputs" in refusal(
        nn.Sequential(nn.Conv1d(1, 1, 1), nn.Flatten()), torch.randn(2, 1, 4)
    )
    assert "no parameter 'x'" in refusal(Backwards(), torch.randn(2, 4), dense=["x"])


def test_the_survey_leaves_the_module_as_it_was():
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4), nn.Linear(4, 2))
    module[1].eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    parameter_roles(module, torch.randn(3, 4))
    assert [part.training for part in module] == [True, False, True, True]
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
