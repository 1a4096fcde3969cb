"""What a user types wrong, or has wrong in files, is one line and an exit code."""

import shlex

import pytest

from tests.cli.test_cli import failed

NO_LAUNCHER = "codecl: exchange: cluster needs a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (RANK is"


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("run quikstart", 2, "preset: 'quikstart' is unknown, did you mean 'quickstart'"),
        ("run --method codek", 2, "method: 'codek' is unknown, did you mean 'codec'"),
        ("run --topology moebius", 2, "topology: 'moebius' is unknown"),
        (
            "run --topology links.txt",
            2,
            "topology: there is no file 'links.txt'; an edge list has a line",
        ),
        ("run --agents three", 2, "--agents: 'three' is not a whole number"),
        ("run --agents 3000", 2, "agents: 3000 is more than the 2000 training images of task 'digits'"),
        ("run --agents 0", 2, "agents: 0 is not allowed"),
        ("run --agents 7 --topology torus", 2, "7 is not: try 8"),
        ("run --set train.lrr=1", 2, "train.lrr: there is no such field, did you mean 'lr'"),
        ("run --set trian.lr=1", 2, "trian: there is no such field, did you mean 'train'"),
        ("run --set train.lr=-1", 2, "train.lr: -1 is not allowed: it should be greater than 0"),
        ("run --set train.lr", 2, "write it as field=value"),
        ("run --set train.batch_size=501", 2, "train.batch_size: 501 is more than the 500 images"),
        ("run --set growth.threshold=0", 2, "growth.threshold: 0 is not allowed"),
        ("run --set growth.threshold=1.01", 2, "growth.threshold: 1.01 is not allowed"),
        ("run --set model.width=3", 2, "model.width: convnet has no such option"),
        ("run --set train.order=before", 2, "'paper' or 'adapt-then-combine'"),
        ("run --method d-ewc --set method.penalty_step=soft", 2, "'clipped' or 'implicit'"),
        ("run --method codec --set method.penalty=1", 2, "method.penalty: there is no such field"),
        ("run --set topology.edge_probability=0.01 --topology erdos-renyi", 2, "is not connected"),
        ("run --set method=codek", 2, "method: 'codek' is unknown"),
        ("run --set growth.images=-5", 2, "growth.images: -5 is not allowed: images to look at: one number"),
        ("run --set growth.images=[1,x]", 2, "growth.images: [1, 'x'] is not allowed"),
        ("run --method dpsgd --set own.directions=2", 2, "own.directions: it is 2, but dpsgd has no core space"),
        ("run --method codec,d-ewc --set own.directions=1", 2, "own.directions: it is 1, but d-ewc has no core space"),
        ("run --method stl --set own.share=0.1", 2, "own.share: it is 0.1, but stl has no core space"),
        ("run --method stl --set free.directions=0", 2, "free.directions: it is 0, but stl has no core space"),
        (
            "run --set own.directions=2 --set own.share=0.1",
            2,
            "own.share: 0.1 is not allowed: it takes the place of own",
        ),
        ("run --set free.first_task=true --method codec", 2, "free.first_task: it needs free.directions, the number"),
        (
            "run --set own.directions=-1",
            2,
            "own.directions: -1 is not allowed: it should be greater than or equal to 0",
        ),
        ("run --set own.directions=1.5", 2, "own.directions: 1.5 is not allowed: it should be a valid integer"),
        ("run --set own.share=0", 2, "own.share: 0 is not allowed: it should be greater than 0"),
        (
            "run --method codec,codec-full --set own.share=0.01",
            2,
            "own.share: 0.01 leaves no room for own directions: the head",
        ),
        ("run --set own.share=1.1", 2, "own.share: 1.1 is not allowed: it should be less than or equal to 1"),
        ("run --set free.directions=-2", 2, "free.directions: -2 is not allowed: it should be greater than or equal"),
        ("run --set message.bits=5", 2, "message.bits: 5 is not allowed"),
        ("run --set norms=each", 2, "norms: 'each' is not allowed: it should be 'first', 'own' or 'shared'"),
        ("run --set own.direction=1", 2, "own.direction: there is no such field, did you mean 'directions'?"),
        ("run --set model.kernel=40", 2, "model: convnet cannot be built with"),
        ("run --set train=5", 2, "train: 5 is not allowed"),
        ("run --device tpu", 2, "device: 'tpu' is not one of auto, cpu, cuda"),
        ("run --nonsense", 2, "No such option"),
        ("walk", 2, "No such command"),
        ("run --set data.stream=missing", 2, "data.stream: 'missing' is unknown"),
        ("data fetch mnits", 2, "NAME: 'mnits' is unknown, did you mean 'mnist'?; there are cifar10, "),
        ("data fetch mnist --from ftp://x", 2, "--from: 'ftp://x' is not allowed"),
        ("data fetch miniimagenet", 3, "then `codecl data add miniimagenet FOLDER`"),
        ("data fetch", 2, "Missing"),
        ("data add mine nowhere", 3, "there is no nowhere"),
        ("data add a/b .", 2, "NAME: 'a/b' is not allowed"),
        ("data add mine . --size 0", 2, "--size"),
        ("data verify ../x", 2, "NAME: '../x' is not allowed"),
        ("data remove mnist", 2, "No such command"),
        ("bench --models lenet", 2, "'lenet' is not a model that it knows; there are convnet, mlp, alexnet"),
        ("bench --models mlp --agents two", 2, "--agents: 'two' is not a whole number"),
        ("bench --models mlp --precision half", 2, "train.precision: 'half' is not allowed"),
        ("bench --models mlp --method magic", 2, "method: 'magic' is unknown"),
        ("bench --models mlp --method ''", 2, "there is no method to measure"),
        ("bench --models mlp --agents 2,100000", 2, "agents: 100000 is not allowed"),
        ("bench --models mlp --save /proc/x", 2, "/proc/x cannot be made"),
        ("bench --compare nowhere.json", 3, "nowhere.json cannot be read"),
        ("figures nosuch", 2, "preset: 'nosuch' is unknown"),
        ("figures --agents x", 2, "--agents: 'x' is not a whole number"),
        ("figures --set train.epochs=0", 2, "train.epochs: 0 is not allowed"),
        ("figures --topology torus --agents 5", 2, "agents: a torus is rows × columns"),
        ("run --exchange cluster", 2, NO_LAUNCHER),
        ("run --exchange pigeons", 2, "codecl: exchange: 'pigeons' is not one of auto, simulated, cluster"),
        ("plan split-cifar100", 3, "there is no"),
        ("plan --bandwidth 10MB", 2, "is not a bandwidth; write 10Mbit"),
        ("plan --like nowhere", 3, "no such folder"),
        ("plan --topology hypercube --agents 6", 2, "hypercube needs a power of two"),
        ("plan --set train.batch_size=600", 2, "train.batch_size: 600"),
        ("theory check --seeds 1", 2, "--seeds"),
        ("report nowhere", 3, "nowhere"),
    ],
)
def test_bad_input_is_one_line_and_an_exit_code(cli, tmp_path, command, code, says):
    done = cli(*shlex.split(command), cwd=tmp_path, CODECL_DATA=str(tmp_path / "data"))
    assert says in failed(done, code)
    assert done.stdout == ""
    assert not list(tmp_path.iterdir()), "nothing is written"


MINE = """
import torch, networkx as nx, codecl
from torch import nn
five = 5
def nothing(*arguments): return None
def few(agents, config, seed): return nx.path_graph(2)
def missing(): raise FileNotFoundError("letters.npz")
def two_shapes():
    x, y, z = torch.rand(200, 1, 28, 28), torch.rand(200, 3, 9, 9), torch.arange(200) % 2
    return [codecl.Task((x, z), (x, z), 2, "a"), codecl.Task((y, z), (y, z), 2, "b")]
def empty_class():
    x, y = torch.rand(40, 1, 28, 28), torch.arange(40) % 9
    return [codecl.Task((x, y), (x, y), 10, "letters")]
"""


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ("--method broken.py:M", 2, "cannot import broken.py: NameError"),
        ("--method mine.py:M", 2, "mine.py has no class or function 'M'"),
        ("--method mine.py:nothing", 2, "is not a codecl Method class"),
        ("--set model.name=mine.py:five", 2, "has no class or function 'five'"),
        ("--set model.name=mine.py:nothing", 2, "gives NoneType, not an nn.Module"),
        ("--topology mine.py:nothing", 2, "gives NoneType; it should give a networkx graph of 4 agents"),
        ("--topology mine.py:few", 2, "gives 2 nodes; it should give a networkx graph of 4 agents"),
        ("--set data.stream=mine.py:nothing", 2, "gives no list of codecl.Task"),
        ("--set data.stream=mine.py:missing", 3, "letters.npz"),
        ("--set data.stream=mine.py:two_shapes --set train.batch_size=10", 2, "images of shape [3, 9, 9] fails"),
        ("--set data.stream=mine.py:empty_class", 3, "task 'letters': class 9 has no training images"),
        ("--out mine.py", 2, "mine.py/quickstart-dpsgd-ring4/seed-0 cannot be written (Not a directory)"),
        ("--set preset=../x", 2, "preset: '../x' is not allowed"),
        ("--agents 4,60 --set train.batch_size=50", 2, "train.batch_size: 50 is more than the 33 images"),
    ],
)
def test_mistakes_in_ones_own_files_are_one_line_too(cli, tmp_path, options, code, says):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("nonsense")
    method = () if "--method" in options else ("--method", "dpsgd")
    line = failed(cli("run", *method, *options.split(), "--quiet", cwd=tmp_path), code)
    assert says in line
    assert not (tmp_path / "runs").exists(), "nothing is trained or written"
