"""Verdicts on the data sets that a stream reads; each is kept beside its file, since making one takes seconds."""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from codecl import __version__
from codecl.data import store, streams
from codecl.data.catalogue import CATALOGUE, Verdict
from codecl.data.config import DataConfig
from codecl.data.verify import verify
from codecl.files import write_text


def of_stream(data: DataConfig) -> dict[str, Verdict] | None:
    """Those on the data sets of the catalogue, by name. There is nothing to compare others with, nor an agent's own."""
    names = streams.data_sets(data.stream) if data.local_path is None else ()
    return {name: kept(name) for name in names if name in CATALOGUE and store.digest(name)} or None


def kept(name: str) -> Verdict:
    """The verdict on a data set of the catalogue, made anew where the file or what is known of the data set changed."""
    path, key = path_of(name), _key(name)
    with suppress(OSError, ValueError, TypeError, KeyError):
        held = json.loads(path.read_text(encoding="utf-8"))
        if held["of"] == key:
            return Verdict(held["status"], held["reason"])
    verdict = verify(name)
    with suppress(OSError):  # a folder that is only read: it is made again the next time
        write_text(path, json.dumps({"of": key, **asdict(verdict)}) + "\n")
    return verdict


def path_of(name: str) -> Path:
    return store.path_of(name).with_name(f".{name}.verdict.json")


def _key(name: str) -> str:
    """Of the file's bytes and of what it is compared with."""
    known = hashlib.sha256(f"{__version__} {CATALOGUE[name]!r}".encode()).hexdigest()[:16]
    return f"{store.digest(name)} {known}"
