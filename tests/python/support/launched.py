"""Jobs of processes that tests start themselves: `sumpter run` with workers that are a line of
Python, and ranks that know of each other only by another launcher's variables."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys

from jobs import PATIENCE, as_variables

# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 600

# What the environment of the tests may have set.
FOREIGN = (
    *("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "SUMPTER_", "NVIDIA_VISIBLE"),
    *("HOROVOD_", "OMPI_", "PMI_", "PMIX_", "MPI_", "SLURM_", "DMLC_", "BYTEPS_"),
)

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


class Started:
    """A process with the variables of a launcher and no others of that kind."""

    def __init__(self, *command: str, **variables: str) -> None:
        own = {name: text for name, text in os.environ.items() if not name.startswith(FOREIGN)}
        self._process = subprocess.Popen(
            [sys.executable, *command],
            env={**own, **as_variables(PATIENCE), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def output(self) -> str:
        out, err = self._process.communicate(timeout=HANG_S)
        assert self._process.returncode == 0, err
        return out

    def refusal(self) -> str:
        _, err = self._process.communicate(timeout=HANG_S)
        assert self._process.returncode != 0
        return err

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
