"""How the score of runs is said: accuracy in percent, or another score by its name and plain."""

from collections.abc import Iterable
from typing import NamedTuple

from codecl.runs.schema import PERCENT, Labels
from codecl.train.events import RunStarted


class ScoreWords(NamedTuple):
    name: str  # accuracy, r2, …; empty: runs have several
    percent: bool

    @classmethod
    def of(cls, runs: Iterable[Labels | RunStarted]) -> "ScoreWords":
        """The score that these runs have in common."""
        names = {run.score for run in runs}
        if len(names) > 1:
            return cls("", False)
        name = names.pop() if names else "accuracy"
        return cls(name.rpartition(":")[2], name in PERCENT)

    def title(self, what: str) -> str:
        """Of a column: `ACC %`, `ACC (r2)`."""
        named = f"{what} ({self.name})" if self.name not in ("accuracy", "") else what
        return f"{named} %" if self.percent else named

    @property
    def word(self) -> str:
        return self.name or "score"

    @property
    def axis(self) -> str:
        return f"{self.word} in %" if self.percent else self.word

    @property
    def unit(self) -> str:
        return "%" if self.percent else ""

    @property
    def digits(self) -> str:
        """Of a number in a table."""
        return ".2f" if self.percent else ".4g"

    def put(self, text: str) -> str:
        """A text about accuracy, about this score."""
        return text.replace("accuracy", self.word).replace("Accuracy", self.word[:1].upper() + self.word[1:])

    def said(self, value: float, digits: str = ".1f") -> str:
        """`71.2 %`, `0.8123`."""
        return f"{value:{digits}} %" if self.percent else f"{value:.4g}"

    def named(self, value: float, digits: str = ".1f") -> str:
        """`71.2 %`; another score than accuracy with its name: `r2 0.8123`."""
        said = self.said(value, digits)
        return said if self.name in ("accuracy", "") else f"{self.name} {said}"

    def points(self, value: float, digits: str = ".1f") -> str:
        """A difference: `3.1 points`, `0.0312`."""
        return f"{value:{digits}} points" if self.percent else f"{value:.4g}"

    def some(self, points: float, value: float) -> float:
        """So many points of accuracy; of another score, as large a part of this value."""
        return points if self.percent else points / 100 * abs(value)
