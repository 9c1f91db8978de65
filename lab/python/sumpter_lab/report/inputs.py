"""What a file is, by its content and never by its name, and its content checked.

A profile (JSON, or a log of the NetAI scripts), a trace, or what a bench has written. Anything
else is refused in one sentence that says what was expected.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sumpter_lab.scaffold.results import schema
from sumpter_lab.scaffold.results.document import (
    REPLAY,
    REPRODUCE,
    TUNE,
    DocumentError,
    parse,
    refuse,
)

if TYPE_CHECKING:
    from sumpter.profiles import Profile

KNOWN = "a profile, a trace, or what `sumpter bench` or `reproduce` wrote"
_DOCUMENTS = {"replay": REPLAY, "reproduce": REPRODUCE, "tune": TUNE}
# Perfetto's files begin with a packet: field 1, of known length.
_PACKET = b"\x0a"
# Text has none of these; a trace has them from its first packet on.
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class Options:
    """What the files do not say."""

    batch_time_s: float | None = None  # an iteration of a NetAI log
    add_estimate: Path | None = None  # a log of additions, instead of the profile's


@dataclass(frozen=True)
class Input:
    """One file: its name as shown, what it is, and its content.

    `kind` is "profile", "trace" or a kind of `schema.KINDS`.
    """

    name: str
    kind: str
    content: Any  # a Profile, a Trace, or a list of rows


def read(path: Path, asked: Options) -> Input:
    """Recognises and checks one file. Raises DocumentError, ProfileError or TraceError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read: {error.strerror}") from None
    if not content.strip():
        raise DocumentError(f"{path}: expected {KNOWN}, but the file is empty")
    if _CONTROL.search(content[:_HEAD_BYTES]):
        return _trace(path, content)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DocumentError(f"{path}: expected {KNOWN}, but this is no text in UTF-8") from None
    if text.lstrip()[0] in "{[":
        return _json(path, text, asked)
    if schema.has_head(text):
        return Input(path.name, *schema.from_csv(path, text))
    if _is_netai(text):
        return Input(path.name, "profile", _netai(path, asked))
    raise DocumentError(f"{path}: expected {KNOWN}, but it begins with {_beginning(text)}")


def _trace(path: Path, content: bytes) -> Input:
    if not content.startswith(_PACKET):
        raise DocumentError(f"{path}: expected {KNOWN}, but this is another program's binary file")
    try:
        from sumpter.trace import read as read_trace
    except ImportError:
        raise DocumentError(f"{path}: this Sumpter cannot read traces: update it") from None
    trace = read_trace(path)
    if not trace.slices:
        raise DocumentError(f"{path}: slices: expected at least one, but the trace is empty")
    return Input(path.name, "trace", trace)


def _json(path: Path, text: str, asked: Options) -> Input:
    document = parse(path, text)
    if isinstance(document, dict) and "format" in document:
        return _formatted(path, document, asked)
    rows = document if isinstance(document, list) else [document]
    if not rows:
        raise DocumentError(f"{path}: expected at least one row, but the list is empty")
    if not all(isinstance(row, dict) for row in rows):
        raise DocumentError(f"{path}: expected {KNOWN}, but this JSON holds no objects")
    for kind, names in (("tenants", {"jobs", "jain"}), ("chaos", {"injected", "faults"})):
        if names <= rows[0].keys():
            return Input(path.name, kind, schema.checked(path, kind, rows))
    kind = schema.kind_of(path, rows[0])
    return Input(path.name, kind, schema.checked(path, kind, rows))


def _formatted(path: Path, document: dict[str, Any], asked: Options) -> Input:
    """A document that says what it is."""
    from sumpter.profiles.file import FORMAT
    from sumpter_lab import profiles

    for kind, written in _DOCUMENTS.items():
        if document["format"] == written.format:
            rows = written.rows_of(path, document)
            return Input(path.name, kind, schema.checked(path, kind, rows))
    if document["format"] != FORMAT:
        known = [FORMAT, *(written.format for written in _DOCUMENTS.values())]
        expected = " or ".join(repr(format) for format in known)
        raise refuse(f"{path}: format", expected, document["format"])
    return Input(path.name, "profile", _with_additions(profiles.load(path), asked))


def _is_netai(text: str) -> bool:
    """A line of comment, two whole numbers, then pairs of numbers."""
    lines = text.splitlines()[:4]
    return len(lines) == 4 and lines[1].strip().isdigit() and lines[2].strip().isdigit()


def _netai(path: Path, asked: Options) -> Profile:
    from sumpter_lab import profiles

    if asked.batch_time_s is None:
        raise DocumentError(f"{path}: a NetAI log needs --batch-time-s T: it does not say it")
    profile = profiles.load(path, "netai", iteration_s=asked.batch_time_s)
    return _with_additions(profile, asked)


def _with_additions(profile: Profile, asked: Options) -> Profile:
    from dataclasses import replace

    from sumpter_lab import profiles

    if asked.add_estimate is None:
        return profile
    return replace(profile, add=profiles.additions(asked.add_estimate))


def _beginning(text: str) -> str:
    line = text.strip().splitlines()[0]
    return repr(line if len(line) <= 40 else f"{line[:40]}...")
