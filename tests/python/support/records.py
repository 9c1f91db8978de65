"""Records of measurements in lab/records: their descriptions, the schema of these, the index.

    python tests/python/support/records.py > lab/records/index.md

prints the index, which `make docs` writes and a test compares.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from os.path import relpath
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
RECORDS = ROOT / "lab" / "records"
DESCRIPTION = "record.toml"
SCHEMA = RECORDS / "schema.json"
INDEX = RECORDS / "index.md"

# EXPERIMENT/FILE at the end of a path or of a pattern, as pages and tests write it.
_REFERENCE = re.compile(r"([\w*-]+)/([\w.*?-]+\.(?:csv|json|txt))\b")

_HEAD = """\
# Records of measurements

The raw results behind the figures in [docs](../../docs), a folder for each experiment. A file is
named after the date of its run and the variant. The `record.toml` of a folder names the machine,
the commit, the date and the command of each file, and the pages and tests that use it;
[schema.json](schema.json) describes its fields. What is not known is `not recorded`. A run that
no page and no test uses is deleted. `make docs` makes this page from the descriptions.

| experiment | subject and purpose | dates | files | used by |
|---|---|---|---:|---|
"""

_TYPES: dict[str, type] = {"object": dict, "array": list, "string": str}


@dataclass(frozen=True)
class Experiment:
    """A folder of records and its description, which may lack anything."""

    name: str
    description: dict[str, Any]

    @property
    def folder(self) -> Path:
        return RECORDS / self.name

    @property
    def runs(self) -> list[dict[str, Any]]:
        return self.description["runs"]

    @property
    def files(self) -> list[str]:
        """The names of all files that are described, as often as they are."""
        return [name for run in self.runs for name in run["files"]]


def experiments() -> list[Experiment]:
    """All of them, in the order of their names."""
    files = sorted(RECORDS.glob(f"*/{DESCRIPTION}"))
    return [Experiment(file.parent.name, tomllib.loads(file.read_text())) for file in files]


def problems(value: Any, schema: dict[str, Any], at: str = "record") -> Iterator[str]:
    """What in a value is not as a schema wants it: the keywords of JSON Schema that ours uses."""
    known = {"$schema", "title", "description", *_KEYWORDS, "additionalProperties"}
    assert set(schema) <= known, f"{at}: keywords that are not checked: {set(schema) - known}"
    if "type" in schema and not isinstance(value, _TYPES[schema["type"]]):
        yield f"{at}: expected {schema['type']}, found {value!r}"
        return
    for keyword, check in _KEYWORDS.items():
        if keyword in schema and not check(value, schema[keyword]):
            yield f"{at}: {keyword} {schema[keyword]!r} does not hold of {value!r}"
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from problems(item, schema.get("items", {}), f"{at}[{number}]")
    if isinstance(value, dict):
        names, others = schema.get("propertyNames", {}), schema.get("additionalProperties", {})
        for name, item in value.items():
            within = schema.get("properties", {}).get(name, others)
            yield from problems(name, names, f"{at}: the name {name!r}")
            if within is False:
                yield f"{at}: unknown field {name!r}"
            else:
                yield from problems(item, within, f"{at}.{name}")


_KEYWORDS = {
    "type": lambda value, wanted: True,
    "items": lambda value, wanted: True,
    "properties": lambda value, wanted: True,
    "propertyNames": lambda value, wanted: True,
    "required": lambda value, wanted: set(wanted) <= set(value),
    "enum": lambda value, wanted: value in wanted,
    "pattern": lambda value, wanted: re.search(wanted, value) is not None,
    "minLength": lambda value, wanted: len(value) >= wanted,
    "minItems": lambda value, wanted: len(value) >= wanted,
    "minProperties": lambda value, wanted: len(value) >= wanted,
}


def references(text: str) -> list[tuple[str, str]]:
    """Experiment and file, as names or patterns, of all records that a page or a test names."""
    return _REFERENCE.findall(text)


def names(text: str, experiment: str, file: str) -> bool:
    """Whether a page or a test names a file of an experiment, itself or by a pattern."""
    return any(
        fnmatch(experiment, folder) and fnmatch(file, pattern)
        for folder, pattern in references(text)
    )


def index() -> str:
    """The page that lists all experiments."""
    return _HEAD + "".join(map(_row, experiments()))


def _row(one: Experiment) -> str:
    dates = sorted({run["date"] for run in one.runs})
    users = sorted({user for run in one.runs for user in run["used_by"]})
    links = ", ".join(f"[{Path(user).name}]({relpath(ROOT / user, RECORDS)})" for user in users)
    name = f"[{one.name}]({one.name}/{DESCRIPTION})"
    subject = f"{one.description['title']}. {one.description['purpose']}"
    return f"| {name} | {subject} | {', '.join(dates)} | {len(one.files)} | {links} |\n"


def measured_on(file: Path) -> Iterator[dict[str, Any]]:
    """The fields of each row of a JSON record that say when, where and of what it is."""
    stack: list[Any] = [json.loads(file.read_text())]
    while stack:
        value = stack.pop()
        if isinstance(value, dict) and {"date", "commit", "cpu"} <= set(value):
            yield value
        elif isinstance(value, dict | list):
            stack += value.values() if isinstance(value, dict) else value


if __name__ == "__main__":
    print(index(), end="")
