"""Runs on each machine to move a round's bytes with plain sockets: what the network itself takes.

Every pair of machines shares one connection and sends over it, both ways at once, as much as the
plan has them exchange. Nothing waits for anything: no sum is made and no result depends on a
contribution, so no way of summing that follows the same plan can be faster than this but by luck.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sumpter_lab.scaffold.network.probe import BLOCK_BYTES, CONNECT_TIMEOUT_S

_INDEX = struct.Struct("!I")


@dataclass
class _Link:
    """One connection, and what is left of a round."""

    socket: socket.socket
    to_send: int = 0
    to_receive: int = 0


class Mesh:
    """Exchanges data with many other machines at once."""

    def __init__(self, index: int, address: str) -> None:
        self._index = index
        self._address = address
        self._listener = socket.create_server((address, 0))
        self._listener.settimeout(CONNECT_TIMEOUT_S)
        self._links: dict[int, _Link] = {}

    def port(self) -> int:
        """Where the other machines reach this one."""
        return self._listener.getsockname()[1]

    def join(self, to: dict[int, tuple[str, int]], callers: int) -> None:
        """Connects to machines by index, then accepts the connections of `callers` others."""
        for index, address in to.items():
            link = socket.create_connection(address, CONNECT_TIMEOUT_S, (self._address, 0))
            link.sendall(_INDEX.pack(self._index))
            self._links[index] = _Link(link)
        for _ in range(callers):
            link, _ = self._listener.accept()
            link.settimeout(CONNECT_TIMEOUT_S)
            self._links[_INDEX.unpack(link.recv(_INDEX.size, socket.MSG_WAITALL))[0]] = _Link(link)
        for known in self._links.values():
            known.socket.setblocking(False)

    def run(self, volumes: dict[int, int]) -> tuple[float, float]:
        """Sends to each machine so many bytes and receives as many; seconds and CPU seconds."""
        cpu_s, started = time.process_time(), time.monotonic()
        block, buffer = memoryview(bytes(BLOCK_BYTES)), bytearray(BLOCK_BYTES)
        with selectors.DefaultSelector() as selector:
            for index, volume in volumes.items():
                link = self._links[index]
                link.to_send = link.to_receive = volume
                _watch(selector, link)
            while selector.get_map():
                for key, ready in selector.select():
                    link = key.data
                    if ready & selectors.EVENT_WRITE:
                        link.to_send -= link.socket.send(block[: link.to_send])
                    if ready & selectors.EVENT_READ:
                        received = link.socket.recv_into(buffer, min(BLOCK_BYTES, link.to_receive))
                        if not received:
                            raise ConnectionError("another machine of the mesh ended early")
                        link.to_receive -= received
                    _watch(selector, link)
        return time.monotonic() - started, time.process_time() - cpu_s

    def close(self) -> None:
        """Ends all connections."""
        for link in self._links.values():
            link.socket.close()
        self._listener.close()


def volumes(shares: Sequence[float], workers: int, size_bytes: int) -> list[dict[int, int]]:
    """Bytes that each machine sends to, and receives from, each other one.

    `shares` are the parts of `size_bytes` that each machine sums; the first `workers` machines
    are the workers. Each contributes every other machine's share to it and receives its sum.
    """
    count = len(shares)
    moved: list[dict[int, int]] = [{} for _ in range(count)]
    for one in range(count):
        for other in range(one + 1, count):
            # A CPU machine has nothing to contribute.
            share = shares[other] * (one < workers) + shares[one] * (other < workers)
            volume = round(share * size_bytes)
            if volume:
                moved[one][other] = moved[other][one] = volume
    return moved


def _watch(selector: selectors.BaseSelector, link: _Link) -> None:
    """Waits for what is left of a link, and no longer for what is not."""
    events = selectors.EVENT_WRITE if link.to_send else 0
    events |= selectors.EVENT_READ if link.to_receive else 0
    known = selector.get_map().get(link.socket)
    if known is None and events:
        selector.register(link.socket, events, link)
    elif known is not None and not events:
        selector.unregister(link.socket)
    elif known is not None and known.events != events:
        selector.modify(link.socket, events, link)
