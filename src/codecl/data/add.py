"""A data set comes into the data folder, from files of the user or canonical ones over HTTP: checked, then written.

A canonical file is kept until all are there, and gone once the data set file is written."""

import logging
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from codecl.data import readers, store
from codecl.data.catalogue import CATALOGUE, Entry, File, Verdict
from codecl.data.verify import content_digest, judge
from codecl.errors import ConfigError, DataError

CHUNK = 1 << 16
PATIENCE = (10, 60)  # seconds to connect, and between two pieces
WHY = {  # a connection's errors in a few words
    "ChunkedEncodingError": "the connection was cut",
    "ConnectTimeout": "no answer",
    "ReadTimeout": "no answer",
    "ConnectionError": "no connection",
    "ProxyError": "no connection through the proxy",
    "SSLError": "no trusted connection",
}
Bar = Callable[[str], Any]  # a progress bar as pooch wants it, for the file of this name


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
    return _keep(name, readers.read(path, options), entry, as_it_is=as_it_is, again=again)


def fetch(entry: Entry, *, mirror: str | None = None, again: bool = False, bar: Bar | None = None) -> Added:
    """Downloads what is missing of this data set's files and makes its data set file."""
    if not entry.files:
        raise DataError(
            f"data set {entry.name!r} cannot be downloaded: {entry.by_hand}, then `codecl data add {entry.name} FOLDER`"
        )
    downloads = store.folder() / "downloads" / entry.name
    made_here = [downloads, downloads.parent, *([] if store.folder().exists() else [store.folder()])]
    try:
        for file in entry.files:
            urls = (f"{mirror.rstrip('/')}/{file.name}",) if mirror else file.urls
            failures = _download(file, urls, downloads, bar)
            if failures is not None:
                raise DataError(_by_hand(entry, file, failures))
        path = downloads / entry.files[0].name if len(entry.files) == 1 else downloads
        try:
            images = readers.read(path, readers.ImportOptions(channels=entry.shape[0]))
            added = _keep(entry.name, images, entry, again=again)
        except DataError:  # the files are no good
            shutil.rmtree(downloads)
            raise
        shutil.rmtree(downloads)
        return added
    finally:
        for folder in made_here:
            with suppress(OSError):
                folder.rmdir()  # only where it is empty


def _keep(
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


def _download(file: File, urls: tuple[str, ...], downloads: Path, bar: Bar | None) -> list[str] | None:
    """None when the file is there and right; else why each place failed."""
    import pooch
    from requests import RequestException

    pooch.get_logger().setLevel(logging.WARNING)
    known = f"md5:{file.md5}" if file.md5 else None
    failures = []
    for url in urls:
        responses: list[Any] = []
        get = pooch.HTTPDownloader(
            progressbar=bar(file.name) if bar else False,
            chunk_size=CHUNK,
            timeout=PATIENCE,
            headers={"Accept-Encoding": "identity"},  # a .gz must arrive as it is
            hooks={"response": lambda response, responses=responses, **_: responses.append(response)},
        )
        try:
            pooch.retrieve(url, known, fname=file.name, path=downloads, downloader=get)
            return None
        except RequestException as error:
            answer = error.response
            known_words = WHY.get(type(error).__name__, str(error))
            why = known_words if answer is None else f"{answer.status_code} {answer.reason}"
            failures.append(f"{url}: {why}")
        except ValueError:  # pooch's word for a checksum that differs
            failures.append(f"{url}: not the published file, its MD5 is not {file.md5}")
        except OSError as error:
            raise DataError(f"{downloads} cannot be written ({error.strerror or error})") from error
        finally:
            for response in responses:  # pooch leaves the connection of a download that broke off open
                response.close()
    return failures


def _by_hand(entry: Entry, failed: File, failures: list[str]) -> str:
    urls = " ".join(file.urls[0] for file in entry.files)
    target, path = (" into one folder", "FOLDER") if len(entry.files) > 1 else ("", failed.name)
    return (
        f"data set {entry.name!r}: could not get {failed.name} ({'; '.join(failures)}); try again, or download"
        f" {urls} elsewhere{target}, then `codecl data add {entry.name} {path}`"
    )
