"""`sumpter bench ablate`: what single choices of the design are worth, each in one command.

Every ablation is a function from its size to rows, and a text that says what is compared.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sumpter._native import fabric_networks
from sumpter_lab import _native
from sumpter_lab.local import memory
from sumpter_lab.local.kernels import WrongResult
from sumpter_lab.local.optimizers import optimizers
from sumpter_lab.local.timing import Step, medians, native
from sumpter_lab.scaffold.results.table import Row


@dataclass(frozen=True)
class Size:
    """How much an ablation works on."""

    bytes: int
    contributions: int
    threads: Sequence[int]
    rounds: int
    chunk_bytes: int
    provider: str


@dataclass(frozen=True)
class Ablation:
    compares: str
    measure: Callable[[Size], list[Row]]


# What one gradient array of a large model has; wide aggregation gangs on one after the other.
_BUFFER_BYTES = 4 << 20

# Off a page by nothing, by one float, by one cache line.
_OFFSETS = (0, 4, 64)

# A strip of the fused sum: four operands of it fit any first-level cache.
_STRIP_BYTES = 4096


def _pairs(names: tuple[str, str], threads: int, samples: list[tuple[float, float]]) -> Row:
    first = statistics.median(pair[0] for pair in samples)
    second = statistics.median(pair[1] for pair in samples)
    return {
        "threads": threads,
        f"{names[0]}_gb_per_s": first / 1e9,
        f"{names[1]}_gb_per_s": second / 1e9,
        "gain": first / second,
        "equal_results": True,
    }


def aggregation(size: Size) -> list[Row]:
    def row(threads: int) -> Row:
        samples = _native.bench_aggregation(
            threads=threads,
            contributions=size.contributions,
            bytes=size.bytes,
            chunk_bytes=size.chunk_bytes,
            buffer_bytes=min(_BUFFER_BYTES, size.bytes),
            rounds=size.rounds,
        )
        return _pairs(("tall", "wide"), threads, samples)

    return [row(threads) for threads in size.threads]


def affinity(size: Size) -> list[Row]:
    def row(threads: int) -> Row:
        samples = _native.bench_affinity(
            threads=threads,
            contributions=size.contributions,
            bytes=size.bytes,
            chunk_bytes=size.chunk_bytes,
            rounds=size.rounds,
        )
        return _pairs(("key_to_lane", "worker_to_lane"), threads, samples)

    return [row(threads) for threads in size.threads]


def alignment(size: Size) -> list[Row]:
    samples = _native.bench_alignment(
        offsets=_OFFSETS,
        chunk_bytes=size.chunk_bytes,
        chunks=max(size.bytes // size.chunk_bytes, 1),
        rounds=size.rounds,
    )
    rows = []
    for offset in _OFFSETS:
        mine = [sample for sample in samples if sample[0] == offset]
        kernel, receive = (statistics.median(sample[i] for sample in mine) / 1e9 for i in (1, 2))
        row: Row = {"offset_bytes": offset, "kernel_gb_per_s": kernel}
        row |= {"receive_and_add_gb_per_s": receive, "equal_results": True}
        rows.append(row)
    for row in rows:
        row["kernel_of_aligned"] = row["kernel_gb_per_s"] / rows[0]["kernel_gb_per_s"]
        aligned = rows[0]["receive_and_add_gb_per_s"]
        row["receive_of_aligned"] = row["receive_and_add_gb_per_s"] / aligned
    return rows


def connections(size: Size) -> list[Row]:
    samples = _native.bench_connections(
        counts=(1, 2, 4), bytes=size.bytes, chunk_bytes=size.chunk_bytes, rounds=size.rounds
    )
    rows = []
    for count in (1, 2, 4):
        mine = [sample for sample in samples if sample[0] == count]
        seconds, cpu_s = (statistics.median(sample[i] for sample in mine) for i in (1, 2))
        gigabytes = size.bytes / 1e9
        row: Row = {"connections": count, "goodput_gb_per_s": gigabytes / seconds}
        row |= {"cpu_s_per_gb": cpu_s / gigabytes, "equal_results": True}
        rows.append(row)
    for row in rows:
        row["goodput_of_one"] = row["goodput_gb_per_s"] / rows[0]["goodput_gb_per_s"]
    return rows


# BytePS (OSDI'20), Table 2: 41, 52, 76 and 89 Gb/s; all of its steps register memory once.
_PAPER_LADDER = {
    "placed, loopback by the network": 1.0,
    "+ shared memory": 1.27,
    "+ page alignment": 1.85,
    "+ one segment": 2.17,
}


def datapath(size: Size) -> list[Row]:
    """TCP, then placed writes with one rule more at each step."""
    version, _, missing, _ = fabric_networks(size.provider, None)
    provider = size.provider if missing is None else None
    if missing is not None:
        print(f"SKIPPED placed writes: {missing}", file=sys.stderr)
    samples = _native.bench_datapath(
        provider=provider, bytes=size.bytes, chunk_bytes=size.chunk_bytes, rounds=size.rounds
    )
    steps = dict.fromkeys(sample[0] for sample in samples)
    gigabytes = 2 * size.bytes / 1e9
    rows = []
    for step in steps:
        mine = [sample for sample in samples if sample[0] == step]
        seconds, cpu_s = (statistics.median(sample[i] for sample in mine) for i in (1, 2))
        row: Row = {"step": step, "goodput_gb_per_s": gigabytes / seconds}
        row |= {"cpu_s_per_gb": cpu_s / gigabytes, "equal_results": True}
        rows.append(row)
    first = next((row for row in rows if _PAPER_LADDER.get(str(row["step"])) == 1.0), None)
    for row in rows:
        row["libfabric"] = f"{version} {provider}" if provider is not None else None
        row["of_first_placed"] = first and row["goodput_gb_per_s"] / first["goodput_gb_per_s"]
        row["of_first_in_paper"] = _PAPER_LADDER.get(str(row["step"]))
    return rows


def fused(size: Size) -> list[Row]:
    """Three contributions added in one pass over the sum, strip by strip in the first-level
    cache, against three passes."""
    return [_fused(place, count, size.rounds) for place, count in _fused_places(size)]


def _fused_places(size: Size) -> list[tuple[str, int]]:
    return [("in cache", size.chunk_bytes // 4), ("out of cache", size.bytes // 4)]


def _fused(place: str, count: int, rounds: int) -> Row:
    acc, *contributions = (memory.ones(count, "float32") for _ in range(4))
    strip = _STRIP_BYTES // 4
    passes = native(*(Step("sum", "float32", acc, x, count) for x in contributions))
    strips = [
        Step("sum", "float32", acc[at : at + strip], x[at : at + strip], min(strip, count - at))
        for at in range(0, count, strip)
        for x in contributions
    ]
    one_pass = native(*strips)
    for run in (passes, one_pass):
        acc[:] = 1
        run(1)
        if not np.array_equal(acc, np.full(count, 4, dtype=np.float32)):
            raise WrongResult("three contributions and a sum of ones are not four")
    seconds = medians({"one pass": one_pass, "three passes": passes}, rounds)
    contributed = 3 * 4 * count / 1e9
    return {
        "place": place,
        "bytes": 4 * count,
        "one_pass_gb_per_s": contributed / seconds["one pass"],
        "three_passes_gb_per_s": contributed / seconds["three passes"],
        "gain": seconds["three passes"] / seconds["one pass"],
        "equal_results": True,
    }


ABLATIONS = {
    "aggregation": Ablation(
        "tall (each core owns its chunks) against wide (all cores gang on one buffer)", aggregation
    ),
    "affinity": Ablation(
        "a key belongs to a lane (no locks) against a worker belongs to a lane (shared sums)",
        affinity,
    ),
    "alignment": Ablation("buffers on a page against buffers off it", alignment),
    "connections": Ablation("one TCP connection of a pair against several", connections),
    "datapath": Ablation(
        "placed writes (RDMA) with one rule more at each step, beside TCP", datapath
    ),
    "optimizers": Ablation(
        "SGD, RMSprop and Adam on the server's cores against summation alone", optimizers
    ),
    "fused": Ablation("several contributions added in one pass against one pass each", fused),
}
