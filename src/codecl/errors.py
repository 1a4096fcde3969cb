"""What can go wrong, each with the exit code that a command ends with. A message is one line: the thing, the value,
the way out."""

import re

# what a terminal would act on, or that cannot be printed: control characters, changes of direction, halves of a letter
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
BLANK = re.compile("[\t\n\v\f\r\x85\u2028\u2029]+")


def printable(text: str) -> str:
    """A text in one line, without what a terminal would act on."""
    return CONTROL.sub("?", BLANK.sub(" ", text))


class CodeclError(Exception):
    exit_code = 1
    said = False  # another process of the run says it

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(str(message)))


class RunFailed(CodeclError):
    """The run itself failed: a loss became NaN, a check did not hold."""

    exit_code = 1


class ConfigError(CodeclError):
    """A usage or configuration error."""

    exit_code = 2


class DataError(CodeclError):
    """Bad or missing data."""

    exit_code = 3


class ConfigWarning(UserWarning):
    """A setting that will hurt the run, and what to do about it."""
