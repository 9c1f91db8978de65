"""Runs a case, whatever its kind, and keeps what came out.

Whether a case is computed, simulated, measured or emulated, its result is the same object; a
judgement of measured rows is the same for those of a record.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sumpter._failure import Failure
from sumpter_lab.local.report import busy_note
from sumpter_lab.reproduce import picture
from sumpter_lab.reproduce.case import Asked, Case, Found, How, Measurement, described
from sumpter_lab.scaffold.results import record
from sumpter_lab.scaffold.results.document import REPLAY, REPRODUCE, TUNE, parse
from sumpter_lab.scaffold.results.schema import from_csv
from sumpter_lab.scaffold.results.table import Row

_DOCUMENTS = {written.format: written for written in (REPLAY, TUNE)}
# Of what a measurement said last, when it fails.
_SHOWN_LINES = 4


class Instruments:
    """Runs measurements, each command once for all cases, and keeps the files that they write in
    the subfolder `rows` of a folder, if there is one."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._known: dict[tuple[str, ...], Sequence[Row]] = {}

    def rows_of(self, case: Case, asked: Asked) -> list[Sequence[Row]]:
        """The rows of each measurement of a case. Raises what the instruments raise."""
        many = len(case.measurements) > 1
        return [
            self._rows(measurement, f"{case.name}-{number}" if many else case.name, asked)
            for number, measurement in enumerate(case.measurements, 1)
        ]

    def _rows(self, measurement: Measurement, name: str, asked: Asked) -> Sequence[Row]:
        known = self._known.get(measurement.command)
        if known is not None:
            asked.note(f"sumpter {' '.join(measurement.command)}: has run for a case before")
            return known
        with tempfile.TemporaryDirectory(prefix="sumpter-reproduce-") as temporary:
            folder = Path(temporary) if self._folder is None else self._folder / "rows"
            folder.mkdir(exist_ok=True)
            rows = _measure(measurement, folder / f"{name}{measurement.suffix}", asked)
        self._known[measurement.command] = rows
        return rows


def run(
    case: Case,
    *,
    quick: bool = False,
    note: Callable[[str], None] = lambda text: None,
    instruments: Instruments | None = None,
) -> dict[str, Any]:
    """The result of a case, with where and how long it ran.

    Raises Failure where the machine lacks what the case needs, and what its instruments raise.
    """
    began_s = time.monotonic()
    busy = busy_note() if case.how in (How.MEASURED, How.EMULATED) else None
    found = _found(case, Asked(quick, note), instruments or Instruments())
    if busy is not None:
        note(busy)
        found = replace(found, declared=(*found.declared, f"Other programs ran: {busy}."))
    took = {"seconds": time.monotonic() - began_s, "quick": quick and case.how.is_exact}
    return described(case, found) | took | record.environment()


def save(result: dict[str, Any], folder: Path) -> list[Path]:
    """Writes the result as JSON, and its pictures where matplotlib is installed. The folder must
    be there; the files are returned."""
    written = [folder / f"{result['name']}.json"]
    REPRODUCE.write(written[0], [result])
    if picture.is_possible():
        many = len(result["plots"]) > 1
        for number, plot in enumerate(result["plots"], 1):
            file = folder / f"{result['name']}{f'-{number}' if many else ''}.png"
            picture.draw(plot, file)
            written.append(file)
    return written


def judged_record(case: Case, records: Path) -> tuple[Found, list[Path]] | None:
    """What the kept files of a case's measurements say, and the files; None where some are not
    kept."""
    files = [newest(measurement, records) for measurement in case.measurements]
    if case.judge is None or not files or None in files:
        return None
    kept = [file for file in files if file is not None]
    return case.judge([read(file) for file in kept]), kept


def newest(measurement: Measurement, records: Path) -> Path | None:
    """The newest file that is kept of a measurement; names begin with the date."""
    if not measurement.record:
        return None
    return max(records.glob(measurement.record), default=None)


def read(file: Path) -> list[Row]:
    """The rows of a file that an instrument has written. Raises DocumentError."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".csv":
        return from_csv(file, text)[1]
    document = parse(file, text)
    if isinstance(document, dict) and document.get("format") in _DOCUMENTS:
        return _DOCUMENTS[document["format"]].rows_of(file, document)
    return document if isinstance(document, list) else [document]


def _found(case: Case, asked: Asked, instruments: Instruments) -> Found:
    if case.absent is not None:
        return case.absent
    if case.find is not None:
        return case.find(asked)
    assert case.judge is not None
    return case.judge(instruments.rows_of(case, asked))


def _measure(measurement: Measurement, file: Path, asked: Asked) -> Sequence[Row]:
    """Runs an instrument in a process of its own, whose progress is shown as it comes."""
    asked.note(f"sumpter {' '.join(measurement.command)}")
    command = [sys.executable, "-m", "sumpter", *measurement.command, measurement.output, str(file)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode or not file.exists():
        said = "\n".join(done.stdout.splitlines()[-_SHOWN_LINES:])
        what = f"`sumpter {' '.join(measurement.command)}` ended with code {done.returncode}"
        raise Failure(f"{what}: {said}" if said else what)
    return read(file)


def lacks(case: Case, is_root: bool) -> str:
    """What this machine lacks for a case, or nothing."""
    if case.how is How.EMULATED and not is_root:
        return "it builds an emulated cluster, which needs root"
    return ""
