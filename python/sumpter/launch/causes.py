"""Why a job failed: one process's failure out of those that follow from it, in a line.

A pure function of exit codes and of what the processes wrote to standard error.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sumpter._words import listed
from sumpter.launch.output import Label

# Codes above this one are of processes that a signal has killed.
KILLED = 128

# What is kept of a process's standard error: more than a traceback has.
KEPT_LINES = 400
KEPT_COLUMNS = 500

_TRACEBACK = re.compile(r"Traceback \(most recent call last\):$")
# torch puts the rank before each line of a traceback.
_PREFIX = re.compile(r"^\[rank\d+\]: ?")
# Errors of ranks that another's failure reached.
_CONSEQUENCES = ("PeerLostError", "ClosedError", "HorovodInternalError")


@dataclass(frozen=True)
class Failed:
    """A process that ended with an error by itself."""

    label: Label
    code: int
    error: str  # its last error in a line, if it wrote one

    @property
    def who(self) -> str:
        return f"rank {self.label.index}" if self.label.role == "worker" else str(self.label)

    @property
    def is_consequence(self) -> bool:
        """Whether it failed because a peer had."""
        kind = self.error.partition(":")[0].rpartition(".")[2]
        return self.code <= KILLED and kind in _CONSEQUENCES

    def __str__(self) -> str:
        if self.code == KILLED + signal.SIGKILL:
            return "killed by SIGKILL, perhaps for want of memory (see dmesg)"
        if self.code > KILLED:
            return f"{describe(self.code)}{f': {self.error}' if self.error else ''}"
        return self.error or f"{describe(self.code)} and wrote no error"


@dataclass(frozen=True)
class End:
    """How a job ended."""

    code: int
    failures: Sequence[Failed] = ()  # in the order in which they came
    interrupted: bool = False

    @property
    def root_cause(self) -> str:
        """The failure that the others follow from, and who else failed."""
        first = next((one for one in self.failures if not one.is_consequence), self.failures[0])
        others = [one.label.index for one in self.failures if one.label.role == "worker"]
        others = sorted(set(others) - {first.label.index if first.label.role == "worker" else -1})
        text = f"Root cause: {first.who}: {first}"
        if others:
            text += f" (failed after it: {listed('rank', others)})"
        return text


def last_error(lines: Iterable[str]) -> str:
    """The last exception of a process, as its traceback names it; else its last line."""
    plain = [_PREFIX.sub("", line) for line in lines]
    starts = [index for index, line in enumerate(plain) if _TRACEBACK.match(line)]
    after = plain[starts[-1] + 1 :] if starts else []
    # The frames between are indented.
    named = next((line for line in after if line and not line[0].isspace()), "")
    last = next((line for line in reversed(plain) if line.strip()), "")
    return (named or last).strip()


def describe(code: int) -> str:
    """An exit code in words."""
    if code > KILLED:
        try:
            return f"was killed by {signal.Signals(code - KILLED).name}"
        except ValueError:
            return f"ended with code {code}"
    return f"ended with code {code}"
