"""What can go wrong, each with the exit code that a command ends with. A message is one line: the thing, the value,
the way out."""


class CodeclError(Exception):
    exit_code = 1
    said = False  # another process of the run says it


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
