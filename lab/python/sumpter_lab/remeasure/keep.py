"""Puts what `remeasure` has left into `lab/records`, in place of the records of the same commands.

    python -m sumpter_lab.remeasure.keep FOLDER

A record is replaced by the result of its own command, and takes its name with the new date; pages
and tests that name it name the new one, and the sentence beside it the new commit and machine. The
tables of pages are made again. What a result says is for a reader to judge: the command ends with
the pages to read again, and with the results and records that it could not match.

A run of `record.toml` is replaced as a whole, that is when each of its commands has a result; a
result whose command no record has is left for a description by hand. Of records of the same command
the newest is replaced: an older one is kept for a reason that its page tells.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path
from typing import Any

from sumpter._failure import Failure
from sumpter_lab.remeasure.commands import WRITTEN
from sumpter_lab.remeasure.runs import RUNS
from sumpter_lab.tables.page import rewritten

ROOT = Path(__file__).resolve().parents[4]
_DESCRIPTION = "record.toml"
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
# Several files of an experiment, by one of a table's patterns.
_PATTERN = re.compile(r"[\w-]+/[\w.-]*\*[\w.*-]*")
_LISTS = ("commits", "commands", "used_by")
_COLUMNS = 100

Key = tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """What one command left in a folder of `remeasure`."""

    command: str
    date: str
    commit: str
    machine: str
    # Without a suffix: a command leaves what it prints beside its figures.
    base: Path


@dataclass(frozen=True)
class Run:
    """A run of an experiment, as `record.toml` describes it."""

    experiment: str
    fields: dict[str, Any]

    @property
    def files(self) -> dict[str, str]:
        return self.fields["files"]

    def keys(self) -> list[Key] | None:
        """What identifies the command of each file; None if a command left several files."""
        commands = self.fields["commands"]
        return [key(one) for one in commands] if len(commands) == len(self.files) else None


@dataclass(frozen=True)
class Renewal:
    """A run whose commands have run again."""

    old: Run
    # One for each file of the run, in their order.
    results: list[Result]

    def names(self) -> list[tuple[str, str]]:
        """The old and the new name of each file."""
        return [
            (name, result.date + name[len(result.date) :])
            for name, result in zip(self.old.files, self.results, strict=True)
        ]

    def runs(self) -> Iterator[Run]:
        """The new descriptions: one for each date, commit and machine."""
        said = list(self.old.files.values())
        rows = list(zip(self.names(), said, self.results, strict=True))
        for (date, commit, machine), same in groupby(
            rows, key=lambda row: (row[2].date, row[2].commit, row[2].machine)
        ):
            group = list(same)
            new = {
                "date": date,
                "commits": [commit],
                "machine": machine,
                "commands": [result.command for _, _, result in group],
                "commands_from": "page",
                "files": {new: text for (_, new), text, _ in group},
            }
            yield replace(self.old, fields={**self.old.fields, **new})


def key(command: str) -> Key:
    """What two spellings of a command have in common: not the order of options, nor where the
    figures go."""
    words = iter(shlex.split(command, comments=True))
    kept = []
    for word in words:
        if word in WRITTEN:
            next(words, None)
        elif word != "sudo":
            kept.append(word)
    return tuple(sorted(kept))


def results(folder: Path) -> list[Result]:
    """The results in a folder that can be kept. Raises Failure if there are none."""
    file = folder / RUNS
    if not file.is_file():
        raise Failure(f"{folder} has no {file.name}: give the folder that remeasure wrote to")
    found = []
    for run in json.loads(file.read_text()):
        if run["exit_code"] != 0:
            continue
        machine = f"{run['cpu']}, {run['cores']} cores, Linux {run['kernel']}"
        base = folder / f"{run['page']}-{run['number']:02}"
        # The figures carry the day on which the command ended or began.
        date = _day_of(base) or run["date"][:10]
        found.append(Result(run["command"], date, run["commit"], machine, base))
    if not found:
        raise Failure(f"no command in {file} has succeeded")
    return found


def _day_of(base: Path) -> str | None:
    """The day that the figures of a result name, if they name a single one."""
    days = set()
    for file in base.parent.glob(f"{base.name}.*"):
        if file.suffix in (".csv", ".json"):
            days |= {text[:10] for text in re.findall(r"\d{4}-\d{2}-\d{2}T\d{2}", file.read_text())}
    return days.pop() if len(days) == 1 else None


def read(folder: Path) -> tuple[dict[str, Any], list[Run]]:
    """The description of an experiment, and its runs."""
    described = tomllib.loads((folder / _DESCRIPTION).read_text())
    return described, [Run(folder.name, run) for run in described["runs"]]


def write(folder: Path, described: dict[str, Any], runs: Iterable[Run]) -> None:
    """Writes the description of an experiment, with its runs by date."""
    lines = [f"{name} = {_text(described[name])}\n" for name in ("title", "purpose")]
    for run in sorted(runs, key=lambda run: run.fields["date"]):
        lines.append("\n[[runs]]\n")
        for name, value in run.fields.items():
            if name != "files":
                lines.append(_list(name, value) if name in _LISTS else f"{name} = {_text(value)}\n")
        lines.append("\n[runs.files]\n")
        lines += [f"{_text(name)} = {_text(said)}\n" for name, said in run.files.items()]
    (folder / _DESCRIPTION).write_text("".join(lines))


def _text(value: str) -> str:
    # A string of JSON is one of TOML.
    return json.dumps(value, ensure_ascii=False)


def _list(name: str, values: list[str]) -> str:
    line = f"{name} = [{', '.join(map(_text, values))}]\n"
    if len(line) <= _COLUMNS:
        return line
    return f"{name} = [\n" + "".join(f"  {_text(value)},\n" for value in values) + "]\n"


def matched(runs: list[Run], found: list[Result]) -> tuple[list[Renewal], list[str]]:
    """Which runs are renewed, and what could not be matched, in words."""
    # A page may name a command twice; the last result counts.
    by_key = {key(result.command): result for result in found}
    newest: dict[Key, str] = {}
    for run in runs:
        for one in run.keys() or ():
            newest[one] = max(newest.get(one, ""), run.fields["date"])
    renewals, left = [], []
    for run in runs:
        keys = run.keys()
        if keys is None or any(newest[one] != run.fields["date"] for one in keys):
            continue
        there = [by_key.get(one) for one in keys]
        missing = [
            command
            for command, result in zip(run.fields["commands"], there, strict=True)
            if result is None
        ]
        if not missing:
            renewals.append(Renewal(run, [result for result in there if result]))
        elif any(there):
            left.append(
                f"{run.experiment} of {run.fields['date']} is kept: it lacks a result of "
                + "; ".join(missing)
            )
    used = {key(result.command) for one in renewals for result in one.results}
    for one, result in by_key.items():
        if one not in used and one not in newest:
            left.append(f"no record has the command of {result.base.name}: {result.command}")
    return renewals, left


def figures(result: Result, suffix: str) -> Path:
    """The file of a result that a record keeps."""
    file = result.base.with_name(result.base.name + suffix)
    # A command that names its file has that name behind the number.
    named = sorted(result.base.parent.glob(f"{result.base.name}-*{suffix}"))
    if not file.is_file() and len(named) == 1:
        (file,) = named
    if not file.is_file():
        raise Failure(f"{result.command} left no {file.name}; remeasure it again")
    return file


def renamed(text: str, renewals: Iterable[Renewal]) -> str:
    """The text of a page or a test that names the new files, commits and machines."""
    for renewal in renewals:
        for (old, new), result in zip(renewal.names(), renewal.results, strict=True):
            place = f"{renewal.old.experiment}/{old}"
            paragraphs = re.split(r"(\n\s*\n)", text)
            for at, paragraph in enumerate(paragraphs):
                if place in paragraph:
                    again = paragraph.replace(place, f"{renewal.old.experiment}/{new}")
                    again = again.replace(f"[{old}]", f"[{new}]")
                    paragraphs[at] = _provenance(again, renewal.old, result)
            text = "".join(paragraphs)
    return text


def with_patterns_renewed(text: str, renewals: Sequence[Renewal], records: Path) -> str:
    """The text with the new date in patterns of files, where no file has the old one any more."""
    places = {f"{one.old.experiment}/{old}": new for one in renewals for old, new in one.names()}

    def again(match: re.Match[str]) -> str:
        pattern = match[0]
        dates = {new[:10] for old, new in places.items() if fnmatch(old, pattern)}
        if len(dates) != 1 or any(records.glob(pattern)):
            return pattern
        return _DATE.sub(dates.pop(), pattern)

    return _PATTERN.sub(again, text)


def _provenance(text: str, old: Run, new: Result) -> str:
    """A paragraph with "commit C" and, behind it, the date of a run replaced, where they are the
    old run's."""
    (commit, *others) = old.fields["commits"]
    if others:
        return text
    # Words may be on two lines.
    known = re.compile(rf"(commit\s+){commit[:7]}[0-9a-f]*(,\s+{old.fields['date']})?")

    def again(match: re.Match[str]) -> str:
        date = match[2] or ""
        return match[1] + new.commit + _DATE.sub(new.date, date)

    return known.sub(again, text)


def _check_names(copies: Iterable[tuple[Path, Path, str, str]]) -> None:
    """Raises Failure if two records would have one name: those of two days, measured on one."""
    by_place: dict[Path, str] = {}
    for _, folder, old, new in copies:
        other = by_place.setdefault(folder / new, old)
        if other != old:
            raise Failure(
                f"{folder.name}: {other} and {old} would both become {new}: rename one of them "
                "first, in the record's description and where it is named"
            )


def keep(found: list[Result], root: Path) -> tuple[list[str], list[str]]:
    """Replaces records. Returns which pages and tests changed, and what could not be matched."""
    records = root / "lab" / "records"
    described = {file.parent: read(file.parent) for file in sorted(records.glob("*/record.toml"))}
    every = [run for _, runs in described.values() for run in runs]
    renewals, left = matched(every, found)
    copies = [
        (figures(result, Path(old).suffix), records / renewal.old.experiment, old, new)
        for renewal in renewals
        for (old, new), result in zip(renewal.names(), renewal.results, strict=True)
    ]
    _check_names(copies)
    for source, folder, old, new in copies:
        (folder / old).unlink()
        shutil.copyfile(source, folder / new)
    for folder, (description, runs) in described.items():
        of = {id(one.old): one for one in renewals}
        if any(id(run) in of for run in runs):
            new_runs = [
                new for run in runs for new in (of[id(run)].runs() if id(run) in of else (run,))
            ]
            write(folder, description, new_runs)
    users = sorted({user for one in renewals for user in one.old.fields["used_by"]})
    changed = []
    for user in users:
        text = (root / user).read_text()
        mine = [one for one in renewals if user in one.old.fields["used_by"]]
        new_text = with_patterns_renewed(renamed(text, mine), mine, records)
        if user.endswith(".md"):
            new_text = rewritten(new_text, user)
        if new_text != text:
            (root / user).write_text(new_text)
            changed.append(user)
    return changed, left


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sumpter_lab.remeasure.keep",
        description="Replaces records in lab/records by the results of the same commands.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="what remeasure wrote to")
    changed, left = keep(results(parser.parse_args().folder), ROOT)
    for user in changed:
        print(f"{user}: names new records; read its conclusions again")
    for words in left:
        print(f"not kept: {words}")
    print(f"{len(changed)} pages and tests changed; `make docs` writes the index of records")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        sys.exit(2)
