"""Device groups of torch's devices: collectives among GPUs of one machine, by NCCL.

The process group is Sumpter's own: the script need not have made one. NCCL's collectives give equal
parts to all ranks. Parts of the core are equal but for the last, which has the remainder; where
only some ranks have parts, or one has all, each part is reduced to, and broadcast from, its rank.
NCCL makes one launch of these.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from sumpter._core.device_link import DeviceLink
from sumpter._core.streams import Arrival, Event, Stream
from sumpter._core.tensor import Tensor
from sumpter._errors import UnsupportedError
from sumpter.torch import devices
from sumpter.torch.devices import TensorDevice

Parts = Sequence[tuple[int, int]]

_OPS = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}

_making = threading.Lock()


class TorchDeviceGroup:
    """A device group through a backend of torch.distributed."""

    def __init__(self, link: DeviceLink, device: TensorDevice, backend: Any) -> None:
        self.stream: Stream = device.device_to_device
        self._device = device
        self._backend = backend
        self._rank = link.ranks.index(link.rank)

    def is_of(self, device: TensorDevice) -> bool:
        """Whether this rank's device in the group is this one."""
        return self._device is device

    def part(self, memory: torch.Tensor, start: int, size: int) -> torch.Tensor:
        return memory.narrow(0, start, size)

    def mark(self) -> Event:
        return self._device.mark(self.stream)

    def arrival(self) -> Arrival:
        return self._device.arrival(self.stream)

    def reduce_scatter(
        self, source: torch.Tensor, target: torch.Tensor, parts: Parts, dtype: str, op: str
    ) -> None:
        elements, own, backend = getattr(torch, dtype), self._rank, self._backend
        equal, rest = split(parts)
        calls: list[Callable[[], Any]] = []
        if equal:
            scatter = dist.ReduceScatterOptions()
            scatter.reduceOp = _OPS[op]
            whole = source.narrow(0, 0, equal * len(parts)).view(elements)
            part = target.narrow(0, equal * own, equal).view(elements)
            calls.append(functools.partial(backend._reduce_scatter_base, part, whole, scatter))
        for root, start, size in rest:
            reduce = dist.ReduceOptions()
            reduce.reduceOp, reduce.rootRank = _OPS[op], root
            given = source.narrow(0, start, size)
            if root == own and source.data_ptr() != target.data_ptr():
                # Only the root's memory changes.
                part = target.narrow(0, start, size)
                with self._device.using(self.stream):
                    part.copy_(given)
                given = part
            calls.append(functools.partial(backend.reduce, [given.view(elements)], reduce))
        self._enqueue(calls, source, target)

    def all_gather(self, memory: torch.Tensor, parts: Parts, dtype: str) -> None:
        elements, backend = getattr(torch, dtype), self._backend
        equal, rest = split(parts)
        calls: list[Callable[[], Any]] = []
        if equal:
            whole = memory.narrow(0, 0, equal * len(parts)).view(elements)
            part = memory.narrow(0, equal * self._rank, equal).view(elements)
            calls.append(functools.partial(backend._allgather_base, whole, part))
        for root, start, size in rest:
            broadcast = dist.BroadcastOptions()
            broadcast.rootRank = root
            given = memory.narrow(0, start, size).view(elements)
            calls.append(functools.partial(backend.broadcast, [given], broadcast))
        self._enqueue(calls, memory)

    def abort(self) -> None:
        self._backend.abort()

    def close(self, together: bool) -> None:
        if together:
            self._backend.shutdown()
        else:
            self._backend.abort()

    def _enqueue(self, calls: Sequence[Callable[[], Any]], *memory: torch.Tensor) -> None:
        with self._device.using(self.stream):
            if len(calls) > 1 and self._backend.supports_coalescing:
                self._backend._start_coalescing()
                for call in calls:
                    call()
                # Orders the stream, as wait() of each does.
                self._backend._end_coalescing().wait()
            else:
                for call in calls:
                    call().wait()
        for each in memory:
            self._device.keep(each, self.stream)


def split(parts: Parts) -> tuple[int, list[tuple[int, int, int]]]:
    """The bytes that every rank has, and what is left: rank, start and size.

    Nothing is equal if some ranks have no part.
    """
    sizes = [size for _, size in parts]
    equal = sizes[0]
    if not equal or sizes[-1] < equal or any(size != equal for size in sizes[:-1]):
        return 0, [(rank, start, size) for rank, (start, size) in enumerate(parts) if size]
    last = len(parts) - 1
    return equal, [(last, equal * len(parts), sizes[-1] - equal)] if sizes[-1] > equal else []


def of(declared: Tensor, memory: torch.Tensor) -> TorchDeviceGroup | None:
    """The group that reduces a declared tensor on this device; None for a group of one.

    Raises UnsupportedError, and refuses the tensor, if the group is of another of this rank's
    devices, or if there is nothing that could carry it.
    """
    if not declared.description.sharded:
        return None
    link = declared.session.device_link
    if link is None:
        return None
    device = devices.of(memory)
    try:
        with _making:
            if link.group is None:
                store = dist.FileStore(os.path.join(link.folder, "store"), len(link.ranks))
                place = link.ranks.index(link.rank)
                backend = backends[memory.device.type](
                    dist.PrefixStore("sumpter", store), place, len(link.ranks)
                )
                link.group = TorchDeviceGroup(link, device, backend)
        group = link.group
        if not isinstance(group, TorchDeviceGroup) or not group.is_of(device):
            raise UnsupportedError(
                f"the device group of rank {link.rank} is of another device than {memory.device}: "
                "the tensors of a rank in a device group must be on one device"
            )
    except Exception as error:
        declared.refuse(f"rank {link.rank} has no device group: {error}")
        raise
    return group


def _nccl(store: dist.Store, rank: int, size: int) -> Any:
    # Imported here because a torch can be built without NCCL.
    try:
        from torch._C._distributed_c10d import ProcessGroupNCCL
    except ImportError:
        raise UnsupportedError(
            "device groups need NCCL, which this torch lacks: unset SUMPTER_DEVICE_GROUP"
        ) from None
    return ProcessGroupNCCL(store, rank, size, ProcessGroupNCCL.Options())


# By type of device: what makes a backend of torch.distributed from a store, a rank and a size.
backends: dict[str, Callable[[dist.Store, int, int], Any]] = {"cuda": _nccl}
