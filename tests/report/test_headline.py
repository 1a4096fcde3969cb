"""The page's first words say what the finished runs say, also where that is little or bad."""

from datetime import datetime

import pytest

from codecl.report.configurations import gather, group
from codecl.report.headline import headline
from codecl.report.page import page_of
from tests.problems import change_metrics, event_lines, recorded_run, write_metrics

LABELS = {"benchmark": "mine", "agents": 4, "topology": "ring", "tasks": 5, "status": "complete"}


def said(out, *runs):
    """Of runs with these scores; `cc`: as what was sent makes it."""
    for number, fields in enumerate(runs):
        how = LABELS | {"method": "codec", "seed": 0} | fields
        traffic = {"full_bytes": how.pop("full_bytes", 3000)}
        write_metrics(out / f"mine-{how['method']}-ring4-{number}" / f"seed-{how['seed']}", traffic, **how)
    return headline(group(gather([out]).runs))


def test_what_was_kept_what_was_saved_and_against_what(tmp_path):
    told = said(tmp_path, {"acc": 70.24, "bwt": -1.6}, {"method": "dpsgd", "acc": 45.28, "bwt": -30.25})
    assert told.results == [
        "codec ends at 70.2 % on its 5 tasks, with 1.6 points forgotten. In the same setting: dpsgd 45.3 %, with 30.2"
        " points forgotten. codec sent 1.5 kB instead of 3 kB, 50.0 % less than full communication."
    ]
    assert "one seed" in told.notes[0]


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([{}], "There is no other method"),
        ([{"full_bytes": 1200}], "codec saved no bytes: it sent 1.5 kB, 25.0 % more than full communication."),
        ([{"full_bytes": 1500}], "as much as full communication"),
        ([{"bwt": -0.1}], "with next to nothing forgotten"),
        ([{"bwt": 2.0}], "with 2.0 points gained on old tasks"),
        ([{}, {"method": "dpsgd", "acc": 60.0}], "dpsgd is ahead of codec here."),
        ([{}, {"method": "dpsgd", "agents": 8}], "There is no other method"),
        ([{"tasks": 1, "bwt": None}], "codec ends at 54.0 % on its one task. There"),
    ],
)
def test_it_is_honest(tmp_path, runs, words):
    assert words in said(tmp_path, *runs).results[0]


def test_what_is_not_finished_is_no_result(tmp_path):
    stopped = {"status": "partial", "acc": 96.0, "seed": 1}
    assert "No run here has finished" in said(tmp_path / "a", stopped).results[0]
    told = said(tmp_path / "b", {}, stopped)
    assert "96" not in " ".join(told.results)
    assert "1 configuration is not finished, and left out of this." in told.notes


def test_hardly_better_than_guessing_is_said(copied):
    folder = recorded_run(copied)
    assert "guessing" not in headline(group(gather([folder]).runs)).results[0]
    change_metrics(folder, acc=12.0)
    assert "hardly better than guessing, which gets 10 %" in headline(group(gather([folder]).runs)).results[0]


def test_partial_runs_are_below_the_others_in_the_table_and_in_every_choice(copied):
    folder = recorded_run(copied)
    (folder / "metrics.json").unlink()
    last = max(i for i, line in enumerate(event_lines(folder)) if '"kind": "eval"' in line)
    (folder / "events.jsonl").write_text("".join(event_lines(folder)[: last + 1]))
    page = page_of(gather([copied]), None, datetime(2026, 1, 2))
    finished, others = page.scores.groups
    assert [row.status for row in finished.rows] == ["complete", "complete"]
    assert [(row.name, row.status) for row in others.rows] == [("codec · ring 4", "partial: 2 of 2 tasks")]
    for section in page.sections:
        if len(section.figures) > 1:
            assert [name.endswith("(partial)") for name in section.figures] == sorted(
                name.endswith("(partial)") for name in section.figures
            )
