"""A coordinator in a process of its own, and what it has used so far."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sumpter._failure import Failure
from sumpter_lab.scaffold.jobs.processes import Process, inherited

_ADDRESS = re.compile(r"coordinating at (\S+)")
_START_S = 30.0
_POLL_S = 0.02
_TICKS = os.sysconf("SC_CLK_TCK")
# User and system time of a process in /proc/PID/stat, counted after its name.
_USER, _SYSTEM = 11, 12


@dataclass(frozen=True)
class Usage:
    """Processor seconds so far, resident bytes now and at most, and when this was read."""

    cpu_s: float
    rss_bytes: int
    peak_bytes: int
    at_s: float


class Coordinator:
    """What the members must know of it, and what it has used."""

    def __init__(self, process: Process, token: str) -> None:
        self.token = token
        self.address = ""
        self._process = process

    def usage(self) -> Usage:
        """Raises Failure if it has ended."""
        folder = Path(f"/proc/{self._process.pid}")
        try:
            fields = (folder / "stat").read_text().rsplit(") ", 1)[1].split()
            status = (folder / "status").read_text()
        except OSError:
            raise self._ended() from None
        sizes = dict(re.findall(r"^(Vm\w+):\s+(\d+) kB$", status, re.MULTILINE))
        if "VmRSS" not in sizes:
            raise self._ended()
        ticks = int(fields[_USER]) + int(fields[_SYSTEM])
        rss, peak = (1024 * int(sizes[name]) for name in ("VmRSS", "VmHWM"))
        return Usage(ticks / _TICKS, rss, peak, time.perf_counter())

    def wait(self) -> None:
        """Until it listens. Raises Failure if it does not."""
        end = time.monotonic() + _START_S
        while not (found := _ADDRESS.search(self._process.output())):
            if self._process.code is not None or time.monotonic() > end:
                raise self._ended()
            time.sleep(_POLL_S)
        self.address = found.group(1)

    def _ended(self) -> Failure:
        said = self._process.output().strip().splitlines()
        return Failure(f"the coordinator ended: {said[-1] if said else 'it said nothing'}")


@contextlib.contextmanager
def running(peer_timeout_s: float) -> Iterator[Coordinator]:
    """A coordinator on loopback that is ended with the block."""
    token = secrets.token_hex(16)
    timeouts = {f"SUMPTER_{name}_TIMEOUT_S": str(peer_timeout_s) for name in ("PEER", "SERVER")}
    variables = {**inherited(), "SUMPTER_TOKEN": token, **timeouts}
    command = [sys.executable, "-m", "sumpter", "coordinator", "--listen", "127.0.0.1:0"]
    with tempfile.TemporaryDirectory() as folder:
        process = Process("coordinator", command, variables, Path(folder) / "log")
        try:
            coordinator = Coordinator(process, token)
            coordinator.wait()
            yield coordinator
        finally:
            process.end()
