"""A process that is the wide-area link between two network namespaces.

In each namespace it opens a TUN device: the kernel hands it the packets that leave by the device,
and what it writes arrives there. In between each packet waits for its turn and its delay (`Path`).
The devices vanish with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import threading
import time
from collections.abc import Sequence

from sumpter_lab.diloco.path import Path, Shape
from sumpter_lab.scaffold.network import namespaces
from sumpter_lab.scaffold.network.cluster import INTERFACE, MTU_BYTES

TUN_DEVICE = "/dev/net/tun"
# From linux/if_tun.h.
_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x0001 | 0x1000
# A packet that the scheduler delivers late would have more delay than the link that is emulated.
_NICENESS = -10


class Relay:
    """Carries packets between two namespaces from when it is made until it is closed."""

    def __init__(self, sites: Sequence[str], shape: Shape) -> None:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
        self._devices = [_open_tun(site) for site in sites]
        self._paths = [Path(shape) for _ in sites]
        self._ended, self._end = os.pipe()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def counts(self) -> list[tuple[int, int]]:
        """By site, the bytes of packets that it has sent and the packets that were dropped."""
        return [(path.carried_bytes, path.dropped) for path in self._paths]

    def close(self) -> None:
        """Ends the link; its devices vanish."""
        os.close(self._end)
        self._thread.join()
        for device in (*self._devices, self._ended):
            os.close(device)

    def _carry(self) -> None:
        devices, paths = self._devices, self._paths
        while True:
            due = [path.next_s for path in paths if path.next_s is not None]
            wait_s = max(0.0, min(due) - time.monotonic()) if due else None
            ready, _, _ = select.select([*devices, self._ended], [], [], wait_s)
            if self._ended in ready:
                return
            for device, path in zip(devices, paths, strict=True):
                if device in ready:
                    _take(device, path)
            for device, path in zip(reversed(devices), paths, strict=True):
                for packet in path.arrived(time.monotonic()):
                    # A device that is down takes nothing, as a cable that is unplugged.
                    with contextlib.suppress(OSError):
                        os.write(device, packet)


def _take(device: int, path: Path) -> None:
    """All packets that have left by a device."""
    with contextlib.suppress(BlockingIOError):
        while True:
            path.push(os.read(device, 1 << 16), time.monotonic())


def _open_tun(namespace: str) -> int:
    """A new device of layer 3 in a namespace, into which the calling thread moves."""
    namespaces.enter(namespace)
    device = os.open(TUN_DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    request = struct.pack("16sH22x", INTERFACE.encode(), _IFF_TUN_NO_PI)
    fcntl.ioctl(device, _TUNSETIFF, request)
    namespaces.ip("link", "set", INTERFACE, "mtu", str(MTU_BYTES), "up", namespace=namespace)
    return device
