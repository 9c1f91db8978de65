"""`sumpter run` as a process of its own, with workers that are a line of Python."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys

# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 600

ANNOUNCE = "import os; print('pid', os.getpid(), flush=True)\n"
SLEEP_FOR_EVER = "import signal\nwhile True: signal.pause()\n"
IGNORE_SIGTERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


def run_command(*options: str, worker: str) -> list[str]:
    return [sys.executable, "-m", "sumpter", "run", *options, "--", sys.executable, "-c", worker]


def run(*options: str, worker: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        run_command(*options, worker=worker),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env={**os.environ, **variables},
    )


def announced_pids(text: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"pid (\d+)", text)]


def wait_until_gone(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ready, _, _ = select.select([handle], [], [], HANG_S)
        assert ready, f"process {pid} outlived its launcher"
    finally:
        os.close(handle)


class Launched:
    """A `sumpter run` in the background whose processes have announced themselves."""

    def __init__(self, *options: str, worker: str, expected: int) -> None:
        self.process = subprocess.Popen(
            run_command(*options, worker=worker), stdout=subprocess.PIPE, text=True
        )
        self.pids: list[int] = []
        assert self.process.stdout is not None
        while len(self.pids) < expected:
            line = self.process.stdout.readline()
            assert line, f"ended after {self.pids}"
            self.pids += announced_pids(line)

    def finish(self) -> int:
        self.process.communicate(timeout=HANG_S)
        for pid in self.pids:
            wait_until_gone(pid)
        return self.process.returncode
