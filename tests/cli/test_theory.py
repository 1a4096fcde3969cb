"""`codecl theory check` through the entry point."""

import json

import pytest


def test_it_says_what_there_is_and_refuses_what_makes_no_sense(cli, tmp_path):
    assert "check" in cli("theory", cwd=tmp_path).stdout
    done = cli("theory", "check", "--seeds", "1", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "--seeds" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_all_that_is_claimed_holds(cli, tmp_path):
    done = cli("theory", "check", "--quick", "--json", cwd=tmp_path, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert "All that is claimed holds" in done.stderr
    main, printed, control, slopes = json.loads(done.stdout).values()
    assert len(main) == 80
    assert all(row["holds"] for row in main)
    assert [row["printed_holds"] for row in printed] == [False, False]
    assert not all(row["holds"] for row in control)
    assert [len(row["slopes"]) for row in slopes] == [5] * 5
    drawn = {path.name for path in (tmp_path / "theory").iterdir()}
    assert drawn == {f"rate-{along}.{kind}" for along in "KN" for kind in ("svg", "png", "csv")}
