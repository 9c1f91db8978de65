"""Records of measurements: each is described, indexed, used, and what its description says."""

from __future__ import annotations

import copy
import csv
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import records

ROOT = records.ROOT
EXPERIMENTS = records.experiments()
SCHEMA = json.loads(records.SCHEMA.read_text())
by_experiment = pytest.mark.parametrize("one", EXPERIMENTS, ids=lambda one: one.name)


def test_every_file_belongs_to_an_experiment() -> None:
    found = {file for file in records.RECORDS.rglob("*") if file.is_file()}
    described = {one.folder / name for one in EXPERIMENTS for name in one.files}
    described |= {one.folder / records.DESCRIPTION for one in EXPERIMENTS}
    advice = f"describe these in a {records.DESCRIPTION}, or delete them"
    assert found - described == {records.INDEX, records.SCHEMA}, advice
    assert described <= found, "these are described, but are not there"


@by_experiment
def test_descriptions_are_as_the_schema_says(one: records.Experiment) -> None:
    assert list(records.problems(one.description, SCHEMA, one.name)) == []
    assert [name for name, count in Counter(one.files).items() if count > 1] == []


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("title",), 3, "title: expected string"),
        (("purpose",), "", "purpose: minLength 1"),
        (("runs",), [], "runs: minItems 1"),
        (("author",), "x", "unknown field 'author'"),
        (("runs", 0, "date"), "23 November", r"runs\[0\].date: pattern"),
        (("runs", 0, "commits"), ["unknown"], r"runs\[0\].commits\[0\]: pattern"),
        (("runs", 0, "commands_from"), "memory", r"runs\[0\].commands_from: enum"),
        (("runs", 0, "files"), {"figures.csv": "x"}, r"the name 'figures.csv': pattern"),
        (("runs", 0, "files"), {"2026-11-24.csv": ""}, "2026-11-24.csv: minLength 1"),
        (("runs", 0), {"date": "2026-11-24"}, r"runs\[0\]: required"),
    ],
)
def test_other_descriptions_are_refused(path: tuple[Any, ...], value: Any, said: str) -> None:
    description = copy.deepcopy(EXPERIMENTS[0].description)
    within = description
    for step in path[:-1]:
        within = within[step]
    within[path[-1]] = value
    assert re.search(said, "\n".join(records.problems(description, SCHEMA)))


def test_the_index_lists_every_experiment() -> None:
    assert records.INDEX.read_text() == records.index(), "run `make docs`"


@by_experiment
def test_every_record_is_named_by_a_page_or_a_test(one: records.Experiment) -> None:
    unused = [
        f"{name} is not named by {user}"
        for run in one.runs
        for user in run["used_by"]
        for name in run["files"]
        if not records.names((ROOT / user).read_text(), one.name, name)
    ]
    assert unused == [], "name these in the page or the test, or delete them"


def test_records_that_pages_and_tests_name_exist() -> None:
    there = [(one.name, name) for one in EXPERIMENTS for name in one.files]
    users = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")]
    users += [file for room in ("lab", "python", "tests") for file in ROOT.glob(f"{room}/**/*.py")]
    dead = [
        f"{user.relative_to(ROOT)}: {match}"
        for user in users
        for match in re.findall(r"lab/records/[\w.*?/-]+", user.read_text())
        for reference in records.references(match)
        if not any(records.names("/".join(reference), *record) for record in there)
    ]
    assert dead == []


@by_experiment
def test_descriptions_say_what_the_files_say(one: records.Experiment) -> None:
    for run in one.runs:
        commits: set[str] = set()
        for name in run["files"]:
            assert name.startswith(run["date"])
            for row in rows_of(one.folder / name):
                commits.add(row["commit"] or "not recorded")
                machine = f"{row['cpu']}, {row['cores']} cores, Linux {row['kernel']}"
                assert (row["date"][:10], machine) == (run["date"], run["machine"]), name
        assert not commits or commits == set(run["commits"])


def rows_of(file: Path) -> list[dict[str, Any]]:
    """The rows of a record that say when, where and of which commit they are."""
    if file.suffix == ".csv":
        with file.open() as stream:
            return [row for row in csv.DictReader(stream) if "commit" in row]
    return list(records.measured_on(file)) if file.suffix == ".json" else []
