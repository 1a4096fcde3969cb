"""`codecl table`: rows from run folders written by hand, beside the paper's, in every format."""

import csv
import io
import re
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from codecl.report import formats, tables
from codecl.report.configurations import finished, scores_of, variant
from codecl.report.formats import Column, Sheet, paragraphs
from codecl.report.tables import NOTE, results
from codecl.runs import grid as presets
from codecl.runs.config import merge
from codecl.runs.reader import find_runs, read_metrics
from codecl.runs.writer import folder_of
from tests.cli.test_cli import failed
from tests.conftest import ROOT
from tests.problems import write_metrics


def write(out, preset="split-cifar100", method="codec", seed=0, changes=None, status="complete", **scores):
    """A run folder as `codecl run` names it; a preset that is not here has no config."""
    names = {"seed": seed, "agents": 8, "method": {"name": method}, "topology": {"name": "ring"}}
    if preset in presets.presets():
        config = presets.resolve(presets.preset(preset), merge(names, changes or {}))
        folder = folder_of(config, out)
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(config.dump())
    else:
        config = SimpleNamespace(agents=8, topology=SimpleNamespace(name="ring"))
        folder = out / f"{preset}-{method}-ring8-abc123" / f"seed-{seed}"
        folder.mkdir(parents=True)
    labels = {"benchmark": preset, "method": method, "agents": config.agents, "topology": config.topology.name}
    traffic = {name: scores.pop(name) for name in ("cc_reference",) if name in scores}
    write_metrics(folder, traffic, status=status, seed=seed, **labels, **scores)
    return folder


def read(out, beside_paper=True):
    return results(finished([out]), beside_paper)


def lines(made):
    """Rows of a sheet as {title: cell}."""
    titles = [column.title for column in made.columns]
    assert len(set(titles)) == len(titles)
    return [dict(zip(titles, cells, strict=True)) for cells in made.lines()]


def as_csv(made):
    return list(csv.DictReader(io.StringIO(formats.comma_separated(made))))


@pytest.fixture
def three_seeds(tmp_path):
    """The paper has 53.63 ± 0.25, -0.43 ± 0.33 and 1.85."""
    for seed, acc in enumerate((53.63, 54.63, 55.63)):
        write(tmp_path, seed=seed, acc=acc, bwt=acc - 55, cc_reference=1.75 + seed / 10)
    return tmp_path


def test_ours_beside_the_papers_or_alone(three_seeds):
    ours = {"method": "codec", "agents": "ring 8", "seeds": "3", "cc": "2.00 ± 0.00", "kept %": "–"}
    ours |= {"ACC %": "54.63 ± 1.00", "BWT %": "-0.37 ± 1.00"}
    papers = {
        "paper ACC": "53.63 ± 0.25",
        "paper BWT": "-0.43 ± 0.33",
        "cc_reference": "1.85 ± 0.10",
        "paper cc": "1.85",
    }
    assert lines(read(three_seeds)) == [ours | papers | {"Δ ACC": "+1.00", "Δ BWT": "+0.06", "Δ cc": "+0.00"}]
    assert lines(read(three_seeds, beside_paper=False)) == [ours | {"sent": "1.5 kB", "ms a step": "3.00"}]


def test_the_most_that_a_task_keeps_stands_beside_its_accuracy(tmp_path):
    for seed, kept in enumerate((140, 160)):
        write(tmp_path, seed=seed, kept_by_task=[20, kept], body=1000)
    for beside_paper in (True, False):
        made = read(tmp_path, beside_paper)
        assert [row["kept %"] for row in lines(made)] == ["15.0"], "the mean over seeds"
        assert float(as_csv(made)[0]["kept_percent"]) == pytest.approx(15)
        assert "kept %" in formats.markdown(made)
        assert r"kept \%" in formats.latex(made)


def test_with_seeds_it_fits_a_terminal_of_80_columns(three_seeds):
    write(three_seeds, method="codec-full", kept_by_task=[99], body=1000)
    out = io.StringIO()
    formats.show(read(three_seeds, beside_paper=False), Console(file=out, width=80))
    assert "…" not in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert {"54.63", "1.00", "9.9", "kB"} <= {*out.getvalue().split()}


def test_the_papers_numbers_are_those_that_were_given():
    given = ROOT.parent / "shared" / "paper" / "table1.csv"
    if not given.is_file():
        pytest.skip(f"there is no {given} to compare with")
    assert (ROOT / "src" / "codecl" / "report" / "table1.csv").read_bytes() == given.read_bytes()


def test_the_papers_table_is_read_whole():
    table = tables._printed()
    assert len(table) == 3 * 4 * 5  # benchmarks, methods, graphs
    assert table["five-datasets", "torus", 16, "codec"]["bwt"] == (-5.52, 0.35)
    assert table["five-datasets", "torus", 16, "codec"]["cc"] == (2.23, None)


def test_stl_has_neither_bwt_nor_cc_in_the_paper(tmp_path):
    write(tmp_path, method="stl", acc=64.99, bwt=None, cc_reference=1.0)
    (row,) = lines(read(tmp_path))
    assert (row["ACC %"], row["paper ACC"], row["Δ ACC"]) == ("64.99", "64.99 ± 0.41", "+0.00")
    assert [row[title] for title in ("BWT %", "paper BWT", "Δ BWT", "paper cc", "Δ cc")] == ["–"] * 5
    assert row["cc_reference"] == "1.00"


@pytest.mark.parametrize("preset", ["quickstart", "fit"])
def test_a_benchmark_that_the_paper_does_not_have(tmp_path, preset):
    write(tmp_path, preset=preset)
    made = read(tmp_path)
    (row,), (machine,) = lines(made), as_csv(made)
    assert row["ACC %"] == "54.00"
    assert {row[f"{what} {score}"] for what in ("paper", "Δ") for score in ("ACC", "BWT", "cc")} == {"–"}
    assert (machine["acc"], machine["paper_acc"], machine["acc_difference"]) == ("54.0", "", "")


def test_a_preset_may_say_what_the_paper_calls_its_benchmark(three_seeds, tmp_path, monkeypatch):
    folder = tmp_path / "package" / "presets"
    folder.mkdir(parents=True)
    fields = yaml.safe_load((ROOT / "src" / "codecl" / "runs" / "presets" / "split-cifar100.yaml").read_text())
    (folder / "tuned.yaml").write_text(yaml.safe_dump({**fields, "paper": "split-cifar100"}))
    (folder / "other.yaml").write_text(yaml.safe_dump(fields))
    monkeypatch.setattr(presets, "resources", SimpleNamespace(files=lambda package: tmp_path / "package"))
    assert (presets.preset("tuned").paper, presets.preset("other").paper) == ("split-cifar100", "other")
    assert "paper" not in presets.preset("tuned").fields
    for preset in ("tuned", "other"):
        write(tmp_path / "new", preset=preset)
    assert [(row["preset"], row["paper ACC"]) for row in lines(read(tmp_path / "new"))] == [
        ("other", "–"),
        ("tuned", "53.63 ± 0.25"),
    ]


def test_the_implicit_variant_stands_beside_the_papers_d_ewc(tmp_path):
    write(tmp_path, method="d-ewc", acc=51.52, changes={"method": {"penalty_step": "implicit"}})
    write(tmp_path, method="d-ewc", acc=49.52)
    shown = [(row["variant"], row["ACC %"], row["paper ACC"], row["Δ ACC"]) for row in lines(read(tmp_path))]
    assert sorted(shown) == [
        ("", "49.52", "50.52 ± 0.58", "-1.00"),
        ("penalty_step=implicit", "51.52", "50.52 ± 0.58", "+1.00"),
    ]
    assert sorted(row["variant"] for row in lines(read(tmp_path, beside_paper=False))) == ["", "penalty_step=implicit"]


def words(out, **how):
    return variant(scores_of(write(out, **how)))


def test_a_variant_in_words(tmp_path):
    changes = {"train": {"lr": 0.1}, "growth": {"threshold": 0.98, "images": [24, 100]}, "head": None}
    assert (
        words(tmp_path, preset="quickstart", changes=changes)
        == "head=null, growth.threshold=0.98, growth.images=[24, 100], train.lr=0.1"
    )
    assert words(tmp_path, preset="quickstart", changes={"model": {"name": "mlp"}}) == "model.name=mlp"
    assert words(tmp_path, seed=3, changes={"agents": 16, "topology": {"name": "torus"}}) == "", "columns say it"
    assert words(tmp_path, method="d-ewc") == "", "what a preset sets for a method is the preset's"
    assert words(tmp_path, method="d-ewc", changes={"train": {"lr": 0.01}}) == "train.lr=0.01"
    whole = "head=null, growth.threshold=0.98, growth.images=[24, 100], train.lr=0.1"
    assert whole in [row["variant"] for row in lines(read(tmp_path))]
    assert whole in [record["variant"] for record in as_csv(read(tmp_path))]


def test_where_words_fail_there_is_the_digest(tmp_path):
    """A preset that is not here, other links, a broken config, a method of the user's own: its code is not run."""
    assert words(tmp_path, preset="fit") == "abc123"
    assert re.fullmatch("[0-9a-f]{6}", words(tmp_path, changes={"topology": {"name": "mine", "edges": [[0, 1]]}}))
    folder = write(tmp_path, changes={"train": {"lr": 0.1}})
    digest = folder.parent.name.rpartition("-")[2]
    assert variant(scores_of(folder)) == "train.lr=0.1"
    fields = yaml.safe_load((folder / "config.yaml").read_text())
    for text in ("{", yaml.safe_dump(fields | {"method": {"name": f"{tmp_path / 'mine.py'}:codec"}}), "[]"):
        (folder / "config.yaml").write_text(text)
        (tmp_path / "mine.py").write_text("raise SystemExit")
        assert variant(scores_of(folder)) == digest
    (folder / "config.yaml").unlink()
    assert variant(scores_of(folder)) == digest


def test_how_runs_ended_is_said_and_never_mixed(tmp_path):
    for seed, (status, acc) in enumerate(
        [("complete", 53.0), ("complete", 54.0), ("degraded", 52.63), ("partial", 60.63)]
    ):
        write(tmp_path, seed=seed, status=status, acc=acc)
    made = read(tmp_path)
    shown = {row["status"]: (row["seeds"], row["ACC %"], row["paper ACC"], row["Δ ACC"]) for row in lines(made)}
    assert shown == {
        "complete": ("2", "53.50 ± 0.71", "53.63 ± 0.25", "-0.13"),
        "degraded": ("1", "52.63", "53.63 ± 0.25", "-1.00"),
        "partial": ("1", "60.63", "53.63 ± 0.25", "–"),
    }
    (partial,) = [row for row in lines(made) if row["status"] == "partial"]
    assert (partial["Δ BWT"], partial["Δ cc"]) == ("–", "–")
    machine = {row["status"]: row["acc_difference"] for row in as_csv(made)}
    assert machine["partial"] == ""
    assert float(machine["degraded"]) == pytest.approx(-1)
    for render in formats.PLAIN.values():
        assert all(status in render(made) for status in shown)
        assert all(status in render(read(tmp_path, beside_paper=False)) for status in shown)


def test_beside_the_paper_rows_are_in_its_order(tmp_path):
    torus = {"topology": {"name": "torus"}}
    for method in ("dpsgd", "codec", "codec-full", "d-ewc", "stl"):
        write(tmp_path, method=method)
    write(tmp_path, changes={"agents": 16})
    write(tmp_path, changes=torus)
    write(tmp_path, preset="quickstart")
    shown = [(row["preset"], row["agents"], row["method"]) for row in lines(read(tmp_path))]
    assert shown == [
        ("quickstart", "ring 8", "codec"),
        *(("split-cifar100", "ring 8", method) for method in ("stl", "d-ewc", "codec-full", "codec", "dpsgd")),
        ("split-cifar100", "torus 8", "codec"),
        ("split-cifar100", "ring 16", "codec"),
    ]
    found = [read_metrics(folder).method for folder in find_runs([tmp_path])]
    assert [row["method"] for row in lines(read(tmp_path, beside_paper=False))] == found


def test_csv_is_every_number_as_it_is(three_seeds):
    write(three_seeds, method="stl", bwt=None, acc=1 / 3)
    stl, codec = as_csv(read(three_seeds))
    own = ["benchmark", "method", "topology", "agents", "variant", "status", "seeds", "acc", "acc_std", "bwt"]
    own += ["bwt_std", "cc", "cc_reference", "cc_reference_std", "kept_percent", "ms_per_iteration"]
    papers = ["paper_acc", "paper_acc_std", "paper_bwt", "paper_bwt_std", "paper_cc"]
    differences = ["acc_difference", "bwt_difference", "cc_difference"]
    assert list(codec) == [*own, *papers, *differences, "not_scored", "not_original"]
    assert list(as_csv(read(three_seeds, beside_paper=False))[0]) == [*own, "not_scored", "not_original"]
    assert [codec[name] for name in own[:7]] == ["split-cifar100", "codec", "ring", "8", "", "complete", "3"]
    numbers = {"acc": 54.63, "acc_std": 1, "bwt": -0.37, "cc": 2, "cc_reference": 1.85, "cc_reference_std": 0.1}
    numbers |= {"ms_per_iteration": 3, "paper_acc": 53.63, "paper_acc_std": 0.25, "paper_bwt": -0.43}
    numbers |= {"paper_cc": 1.85, "acc_difference": 1, "bwt_difference": 0.06, "cc_difference": 0}
    assert {name: float(codec[name]) for name in numbers} == pytest.approx(numbers, abs=1e-12)
    assert float(stl["acc"]) == 1 / 3
    assert [stl[name] for name in ("acc_std", "bwt", "bwt_std", "paper_bwt", "paper_cc", "bwt_difference")] == [""] * 6


def test_markdown(three_seeds):
    write(three_seeds, method="d-ewc", changes={"dense": ["a|b"]})
    made = read(three_seeds)
    table, note = formats.markdown(made).split("\n\n")
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines()]
    head, rules, *rows = [[cell.strip().replace(r"\|", "|") for cell in line] for line in cells]
    assert head == [column.title for column in made.columns]
    assert rules == ["---"] * 3 + ["---:"] * (len(head) - 3)  # method, agents, variant are words
    assert rows == [list(line) for line in made.lines()]
    assert 'dense=["a|b"]' in rows[0]
    assert "cc_reference" in note
    assert formats.markdown(read(three_seeds, beside_paper=False)).endswith("|\n\n" + NOTE + "\n")


def test_latex(three_seeds):
    write(three_seeds, method="d-ewc", changes={"method": {"penalty_step": "implicit"}, "dense": ["a&b#c{$"]})
    text = formats.latex(read(three_seeds))
    first, begin, top, head, mid, *rows, bottom, end, note = text.splitlines()
    assert first == "% needs \\usepackage{booktabs}"
    assert (top, mid, bottom, end) == ("\\toprule", "\\midrule", "\\bottomrule", "\\end{tabular}")
    (spec,) = re.fullmatch(r"\\begin\{tabular\}\{([lr]+)\}", begin).groups()
    assert spec == "lll" + "r" * 12
    assert len(rows) == 2
    for line in (head, *rows):
        assert line.endswith(r" \\")
        assert len(re.findall(r"(?<!\\)&", line)) == len(spec) - 1
        assert not re.search(r"(?<!\\)[#%_]", line)
    bare = re.sub(r"\\[{}$%&#_\\]", "", text.partition("\n")[2])  # without what is escaped
    assert bare.count("{") == bare.count("}") > 0
    assert bare.count("$") % 2 == 0
    assert bare.isascii()
    assert r"54.63 $\pm$ 1.00" in rows[1]
    assert r"$-$0.43 $\pm$ 0.33" in rows[1]
    assert r"ACC \%" in head
    assert r"a\&b\#c\{\$" in rows[0]
    assert r"penalty\_step" in rows[0]
    assert r"cc\_reference" in note


def test_the_command(cli, three_seeds):
    done = cli("table", ".", "--paper", cwd=three_seeds)
    assert done.stderr == ""
    assert re.search(r"codec +ring 8 +3 +54\.63 ± 1\.00 +53\.63 ± 0\.25 +\+1\.00 .* 1\.85 ± 0\.10 +1\.85 ", done.stdout)
    assert "cc_reference" in done.stdout
    for form, option in {"markdown": (), "latex": ("--paper",), "csv": ("--paper",)}.items():
        done = cli("table", ".", "--format", form, *option, cwd=three_seeds, COLUMNS="30", FORCE_COLOR="1")
        assert done.stdout == formats.PLAIN[form](read(three_seeds, beside_paper=bool(option)))
    assert cli("table", ".", "--format", "text", cwd=three_seeds).stdout == cli("table", ".", cwd=three_seeds).stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--json", "--paper"), "--json: gives the metrics as they are"),
        (("--json", "--format", "text"), "--json: gives the metrics as they are"),
        (("--format", "html"), "--format: 'html' is not one of text, markdown, latex, csv, json"),
    ],
)
def test_options_that_do_not_go_together(cli, three_seeds, options, says):
    done = cli("table", ".", *options, cwd=three_seeds)
    assert says in failed(done, 2)
    assert done.stdout == ""


@pytest.mark.parametrize("width", [40, 60, 80, 130])
def test_on_a_narrow_terminal_numbers_stay_whole(three_seeds, width):
    write(three_seeds, seed=9, status="degraded")
    out = io.StringIO()
    formats.show(read(three_seeds), Console(file=out, width=width))
    shown = out.getvalue()
    assert {"54.63", "53.63", "+1.00", "-0.37", "-0.43", "+0.06", "1.85", "complete", "degraded"} <= set(shown.split())
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width


def test_words_about_a_variant_do_not_crowd_out_the_numbers(tmp_path):
    for rate in (0.1, 0.2):
        write(tmp_path, changes={"train": {"lr": rate, "epochs": 10, "batch_size": 16}})
    made, out = read(tmp_path, beside_paper=False), io.StringIO()
    assert len({row["variant"] for row in lines(made)}) == 2, "not cut where that would make them alike"
    formats.show(made, Console(file=out, width=100))
    assert re.search(r"codec +ring 8 +train.epochs=10, +1 +54\.00 +-1\.00 +1\.5 kB +2\.00 +– +3\.00", out.getvalue())
    assert re.search(r"^ +train.batch_size=16, train.lr=0.1 +$", out.getvalue(), re.M)


words_of = st.text("abc -±…é", min_size=0, max_size=12)


@given(
    st.integers(1, 3).flatmap(
        lambda rows: st.lists(
            st.builds(Column, words_of, st.lists(words_of, min_size=rows, max_size=rows), st.booleans()),
            min_size=1,
            max_size=6,
        )
    ),
    st.integers(20, 100),
)
def test_paragraphs_leave_nothing_out_and_keep_to_the_width(columns, width):
    sheet = Sheet("", columns, "", [])
    for cells, paragraph in zip(sheet.lines(), paragraphs(sheet, width), strict=True):
        text = " ".join(paragraph.split())
        for column, cell in zip(columns, cells, strict=True):
            assert " ".join((cell if column.words else f"{column.title} {cell}").split()) in text
        longest = max((len(f"{c.title} {cell}") for c, cell in zip(columns, cells, strict=True)), default=0)
        assert all(len(line) <= max(width, longest + 2) for line in paragraph.splitlines())


def test_columns_fold_no_more_than_they_have_to():
    """Words take what room there is; numbers stay on one line, but for their spread."""
    cells = [
        Column("what it is", ["one two three four"], words=True, fold=True),
        Column("sent in all", ["≤ 1.5 MB"], fold=True),
    ]
    for width, lines in (
        (40, ["what it is", "one two three four"]),
        (33, ["what it is", "one two three four"]),
        (20, ["what", "one two"]),
    ):
        out = io.StringIO()
        formats.show(Sheet("t", cells, "", []), Console(file=out, width=width))
        assert "≤ 1.5 MB" in out.getvalue()
        assert all(any(words in line for line in out.getvalue().splitlines()) for words in lines), out.getvalue()
