"""Profiles as JSON files; `docs/user/profiles.md` describes the format.

A file of a newer version is refused rather than half understood, and so is a field that version 1
does not have: it would be a spelling mistake or another tool's file.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sumpter import _json
from sumpter._errors import ProfileError
from sumpter.profiles import checks
from sumpter.profiles.model import Layer, Profile, Tensor

FORMAT = "sumpter-profile"
VERSION = 1


def load(path: str | Path) -> Profile:
    """Reads a profile. Raises ProfileError with the file, the field and what was expected."""
    with checks.within(path, ": "):
        return from_json(_parse(read_text(path)))


def read_text(path: str | Path) -> str:
    """The text of a file."""
    try:
        return Path(path).read_text()
    except OSError as error:
        raise ProfileError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ProfileError("expected a text file, but this one is not UTF-8") from None


def save(profile: Profile, path: str | Path) -> None:
    """Writes a profile as JSON of the current version."""
    try:
        Path(path).write_text(json.dumps(to_json(profile), indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise ProfileError(f"{path}: cannot be written: {error.strerror}") from None


def to_json(profile: Profile) -> dict[str, Any]:
    """The document of a profile."""
    return {"format": FORMAT, "version": VERSION, **dataclasses.asdict(profile)}


def from_json(document: object) -> Profile:
    """The profile in a document."""
    if not isinstance(document, dict) or "format" not in document:
        raise ProfileError(f"format: expected '{FORMAT}', but there is no such field")
    if document["format"] != FORMAT:
        raise checks.refuse("format", f"'{FORMAT}'", document["format"])
    if "version" not in document:
        raise ProfileError("version: expected a number, but there is no such field")
    checks.count("version", document["version"])
    if document["version"] > VERSION:
        raise ProfileError(
            f"version: expected at most {VERSION}, got {document['version']}: "
            "a newer Sumpter wrote this file; update this one"
        )
    content = {name: document[name] for name in document if name not in ("format", "version")}
    _check_fields(Profile, content)
    content["layers"] = _entries("layers", content["layers"], lambda entry: _make(Layer, entry))
    content["tensors"] = _entries("tensors", content["tensors"], lambda entry: _make(Tensor, entry))
    if content["add"] is not None:
        content["add"] = _entries("add", content["add"], _pair)
    return Profile(**content)


def _parse(content: str) -> object:
    try:
        return _json.parse(content, "a profile")
    except ValueError as error:
        raise ProfileError(str(error)) from None


def _make(kind: type[Any], entry: object) -> Any:
    if not isinstance(entry, dict):
        raise checks.refuse(kind.__name__.lower(), "an object", entry)
    _check_fields(kind, entry)
    return kind(**entry)


def _check_fields(kind: type[Any], given: dict[str, Any]) -> None:
    names = [field.name for field in dataclasses.fields(kind)]
    for name in names:
        if name not in given:
            raise ProfileError(f"{name}: expected, but there is no such field")
    for name in given:
        if name not in names:
            raise ProfileError(f"{name}: version {VERSION} has no such field")


def _entries(field: str, value: object, make: Callable[[object], Any]) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise checks.refuse(field, "a list", value)
    made = []
    for index, entry in enumerate(value):
        with checks.within(f"{field}[{index}]"):
            made.append(make(entry))
    return tuple(made)


def _pair(entry: object) -> tuple[Any, ...]:
    if not isinstance(entry, list):
        raise checks.refuse("point", "[bytes, seconds]", entry)
    return tuple(entry)
