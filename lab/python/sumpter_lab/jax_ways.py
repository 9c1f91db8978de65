"""Ways in which a compiled program of JAX sums: for `sumpter bench allreduce --jax`.

Beside `sumpter.jax` there is what a script could do without it, an ordered `io_callback` that calls
`sumpter.push_pull`, and JAX's own collectives over Gloo.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

import sumpter
from sumpter._failure import UsageError
from sumpter._packages import need


class Program(Protocol):
    """A compiled program that sums a tensor over all ranks."""

    def place(self) -> None:
        """Takes the tensor as it is now, as an array of JAX."""

    def begin(self) -> Callable[[], torch.Tensor]:
        """Starts the program; what this returns waits for the sum."""


def prepare(group: dist.ProcessGroup, peers: bool) -> None:
    """Before JAX has any device: with `peers`, the ranks of `group` become one job of JAX as well.

    Raises UsageError if JAX is not installed.
    """
    try:
        need("jax", "--jax")
    except ImportError as error:
        raise UsageError(str(error)) from error
    import jax

    if not peers:
        return
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    address: list[Any] = [_free_address() if rank == 0 else None]
    dist.broadcast_object_list(address, src=dist.get_global_rank(group, 0), group=group)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address[0], size, rank)


def programs(tensor: torch.Tensor, name: str, peers: bool) -> dict[str, Program]:
    """Sums of a tensor over all ranks; with `peers`, by JAX's own collectives as well."""
    import jax
    from jax.experimental import io_callback

    import sumpter.jax as sj

    shape = jax.ShapeDtypeStruct(tuple(tensor.shape), np.float32)

    def by_callback(x: jax.Array) -> jax.Array:
        def call(given: Any) -> np.ndarray:
            summed = sumpter.push_pull(np.asarray(given), average=False, name=f"{name}.callback")
            return np.asarray(summed)

        return io_callback(call, shape, x, ordered=True)

    return {
        "jax": _Local(lambda x: sj.all_reduce(x, sj.Sum, name=f"{name}.jax"), tensor),
        "jax-cb": _Local(by_callback, tensor),
        **({"jax-gloo": _Global(tensor)} if peers else {}),
    }


class _Local:
    """A program of this rank alone, which calls Sumpter."""

    def __init__(self, function: Callable[[Any], Any], tensor: torch.Tensor) -> None:
        import jax

        self._program, self._tensor = jax.jit(function), tensor
        self._device = jax.local_devices()[0]

    def place(self) -> None:
        self._array = _array(self._tensor, self._device)

    def begin(self) -> Callable[[], torch.Tensor]:
        result = self._program(self._array)
        return lambda: torch.from_dlpack(result.block_until_ready())


class _Global:
    """A program of all ranks' devices, with a collective of JAX's own."""

    def __init__(self, tensor: torch.Tensor) -> None:
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        mesh = Mesh(np.array(jax.devices()), ("ranks",))
        rows = PartitionSpec("ranks")

        def total(x: Any) -> Any:
            return jax.lax.psum(x[0], "ranks")

        mapped = jax.shard_map(total, mesh=mesh, in_specs=rows, out_specs=PartitionSpec())
        self._program, self._tensor = jax.jit(mapped), tensor
        self._shape = (mesh.size, *tensor.shape)
        self._placed = NamedSharding(mesh, rows)
        self._device = jax.local_devices()[0]

    def place(self) -> None:
        import jax

        own = _array(self._tensor[None], self._device)
        self._array = jax.make_array_from_single_device_arrays(self._shape, self._placed, [own])

    def begin(self) -> Callable[[], torch.Tensor]:
        result = self._program(self._array)
        return lambda: torch.from_dlpack(result.addressable_data(0).block_until_ready())


def _array(tensor: torch.Tensor, device: Any) -> Any:
    import jax

    # The tensor's memory gets the next contribution while the array still exists.
    return jax.device_put(tensor.numpy().copy(), device).block_until_ready()


def _free_address() -> str:
    """Where the ranks of JAX meet, on this machine."""
    host = socket.gethostbyname(socket.gethostname())
    with socket.create_server((host, 0)) as server:
        return f"{host}:{server.getsockname()[1]}"
