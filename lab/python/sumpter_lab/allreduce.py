"""`sumpter bench allreduce`: latency and goodput on the cluster that this process is a rank of.

Every rank runs this module; rank 0 reports. All ways to sum take turns, so that a noisy machine
disturbs them alike, and every result is checked. A time is that of the slowest rank; the time until
a call returns, processor time and context switches, which are steadier, are medians of each rank,
and of these the mean.

An operation on a device has ended when the device has the result: its time includes what the stream
still has to do when the call that waits returns.
"""

from __future__ import annotations

import itertools
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import sumpter
import sumpter.torch as bps
from sumpter._core import membership
from sumpter._failure import Failure, UsageError
from sumpter.launch.figures import format_bytes
from sumpter_lab import jax_ways
from sumpter_lab.scaffold.jobs.ddp import GradientReplay
from sumpter_lab.scaffold.jobs.payload import Payload
from sumpter_lab.scaffold.jobs.rank import PushPull, System
from sumpter_lab.scaffold.network import counters
from sumpter_lab.scaffold.results.table import Column, figure
from sumpter_lab.scaffold.spec import Load

# Operations up to this size are timed in blocks, whose first one only puts the ranks in step: a
# barrier's own unevenness would be as long as what is measured, and it is Gloo's, which would find
# its code in the caches.
BLOCK = 10
BLOCK_BYTES = 1 << 20
# As many repetitions as sum this much, within these numbers.
REPEATED_BYTES = 512 << 20
FEWEST, MOST = 5, 200
# The tensor, its pattern, the numpy path's result, and the copies of transports and lanes.
COPIES = 6

COLUMNS = (
    Column("size", 10, lambda row: row["model"] or format_bytes(row["bytes"])),
    Column("way", 9, figure("way", "{}")),
    Column("rounds", 6, figure("rounds", "{}")),
    Column("median us", 11, lambda row: f"{row['seconds'] * 1e6:.1f}"),
    Column("p10", 11, lambda row: f"{row['p10_seconds'] * 1e6:.1f}"),
    Column("p90", 11, lambda row: f"{row['p90_seconds'] * 1e6:.1f}"),
    Column("CPU us", 9, lambda row: f"{row['cpu_seconds'] * 1e6:.1f}"),
    Column("call us", 8, lambda row: f"{row['call_seconds'] * 1e6:.1f}"),
    Column("switches", 8, figure("context_switches", "{:.1f}")),
    Column("Gb/s", 9, figure("goodput_gbps", "{:.4g}")),
    Column("over Gloo", 9, figure("gain_over_gloo", "{:.3f}")),
)


# Waits for an operation; what it returns is the sum, which else is where the tensor is.
Finish = Callable[[], torch.Tensor | None]


@dataclass(frozen=True)
class Way:
    """A way to sum what each rank has."""

    prepare: Callable[[int], None]  # fills in the contributions of a round
    begin: Callable[[], Finish]
    check: Callable[[int, torch.Tensor | None], None]  # of a round, what `Finish` returned


@dataclass(frozen=True)
class Spec:
    """What to measure."""

    loads: tuple[Load, ...]
    rounds: int | None  # of each load; by default as many as its size allows
    gloo: bool
    device: str = "cpu"  # where the tensors are, as torch names it
    jax: bool = False  # by programs of JAX as well


@dataclass(frozen=True)
class Spent:
    """What one operation took in this process, all its threads together."""

    call_seconds: float  # until the call that begins it has returned
    seconds: float
    cpu_seconds: float
    switches: int


class Ranks:
    """This process' groups: the default one on Sumpter, and one on Gloo beside it."""

    def __init__(self, asked: Spec) -> None:
        self._device, self._asked = asked.device, asked

    def __enter__(self) -> Ranks:
        torch.set_num_threads(1)
        on_device = self._device != "cpu"
        if on_device and not torch.get_device_module(self._device).is_available():
            raise UsageError(f"--device {self._device}: torch sees no such device on this machine")
        try:
            dist.init_process_group("sumpter")
        except ValueError as error:
            raise UsageError(
                "this process is no rank of a job: start it with `sumpter run -n 2 -- sumpter "
                "bench allreduce` or `torchrun --no-python sumpter bench allreduce` "
                f"({error})"
            ) from error
        bps.init()
        if on_device:
            # Ranks that are more than a machine's devices share them.
            module = torch.get_device_module(self._device)
            module.set_device(bps.local_rank() % module.device_count())
        self.gloo = dist.new_group(backend="gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        if self._asked.jax:
            jax_ways.prepare(self.gloo, self._asked.gloo)
        return self

    def __exit__(self, *_: object) -> None:
        dist.destroy_process_group()
        bps.shutdown()

    def slowest(self, seconds: Sequence[float]) -> np.ndarray:
        """The times of the slowest rank, repetition by repetition."""
        times = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(times, op=dist.ReduceOp.MAX, group=self.gloo)
        return times.numpy()

    def mean(self, value: float) -> float:
        """The mean of all ranks' values."""
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total, group=self.gloo)
        return float(total) / self.size

    def memory_bytes(self) -> int:
        """What every rank may take of its machine's memory."""
        limit = torch.tensor(counters.available_bytes() // bps.local_size())
        dist.all_reduce(limit, op=dist.ReduceOp.MIN, group=self.gloo)
        return int(limit)


def run(ranks: Ranks, asked: Spec) -> Iterator[dict[str, Any]]:
    """Yields the row of each load and way, on every rank."""
    limit = ranks.memory_bytes()
    left_out = [load for load in asked.loads if needed_bytes(load) > limit]
    if left_out and ranks.rank == 0:
        names = ", ".join(load.name or format_bytes(load.bytes) for load in left_out)
        print(
            f"left out: {names}; a rank has {format_bytes(limit)} of memory, and the smallest of "
            f"these needs {format_bytes(min(map(needed_bytes, left_out)))}",
            file=sys.stderr,
        )
    if len(left_out) == len(asked.loads):
        raise Failure("nothing is left to measure: free memory, or take smaller sizes or models")
    for load in asked.loads:
        if load not in left_out:
            yield from _measure(ranks, asked, load)


def needed_bytes(load: Load) -> int:
    """The memory that a rank needs for a load."""
    if not load.name:
        return COPIES * load.bytes
    # In both modules of DDP: parameters, gradients and buckets; the tensors and the transports'
    # copies of them; the pattern, and the gradients that are replayed.
    return 8 * load.bytes + 3 * load.largest_bytes


def repetitions(size: int, rounds: int | None) -> int:
    """How often a size is summed by each way."""
    if rounds is not None:
        return rounds
    return max(FEWEST, min(MOST, REPEATED_BYTES // size))


def _measure(ranks: Ranks, asked: Spec, load: Load) -> list[dict[str, Any]]:
    """The rows of one load."""
    ways = _ways_of_model(ranks, asked, load) if load.name else _ways(ranks, asked, load.bytes)
    count = repetitions(load.bytes, asked.rounds)
    in_blocks = load.bytes <= BLOCK_BYTES
    spent: dict[str, list[Spent]] = {name: [] for name in ways}
    number = 0
    # A way finds the caches as the one before it has left them, with the code that both share: in
    # one order alone, the last of the two that go through torch.distributed would gain by that.
    orders = itertools.cycle((list(ways.items()), list(reversed(ways.items()))))
    while len(spent["push_pull"]) < count:
        for name, way in next(orders):
            block = min(BLOCK, count - len(spent[name])) if in_blocks else 1
            if not in_blocks:
                dist.barrier(group=ranks.gloo)
            # The very first operation of a name makes its tensor known: never timed. DDP forms
            # its buckets anew after its first round.
            lead = 1 if in_blocks or not spent[name] else 0
            for index in range(lead + block):
                one = _once(way, number)
                number += 1
                if index >= lead:
                    spent[name].append(one)
    slowest = {name: ranks.slowest([one.seconds for one in ones]) for name, ones in spent.items()}
    return [_row(ranks, asked, load, name, slowest) | _costs(ranks, spent[name]) for name in ways]


def _once(way: Way, number: int) -> Spent:
    """One checked operation, and what it took on this rank."""
    way.prepare(number)
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    finish = way.begin()
    called = time.perf_counter()
    result = finish()
    done, after = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    way.check(number, result)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    switches = after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw
    return Spent(called - start, done - start, cpu_s, switches)


def _ways(ranks: Ranks, asked: Spec, size: int) -> dict[str, Way]:
    """The ways to sum one tensor of so many bytes."""
    tensor = torch.zeros(size // 4, device=asked.device)
    payload = Payload(ranks.rank, ranks.size, tensor.numel(), device=asked.device)
    name = f"allreduce.{tensor.numel()}"
    on_host = {} if asked.device != "cpu" else _ways_on_host(tensor, name)
    begins: dict[str, Callable[[], Finish]] = {
        **on_host,
        # The interface of BytePS on a tensor, in place.
        "push_pull": lambda: bps.push_pull_async_inplace(tensor, False, name).synchronize,
        "backend": lambda: _without_result(dist.all_reduce(tensor, async_op=True)),
    }
    if asked.gloo:
        begins["gloo"] = lambda: _without_result(
            dist.all_reduce(tensor, group=ranks.gloo, async_op=True)
        )

    def check(number: int, result: torch.Tensor | None) -> None:
        payload.check([tensor if result is None else result], number)

    def prepare(number: int) -> None:
        payload.fill([tensor], number)

    ways = {name: Way(prepare, begin, check) for name, begin in begins.items()}
    if asked.jax:
        for way, program in jax_ways.programs(tensor, name, asked.gloo).items():
            ways[way] = Way(_both(prepare, program.place), program.begin, check)
    return {name: _on_device(way, asked.device) for name, way in ways.items()}


def _both(first: Callable[[int], None], then: Callable[[], None]) -> Callable[[int], None]:
    def prepare(number: int) -> None:
        first(number)
        then()

    return prepare


def _ways_on_host(tensor: torch.Tensor, name: str) -> dict[str, Callable[[], Finish]]:
    """Those that take addresses and arrays."""
    array, address = tensor.numpy(), tensor.data_ptr()
    session = membership.current()
    declared = session.declare(f"core.{name}", "all_reduce", tensor.shape, "float32")

    def core() -> Finish:
        return declared.submit(address, address, keep=tensor).wait

    def numpy() -> Finish:
        handle = sumpter.push_pull_async(array, average=False, name=name)
        return lambda: torch.from_numpy(handle.synchronize())

    def numpy_out() -> Finish:
        handle = sumpter.push_pull_async(array, average=False, name=name, out=array)
        return lambda: torch.from_numpy(handle.synchronize())

    # As Gloo with numpy-out: the result is in the array that was given.
    return {"core": core, "numpy": numpy, "numpy-out": numpy_out}


def _on_device(way: Way, device: str) -> Way:
    """The way with times from when the device has the contribution until it has the result."""
    if device == "cpu":
        return way
    module = torch.get_device_module(device)

    def prepare(number: int) -> None:
        way.prepare(number)
        module.synchronize()

    def begin() -> Finish:
        finish = way.begin()

        def finished() -> torch.Tensor | None:
            result = finish()
            module.current_stream().synchronize()
            return result

        return finished

    return Way(prepare, begin, way.check)


def _ways_of_model(ranks: Ranks, asked: Spec, load: Load) -> dict[str, Way]:
    """The ways to sum the gradients of a model."""
    payload = Payload(ranks.rank, ranks.size, load.largest_bytes // 4, device=asked.device)
    tensors = [torch.zeros(shape, device=asked.device) for shape in load.shapes]
    systems: dict[str, System] = {
        "push_pull": PushPull(payload, tensors),
        "ddp": GradientReplay(payload, load.shapes, None),
    }
    if asked.gloo:
        systems["gloo-ddp"] = GradientReplay(payload, load.shapes, ranks.gloo)
    return {name: _on_device(_whole(system), asked.device) for name, system in systems.items()}


def _whole(system: System) -> Way:
    """A system whose calls return when all is summed."""

    def begin() -> Finish:
        system.run()
        return lambda: None

    return Way(system.prepare, begin, lambda number, _: system.check(number))


def _without_result(work: dist.Work) -> Finish:
    def finish() -> None:
        work.wait()

    return finish


def _row(
    ranks: Ranks, asked: Spec, load: Load, name: str, times: dict[str, np.ndarray]
) -> dict[str, Any]:
    low, median, high = (float(value) for value in np.percentile(times[name], (10, 50, 90)))
    peer = "gloo-ddp" if load.name else "gloo"
    gloo = float(np.median(times[peer])) if peer in times else None
    return {
        "workers": ranks.size,
        "machines": _machines(),
        "device": asked.device,
        "model": load.name or None,
        "bytes": load.bytes,
        "way": name,
        "rounds": len(times[name]),
        "seconds": median,
        "p10_seconds": low,
        "p90_seconds": high,
        "goodput_gbps": load.bytes * 8e-9 / median,
        "gloo_seconds": gloo,
        "gain_over_gloo": None if gloo is None else gloo / median,
    }


def _costs(ranks: Ranks, spent: Sequence[Spent]) -> dict[str, Any]:
    # The median on each rank: what else a process does now and then is not the operation's.
    return {
        "call_seconds": ranks.mean(float(np.median([one.call_seconds for one in spent]))),
        "cpu_seconds": ranks.mean(float(np.median([one.cpu_seconds for one in spent]))),
        "context_switches": ranks.mean(float(np.median([one.switches for one in spent]))),
    }


def _machines() -> int:
    """How many machines have workers, if each has as many as this one."""
    session = membership.current()
    return -(-session.world_size // session.worker.local_size)
