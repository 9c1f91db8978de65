"""Processes of a chaos run: each with its log, ended with this process whatever ends it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sumpter._variables import LAUNCHERS
from sumpter.launch.environment import job_variables

# Becomes the command, and is killed when the thread that started it is gone. `preexec_fn` could do
# it too, but is not safe beside other threads.
_ENDS_WITH_US = (
    "import ctypes,os,sys;"
    "ctypes.CDLL(None).prctl(1,9);"
    "os.getppid()==int(sys.argv[1]) or os._exit(1);"
    "os.execvp(sys.argv[2],sys.argv[2:])"
)
# How an error looks in a log: the last line of a traceback, a log line, a panic, a command's word.
_ERROR = re.compile(
    r"^(\[rank\d+\]: )?(\w+\.)*\w*(Error|Exception)\b: "
    r"|\bERROR\b|panicked at|^Error: |^error: |^sumpter: "
)

_LAUNCHED = {variable.name for launcher in LAUNCHERS for variable in launcher.variables}


class Process:
    """A process in a session of its own; what it writes goes to a file."""

    def __init__(
        self, name: str, command: Sequence[str], variables: Mapping[str, str], log: Path
    ) -> None:
        self.name, self.log = name, log
        self.started_s = time.monotonic()
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _ENDS_WITH_US, str(os.getpid()), *command],
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._child.poll()

    def signal(self, number: int) -> None:
        """Signals this one process, if it is still there."""
        self._child.send_signal(number)

    def end(self) -> None:
        """Kills it and what it started, and waits."""
        # Its group is its own, and exists as long as it has not been waited for.
        if self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def output(self) -> str:
        return self.log.read_text(errors="replace")


def first_error(text: str) -> str:
    """The first line of a log that reports an error; empty if none does."""
    for line in text.splitlines():
        if _ERROR.search(line):
            return line.strip()
    return ""


def inherited() -> dict[str, str]:
    """What processes of a job of its own inherit: nothing of another job."""
    variables = job_variables(("",))
    return {
        name: text
        for name, text in variables.items()
        if not name.startswith("SUMPTER_") and name not in _LAUNCHED
    }
