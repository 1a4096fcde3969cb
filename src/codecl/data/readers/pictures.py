"""Image files in a folder for each class: `train/<class>/*` and `test/<class>/*`, or `<class>/*` alone."""

import io
import warnings
from collections import defaultdict
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import numpy as np

from codecl.data.readers.tree import Tree
from codecl.data.store import Array, ImageSet, Split
from codecl.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"}
FORMATS = ("PNG", "JPEG", "MPO", "BMP", "GIF", "PPM", "TIFF", "WEBP")  # none that another program would have to read
MODES = dict.fromkeys(("1", "L", "LA"), "L") | dict.fromkeys(("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr"), "RGB")
CHANNELS = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class ImportOptions:
    """What the user wants of image files; `channels`: 1 or 3, None for whatever the images have."""

    test_part: float | None = None
    size: int | None = None
    channels: int | None = None
    seed: int = 0


def read(tree: Tree, options: ImportOptions) -> ImageSet | None:
    """The images, classes in sorted order; files that are no images are left out. None: no image in a class folder."""
    pictures = [name for name in tree.names if PurePosixPath(name).suffix.lower() in SUFFIXES and "/" in name]
    if not pictures:
        return None
    split = _given(pictures) or _cut(tree, pictures, options)
    decoded, notes = _decode(tree, [name for names in split.values() for name in names], options)
    classes = sorted({_class(name) for name in split["train"]})
    strange = sorted({_class(name) for name in split["test"]} - set(classes))
    if strange:
        raise DataError(f"{tree.where}: class {strange[0]!r} has test images and no training images")
    left = len(pictures) - sum(map(len, split.values()))
    notes += (f"{left:,} images outside train and test left out",) if left else ()

    def arrays(part: str) -> Split:
        names = [name for name in split[part] if name in decoded]
        if not names:
            raise DataError(f"{tree.where}: there is no {part} image that can be read")
        labels = [classes.index(_class(name)) for name in names]
        return np.stack([decoded[name] for name in names]), np.array(labels, np.int64)

    return ImageSet(*arrays("train"), *arrays("test"), notes, tuple(classes))


def _class(name: str) -> str:
    return name.split("/")[-2]


def _given(names: list[str]) -> dict[str, list[str]] | None:
    """The split that folders called train and test give; None where there are none."""
    split: dict[str, list[str]] = {"train": [], "test": []}
    for name in names:
        above = name.lower().split("/")[-3:-2]
        if above and above[0] in split:
            split[above[0]].append(name)
    return split if all(split.values()) else None


def _cut(tree: Tree, names: list[str], options: ImportOptions) -> dict[str, list[str]]:
    """A part of every class for the test, chosen by the seed; order stays."""
    if options.test_part is None:
        raise DataError(f"{tree.where}: no train and test folders with classes in them; `--test-part 0.2` cuts one")
    by_class = defaultdict(list)
    for name in names:
        by_class[_class(name)].append(name)
    chosen: set[str] = set()
    for number, (label, members) in enumerate(sorted(by_class.items())):
        if len(members) < 2:
            raise DataError(f"{tree.where}: class {label!r} has {len(members)} image, too few to cut a test part")
        count = min(max(round(options.test_part * len(members)), 1), len(members) - 1)
        order = np.random.default_rng((options.seed, number)).permutation(len(members))
        chosen |= {members[place] for place in order[:count]}
    return {
        "train": [name for name in names if name not in chosen],
        "test": [name for name in names if name in chosen],
    }


def _decode(tree: Tree, names: list[str], options: ImportOptions) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Pixels [channels, height, width] of each file that can be read; grey if all of them are."""
    decoded: dict[str, Array] = {}
    broken: list[str] = []
    size = (options.size, options.size) if options.size else None
    for name in names:
        image = decode(tree.read(name), tree.label(name))
        if image is None:
            broken.append(name)
            continue
        size = size or image.size
        if image.size != size and not options.size:
            raise DataError(
                f"{tree.label(name)} is {image.width}×{image.height}, others are {size[0]}×{size[1]};"
                " `--size N` makes all N×N"
            )
        decoded[name] = pixels(image, size, CHANNELS[options.channels] if options.channels else MODES[image.mode])
    channels = max((len(image) for image in decoded.values()), default=1)
    alike = {name: np.broadcast_to(image, (channels, *image.shape[1:])) for name, image in decoded.items()}
    more = f" and {len(broken) - 1:,} more" if len(broken) > 1 else ""
    return alike, ((f"unreadable image files skipped: {broken[0]}{more}",) if broken else ())


def decode(data: bytes, what: str) -> "Image.Image | None":
    """An image file's picture; None where it is broken. `what` names it in errors."""
    from PIL import Image

    Image.init()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)  # more pixels than a picture has
            image = Image.open(io.BytesIO(data), formats=[kind for kind in FORMATS if kind in Image.OPEN])
            image.load()
    except Exception:  # a broken file can raise anything
        return None
    if image.mode not in MODES:
        raise DataError(f"{what}: pixels of kind {image.mode!r}; images of 8 bits a channel are taken")
    return image


def pixels(image: "Image.Image", size: tuple[int, int], mode: str) -> Array:
    """[channels, height, width]."""
    image = image.convert(mode)
    values = np.asarray(image if image.size == size else image.resize(size))
    return values[None] if mode == "L" else values.transpose(2, 0, 1)
