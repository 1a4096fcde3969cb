"""Small data sets in the formats in which the big ones are published, and a server of files that can go wrong.

`write(name, folder, n_train, n_test, seed)` makes one of the seven, of the right shape, and gives the path to add and
the arrays in it. Every class has images as long as there are as many images as classes."""

import gzip
import io
import pickle
import struct
import tarfile
import threading
import time
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
from PIL import Image

from codecl.data.catalogue import CATALOGUE
from codecl.data.store import ImageSet


def arrays(name, n_train, n_test, seed=0):
    """Random images and labels; all classes in turn, shuffled."""
    entry, random = CATALOGUE[name], np.random.default_rng(seed)

    def split(count):
        images = random.integers(0, 256, (count, *entry.shape), np.uint8)
        return images, random.permutation(np.arange(count) % entry.classes)

    return ImageSet(*split(n_train), *split(n_test))


def write(name, folder, n_train, n_test, seed=0):
    """The path to give to `codecl data add NAME`, and the arrays that are in it."""
    folder.mkdir(parents=True, exist_ok=True)
    made = arrays(name, n_train, n_test, seed)
    return WRITERS[name](folder, made)


def python2_pickle(held):
    """A dict of bytes, lists of whole numbers and uint8 arrays as Python 2 pickled it (protocol 2)."""
    out = [b"\x80\x02}("]
    for key, value in held.items():
        out += [_string(key), _array(value) if isinstance(value, np.ndarray) else _list(value)]
    return b"".join([*out, b"u."])


def _string(text):
    return b"T" + struct.pack("<i", len(text)) + text


def _list(numbers):
    return b"](" + b"".join(b"J" + struct.pack("<i", number) for number in numbers) + b"e"


def _array(array):
    """What numpy 1 on Python 2 left: an empty array, then its state with the bytes as a string."""
    shape = b"(" + b"".join(b"J" + struct.pack("<i", length) for length in array.shape) + b"t"
    dtype = b"cnumpy\ndtype\n(" + _string(b"u1") + b"K\x00K\x01tR(K\x03" + _string(b"|")
    dtype += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + _string(b"b") + b"tR"
    return empty + b"(K\x01" + shape + dtype + b"\x89" + _string(array.tobytes()) + b"tb"


def tar(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def _batches(made):
    """Five training batches and one of test images."""
    cuts = np.array_split(np.arange(len(made.train_labels)), 5)
    named = {f"data_batch_{k + 1}": (made.train_images[cut], made.train_labels[cut]) for k, cut in enumerate(cuts)}
    return named | {"test_batch": (made.test_images, made.test_labels)}


def _flat(images):
    return images.reshape(len(images), -1)


def cifar10_python(folder, made):
    members = {"cifar-10-batches-py/readme.html": b"<html>", "cifar-10-batches-py/batches.meta": python2_pickle({})}
    for name, (images, labels) in _batches(made).items():
        held = {b"batch_label": [1], b"labels": labels.tolist(), b"data": _flat(images)}
        members[f"cifar-10-batches-py/{name}"] = python2_pickle(held)
    return tar(folder / "cifar-10-python.tar.gz", members), made


def cifar100_python(folder, made):
    members = {"cifar-100-python/meta": python2_pickle({})}
    for name, (images, labels) in made.splits().items():
        coarse = (labels // 5).tolist()
        held = {b"data": _flat(images), b"coarse_labels": coarse, b"fine_labels": labels.tolist()}
        members[f"cifar-100-python/{name}"] = python2_pickle(held)
    return tar(folder / "cifar-100-python.tar.gz", members), made


def cifar10_binary(folder, made):
    members = {"cifar-10-batches-bin/batches.meta.txt": b"airplane\n"}
    for name, (images, labels) in _batches(made).items():
        rows = np.concatenate([labels[:, None].astype(np.uint8), _flat(images)], 1)
        members[f"cifar-10-batches-bin/{name}.bin"] = rows.tobytes()
    return tar(folder / "cifar-10-binary.tar.gz", members), made


def cifar100_binary(folder, made):
    members = {}
    for name, (images, labels) in made.splits().items():
        rows = np.concatenate([np.stack([labels // 5, labels], 1).astype(np.uint8), _flat(images)], 1)
        members[f"cifar-100-binary/{name}.bin"] = rows.tobytes()
    return tar(folder / "cifar-100-binary.tar.gz", members), made


def idx(folder, made):
    """Four gzipped files."""
    for short, (images, labels) in zip(("train", "t10k"), made.splits().values(), strict=True):
        for kind, array in (("images-idx3", images[:, 0]), ("labels-idx1", labels.astype(np.uint8))):
            head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
            (folder / f"{short}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes(), mtime=0))
    return folder, made


def svhn(folder, made):
    from scipy.io import savemat

    for name, (images, labels) in made.splits().items():
        digits = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        savemat(folder / f"{name}_32x32.mat", {"X": images.transpose(2, 3, 1, 0), "y": digits}, do_compression=True)
    return folder, made


def png(image):
    """[channels, height, width] as a file's bytes."""
    room = io.BytesIO()
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(room, "png")
    return room.getvalue()


def by_class(made, classes, splits=("train", "test")):
    """Image files by name, `split/class/number.png`, and the arrays in the order of these names."""
    members, ordered = {}, []
    for split, (images, labels) in zip(splits, made.splits().values(), strict=True):
        order = np.argsort(labels, kind="stable")
        for number in order:
            members[f"{split}/{classes[labels[number]]}/{number:06}.png"] = png(images[number])
        ordered += [images[order], labels[order]]
    return members, ImageSet(*ordered)


def notmnist(folder, made):
    """A zip with Train and Test, and in it one file that is empty, as in the original."""
    members, ordered = by_class(made, "ABCDEFGHIJ", ("Train", "Test"))
    path = folder / "notMNIST.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"notMNIST/{name}", data)
        archive.writestr("notMNIST/Test/A/RGVtb2NyYXRpY2FCb2xkT2xkc3R5bGUgQm9sZC50dGY=.png", b"")
    return path, ordered


def miniimagenet(folder, made):
    """Lists of images [84, 84, 3], as the script that cuts them leaves them."""
    for name, (images, labels) in made.splits().items():
        held = {"images": list(images.transpose(0, 2, 3, 1)), "labels": labels.tolist()}
        (folder / f"{name}.pkl").write_bytes(pickle.dumps(held))
    return folder, made


WRITERS = {
    "cifar10": cifar10_python,
    "cifar100": cifar100_python,
    "mnist": idx,
    "fashion-mnist": idx,
    "svhn": svhn,
    "notmnist": notmnist,
    "miniimagenet": miniimagenet,
}


def unpack(archive: Path, folder: Path) -> Path:
    """A tar's files in a folder, as people have them after `tar xf`."""
    with tarfile.open(archive) as held:
        held.extractall(folder, filter="data")
    return folder


@contextmanager
def serving(files, cut=(), stall=()):
    """On the loopback; gives (address, names asked for). Files in `cut` end halfway, those in `stall` wait there."""
    asked, stop = [], threading.Event()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.lstrip("/")
            asked.append(name)
            if name not in files:
                self.send_error(404)
                return
            data = files[name]
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if name in (*cut, *stall) else data)
            while name in stall and not stop.is_set():
                time.sleep(0.05)

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        stop.set()
        server.shutdown()
        thread.join()
        server.server_close()
