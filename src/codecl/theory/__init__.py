"""The analysis as something that can be asked and run: bounds, problems with known constants, checks on the package's
own loop. See docs/theory.md."""

from codecl.theory.bounds import *  # noqa: F403
from codecl.theory.bounds import __all__ as __all__
