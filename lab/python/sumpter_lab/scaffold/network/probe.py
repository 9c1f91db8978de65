"""Runs on each machine to measure its link: plain sockets, no summation.

One exchange is a TCP connection between two machines over which both send as fast as the link
takes it. The receiver counts payload between the end of a warm-up and a deadline.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass

# As large as Sumpter's chunks, so that the cost of system calls is alike.
BLOCK_BYTES = 256 * 1024
# The senders go on a little longer, so that no receiver's window ends in silence.
TAIL_S = 0.3
CONNECT_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Exchanged:
    """What one machine saw of one exchange."""

    received_mbit: float  # payload per second within the window
    moved_bytes: float  # the mean of payload sent and received, warm-up and tail included
    cpu_s: float


class Probe:
    """Exchanges data with one other machine at a time."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._listener = socket.create_server((address, 0))
        self._listener.settimeout(CONNECT_TIMEOUT_S)

    def port(self) -> int:
        """Where the other machines reach this one."""
        return self._listener.getsockname()[1]

    def exchange(self, to: tuple[str, int] | None, warmup_s: float, window_s: float) -> Exchanged:
        """Connects to the machine at `to`, or accepts its connection, and exchanges data."""
        cpu_s = time.process_time()
        if to is None:
            link, _ = self._listener.accept()
        else:
            link = socket.create_connection(to, CONNECT_TIMEOUT_S, (self._address, 0))
        with link:
            link.settimeout(CONNECT_TIMEOUT_S)
            start = time.monotonic()
            sent: list[int] = []
            until = start + warmup_s + window_s + TAIL_S
            sender = threading.Thread(target=_send, args=(link, until, sent))
            sender.start()
            inside, received = _receive(link, start + warmup_s, start + warmup_s + window_s)
            sender.join()
        moved = (sum(sent) + received) / 2
        return Exchanged(inside * 8e-6 / window_s, moved, time.process_time() - cpu_s)

    def close(self) -> None:
        self._listener.close()


def _send(link: socket.socket, until: float, sent: list[int]) -> None:
    block = bytes(BLOCK_BYTES)
    with contextlib.suppress(OSError):
        while time.monotonic() < until:
            sent.append(link.send(block))
        link.shutdown(socket.SHUT_WR)


def _receive(link: socket.socket, since: float, until: float) -> tuple[int, int]:
    """Payload bytes within the window, and in all until the other side has ended."""
    buffer = bytearray(BLOCK_BYTES)
    inside = total = 0
    while count := link.recv_into(buffer):
        total += count
        if since <= time.monotonic() < until:
            inside += count
    return inside, total
