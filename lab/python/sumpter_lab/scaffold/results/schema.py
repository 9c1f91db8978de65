"""Rows that benches write, as CSV or JSON: which bench, and whether its fields are what they say.

A kind is recognised by the fields that no other has. Only fields that readers use are checked;
others are carried along unseen.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sumpter_lab.scaffold.results.document import DocumentError, refuse
from sumpter_lab.scaffold.results.table import Row

# Whole numbers of JSON have no limit; numbers that are plotted do.
_LARGEST = 1e300

Check = tuple[str, Callable[[Any], bool]]


def is_number(value: object) -> bool:
    """A finite number that a plot can show."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and -_LARGEST < value < _LARGEST


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


NUMBER: Check = ("a number of at least 0", lambda value: is_number(value) and value >= 0)
POSITIVE: Check = ("a number above 0", lambda value: is_number(value) and value > 0)
COUNT: Check = ("a whole number of at least 0", _is_count)
INTEGER: Check = (
    "a whole number",
    lambda value: isinstance(value, int) and not isinstance(value, bool),
)
TEXT: Check = ("a text", lambda value: isinstance(value, str) and bool(value))
FLAG: Check = ("true or false", lambda value: isinstance(value, bool))
OBJECTS: Check = (
    "a list of objects",
    lambda value: isinstance(value, list) and all(isinstance(one, dict) for one in value),
)
SOME_OBJECTS: Check = (
    "a list of at least one object",
    lambda value: bool(value) and OBJECTS[1](value),
)
OBJECT_OF_OBJECTS: Check = (
    "an object of objects",
    lambda value: isinstance(value, dict) and all(isinstance(v, dict) for v in value.values()),
)
OBJECT_OF_TEXTS: Check = (
    "an object of texts",
    lambda value: isinstance(value, dict) and all(isinstance(v, str) for v in value.values()),
)
NUMBERS: Check = (
    "a list of numbers of at least 0",
    lambda value: isinstance(value, list) and all(is_number(v) and v >= 0 for v in value),
)
SPAN: Check = (
    "two whole numbers of at least 0",
    lambda value: isinstance(value, list) and len(value) == 2 and all(map(_is_count, value)),
)
PERIODS: Check = (
    "a list of at least one number above 0",
    lambda value: isinstance(value, list) and bool(value) and all(map(POSITIVE[1], value)),
)
TEXTS: Check = (
    "a list of texts",
    lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
)


def _is_line(value: object) -> bool:
    if not isinstance(value, dict) or not TEXT[1](value.get("label")):
        return False
    x, y = value.get("x"), value.get("y")
    return (
        isinstance(value.get("reference"), bool)
        and isinstance(x, list)
        and isinstance(y, list)
        and len(x) == len(y)
        and all(isinstance(one, str) or is_number(one) for one in x)
        and all(one is None or is_number(one) for one in y)
    )


def _is_plot(value: object) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(name), str) for name in ("title", "x", "y"))
        and all(isinstance(value.get(name), bool) for name in ("bars", "log_x", "from_zero"))
        and isinstance(value.get("lines"), list)
        and all(map(_is_line, value["lines"]))
    )


PLOTS: Check = (
    "a list of plots, whose lines have as many numbers as places",
    lambda value: isinstance(value, list) and all(map(_is_plot, value)),
)


def optional(check: Check) -> Check:
    """As the check, or nothing."""
    expected, fits = check
    return (f"{expected}, or nothing", lambda value: value is None or fits(value))


@dataclass(frozen=True)
class Kind:
    """One bench's rows: the command that writes them, what identifies a row, and their fields."""

    command: str
    telling: frozenset[str]
    fields: dict[str, Check]
    # Fields that may be missing in files of older versions.
    may_lack: frozenset[str] = frozenset()


KINDS: dict[str, Kind] = {
    "emulate": Kind(
        "sumpter bench emulate",
        frozenset({"optimum_fraction", "link_idle"}),
        {
            "workers": COUNT,
            "servers": COUNT,
            "bytes": POSITIVE,
            "model": optional(TEXT),
            "seconds": POSITIVE,
            "optimum_seconds": POSITIVE,
            "optimum_fraction": NUMBER,
            "gloo_seconds": optional(POSITIVE),
            "ps_seconds": optional(POSITIVE),
            "gain_over_gloo": optional(NUMBER),
            "gain_optimum": optional(NUMBER),
            "link_goodput_mbit": POSITIVE,
            "link_idle": optional(OBJECT_OF_OBJECTS),
            "rate_mbit": optional(POSITIVE),
            "racks": optional(COUNT),
            "trunk_mbit": optional(POSITIVE),
            "cpu_bound": optional(FLAG),
            "disturbed_rounds": optional(COUNT),
        },
        frozenset({"disturbed_rounds", "cpu_bound", "model", "rate_mbit", "racks", "trunk_mbit"}),
    ),
    "allreduce": Kind(
        "sumpter bench allreduce",
        frozenset({"way", "p10_seconds", "p90_seconds"}),
        {
            "workers": COUNT,
            "bytes": POSITIVE,
            "way": TEXT,
            "seconds": POSITIVE,
            "p10_seconds": POSITIVE,
            "p90_seconds": POSITIVE,
            "goodput_gbps": optional(NUMBER),
            "model": optional(TEXT),
        },
        frozenset({"model"}),
    ),
    "ablate": Kind(
        "sumpter bench ablate", frozenset({"ablation", "equal_results"}), {"ablation": TEXT}
    ),
    "sum": Kind(
        "sumpter bench sum",
        frozenset({"contribution_gb_per_s", "correct", "dtype"}),
        {
            "table": TEXT,
            "dtype": optional(TEXT),
            "place": optional(TEXT),
            "op": optional(TEXT),
            "gb_per_s": optional(NUMBER),
            "numpy_gb_per_s": optional(NUMBER),
            "torch_gb_per_s": optional(NUMBER),
            "copy_gb_per_s": optional(NUMBER),
            "contribution_gb_per_s": optional(NUMBER),
            "contributions": optional(COUNT),
            "payload_gb_per_s": optional(NUMBER),
            "copied_gb_per_s": optional(NUMBER),
        },
        frozenset(
            {
                "contributions",
                "numpy_gb_per_s",
                "torch_gb_per_s",
                "payload_gb_per_s",
                "copied_gb_per_s",
            }
        ),
    ),
    "server": Kind(
        "sumpter bench server",
        frozenset({"without_summation_goodput_gb_per_s", "goodput_gb_per_s"}),
        {
            "workers": COUNT,
            "lanes": COUNT,
            "goodput_gb_per_s": NUMBER,
            "without_summation_goodput_gb_per_s": optional(NUMBER),
            "raw_tcp_goodput_gb_per_s": optional(NUMBER),
            "summing_tcp_goodput_gb_per_s": optional(NUMBER),
        },
        frozenset({"summing_tcp_goodput_gb_per_s"}),
    ),
    "replay": Kind(
        "sumpter bench replay",
        frozenset(),
        {
            "profile": TEXT,
            "workers": COUNT,
            "servers": COUNT,
            "stands_for_gbps": POSITIVE,
            "systems": OBJECT_OF_OBJECTS,
            "grid": optional(OBJECT_OF_TEXTS),
            "scale": optional(POSITIVE),
            "ratio": optional(POSITIVE),
        },
        frozenset({"grid", "scale", "ratio"}),
    ),
    "tune": Kind(
        "sumpter bench tune",
        frozenset(),
        {
            "profile": TEXT,
            "workers": COUNT,
            "servers": COUNT,
            "scale": POSITIVE,
            "tuner": TEXT,
            "periods_s": PERIODS,
            "sizes": SOME_OBJECTS,
            "rates_mbit": NUMBERS,
            "every": POSITIVE,
            "second_job": optional(SPAN),
            "cores_idle": optional(NUMBER),
            "cores_steal": optional(NUMBER),
        },
    ),
    "reproduce": Kind(
        "sumpter reproduce",
        frozenset(),
        {
            "name": TEXT,
            "paper": TEXT,
            "place": TEXT,
            "claim": TEXT,
            "how": TEXT,
            "verdict": TEXT,
            "claims": SOME_OBJECTS,
            "plots": PLOTS,
            "declared": TEXTS,
            "why": ("a text", lambda value: isinstance(value, str)),
        },
    ),
    "tenants": Kind(
        "sumpter bench tenants",
        frozenset({"jobs", "jain"}),
        {"jobs": OBJECTS, "jain": NUMBER, "lowest_part": NUMBER, "rate_mbit": optional(POSITIVE)},
    ),
    "chaos": Kind(
        "sumpter bench chaos",
        frozenset({"injected", "faults"}),
        {
            "faults": OBJECT_OF_OBJECTS,
            "injected": OBJECTS,
            "passed": FLAG,
            "problems": TEXTS,
            "seconds": POSITIVE,
            "rounds": COUNT,
        },
    ),
}
_INNER: dict[str, tuple[str, dict[str, Check]]] = {
    "emulate": ("link_idle", {"sent": NUMBER, "received": NUMBER}),
    "replay": ("systems", {"iterations_per_s": POSITIVE, "share_of_bound": NUMBER}),
    "tune": (
        "sizes",
        {"iteration": INTEGER, "partition_bytes": POSITIVE, "credit_bytes": POSITIVE},
    ),
    "reproduce": ("claims", {"text": TEXT, "paper": TEXT, "ours": TEXT, "verdict": TEXT}),
    "chaos": ("faults", {"count": COUNT, "median_pause_s": NUMBER, "longest_pause_s": NUMBER}),
    "tenants": (
        "jobs",
        {
            "job": TEXT,
            "weight": POSITIVE,
            "part": optional(NUMBER),
            "part_beside_greedy": optional(NUMBER),
        },
    ),
}


def has_head(text: str) -> bool:
    """Whether the first line is a CSV head of at least two names."""
    names = text.splitlines()[0].split(",")
    return len(names) > 1 and all(name and name.isidentifier() for name in names)


def from_csv(path: Path, text: str) -> tuple[str, list[Row]]:
    """The kind and the rows of a CSV file."""
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    head = next(lines)
    kind = kind_of(path, head)
    rows: list[Row] = []
    try:
        for cells in lines:
            if len(cells) != len(head):
                what = f"{len(head)} cells, as in its head, got {len(cells)}"
                cut = ": it is cut short" if len(cells) < len(head) else ""
                raise DocumentError(f"{path}: line {lines.line_num}: expected {what}{cut}")
            rows.append(dict(zip(head, map(_value, cells), strict=True)))
    except csv.Error as error:
        where = f"line {lines.line_num}"
        raise DocumentError(
            f"{path}: {where}: expected CSV: {error}; it may be cut short"
        ) from None
    if not rows:
        raise DocumentError(f"{path}: expected at least one row below the head, but there is none")
    return kind, checked(path, kind, rows)


def kind_of(path: Path, names: Iterable[str]) -> str:
    """The kind of rows with these fields."""
    given = set(names)
    for name, kind in KINDS.items():
        if kind.telling and kind.telling <= given:
            return name
    listed = ", ".join(kind.command.removeprefix("sumpter bench ") for kind in KINDS.values())
    shown = ", ".join(sorted(given)[:4])
    raise DocumentError(
        f"{path}: expected the fields of `sumpter bench` {listed}, got {shown or 'none'}"
    )


def checked(path: Path, kind: str, rows: list[Row]) -> list[Row]:
    """The same rows. Raises DocumentError for the first field that is not what it has to be."""
    asked = KINDS[kind]
    for number, row in enumerate(rows, 1):
        place = f"{path}: row {number}"
        for name, check in asked.fields.items():
            if name not in row and name not in asked.may_lack:
                raise DocumentError(f"{place}: {name}: expected, but there is no such field")
            _check(f"{place}: {name}", row.get(name), check)
        _check_inner(place, kind, row)
    return rows


def _check_inner(place: str, kind: str, row: Row) -> None:
    name, fields = _INNER.get(kind, ("", {}))
    values = row.get(name) or {}
    entries = values.items() if isinstance(values, dict) else enumerate(values)
    for key, entry in entries:
        for field, check in fields.items():
            where = f"{place}: {name}[{key!r}].{field}"
            if field not in entry:
                raise DocumentError(f"{where}: expected, but there is no such field")
            _check(where, entry[field], check)


def _check(place: str, value: object, check: Check) -> None:
    expected, fits = check
    if not fits(value):
        raise refuse(place, expected, value)


def _value(text: str) -> Any:
    """What a cell stands for: nothing, a truth, a number, a list or object, or a text."""
    if text in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if text[0] in "{[":
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text
