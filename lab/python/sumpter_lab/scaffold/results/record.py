"""Where and what was measured, for rows that are kept."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path

import sumpter
from sumpter import _native


def environment() -> dict[str, str | int]:
    """The machine, the software and the date."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "version": _native.__version__,
        "commit": _commit(),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _commit() -> str:
    """The commit of the source tree that the package lies in; empty for an installed one."""
    folder = Path(sumpter.__file__).parent
    command = ("git", "-C", str(folder), "describe", "--always", "--dirty")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def cpu_model() -> str:
    """The processor's name; its architecture where the system does not say."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
