"""Files that promise more than they hold, and names that a terminal or a page would act on."""

import io
import json
import pickle
import resource
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib

import numpy as np
import pytest
import yaml
from PIL import Image

import codecl
from codecl.data import readers
from codecl.data.readers import ImportOptions, limits, pictures, unpickle
from codecl.errors import CONTROL, CodeclError, ConfigError, DataError, printable
from codecl.files import parse_json, read_bytes
from codecl.runs import yamlfile
from codecl.runs.predict import predict
from codecl.runs.reader import read_config, read_metrics
from tests.launching import on_a_terminal
from tests.problems import change_metrics, recorded_run

OPTIONS = ImportOptions(test_part=0.5, size=8)


@pytest.fixture(autouse=True)
def little_room(monkeypatch):
    monkeypatch.setattr(limits, "ROOM", 1 << 20)


def refused(call, words):
    """In one line, and without taking memory for what was promised."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CodeclError, match=words):
        call()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_a_zip_that_unpacks_to_too_much(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(4):
            archive.writestr(f"train/a/{number}.png", bytes(16 << 20))
    refused(lambda: readers.read(tmp_path / "bomb.zip", OPTIONS), "bytes when unpacked; the most that is taken is")


def test_a_tar_that_unpacks_to_too_much(tmp_path):
    path = tmp_path / "bomb.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("train/a/1.png")
        member.size = 32 << 20
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    refused(lambda: readers.read(path, OPTIONS), "the most that is taken is|promises more than")


def test_a_tar_whose_head_promises_too_much(tmp_path):
    member = tarfile.TarInfo("train/a/1.png")
    member.size = 8 << 40
    (tmp_path / "head.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    refused(lambda: readers.read(tmp_path / "head.tar", OPTIONS), "the most that is taken is")
    pax = tarfile.TarInfo("x")
    pax.type, pax.size = tarfile.XHDTYPE, 1 << 40
    (tmp_path / "pax.tar").write_bytes(pax.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    refused(lambda: readers.read(tmp_path / "pax.tar", OPTIONS), "promises more than")


def test_gzip_in_an_idx_file(tmp_path):
    head = bytes((0, 0, 8, 3)) + struct.pack(">3I", 1 << 20, 8, 8)
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    data = pack.compress(head) + b"".join(pack.compress(bytes(1 << 20)) for _ in range(40)) + pack.flush()
    for name in ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"):
        (tmp_path / name).write_bytes(data)
    for name in ("train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"):
        (tmp_path / name).write_bytes(bytes((0, 0, 8, 1)) + struct.pack(">I", 0))
    refused(lambda: readers.read(tmp_path), "unpacks to more than")


def test_an_npy_file_whose_head_promises_terabytes(tmp_path):
    for name in ("train_images", "test_images", "train_labels", "test_labels"):
        file = io.BytesIO()
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (10**12, 8, 8)})
        (tmp_path / f"{name}.npy").write_bytes(file.getvalue())
    refused(lambda: readers.read(tmp_path), r"bytes for an array \[1000000000000, 8, 8\]")


def test_a_mat_file_whose_tag_promises_gigabytes(tmp_path):
    for name in ("train", "test"):
        (tmp_path / f"{name}_32x32.mat").write_bytes(bytes(124) + b"\x00\x01IM" + struct.pack("<II", 14, 2**31 - 8))
    refused(lambda: readers.read(tmp_path), "it promises 2,147,483,640 bytes and has 0")


def test_pickles_that_ask_for_memory():
    refused(lambda: unpickle.load(b"\x80\x02]r\xff\xff\xff\x7f.", "x"), "asks for 2,147,483,647 places")
    held = []
    for _ in range(40):
        held = [held, held]
    refused(lambda: unpickle.load(pickle.dumps(held), "x"), "many times over")


def test_a_picture_of_too_many_pixels_is_no_picture():
    head = (
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + struct.pack(">IIBBBBB", 12_000, 12_000, 8, 2, 0, 0, 0)
    )
    data = head + struct.pack(">I", zlib.crc32(head[12:]))
    assert pictures.decode(data, "x") is None
    assert (
        pictures.decode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", "x") is None
    )  # another program's to run


def test_labels_that_promise_more_classes_than_images(tmp_path, monkeypatch):
    from codecl.data.store import ImageSet, write
    from codecl.data.streams import load

    monkeypatch.setenv("CODECL_DATA", str(tmp_path))
    images, labels = np.zeros((4, 1, 8, 8), np.uint8), np.array([0, 1, 2, 2**62])
    write("mine", ImageSet(images, labels, images, labels))
    refused(lambda: load("whole(mine)"), "a label is 4611686018427387904, but there are 4 training images")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &a [1]\nb: [*a, *a]", "aliases"),
        ("[" * 5000, "nested too deeply"),
        ("a: " + "9" * 5000, "."),
        ("a: 2020-99-99", "."),
        (b"\xff\xfe\xfa", "."),
    ],
)
def test_yaml_that_would_become_too_much(text, words):
    with pytest.raises(ValueError, match=words):
        yamlfile.load(text if isinstance(text, bytes) else text.encode())


def test_json_that_would_become_too_much(tmp_path):
    for text in ("[" * 100_000, "9" * 5000, "1" + "0" * 30):
        with pytest.raises(ValueError, match=r"."):
            parse_json(text.encode())
    (tmp_path / "long").write_bytes(bytes(100))
    with pytest.raises(ValueError, match="more than 99 bytes"):
        read_bytes(tmp_path / "long", 99)
    with pytest.raises(OSError, match="not a plain file"):
        read_bytes(tmp_path, 99)


@pytest.mark.parametrize(
    ("fields", "shape", "classes"),
    [
        ({"hidden": 10**9}, None, None),
        ({"channels": [10**6, 10**6]}, None, None),
        ({}, [1, 10**6, 10**6], None),
        ({}, None, 10**11),
        ({"name": "vit", "depth": 10**9, "patch": 7}, None, None),
        ({"name": "mlp", "hidden": [1] * 4_000}, None, None),
    ],
)
def test_a_config_whose_model_is_larger_than_its_weights(copied, fields, shape, classes):
    folder = recorded_run(copied)
    held = yaml.safe_load((folder / "config.yaml").read_text())
    held["model"] = {"name": "convnet", **fields}
    (folder / "config.yaml").write_text(yaml.safe_dump(held))
    tasks = json.loads((folder / "model" / "tasks.json").read_text())
    tasks["tasks"][0] |= {"shape": shape} if shape else {}
    tasks["tasks"][0] |= {"classes": classes} if classes else {}
    (folder / "model" / "tasks.json").write_text(json.dumps(tasks))
    refused(lambda: codecl.load(folder, 0), "larger than the weights|more parts than|numbers are the most")


@pytest.mark.parametrize(
    ("where", "shape", "why"),
    [
        ("shape", [1, 10**9, 28], "numbers are the most"),
        ("original", [1, 10**9, 28], "numbers are the most"),
        ("shape", [1, -28, 28], "numbers are the most"),
        ("shape", [1, 4000, 28], "does not take images of"),
    ],
)
def test_a_later_task_whose_images_do_not_fit(copied, where, shape, why, tmp_path):
    folder = recorded_run(copied)
    tasks = json.loads((folder / "model" / "tasks.json").read_text())
    tasks["tasks"][1] |= {where: shape}
    (folder / "model" / "tasks.json").write_text(json.dumps(tasks))
    Image.new("L", (28, 28)).save(tmp_path / "image.png")
    refused(lambda: predict(folder, None, [tmp_path / "image.png"]), why)


BAD = "\x1b]0;owned\x07\x1b[31m\u202e\r\n</script><img src=x onerror=alert(1)>"


def test_texts_are_shown_in_one_line_without_control_characters():
    assert printable("a\x1b[2J\tb\r\nc\u202e\x9b") == "a?[2J b c??"
    assert str(ConfigError(f"task {BAD}")) == "task ?]0;owned??[31m? </script><img src=x onerror=alert(1)>"


def test_names_of_a_run_folder_move_no_cursor_and_run_in_no_page(copied, tmp_path):
    folder = recorded_run(copied)
    change_metrics(folder, benchmark=BAD, method=BAD, topology=BAD)
    events = (folder / "events.jsonl").read_text().splitlines()
    events = [
        json.dumps({**json.loads(line), **({"name": BAD} if '"kind": "task"' in line else {})}) for line in events
    ]
    (folder / "events.jsonl").write_text("\n".join(events) + "\n")
    assert not CONTROL.search(read_metrics(folder).benchmark)
    odd = folder.rename(folder.with_name("seed\x1b[31m[x]"))
    words = [sys.executable, "-m", "codecl"]
    for command in (
        ["table", copied],
        ["watch", odd, "--once"],
        ["frontier", copied],
        ["report", copied, "--no-figures"],
    ):
        _, shown = on_a_terminal([*words, *map(str, command)], tmp_path, 120)
        assert "\x1b]0;owned" not in shown
        assert "\x1b[31m[x]" not in shown
        assert "Traceback" not in shown
    page = (tmp_path / "report" / "report.html").read_text()
    assert "<img src=x" not in page
    assert page.count("</script>") == page.count("<script")


def test_a_config_with_control_characters_is_refused(copied):
    folder = recorded_run(copied)
    held = yaml.safe_load((folder / "config.yaml").read_text())
    held["topology"]["name"] = BAD
    (folder / "config.yaml").write_text(yaml.safe_dump(held))
    with pytest.raises(DataError, match="control characters"):
        read_config(folder)


def test_nothing_that_reads_a_folder_unpickles():
    """`torch.load` and numpy's pickles stand nowhere; the one reader of pickles admits arrays alone."""
    unsafe = r"torch\.load|\bpickle\.load|allow_pickle=True|yaml\.(unsafe_|full_)?load\("
    words = ["grep", "-rnE", "--include=*.py", unsafe, codecl.__path__[0]]
    found = subprocess.run(words, capture_output=True, text=True).stdout.splitlines()
    assert [line for line in found if "yaml.load(data.decode(), _Loader)" not in line] == []


def test_an_image_that_is_fine_is_still_read(tmp_path):
    for number, part in enumerate(("train", "test", "train", "test")):
        (tmp_path / part / "ab"[number // 2]).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / part / "ab"[number // 2] / "1.png")
    assert readers.read(tmp_path, OPTIONS).train_images.shape == (2, 3, 8, 8)
