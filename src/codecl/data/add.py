"""A data set comes into the data folder: checked first, then written."""

import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from codecl.data import readers, store
from codecl.data.catalogue import CATALOGUE, Entry
from codecl.data.verify import Verdict, content_digest, judge
from codecl.errors import ConfigError, DataError


class Added(NamedTuple):
    """A data set in the folder."""

    path: Path
    written: bool  # now; False: it was there already
    images: store.ImageSet
    verdict: Verdict  # `wrong`: kept as it is


def check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ConfigError(f"NAME: {name!r} is not allowed; a data set's name has letters, digits, - and _")
    return name


def add(name: str, path: Path, options: readers.ImportOptions, *, as_it_is: bool = False, again: bool = False) -> Added:
    """Reads what is at `path` and keeps it under this name."""
    entry = CATALOGUE.get(check_name(name))
    if entry:
        options = replace(options, channels=entry.shape[0])
    return keep(name, readers.read(path, options), entry, as_it_is=as_it_is, again=again)


def keep(
    name: str, images: store.ImageSet, entry: Entry | None, *, as_it_is: bool = False, again: bool = False
) -> Added:
    """Writes a data set that is what its name says (`as_it_is`: that is at least sound), and never over another one."""
    verdict = judge(images, entry)
    unsound = judge(images, None) if as_it_is else verdict
    if unsound.status == "wrong":
        way = "; `--as-it-is` keeps it nevertheless, or take a name of your own" if entry and not as_it_is else ""
        raise DataError(f"data set {name!r}: {unsound.reason}{way}")
    path = store.path_of(name)
    if path.exists() and not again:
        if _same(name, images):
            return Added(path, False, images, verdict)
        raise DataError(f"data set {name!r}: {path} is there and holds something else; `--again` replaces it")
    return Added(store.write(name, images), True, images, verdict)


def _same(name: str, images: store.ImageSet) -> bool:
    try:
        held = store.read(name)
    except DataError:
        return False
    alike = all(getattr(held, part).shape == getattr(images, part).shape for part in store.PARTS)
    return alike and content_digest(held) == content_digest(images)
