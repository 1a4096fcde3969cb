"""Canonical files over HTTP: each is checked, kept until all are there, and gone once the data set file is written."""

import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from codecl.data import readers, store
from codecl.data.add import Added, keep
from codecl.data.catalogue import Entry, File
from codecl.errors import DataError

CHUNK = 1 << 16
PATIENCE = (10, 60)  # seconds to connect, and between two pieces
Bar = Callable[[str], Any]  # a progress bar as pooch wants it, for the file of this name


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
            added = keep(entry.name, images, entry, again=again)
        except DataError:  # the files are no good
            shutil.rmtree(downloads)
            raise
        shutil.rmtree(downloads)
        return added
    finally:
        for folder in made_here:
            with suppress(OSError):
                folder.rmdir()  # only where it is empty


def _download(file: File, urls: tuple[str, ...], downloads: Path, bar: Bar | None) -> list[str] | None:
    """None when the file is there and right; else why each place failed."""
    import pooch
    from requests import RequestException

    pooch.get_logger().setLevel(logging.WARNING)
    known = f"md5:{file.md5}" if file.md5 else None
    failures = []
    for url in urls:
        get = pooch.HTTPDownloader(
            progressbar=bar(file.name) if bar else False,
            chunk_size=CHUNK,
            timeout=PATIENCE,
            headers={"Accept-Encoding": "identity"},  # a .gz must arrive as it is
        )
        try:
            pooch.retrieve(url, known, fname=file.name, path=downloads, downloader=get)
            return None
        except RequestException as error:
            failures.append(f"{url}: {_why(error)}")
        except ValueError:  # pooch's word for a checksum that differs
            failures.append(f"{url}: not the published file, its MD5 is not {file.md5}")
        except OSError as error:
            raise DataError(f"{downloads} cannot be written ({error.strerror or error})") from error
    return failures


def _why(error: Exception) -> str:
    """In a few words: the answer's status, or what became of the connection."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"{response.status_code} {response.reason}"
    words = {
        "ChunkedEncodingError": "the connection was cut",
        "ConnectTimeout": "no answer",
        "ReadTimeout": "no answer",
        "ConnectionError": "no connection",
        "ProxyError": "no connection through the proxy",
        "SSLError": "no trusted connection",
    }
    return words.get(type(error).__name__, str(error))


def _by_hand(entry: Entry, failed: File, failures: list[str]) -> str:
    urls = " ".join(file.urls[0] for file in entry.files)
    target, path = (" into one folder", "FOLDER") if len(entry.files) > 1 else ("", failed.name)
    return (
        f"data set {entry.name!r}: could not get {failed.name} ({'; '.join(failures)}); try again, or download"
        f" {urls} elsewhere{target}, then `codecl data add {entry.name} {path}`"
    )
