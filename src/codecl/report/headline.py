"""The page's first words: what was kept, what was saved, against what. Only what the finished runs say."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from codecl.report.configurations import Configuration
from codecl.report.formats import size
from codecl.train.events import TaskOpened

MAX_SETTINGS = 2  # that are told; the table has all
LEVEL = 0.5  # points of accuracy that are not worth a word
NEAR_CHANCE = 0.1  # of the way from guessing to perfection
AS_MUCH = 0.1  # % of the bytes: neither more nor less
ORDER = ("codec", "dpsgd", "d-ewc", "codec-full", "stl")  # of the methods; others follow


class Headline(NamedTuple):
    results: Sequence[str]  # a paragraph for each setting: all that is the same but the method
    notes: Sequence[str]  # what else a reader has to know


def headline(configurations: Sequence[Configuration]) -> Headline:
    finished = [one for one in configurations if not one.partial and _acc(one) is not None]
    if not finished:
        return Headline(
            ["No run here has finished: the page shows how far they got, and it is too early for a result."], []
        )
    settings: dict[tuple[object, ...], list[Configuration]] = {}
    for one in finished:
        settings.setdefault(one.setting, []).append(one)
    told = sorted(settings.values(), key=lambda methods: len(methods) == 1)[:MAX_SETTINGS]  # with something to compare
    results = [_told(methods, several=len(settings) > 1) for methods in told]
    notes, unfinished = [], sum(one.partial for one in configurations)
    if len(settings) > len(told):
        more = len(settings) - len(told)
        notes.append(f"{more} more {'setting is' if more == 1 else 'settings are'} in the table below.")
    if max(len(one.runs) for methods in told for one in methods) == 1:
        notes.append("Each of these is a single run, with one seed: a difference of a point or two can be chance.")
    if unfinished:
        are = "configuration is" if unfinished == 1 else "configurations are"
        notes.append(f"{unfinished} {are} not finished, and left out of this.")
    return Headline(results, notes)


def _told(methods: Sequence[Configuration], several: bool) -> str:
    """What became of one setting: of codec where it is there, beside the other methods."""
    first, *others = sorted(methods, key=_place)
    where = f"{first.name.replace(f'{first.metrics.method} · ', '', 1)}: " if several else ""
    return where + " ".join([_kept(first, others), *_judged(first, others), _saved(first)])


def _place(one: Configuration) -> int:
    return ORDER.index(one.metrics.method) if one.metrics.method in ORDER else len(ORDER)


def _acc(one: Configuration) -> float | None:
    return one.score(lambda run: run.acc).mean


def _kept(first: Configuration, others: Sequence[Configuration]) -> str:
    """What is known at the end and what was forgotten, of one method and of those to compare it with."""
    tasks = "its one task" if first.metrics.tasks == 1 else f"its {first.metrics.tasks} tasks"
    if first.metrics.not_scored:
        tasks = f"{first.metrics.tasks - len(first.metrics.not_scored)} of {tasks} (the others were not scored again)"
    gets = "gets" if first.metrics.each_task_alone else "ends at"
    said = f"{_called(first, others)} {gets} {_score(first)} on {tasks}{_forgot(first)}."
    rest = [f"{_called(one, [first, *others])} {_score(one)}{_forgot(one)}" for one in others]
    return f"{said} In the same setting: {'; '.join(rest)}." if rest else said


def _score(one: Configuration) -> str:
    return one.words.named(_acc(one) or 0.0)


def _called(one: Configuration, others: Sequence[Configuration]) -> str:
    """Its method; how it ended where that was not well; what is special about it where another has the same method."""
    method, state = one.metrics.method, one.metrics.status
    if state != "complete":
        return f"{method} ({state})"
    words = one.name.partition(", ")[2]
    twice = any(other is not one and other.metrics.method == method for other in others)
    return f"{method} ({words})" if twice and words else method


def _forgot(one: Configuration) -> str:
    bwt = one.score(lambda run: run.bwt).mean
    if one.metrics.each_task_alone:
        return ", each learned alone"
    if bwt is None or one.metrics.tasks < 2:
        return ""
    level = one.words.some(LEVEL, _acc(one) or 0.0)
    if bwt <= -level:
        return f", with {one.words.points(-bwt)} forgotten"
    return f", with {one.words.points(bwt)} gained on old tasks" if bwt >= level else ", with next to nothing forgotten"


def _judged(first: Configuration, others: Sequence[Configuration]) -> list[str]:
    """What a reader should not overlook: it is no better than guessing, others are ahead, there are no others."""
    acc, chance = _acc(first) or 0.0, _chance(first)
    out = []
    if chance is not None and acc < chance + NEAR_CHANCE * (100 - chance):
        out.append(f"That is hardly better than guessing, which gets {chance:.0f} %.")
    ahead_of = acc + first.words.some(LEVEL, acc)
    ahead = [_called(one, others) for one in others if (_acc(one) or 0.0) > ahead_of and _opponent(one)]
    if ahead:
        out.append(f"{' and '.join(ahead)} {'is' if len(ahead) == 1 else 'are'} ahead of {first.metrics.method} here.")
    if not any(map(_opponent, others)):
        out.append("There is no other method that learns task after task in the same setting to compare it with.")
    return out


def _opponent(one: Configuration) -> bool:
    """Tasks that are learned alone have nothing to forget: they are a bound, not an opponent."""
    return not one.metrics.each_task_alone


def _chance(one: Configuration) -> float | None:
    """What guessing gets right, in %; None for another score than accuracy, and where the number of classes was not
    kept."""
    if one.metrics.score != "accuracy":
        return None
    classes = {event.task: event.classes for event in one.runs[0].of(TaskOpened)}
    return fmean(100 / count for count in classes.values()) if classes else None


def _saved(one: Configuration) -> str:
    traffic = [run.metrics.traffic for run in one.runs]
    sent, full = fmean(run.sent_bytes for run in traffic), fmean(run.full_bytes for run in traffic)
    if not sent or not full:
        return "Nothing was sent between agents."
    less = 100 * (1 - sent / full)
    if abs(less) < AS_MUCH:
        return f"{one.metrics.method} sent {size(sent)}, as much as full communication does."
    if less < 0:
        return f"{one.metrics.method} saved no bytes: it sent {size(sent)}, {-less:.1f} % more than full communication."
    return f"{one.metrics.method} sent {size(sent)} instead of {size(full)}, {less:.1f} % less than full communication."
