"""Where the labelled lines of all processes go: the terminal or plain streams, and log files.

On a terminal the labels are coloured and the lines scroll above the live line; into a file or a
pipe the bytes pass unchanged behind a plain label. What cannot be written is lost, and said to be
where that is possible: a full disk or a closed terminal ends no job.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TextIO, cast

from rich.console import Console
from rich.text import Text

from sumpter._failure import Failure

_WORKER_STYLES = ("cyan", "green", "magenta", "yellow", "blue")
_SERVER_STYLE = "bright_black"

# Of a stream whose reader is gone for good; a full disk may have room again.
_CLOSED = (errno.EPIPE, errno.EIO)


@dataclass(frozen=True)
class Label:
    """The role of a process and its number within the role."""

    role: str
    index: int

    def __str__(self) -> str:
        return f"{self.role} {self.index}"

    @property
    def style(self) -> str:
        if self.role == "server":
            return _SERVER_STYLE
        return _WORKER_STYLES[self.index % len(_WORKER_STYLES)]


class Forgiving:
    """A text stream for rich that raises nothing when it is written to.

    Letters that its encoding lacks are escaped; what cannot be written is lost.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        encoding = self._stream.encoding or "utf-8"
        with suppress(OSError):
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def forgiving(stream: TextIO) -> TextIO:
    """The stream as a Forgiving one."""
    return cast(TextIO, Forgiving(stream))


class Output:
    """Writes whole lines, each behind the label of its process."""

    def __init__(self, console: Console, log_dir: Path | None) -> None:
        self._console = console
        self._log_dir = log_dir
        self._logs: dict[Label, BinaryIO | None] = {}
        # What could not be written to, said once.
        self._failed: set[str] = set()

    def __enter__(self) -> Output:
        try:
            if self._log_dir is not None:
                self._log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Failure(f"cannot create {self._log_dir}: {error.strerror}") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for log in self._logs.values():
            if log is not None:
                log.close()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                # The interpreter would try once more, and end with an error of its own.
                _discard(stream)

    def lines(self, label: Label, is_error: bool, lines: list[bytes]) -> None:
        """Shows lines of one process; they stay together."""
        if not lines:
            return
        stream = sys.stderr if is_error else sys.stdout
        try:
            # One terminal for both streams: rich keeps the live line below what scrolls.
            if self._console.is_terminal and stream.isatty():
                self._console.print(self._coloured(label, lines), soft_wrap=True)
            else:
                prefix = f"[{label}] ".encode()
                stream.flush()
                stream.buffer.write(b"".join(prefix + line + b"\n" for line in lines))
                stream.buffer.flush()
        except OSError as error:
            self._lose(stream, error)

    def say(self, message: str) -> None:
        """A line of the launcher itself, on standard error."""
        try:
            if self._console.is_terminal and sys.stderr.isatty():
                self._console.print(Text.assemble(("[sumpter] ", "bold"), message), soft_wrap=True)
            else:
                print(f"[sumpter] {message}", file=sys.stderr, flush=True)
        except OSError as error:
            self._lose(sys.stderr, error)

    def log(self, label: Label, data: bytes) -> None:
        """Keeps the raw bytes of a process, where the user asked for logs."""
        if self._log_dir is None:
            return
        path = self._log_dir / f"{label.role}-{label.index}.log"
        try:
            if label not in self._logs:
                self._logs[label] = None
                self._logs[label] = path.open("wb", buffering=0)
            log = self._logs[label]
            if log is not None:
                log.write(data)
        except OSError as error:
            self._say_lost(str(path), error)

    def _lose(self, stream: TextIO, error: OSError) -> None:
        """What was to be written to `stream` is lost, and the job goes on."""
        if error.errno in _CLOSED:
            _discard(stream)
        elif stream is not sys.stderr:
            self._say_lost("standard output", error)

    def _say_lost(self, what: str, error: OSError) -> None:
        if what not in self._failed:
            self._failed.add(what)
            self.say(f"cannot write {what}: {error.strerror}; what is missing there is lost")

    @staticmethod
    def _coloured(label: Label, lines: list[bytes]) -> Text:
        shown = Text()
        for number, line in enumerate(lines):
            if number:
                shown.append("\n")
            shown.append(f"[{label}] ", style=label.style)
            shown.append_text(Text.from_ansi(line.decode(errors="replace")))
        return shown


def _discard(stream: TextIO) -> None:
    """The reader of `stream` is gone: further output is dropped."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
