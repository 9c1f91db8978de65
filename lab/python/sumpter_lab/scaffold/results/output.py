"""Files that experiments write: checked before a long run, written after it."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sumpter._failure import Failure, UsageError
from sumpter_lab.scaffold.results.table import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")


def check_writable(file: Path | None, option: str) -> None:
    """Raises before a long run if its result could not be written."""
    if file is None:
        return
    if not file.parent.is_dir():
        raise Failure(f"{option} {file}: the folder {file.parent} does not exist")
    if file.is_dir():
        raise Failure(f"{option} {file}: this is a folder; name a file")


def check_plot(file: Path | None) -> None:
    """Raises before a long run if its picture could not be drawn."""
    if file is None:
        return
    if file.suffix not in FORMATS:
        raise UsageError(f"--plot {file}: the name must end in {', '.join(FORMATS)}")
    if not file.parent.is_dir():
        raise Failure(f"--plot {file}: the folder {file.parent} does not exist")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise Failure("--plot needs matplotlib: pip install 'sumpter-lab[plot]'") from None


def write_csv(file: Path, rows: Sequence[Row]) -> None:
    """The rows with a head line; what is a list or an object becomes JSON."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    try:
        with file.open("w", newline="") as stream:
            table = csv.DictWriter(stream, names, lineterminator="\n")
            table.writeheader()
            table.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    except OSError as error:
        raise Failure(f"cannot write {file}: {error.strerror}") from error


def write_json(file: Path, document: Any, indent: int) -> None:
    """One document."""
    try:
        file.write_text(json.dumps(document, indent=indent) + "\n")
    except OSError as error:
        raise Failure(f"cannot write {file}: {error.strerror}") from error


def save_picture(picture: Figure, file: Path, dpi: int) -> None:
    """A picture, in the format of the file's suffix."""
    try:
        picture.savefig(file, dpi=dpi)
    except OSError as error:
        raise Failure(f"cannot write {file}: {error.strerror}") from error


def _cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, dict | list) else value
