"""One archive with what a maintainer asks for first: versions, findings, settings, status, logs.

Secrets are taken out of every file before it is written: the job's token wherever it occurs, and
the values of variables and options whose names say that they are secret.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sumpter import _native
from sumpter._failure import Failure
from sumpter._words import counted
from sumpter.launch.environment import PASSED_NAMES, PASSED_PREFIXES
from sumpter.launch.figures import format_bytes

HIDDEN = "<hidden>"

# Of each log, its end: a job that has run for weeks wrote gigabytes.
LOG_BYTES = 4 << 20
# Of all logs, those that were written last.
LOG_FILES = 64

# Variables that say how the job was launched, beside those that `sumpter run` passes on.
_LAUNCHERS = ("JSM_", "KUBERNETES_", "MASTER_", "OMPI_", "PET_", "PMI", "SLURM_")
_PLACES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "HOSTNAME")

# A name that ends so has a secret as its value. (SUMPTER_TOKEN_FILE names a file.)
_SECRET_WORD = (
    r"(?:token|secret|passw(?:or)?d|passphrase|credentials?"
    r"|(?:access|api|encryption|private|secret|signing)[-_]?key)"
)
_SECRET_NAME = rf"[\w.-]*{_SECRET_WORD}"
# In quotes it may contain spaces; the line may have been cut before they end.
_VALUE = r"""(?:"[^"\n]*"?|'[^'\n]*'?|[^\s'",;&}\])]+)"""
_ASSIGNED = re.compile(
    rf"(?i)(?P<name>\b{_SECRET_NAME}['\"]?\s*[=:]\s*|--(?:[\w-]*-)?{_SECRET_WORD}[= ]\s*)"
    rf"(?!null\b)(?P<value>{_VALUE})"
)
# A scheme and what belongs to it, to the end of the line or of the quotes.
_AUTHORIZATION = re.compile(r"(?i)(?P<name>\bauthorization['\"]?\s*[:=]\s*['\"]?)[^'\"\r\n]+")
# A user's name may stay; alone it may be a token.
_USER_INFO = re.compile(r"(?P<name>\b[a-z][a-z0-9+.-]*://(?:[^/\s:@]*:)?)[^/\s@]+(?=@)")
# Shorter ones are words that occur anywhere.
_LEAST_SECRET = 8

_INTRODUCTION = """\
A report made by `sumpter bug-report` on {date} UTC, Sumpter {version}.

Tokens, passwords and the like were replaced by {hidden}. Host names, addresses, user names and
paths were not: read through the files before you pass them on.

{files}
"""


@dataclass(frozen=True)
class Entry:
    """A file of the archive, and what it holds."""

    name: str
    about: str
    content: bytes


class Redaction:
    """Takes secrets out of texts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {secret for secret in secrets if len(secret) >= _LEAST_SECRET}
        # Longer ones first: one may be a part of another.
        self._known = [secret.encode() for secret in sorted(known, key=len, reverse=True)]

    def clean(self, text: bytes) -> bytes:
        """The text without secrets."""
        for secret in self._known:
            text = text.replace(secret, HIDDEN.encode())
        words = text.decode(errors="replace")
        words = _ASSIGNED.sub(_hide, words)
        words = _AUTHORIZATION.sub(rf"\g<name>{HIDDEN}", words)
        return _USER_INFO.sub(rf"\g<name>{HIDDEN}", words).encode()


def _hide(found: re.Match[str]) -> str:
    """The assignment without its value, in the same quotes, so that JSON stays JSON."""
    quote = found["value"][0] if found["value"][0] in "'\"" else ""
    return f"{found['name']}{quote}{HIDDEN}{quote}"


def known_secrets(environment: Mapping[str, str], token: str | None) -> Iterator[str]:
    """The secrets that this process knows: the token, and the values of variables named so."""
    if token:
        yield token
    for name, text in environment.items():
        if re.fullmatch(rf"(?i){_SECRET_NAME}", name):
            yield text
    file = environment.get("SUMPTER_TOKEN_FILE")
    if file:
        try:
            yield Path(file).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return


def environment_entry(environment: Mapping[str, str]) -> Entry:
    """The variables that decide what a job does; of others not even the names."""
    prefixes = (*PASSED_PREFIXES, *_LAUNCHERS)
    names = sorted(
        name
        for name in environment
        if name in (*PASSED_NAMES, *_PLACES) or name.startswith(prefixes)
    )
    lines = [f"{name}={environment[name]}" for name in names]
    return _text("environment.txt", "variables of launchers and libraries", lines)


def settings_entry(environment: Mapping[str, str]) -> Entry:
    """Settings that are not the default."""
    rows = [row for row in _native.settings() if environment.get(row["env"])]
    lines = [
        f"{row['name']} = {environment[row['env']]}  (default {row['default']})" for row in rows
    ]
    return _text("settings.txt", "settings of this environment", lines or ["all are the default"])


def document(name: str, about: str, content: object) -> Entry:
    """A JSON file."""
    return Entry(name, about, json.dumps(content, indent=2).encode() + b"\n")


def _text(name: str, about: str, lines: Iterable[str]) -> Entry:
    return Entry(name, about, "".join(f"{line}\n" for line in lines).encode())


def log_entries(folder: Path) -> Iterator[Entry]:
    """The ends of the logs in a folder and below it: regular files, the last written ones.

    Raises Failure if the folder cannot be read.
    """
    try:
        found = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
        found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        if not folder.is_dir():
            raise NotADirectoryError(20, "it is no directory")
    except OSError as error:
        raise Failure(f"cannot read the logs in {folder}: {error.strerror}") from error
    for path in found[:LOG_FILES]:
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - LOG_BYTES))
                content = file.read(LOG_BYTES)
        except OSError as error:
            content, size = f"cannot be read: {error.strerror}\n".encode(), 0
        about = f"the last {format_bytes(LOG_BYTES)} of {size} bytes" if size > LOG_BYTES else "log"
        yield Entry(f"logs/{path.relative_to(folder)}", about, content)
    if len(found) > LOG_FILES:
        left = counted(len(found) - LOG_FILES, "older file")
        yield _text("logs-left-out.txt", "what is missing", [f"{left} of {folder}"])


def write(path: Path, entries: Iterable[Entry], redaction: Redaction) -> list[Entry]:
    """Writes the archive, readable by this user only; what is in it, without secrets.

    Raises Failure if it cannot be written, or is there already.
    """
    cleaned = [Entry(entry.name, entry.about, redaction.clean(entry.content)) for entry in entries]
    introduction = _INTRODUCTION.format(
        date=time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        version=_native.__version__,
        hidden=HIDDEN,
        files="\n".join(f"{entry.name}: {entry.about}" for entry in cleaned),
    )
    all_files = [Entry("README.txt", "what this is", introduction.encode()), *cleaned]
    folder = path.name.partition(".")[0]
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for entry in all_files:
                member = tarfile.TarInfo(f"{folder}/{entry.name}")
                member.size, member.mtime, member.mode = len(entry.content), int(time.time()), 0o600
                archive.addfile(member, io.BytesIO(entry.content))
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}") from error
    return all_files
