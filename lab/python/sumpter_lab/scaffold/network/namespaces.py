"""Network namespaces by name: entering one, and finding those that earlier runs left behind.

A run names its namespaces after its process: id and start time, so that a number which the
system has given to another process since is not taken for a living run.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sumpter._failure import Failure

FOLDER = Path("/run/netns")
PREFIX = "smpe"
# Prefix, process id, start time, machine.
_NAME = re.compile(PREFIX + r"-\d+-\d+-[a-z]+\d*")
_CLONE_NEWNET = 0x40000000


def run_prefix(pid: int | None = None) -> str:
    """What the names of a run's namespaces begin with; by default this process' run."""
    pid = os.getpid() if pid is None else pid
    return f"{PREFIX}-{pid}-{_start_ticks(pid)}-"


@contextlib.contextmanager
def of_this_run() -> Iterator[str]:
    """What the names of the block's namespaces must begin with: all are removed when it is left.

    What runs that were killed have left behind is removed first, with a line that says so.
    """
    prefix = run_prefix()
    if left := remove_leftovers():
        print(f"removed {left} network namespace(s) of a run that was killed", file=sys.stderr)
    try:
        try:
            yield prefix
        finally:
            remove(of_run(prefix))
    finally:
        # Again, in case that a signal's exception cut the first attempt short.
        remove(of_run(prefix))


def enter(name: str) -> None:
    """Moves the calling thread into a namespace; sockets and threads made before stay outside."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(FOLDER / name) as file:
        # os.setns exists from Python 3.12 on.
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), name)


def read(name: str, file: str) -> str:
    """The text of a file of /proc/thread-self, such as net/dev, as it is in a namespace."""

    def inside() -> str:
        enter(name)
        return Path("/proc/thread-self", file).read_text()

    # A thread cannot leave again.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(inside).result()


def of_run(prefix: str, folder: Path = FOLDER) -> list[str]:
    """The namespaces that exist under a run's prefix."""
    return sorted(name for name in _names(folder) if name.startswith(prefix))


def leftovers(folder: Path = FOLDER) -> list[str]:
    """Namespaces of emulated clusters whose process is gone."""
    return sorted(name for name in _names(folder) if _run_is_dead(name))


def remove_leftovers(folder: Path = FOLDER) -> int:
    """Removes the leftovers; how many there were. Two runs may do so at once."""
    found = leftovers(folder)
    try:
        remove(found)
    except Failure:
        if set(found) & set(leftovers(folder)):
            raise
    return len(found)


def living_runs(folder: Path = FOLDER) -> set[str]:
    """Prefixes of the clusters that other living processes emulate now."""
    own = run_prefix()
    ours = (name for name in _names(folder) if not _run_is_dead(name))
    return {"-".join(name.split("-")[:3]) + "-" for name in ours} - {own}


def remove(names: Sequence[str]) -> None:
    """Removes namespaces, and with them their interfaces; tries all before it complains."""
    failures = [message for name in names if (message := _remove(name))]
    if failures:
        raise Failure(f"cannot remove network namespaces: {'; '.join(failures)}")


def ip(*arguments: str, namespace: str | None = None) -> None:
    """Runs `ip`, inside a namespace if one is named."""
    call("ip", *(("-n", namespace) if namespace else ()), *arguments)


def tc(*arguments: str, namespace: str) -> None:
    """Runs `tc` inside a namespace."""
    call("tc", "-n", namespace, *arguments)


def call(*command: str) -> None:
    """Runs a tool; its complaint becomes a Failure."""
    # In a session of its own: Ctrl-C must reach this process alone, which then cleans up.
    done = subprocess.run(
        command, capture_output=True, text=True, start_new_session=True, check=False
    )
    if done.returncode:
        complaint = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise Failure(f"`{' '.join(command)}` failed: {complaint}")


def check_tools(platform: str = sys.platform) -> None:
    """Raises unless this is Linux, as root, with the tools that make namespaces."""
    if platform != "linux":
        raise Failure(f"emulating a network needs Linux, not {platform}")
    if os.geteuid() != 0:
        raise Failure("emulating a network needs root: namespaces and shaped links are made")
    missing = missing_tools()
    if missing:
        raise Failure(f"{' and '.join(missing)} not found: install the package iproute2")


def missing_tools() -> list[str]:
    """Which of the tools that build a cluster are not installed."""
    return [tool for tool in ("ip", "tc") if shutil.which(tool) is None]


def _remove(name: str) -> str:
    try:
        call("ip", "netns", "del", name)
    except Failure as failure:
        return str(failure)
    return ""


def _names(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return [path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)]


def _run_is_dead(name: str) -> bool:
    _, pid, start, _ = name.split("-")
    return _start_ticks(int(pid)) != start


def _start_ticks(pid: int) -> str:
    """When a process started, in clock ticks since boot; empty if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The name before it is in parentheses and may contain anything.
    return text.rpartition(")")[2].split()[19]
