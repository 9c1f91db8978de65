"""Which packets pass: datagrams of a given size that are never cut into fragments.

IP_PMTUDISC_PROBE forbids fragments and ignores what the kernel believes of the route, so that a
datagram of the interface's MTU is sent even where a router on the way drops it. Where the router
says so (ICMP), the socket reports EMSGSIZE; where a firewall filters that, nothing comes back: a
black hole, in which a TCP connection opens and then stalls.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import socket
import struct
import time
from typing import Any

_IP_MTU_DISCOVER = 10
_IPV6_MTU_DISCOVER = 23
_PMTUDISC_PROBE = 3  # IP_ and IPV6_

# Headers of IP and UDP.
_HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}
# The largest IP packet. Loopback's MTU is larger.
LARGEST = 65535
# Every network passes these: what IPv4 and IPv6 ask for.
SMALLEST = {socket.AF_INET: 576, socket.AF_INET6: 1280}

# Tries for a size; a lost datagram alone says nothing.
_TRIES = 3
# How long each waits for its answer: several round trips, and a moment of a busy machine.
_SHORTEST_WAIT_S = 0.25
_ROUND_TRIPS = 8

_HEAD = struct.Struct(">16sI")
_REPLY = struct.Struct(">16sII")


def _mark(token: str, purpose: bytes, number: int) -> bytes:
    text = purpose + number.to_bytes(4)
    return hmac.digest(token.encode(), text, hashlib.sha256)[:16]


def echo(listening: socket.socket, token: str) -> None:
    """Answers datagrams of this run with their sizes, until the socket is closed."""
    while True:
        try:
            data, sender = listening.recvfrom(LARGEST)
        except OSError as failure:
            if failure.errno == errno.ECONNREFUSED:  # of an answer that came too late
                continue
            return
        if len(data) < _HEAD.size:
            continue
        mark, number = _HEAD.unpack_from(data)
        if not hmac.compare_digest(mark, _mark(token, b"sent", number)):
            continue
        reply = _REPLY.pack(_mark(token, b"echo", number), number, len(data))
        try:
            listening.sendto(reply, sender)
        except OSError:
            continue


class _Prober:
    """A socket towards a listener that sends whole packets only."""

    def __init__(self, token: str, target: str, port: int, round_trip_s: float) -> None:
        self.family = socket.AF_INET6 if ":" in target else socket.AF_INET
        self._token = token
        self._wait_s = max(_SHORTEST_WAIT_S, _ROUND_TRIPS * round_trip_s)
        self._number = 0
        # A router has said that a packet is too large for it.
        self.told = False
        self.socket = socket.socket(self.family, socket.SOCK_DGRAM)
        if self.family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
        else:
            self.socket.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
        self.socket.connect((target, port))

    def passes(self, size: int) -> bool:
        """Whether a packet of `size` bytes, headers included, reaches the other end."""
        return any(self._once(size) for _ in range(_TRIES))

    def _once(self, size: int) -> bool:
        self._number += 1
        head = _HEAD.pack(_mark(self._token, b"sent", self._number), self._number)
        payload = head.ljust(size - _HEADERS[self.family], b"\0")
        deadline = time.monotonic() + self._wait_s
        try:
            self.socket.send(payload)
            while (left := deadline - time.monotonic()) > 0:
                self.socket.settimeout(left)
                data = self.socket.recv(LARGEST)
                if len(data) != _REPLY.size:
                    continue
                mark, number, length = _REPLY.unpack(data)
                known = hmac.compare_digest(mark, _mark(self._token, b"echo", number))
                if known and number == self._number:
                    return length == len(payload)
        except TimeoutError:
            return False
        except OSError as failure:
            self.told = self.told or failure.errno == errno.EMSGSIZE
        return False


def probe_size(
    token: str, target: str, port: int, size: int, round_trip_s: float
) -> dict[str, Any]:
    """Whether packets of `size` bytes arrive, else the largest that do.

    `udp` is false where not even small datagrams arrive: then nothing is known of sizes.
    """
    prober = _Prober(token, target, port, round_trip_s)
    with prober.socket:
        size = min(size, LARGEST)
        smallest = min(SMALLEST[prober.family], size)
        if not prober.passes(smallest):
            return {"udp": False, "size": size, "largest": 0, "told": prober.told}
        if prober.passes(size):
            return {"udp": True, "size": size, "largest": size, "told": prober.told}
        good, bad = smallest, size
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if prober.passes(middle) else (good, middle)
        return {"udp": True, "size": size, "largest": good, "told": prober.told}
