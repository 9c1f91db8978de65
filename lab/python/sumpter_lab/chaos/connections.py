"""Resets TCP connections of another process, from outside and without its help.

A process may take descriptors of its own children (pidfd_getfd, Linux 5.6). Disconnecting such a
copy aborts the connection: the peer gets a reset in the middle of whatever was under way, and the
owner finds its socket dead. This needs no root, unlike `ss -K`, and does the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Collection, Iterator

_PIDFD_GETFD = 438  # the same number on all architectures of Linux
_DISCONNECT = struct.pack("=H14x", socket.AF_UNSPEC)

_libc = ctypes.CDLL(None, use_errno=True)


def reset(pid: int, spared_ports: Collection[int], share: float) -> int:
    """Aborts some of a process' TCP connections; how many.

    Those from or to a port of `spared_ports` live on. `share`, from 0 to 1, says how many of the
    others, at least one if there is one; none if the process has ended. Raises OSError where the
    system does not let us.
    """
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(end) for end in _connections(pid)]
        victims = [end for end in found if not spared_ports & _ports(end)]
        count = min(len(victims), 1 + int(share * len(victims)))
        for end in victims[:count]:
            if _libc.connect(end.fileno(), _DISCONNECT, len(_DISCONNECT)) != 0:
                raise _last_error("connect")
        return count


def _connections(pid: int) -> Iterator[socket.socket]:
    """Copies of a process' connected TCP sockets."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        for name in _descriptors(pid):
            if end := _connected(watched, pid, name):
                yield end
    finally:
        os.close(watched)


def _descriptors(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/fd")
    except FileNotFoundError:
        return []


def _connected(watched: int, pid: int, name: str) -> socket.socket | None:
    try:
        if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
            return None
    except FileNotFoundError:
        return None  # closed meanwhile
    copy = _libc.syscall(_PIDFD_GETFD, watched, int(name), 0)
    if copy < 0:
        if ctypes.get_errno() == 9:  # EBADF: closed meanwhile
            return None
        raise _last_error("pidfd_getfd")
    end = socket.socket(fileno=copy)
    try:
        if end.family in (socket.AF_INET, socket.AF_INET6) and end.type == socket.SOCK_STREAM:
            end.getpeername()
            return end
    except OSError:
        pass  # it listens, or is no longer connected
    end.close()
    return None


def _ports(end: socket.socket) -> set[int]:
    return {end.getsockname()[1], end.getpeername()[1]}


def _last_error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
