"""Where the labelled lines of all processes go: the terminal or plain streams, and log files.

On a terminal the labels are coloured and the lines scroll above the live line; into a file or a
pipe the bytes pass unchanged behind a plain label.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, TextIO

from rich.console import Console
from rich.text import Text

from sumpter._failure import Failure

_WORKER_STYLES = ("cyan", "green", "magenta", "yellow", "blue")
_SERVER_STYLE = "bright_black"


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


class Output:
    """Writes whole lines, each behind the label of its process."""

    def __init__(self, console: Console, log_dir: Path | None) -> None:
        self._console = console
        self._log_dir = log_dir
        self._logs: dict[Label, BinaryIO] = {}

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
            log.close()

    def lines(self, label: Label, is_error: bool, lines: list[bytes]) -> None:
        """Shows lines of one process; they stay together."""
        if not lines:
            return
        stream = sys.stderr if is_error else sys.stdout
        # One terminal for both streams: rich keeps the live line below what scrolls.
        if self._console.is_terminal and stream.isatty():
            self._console.print(self._coloured(label, lines), soft_wrap=True)
        else:
            prefix = f"[{label}] ".encode()
            try:
                stream.flush()
                stream.buffer.write(b"".join(prefix + line + b"\n" for line in lines))
                stream.buffer.flush()
            except BrokenPipeError:
                _discard(stream)

    def say(self, message: str) -> None:
        """A line of the launcher itself, on standard error."""
        if self._console.is_terminal and sys.stderr.isatty():
            self._console.print(Text.assemble(("[sumpter] ", "bold"), message), soft_wrap=True)
        else:
            print(f"[sumpter] {message}", file=sys.stderr, flush=True)

    def log(self, label: Label, data: bytes) -> None:
        """Keeps the raw bytes of a process, where the user asked for logs."""
        if self._log_dir is None:
            return
        if label not in self._logs:
            path = self._log_dir / f"{label.role}-{label.index}.log"
            self._logs[label] = path.open("wb", buffering=0)
        self._logs[label].write(data)

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
    """The reader of `stream` is gone: further output is dropped, and the job goes on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
