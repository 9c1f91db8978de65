"""One direction of a wide-area link: a rate, a delay, and a queue of limited bytes in front of it.

Pure: packets and moments come in as arguments, so that a test needs no network and no time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """What a link is like in each direction."""

    rate_mbit: float
    delay_s: float  # one way
    queue_bytes: int  # of packets that wait for those before them; one more is dropped

    @property
    def bytes_per_s(self) -> float:
        return self.rate_mbit * 1e6 / 8


class Path:
    """The packets on their way in one direction."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        # When the last packet has left the queue, and so the next one may.
        self._free_s = 0.0
        self._under_way: deque[tuple[float, bytes]] = deque()
        self.carried_bytes = 0
        self.dropped = 0

    def push(self, packet: bytes, now_s: float) -> bool:
        """Takes a packet at a moment, not before the last one; False if it was dropped."""
        shape = self._shape
        waiting_bytes = max(0.0, self._free_s - now_s) * shape.bytes_per_s
        if waiting_bytes + len(packet) > shape.queue_bytes:
            self.dropped += 1
            return False
        self._free_s = max(self._free_s, now_s) + len(packet) / shape.bytes_per_s
        self._under_way.append((self._free_s + shape.delay_s, packet))
        self.carried_bytes += len(packet)
        return True

    def arrived(self, now_s: float) -> list[bytes]:
        """The packets that have arrived, in order."""
        packets = []
        while self._under_way and self._under_way[0][0] <= now_s:
            packets.append(self._under_way.popleft()[1])
        return packets

    @property
    def next_s(self) -> float | None:
        """When the next packet arrives."""
        return self._under_way[0][0] if self._under_way else None
