"""Reading a file that grows: only what is new, only whole lines."""

import os
from pathlib import Path
from typing import NamedTuple

from codecl.errors import DataError


class Tail(NamedTuple):
    """How far a file was read: up to `at`, where its last line ends."""

    at: int = 0
    line: bytes = b""


class News(NamedTuple):
    tail: Tail
    lines: list[bytes]
    anew: bool  # the file was cut or replaced: these lines are from its beginning


def look(path: Path, tail: Tail) -> News:
    """The whole lines that came since; a line that is half written waits.

    A file in which the last line that was read is no longer where it was is another, or was cut: it is read anew."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, tail.at - len(tail.line)))
            read = file.read()
            anew = os.fstat(file.fileno()).st_size < tail.at or not read.startswith(tail.line)
            if anew:
                file.seek(0)
                tail, read = Tail(), file.read()
    except FileNotFoundError:
        return News(Tail(), [], tail.at > 0)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    new = read[len(tail.line) :]
    lines = new[: new.rfind(b"\n") + 1].splitlines(keepends=True)
    last = lines[-1] if lines else tail.line
    return News(Tail(tail.at + sum(map(len, lines)), last), lines, anew)
