"""The data sets that are known by name: where their files are, what they hold, and how to tell them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

DIGITS = tuple("0123456789")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""
FASHION = "t-shirt trouser pullover dress coat sandal shirt sneaker bag ankle-boot"


@dataclass(frozen=True)
class File:
    """A file as its authors publish it. `md5` and `size` are None where none is published."""

    name: str
    urls: tuple[str, ...]
    md5: str | None = None
    size: int | None = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A data set. `counts`: the (training, test) images that are right; `class_names`: in the order of their numbers;
    `digests`: content digests of good copies; `near_copies`: of copies that are in use though they are not the
    original, and how they differ from it, in words.

    `exact`: the digest is that of the published files themselves, so that anything else is not this data set."""

    name: str
    shape: tuple[int, int, int]
    classes: int
    counts: tuple[tuple[int, int], ...]
    class_names: tuple[str, ...] = ()
    files: tuple[File, ...] = ()
    digests: tuple[str, ...] = ()
    exact: bool = False
    near_copies: Mapping[str, str] = field(default_factory=dict)
    by_hand: str = ""


@dataclass(frozen=True)
class Verdict:
    """`ok`: the images are the original's. `near`: a copy that is known to differ from it. `fits`: nothing speaks
    against it. `own`: sound, nothing to compare with."""

    status: Literal["ok", "near", "fits", "own", "wrong"]
    reason: str


def _files(places: tuple[str, ...], *files: tuple[str, str | None, int | None]) -> tuple[File, ...]:
    return tuple(File(name, tuple(place + name for place in places), md5, size) for name, md5, size in files)


_TORONTO = ("https://www.cs.toronto.edu/~kriz/",)
_ENTRIES = (
    Entry(
        name="cifar10",
        shape=(3, 32, 32),
        classes=10,
        counts=((50_000, 10_000),),
        class_names=CIFAR10,
        files=_files(_TORONTO, ("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170_498_071)),
        digests=("1c8e5db6240d4de5ca4643b82af5e557bff035f79fd1184bd33a1f1d9567605c",),
        near_copies={
            "8b1039ef9d54b965a119113609319fa146afea3036085c8996c811626f6dc4de": "compressed with loss, PSNR 38.3 dB"
        },
    ),
    Entry(
        name="cifar100",
        shape=(3, 32, 32),
        classes=100,
        counts=((50_000, 10_000),),
        class_names=tuple(CIFAR100.split()),
        files=_files(_TORONTO, ("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437)),
        digests=("c66c764a80749793e22e72c26c5f9e78a9d9bbd6acdda37bba4e4a8aaf6a0bda",),
    ),
    Entry(
        name="mnist",
        shape=(1, 28, 28),
        classes=10,
        counts=((60_000, 10_000),),
        class_names=DIGITS,
        files=_files(
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
                "http://yann.lecun.com/exdb/mnist/",
            ),
            ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
            ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
            ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
            ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
        ),
        digests=("07ac05946c9c49e7179ecb65e025da6b72fe60d490daa51150f4703eddface12",),
        exact=True,
    ),
    Entry(
        name="fashion-mnist",
        shape=(1, 28, 28),
        classes=10,
        counts=((60_000, 10_000),),
        class_names=tuple(FASHION.split()),
        files=_files(
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
            ),
            ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", 29_515),
            ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        ),
        digests=("30a57c895412edb13d0ec57be31e72cd63d5f77a65e968bc93de1ca6dba88554",),
        exact=True,
    ),
    Entry(
        name="svhn",
        shape=(3, 32, 32),
        classes=10,
        counts=((73_257, 26_032),),
        class_names=DIGITS,
        files=_files(
            ("http://ufldl.stanford.edu/housenumbers/",),
            ("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794),
            ("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", 64_275_384),
        ),
        near_copies={
            "0351d5fd393195e0752f6ad138b478b7d338128803dded29b44479cb27e9d9ed": "digits cut out of the full pictures"
            " again, then compressed with loss, PSNR 38.4 dB"
        },
    ),
    Entry(
        name="notmnist",
        shape=(1, 28, 28),
        classes=10,
        # 16,853 + 1,873 files, two of which are empty: wherever these two lie, that many images are left.
        counts=((16_853, 1_873), (16_853, 1_871), (16_852, 1_872), (16_851, 1_873)),
        class_names=tuple("ABCDEFGHIJ"),
        files=_files(
            tuple(
                f"https://github.com/facebookresearch/Adversarial-Continual-Learning/raw/{branch}/data/"
                for branch in ("main", "master")
            ),
            ("notMNIST.zip", None, None),
        ),
        near_copies={
            "6e86fefab4f5a5222c71378590bdbd01a39ec7c21cb050f5d87a9f870f134435": "the small notMNIST set without its two"
            " broken files, split at random, 1,871 test images"
        },
    ),
    Entry(
        name="miniimagenet",
        shape=(3, 84, 84),
        classes=100,
        counts=((50_000, 10_000),),
        by_hand="make train.pkl and test.pkl as https://github.com/facebookresearch/Adversarial-Continual-Learning says"
        " (its data/split_miniimagenet.py cuts 500 + 100 images a class)",
        near_copies={
            "fa8c005e1cf0f941f155b41da3cfdb6552d33df078cbc2a3adb2d26b599aebae": "compressed with loss, PSNR 38.4 dB;"
            " other test images of each class than the paper's"
        },
    ),
)
CATALOGUE = {entry.name: entry for entry in _ENTRIES}
