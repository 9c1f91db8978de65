"""What was measured again takes the place of the records of the same commands."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import records
from sumpter._failure import Failure
from sumpter_lab.remeasure import keep
from sumpter_lab.remeasure.commands import Command
from sumpter_lab.remeasure.runs import RUNS

DESCRIBED = """\
title = "Two commands"
purpose = "What is measured."

[[runs]]
date = "2026-11-20"
commits = ["aaaaaaa"]
machine = "Old, 2 cores, Linux 6.1"
commands = ["measure one"]
commands_from = "page"
used_by = ["docs/page.md"]

[runs.files]
"2026-11-20-one.csv" = "The first, on a slow machine."

[[runs]]
date = "2026-11-22"
commits = ["bbbbbbb"]
machine = "Old, 2 cores, Linux 6.1"
commands = [
  "measure one",
  "measure --size 4 --rounds 2 two",
]
commands_from = "fields"
used_by = ["docs/page.md"]

[runs.files]
"2026-11-22-one.csv" = "The first."
"2026-11-22-two.json" = "The second."
"""
# Not spelled out, as a test looks for records that files name.
PAGE = """\
Before: [2026-11-20-one.csv](../PLACE/2026-11-20-one.csv), commit aaaaaaa, 2026-11-20.

Records: [2026-11-22-one.csv](../PLACE/2026-11-22-one.csv),
[two](../PLACE/2026-11-22-two.json), Old, commit
bbbbbbb, 2026-11-22. Commit bbbbbbb is not commit ccccccc, of 2026-11-22.

Elsewhere commit bbbbbbb, 2026-11-22.
""".replace("PLACE", "lab/" + "records/pair")
ONE, TWO = "measure one", "sudo measure two --rounds 2 --size 4 -o FILE"


def entry(number: int, command: str, day: str, exit_code: int = 0) -> dict[str, Any]:
    return {
        **{"page": "page", "number": number, "command": command, "exit_code": exit_code},
        **{"date": f"{day}T23:59:00+00:00", "commit": "dddddddd", "cpu": "New", "cores": 2},
        "kernel": "6.9",
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with an experiment that a page uses."""
    folder = tmp_path / "lab" / "records" / "pair"
    folder.mkdir(parents=True)
    (folder / "record.toml").write_text(DESCRIBED)
    for name in ("2026-11-20-one.csv", "2026-11-22-one.csv", "2026-11-22-two.json"):
        (folder / name).write_text("old")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(PAGE)
    (tmp_path / "measured").mkdir()
    return tmp_path


def measured(root: Path, *runs: dict[str, Any]) -> list[keep.Result]:
    folder = root / "measured"
    (folder / RUNS).write_text(json.dumps(runs))
    for run in runs:
        base = folder / f"{run['page']}-{run['number']:02}"
        base.with_suffix(".txt").write_text("printed on 2026-01-01T00")
        base.with_suffix(".csv").write_text(f"date,commit\n{run['date']},dddddddd\n")
        base.with_suffix(".json").write_text(json.dumps([{"date": run["date"]}]))
    return keep.results(folder)


def kept(root: Path) -> tuple[set[str], list[dict[str, Any]]]:
    folder = root / "lab" / "records" / "pair"
    described = tomllib.loads((folder / "record.toml").read_text())
    return {file.name for file in folder.iterdir()} - {"record.toml"}, described["runs"]


def test_the_newest_records_of_the_commands_are_replaced(root: Path) -> None:
    found = measured(root, entry(1, ONE, "2026-11-29"), entry(2, TWO, "2026-11-29"))
    assert keep.keep(found, root) == (["docs/page.md"], [])
    files, runs = kept(root)
    assert files == {"2026-11-20-one.csv", "2026-11-29-one.csv", "2026-11-29-two.json"}
    assert [run["date"] for run in runs] == ["2026-11-20", "2026-11-29"]
    assert runs[1] == {
        **{"date": "2026-11-29", "commits": ["dddddddd"], "machine": "New, 2 cores, Linux 6.9"},
        **{"commands": [ONE, TWO], "commands_from": "page", "used_by": ["docs/page.md"]},
        "files": {"2026-11-29-one.csv": "The first.", "2026-11-29-two.json": "The second."},
    }
    schema = json.loads(records.SCHEMA.read_text())["properties"]["runs"]
    assert list(records.problems(runs, schema)) == []
    assert "dddddddd" in (root / "lab" / "records" / "pair" / "2026-11-29-one.csv").read_text()


def test_a_page_names_the_new_files_their_commit_and_day(root: Path) -> None:
    keep.keep(measured(root, entry(1, ONE, "2026-11-29"), entry(2, TWO, "2026-11-29")), root)
    before, named, other = (root / "docs/page.md").read_text().split("\n\n")
    assert (before, other) == (PAGE.split("\n\n")[0], PAGE.split("\n\n")[2])
    assert named == (
        "Records: [2026-11-29-one.csv](../PLACE/2026-11-29-one.csv),\n"
        "[two](../PLACE/2026-11-29-two.json), Old, commit\n"
        "dddddddd, 2026-11-29. Commit bbbbbbb is not commit ccccccc, of 2026-11-22."
    ).replace("PLACE", "lab/" + "records/pair")


def test_a_pattern_of_files_gets_the_new_date_once_no_file_has_the_old_one(root: Path) -> None:
    page = root / "docs" / "page.md"
    page.write_text("All: pair/2026-11-22-*.*, pair/*-one.csv, pair/2026-11-2*-one.csv")
    keep.keep(measured(root, entry(1, ONE, "2026-11-30"), entry(2, TWO, "2026-11-30")), root)
    assert page.read_text() == "All: pair/2026-11-30-*.*, pair/*-one.csv, pair/2026-11-2*-one.csv"


def test_a_file_that_a_page_names_is_kept(root: Path) -> None:
    named = tuple(TWO.replace("FILE", "two.json").split())
    found = measured(root, entry(1, ONE, "2026-11-29"), entry(2, " ".join(named), "2026-11-29"))
    (root / "measured" / "page-02.json").unlink()
    *_, where = Command("page", 2, named).writing_to(root / "measured")
    Path(where).write_text("named")
    assert keep.keep(found, root) == (["docs/page.md"], [])
    kept_in = root / "lab" / "records" / "pair" / "2026-11-29-two.json"
    assert kept_in.read_text() == "named"


def test_commands_of_two_days_are_two_runs(root: Path) -> None:
    keep.keep(measured(root, entry(1, ONE, "2026-11-29"), entry(2, TWO, "2026-11-30")), root)
    files, runs = kept(root)
    assert files == {"2026-11-20-one.csv", "2026-11-29-one.csv", "2026-11-30-two.json"}
    assert [run["date"] for run in runs] == ["2026-11-20", "2026-11-29", "2026-11-30"]
    assert list(runs[2]["files"]) == ["2026-11-30-two.json"]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (entry(2, TWO, "2026-11-29", exit_code=1), "pair of 2026-11-22 is kept: it lacks a result"),
        (entry(2, "measure three", "2026-11-29"), "no record has the command of page-02"),
    ],
)
def test_what_does_not_match_is_left_and_said(
    root: Path, second: dict[str, Any], said: str
) -> None:
    changed, left = keep.keep(measured(root, entry(1, ONE, "2026-11-29"), second), root)
    assert changed == [] and any(words.startswith(said) for words in left), left
    assert kept(root)[0] == {"2026-11-20-one.csv", "2026-11-22-one.csv", "2026-11-22-two.json"}
    assert (root / "docs/page.md").read_text() == PAGE
    assert (root / "lab" / "records" / "pair" / "record.toml").read_text() == DESCRIBED


def test_two_records_do_not_get_one_name(root: Path) -> None:
    folder = root / "lab" / "records" / "pair"
    (folder / "2026-11-20-one.csv").rename(folder / "2026-11-20-two.json")
    described = (folder / "record.toml").read_text()
    described = described.replace("2026-11-20-one.csv", "2026-11-20-two.json")
    described = described.replace('["measure one"]', '["measure three"]')
    (folder / "record.toml").write_text(described)
    runs = [(1, ONE), (2, TWO), (3, "measure three")]
    found = measured(root, *(entry(number, command, "2026-11-29") for number, command in runs))
    with pytest.raises(Failure, match="2026-11-20-two.json and 2026-11-22-two.json would both"):
        keep.keep(found, root)
    assert "2026-11-22-two.json" in kept(root)[0], "nothing is changed"


def test_nothing_is_replaced_if_figures_are_missing(root: Path) -> None:
    found = measured(root, entry(1, ONE, "2026-11-29"), entry(2, TWO, "2026-11-29"))
    (root / "measured" / "page-02.json").unlink()
    with pytest.raises(Failure, match=r"left no page-02\.json; remeasure it again"):
        keep.keep(found, root)
    assert kept(root)[0] == {"2026-11-20-one.csv", "2026-11-22-one.csv", "2026-11-22-two.json"}


@pytest.mark.parametrize(
    ("runs", "said"),
    [(None, "has no runs.json"), ([entry(1, ONE, "2026-11-29", exit_code=2)], "has succeeded")],
)
def test_a_folder_without_results_is_refused(
    root: Path, runs: list[dict[str, Any]] | None, said: str
) -> None:
    if runs is not None:
        (root / "measured" / RUNS).write_text(json.dumps(runs))
    with pytest.raises(Failure, match=said):
        keep.results(root / "measured")


def test_descriptions_are_written_as_they_are_read(tmp_path: Path) -> None:
    for one in records.experiments():
        description, runs = keep.read(one.folder)
        (tmp_path / one.name).mkdir()
        keep.write(tmp_path / one.name, description, runs)
        written, _ = keep.read(tmp_path / one.name)
        by_date = sorted(description["runs"], key=lambda run: run["date"])
        assert written == {**description, "runs": by_date}


def test_the_command_says_what_it_left(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(root, entry(1, "measure three", "2026-11-29"))
    monkeypatch.setattr(keep, "ROOT", root)
    monkeypatch.setattr(sys, "argv", ["keep", str(root / "measured")])
    assert keep.main() == 0
    printed = capsys.readouterr().out
    assert "not kept: no record has the command of page-01: measure three" in printed
    assert "0 pages and tests changed" in printed
