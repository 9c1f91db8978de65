"""What NCCL is to GPUs, for the tests' device: a backend of torch.distributed among processes.

Ranks are a ring of sockets. Collectives are kernels of a stream of the backend's own, which is
ordered after the caller's current stream, and before it by wait(). They match by the order in which
ranks launch them: neighbours compare what they do, and a difference is an error of the device, not
a hang. Each rank sends and receives what NCCL's ring algorithms make it; the bytes are counted.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import fake_device
from fake_device import HANG_S, Event, Stream, plain
from sumpter.torch import device_groups

_KERNELS = {
    "SUM": torch.add,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "PRODUCT": torch.mul,
}
_LENGTH = struct.Struct("!Q")

Kernel = Callable[[], None]


class Work:
    """What a call returns: wait() orders the caller's current stream."""

    def __init__(self, done: Event) -> None:
        self._done = done

    def wait(self) -> None:
        fake_device.device().current().wait_event(self._done)


class FakeBackend:
    """One rank of the ring."""

    supports_coalescing = True

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._store = store
        self._stream = Stream()
        self._kernels: list[tuple[str, Kernel]] | None = None
        self._launched = itertools.count()
        self._ended = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        path = os.path.join(tempfile.mkdtemp(), "ring")
        self._listener.bind(path)
        self._listener.listen()
        store.set(f"ring.{rank}", path)
        self._next: socket.socket | None = None
        self._before: socket.socket | None = None

    # What a device group calls.

    def _reduce_scatter_base(self, output: Any, given: Any, options: Any) -> Work | None:
        own, out, op = plain(given), plain(output), options.reduceOp.op.name
        assert own.numel() == self.size * out.numel() and own.dtype == out.dtype
        combine = _KERNELS[op]
        parts = own.split(out.numel())

        def kernel() -> None:
            # In place, what this rank adds last is what it has of its own part.
            partial = parts[self.rank - 1]
            for step in range(2, self.size + 1):
                received = self._shift(partial)
                partial = combine(received, parts[self.rank - step])
            out.copy_(partial)

        return self._launch(f"reduce_scatter {_described(own)} {op}", kernel)

    def _allgather_base(self, output: Any, given: Any) -> Work | None:
        out, own = plain(output), plain(given)
        assert out.numel() == self.size * own.numel() and own.dtype == out.dtype
        parts = out.split(own.numel())

        def kernel() -> None:
            part = own.clone()
            parts[self.rank].copy_(part)
            for step in range(1, self.size):
                part = self._shift(part)
                parts[self.rank - step].copy_(part)

        return self._launch(f"all_gather {_described(out)}", kernel)

    def reduce(self, tensors: list[Any], options: Any) -> Work | None:
        (own,), root, op = map(plain, tensors), options.rootRank, options.reduceOp.op.name
        combine = _KERNELS[op]

        def kernel() -> None:
            # Along the ring, from the rank after the root.
            place = (self.rank - root - 1) % self.size
            partial = own
            if place:
                partial = combine(self._receive(own), own)
            if self.rank == root:
                own.copy_(partial)
            else:
                self._send(partial)

        what = f"reduce {_described(own)} {op} to {root}"
        return self._launch(what, kernel)

    def broadcast(self, tensors: list[Any], options: Any) -> Work | None:
        (own,), root = map(plain, tensors), options.rootRank

        def kernel() -> None:
            if self.rank != root:
                own.copy_(self._receive(own))
            if (self.rank + 1) % self.size != root:
                self._send(own)

        return self._launch(f"broadcast {_described(own)} from {root}", kernel)

    def _start_coalescing(self) -> None:
        assert self._kernels is None
        self._kernels = []

    def _end_coalescing(self) -> Work:
        assert self._kernels is not None
        kernels, self._kernels = self._kernels, None

        def all_of_them() -> None:
            for _, kernel in kernels:
                kernel()

        work = self._launch(" and ".join(what for what, _ in kernels), all_of_them)
        assert work is not None
        return work

    def abort(self) -> None:
        self._ended.set()
        for end in (self._next, self._before, self._listener):
            if end is not None:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def shutdown(self) -> None:
        self._stream.mark().synchronize()
        self.abort()

    # What happens on the device.

    def _launch(self, what: str, kernel: Kernel) -> Work | None:
        if self._ended.is_set():
            raise RuntimeError("the communicator was aborted")
        if self._kernels is not None:
            self._kernels.append((what, kernel))
            return None
        number, device = next(self._launched), fake_device.device()

        def run() -> None:
            try:
                self._connect()
                self._compare(f"#{number} {what}")
                kernel()
            except (EOFError, OSError):
                if fake_device.errors:
                    return
                # As NCCL's kernels, which wait for a device that is gone until they are aborted.
                assert self._ended.wait(HANG_S), "a collective with a dead rank is not aborted"
            except Exception as error:
                fake_device.errors.append(error)
                self.abort()

        self._stream.wait_event(device.mark(device.current()))
        self._stream.enqueue(run)
        return Work(self._stream.mark())

    def _connect(self) -> None:
        if self._next is None:
            following = self._store.get(f"ring.{(self.rank + 1) % self.size}").decode()
            self._next = socket.socket(socket.AF_UNIX)
            self._next.settimeout(HANG_S)
            self._next.connect(following)
            self._before, _ = self._listener.accept()
            self._before.settimeout(HANG_S)

    def _compare(self, what: str) -> None:
        """Raises if the rank before this one is at another collective."""
        other = self._exchange(what.encode()).decode()
        if other != what:
            before = (self.rank - 1) % self.size
            raise RuntimeError(f"device {self.rank} is at {what}, but {before} at {other}")

    def _shift(self, part: torch.Tensor) -> torch.Tensor:
        """Sends a part to the next rank and receives another from the one before."""
        self._count(part, part)
        return _tensor(self._exchange(_bytes(part)), part)

    def _send(self, part: torch.Tensor) -> None:
        self._count(part, None)
        assert self._next is not None
        _send(self._next, _bytes(part))

    def _receive(self, like: torch.Tensor) -> torch.Tensor:
        self._count(None, like)
        assert self._before is not None
        return _tensor(_receive(self._before), like)

    def _exchange(self, content: bytes) -> bytes:
        assert self._next is not None and self._before is not None
        # All ranks send at the same time, more than sockets hold.
        sender = threading.Thread(target=_send, args=(self._next, content))
        sender.start()
        received = _receive(self._before)
        sender.join()
        return received

    def _count(self, sent: torch.Tensor | None, received: torch.Tensor | None) -> None:
        device = fake_device.device()
        for part, direction in ((sent, "up"), (received, "down")):
            device.count_exchange(0 if part is None else part.nbytes, direction)


def install() -> None:
    """Makes such a backend that of the tests' device."""
    device_groups.backends["fake"] = FakeBackend


def _described(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} [{tensor.numel()}]"


def _bytes(part: torch.Tensor) -> bytes:
    return part.contiguous().view(torch.uint8).numpy().tobytes()


def _tensor(content: bytes, like: torch.Tensor) -> torch.Tensor:
    flat = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    assert flat.numel() == like.nbytes, (flat.numel(), like.nbytes)
    return flat.view(like.dtype)


def _send(end: socket.socket, content: bytes) -> None:
    # The receiver notices that it ended.
    with contextlib.suppress(OSError):
        end.sendall(_LENGTH.pack(len(content)) + content)


def _receive(end: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(end, _LENGTH.size))
    return _exactly(end, length)


def _exactly(end: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        more = end.recv(size - len(content))
        if not more:
            raise EOFError("a device of the group is gone")
        content += more
    return bytes(content)
