"""What `fit` gives back, used as any module: saved, loaded into the user's own class, exported."""

import pytest
import torch
from torch import nn

import codecl
from codecl.errors import ConfigError
from tests.problems import tasks


class Net(nn.Module):
    """As users write them, with running statistics."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
        self.fc1, self.norm1, self.head = nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        return self.head(torch.tanh(self.norm1(self.fc1(x))))


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    torch.manual_seed(0)
    train = {"epochs": 3, "batch_size": 4, "lr": 0.05}
    return codecl.fit(
        Net(), tasks(), out=tmp_path_factory.mktemp("deployed"), train=train, norms="own", dtype="float64"
    )


def test_a_state_dict_loads_into_the_users_own_class(result, tmp_path):
    for number, task in enumerate(tasks()):
        trained, images = result.model(number), task.test[0]
        torch.save(trained.state_dict(), tmp_path / "weights.pt")
        mine = Net().double()
        mine.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True), strict=True)
        mine.eval()
        with torch.no_grad():
            assert torch.equal(mine(images), trained(images))
            alone = torch.cat([mine(image[None]) for image in images])
        torch.testing.assert_close(alone, mine(images).detach())
        score = 100 * (alone.argmax(1) == task.test[1]).double().mean().item()
        assert score == pytest.approx(result.metrics["accuracy_matrix"][-1][number])


def test_the_module_that_was_given_keeps_its_running_statistics(tmp_path):
    net = Net()
    codecl.fit(net, tasks(1), out=tmp_path, train={"epochs": 1, "batch_size": 4})
    assert net.norm.track_running_stats
    assert torch.equal(net.norm.running_mean, torch.zeros(4))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_export_and_onnx_give_what_the_module_gives(result, tmp_path):
    model, images = result.model(1).float(), tasks()[1].test[0].float()
    expected = model(images).detach()
    exported = torch.export.export(model, (images,))
    torch.testing.assert_close(exported.module()(images), expected)
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    reference = pytest.importorskip("onnx.reference", reason="onnx is not installed")
    torch.onnx.export(model, (images,), tmp_path / "model.onnx", dynamo=True, verbose=False)
    session = reference.ReferenceEvaluator(str(tmp_path / "model.onnx"))
    (found,) = session.run(None, {session.input_names[0]: images.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-5)


def test_all_tasks_at_once_need_one_scale_and_heads_of_their_own(tmp_path):
    stream = [task._replace(mean=(float(number),), std=(1.0,)) for number, task in enumerate(tasks())]
    train = {"epochs": 1, "batch_size": 4}
    with pytest.raises(ConfigError, match="its tasks scale their images differently: load each"):
        codecl.fit(Net(), stream, out=tmp_path, train=train).model(None)
    shared = codecl.fit(Net(), tasks(), out=tmp_path, train=train, head=None)
    assert "acc_without_identity" not in shared.metrics
    with pytest.raises(ConfigError, match="its tasks share one head: load each"):
        shared.model(None)
