"""Files as a stranger may have made them: bytes flipped, values replaced by odd ones, heads that promise too much."""

import gzip
import io
import json
import pickle
import random
import struct
import zipfile

import numpy as np
import yaml
from PIL import Image
from safetensors.numpy import save_file
from scipy.io import savemat

from tests.laws.test_frames import mutated

BAD = "\x1b[2J\u202e</script><b>[/red]\ud800\n"
ODD = (
    *(None, True, "", BAD, -1, 0, 1, 10**6, 10**9, 10**18, 2**63, 10**400, 1e308, -1e308, float("nan"), float("inf")),
    *(
        [],
        {},
        [[]],
        [1] * 50,
        ["x" * 5000],
        {"a": {"b": {}}},
        "../../etc",
        "1e999",
        [10**12, 10**12],
        "quickstart + quickstart",
    ),
)


def replaced(value, rng):
    """One value in nested ones is another."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            out = {other: kept for other, kept in value.items() if other != key}
            return out if rng.random() < 0.5 else {**out, rng.choice(["extra", BAD]): 1}
        return {**value, key: replaced(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        if rng.random() < 0.1:
            return value * 3 if rng.random() < 0.5 else value[:at]
        return [*value[:at], replaced(value[at], rng), *value[at + 1 :]]
    return rng.choice(ODD)


def json_file(data, rng):
    return json.dumps(replaced(json.loads(data), rng)).encode()


def lines(data, rng):
    """Of events.jsonl."""
    found = data.splitlines(keepends=True)
    at = rng.randrange(len(found))
    way = rng.randrange(4)
    if way == 0:
        found[at:at] = [found[rng.randrange(len(found))]]
    elif way == 1:
        del found[at]
    else:
        found[at] = json_file(found[at], rng) + b"\n"
    return b"".join(found)


TAILS = ("a: &a [x]\nb: *a\n", "z: " + "[" * 3000, "? " * 2000, "n: " + "9" * 6000, "t: 2020-99-99\n")


def yaml_file(data, rng):
    text = yaml.safe_dump(replaced(yaml.safe_load(data), rng))
    if rng.random() < 0.1:
        text += rng.choice(
            ["a: &a [x]\nb: *a\n", "z: " + "[" * 3000, "? " * 2000, "n: " + "9" * 6000, "t: 2020-99-99\n"]
        )
    return text.encode(errors="replace")


def tensors(data, rng):
    """A safetensors file with another head."""
    length = struct.unpack("<Q", data[:8])[0]
    head = json_file(data[8 : 8 + length], rng)
    stated = rng.choice([len(head)] * 8 + [2**40, 2**63, 0])
    return struct.pack("<Q", stated) + head + data[8 + length :]


def either(structured):
    """Half of the time on the level of bytes."""
    return lambda data, rng: structured(data, rng) if rng.random() < 0.6 else mutated(data, rng)


def promising(data, rng):
    """Four or eight bytes that are taken for a length or a size."""
    at = rng.randrange(max(1, min(len(data), 400)))
    big = rng.choice([b"\xff" * 4, b"\xff\xff\xff\x7f" * 2, struct.pack(">I", 2**31 - 1), struct.pack("<Q", 2**40)])
    return data[:at] + big + data[at + len(big) :]


def data_sets():
    """Small ones in every form that is taken, by the name of the file."""
    rng = np.random.default_rng(0)
    made = {"train_images": 20, "train_labels": 20, "test_images": 10, "test_labels": 10}
    arrays = {
        name: rng.integers(0, 255, (count, 3, 8, 8), np.uint8) if "images" in name else np.arange(count) % 3
        for name, count in made.items()
    }
    out = {}
    file = io.BytesIO()
    np.savez(file, **arrays)
    out["mine.npz"] = file.getvalue()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(8):
            picture = io.BytesIO()
            kind = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "PNG")[number]
            Image.fromarray(arrays["train_images"][number].transpose(1, 2, 0)).save(picture, kind)
            archive.writestr(f"{'train' if number < 4 else 'test'}/{'ab'[number % 2]}/{number}.png", picture.getvalue())
    out["pictures.zip"] = file.getvalue()
    return out, arrays


def folder_forms(arrays):
    """Data sets that are several files: their names and bytes."""
    idx = {}
    for part, name in (("train", "train"), ("test", "t10k")):
        images, labels = arrays[f"{part}_images"][:, 0], arrays[f"{part}_labels"].astype(np.uint8)
        idx[f"{name}-images-idx3-ubyte.gz"] = gzip.compress(
            bytes((0, 0, 8, 3)) + struct.pack(">3I", *images.shape) + images.tobytes()
        )
        idx[f"{name}-labels-idx1-ubyte"] = bytes((0, 0, 8, 1)) + struct.pack(">I", len(labels)) + labels.tobytes()
    pickled, mats, npy = {}, {}, {}
    for part in ("train", "test"):
        held = {"images": arrays[f"{part}_images"].transpose(0, 2, 3, 1), "labels": arrays[f"{part}_labels"].tolist()}
        pickled[f"{part}.pkl"] = pickle.dumps(held, random.Random(1).choice([2, 4]))
        file = io.BytesIO()
        savemat(
            file,
            {"X": held["images"].transpose(1, 2, 3, 0), "y": arrays[f"{part}_labels"][:, None]},
            do_compression=part == "train",
        )
        mats[f"{part}_32x32.mat"] = file.getvalue()
        for what in ("images", "labels"):
            file = io.BytesIO()
            np.save(file, arrays[f"{part}_{what}"])
            npy[f"{part}_{what}.npy"] = file.getvalue()
    return {"idx": idx, "pickles": pickled, "mats": mats, "npy": npy}


def data_set_file(path, arrays):
    save_file(arrays, path, {"class_names": json.dumps(["a", "b", BAD])})
    return path.read_bytes()
