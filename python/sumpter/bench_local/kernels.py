"""`sumpter bench sum`: every summation kernel beside NumPy, torch and a plain copy.

Traffic counts the bytes that a kernel must read and write: an accumulation reads two operands and
writes one, a copy reads one and writes one. (A store to memory that is not in cache also reads
the line first; this is not counted for anyone, and for a copy it is a larger part.)
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import numpy as np

from sumpter.bench_local import memory, rivals
from sumpter.bench_local.report import Row
from sumpter.bench_local.timing import Runner, looped, medians, native

OPS = ("sum", "min", "max", "product")
DTYPES = tuple(memory.SIZES)

_ELEMENTS_CHECKED = 1000

# What a call costs is that of a call on so many elements: they take a hundredth of it themselves,
# while a single element would take a slower path than arrays do.
_IDLE_ELEMENTS = 256


class WrongResult(Exception):
    """A kernel's result is not what it must be."""


@dataclass(frozen=True)
class Place:
    """Where the accumulators lie, and how many bytes of them."""

    name: str
    bytes: int


def measure(
    places: list[Place], dtypes: tuple[str, ...], ops: tuple[str, ...], rounds: int
) -> list[Row]:
    """A row for each place, type and operation."""
    torch = rivals.load_torch()
    rows = []
    with rivals.torch_threads(torch, 1):
        for place in places:
            for dtype in dtypes:
                for op in ops:
                    rows.append(_kernel(place, dtype, op, rounds, torch))
    _relate_to_float32(rows)
    return rows


def _kernel(place: Place, dtype: str, op: str, rounds: int, torch: ModuleType | None) -> Row:
    size, wide = memory.SIZES[dtype]
    count = max(place.bytes // wide, 1)
    acc, x = memory.ones(count, memory.accumulator(dtype)), memory.ones(count, dtype)
    other = memory.ones(count, memory.accumulator(dtype))
    runners: dict[str, Runner] = {
        "sumpter": native((op, dtype, acc, x, count)),
        "copy": native(("copy", memory.accumulator(dtype), other, acc, count)),
        "numpy copy": looped(lambda: np.copyto(other, acc)),
    }
    # Rivals sum 16-bit floats in 16 bits: they get operands of that type.
    to = memory.ones(count, dtype) if wide != size else acc
    tiny = memory.ones(_IDLE_ELEMENTS, dtype), memory.ones(_IDLE_ELEMENTS, dtype)
    numpy_call = rivals.numpy_call(op, dtype, to, x)
    if numpy_call:
        runners["numpy"] = looped(numpy_call, rivals.numpy_call(op, dtype, *tiny))
    torch_call = rivals.torch_call(torch, op, dtype, to, x) if torch else None
    if torch and torch_call:
        runners["torch"] = looped(torch_call, rivals.torch_call(torch, op, dtype, *tiny))
    _verify(op, dtype)
    with np.errstate(over="ignore"):
        seconds = medians(runners, rounds)
    traffic = count * (2 * wide + size)
    rate = traffic / seconds["sumpter"]
    copied = 2 * count * wide / min(seconds["copy"], seconds["numpy copy"])
    return {
        "place": place.name,
        "bytes": count * wide,
        "dtype": dtype,
        "op": op,
        "gb_per_s": rate / 1e9,
        "of_copy_limit": rate / copied,
        "over_best_rival": _over_best(seconds),
        "numpy_gb_per_s": _rate(count * 3 * size, seconds.get("numpy")),
        "torch_gb_per_s": _rate(count * 3 * size, seconds.get("torch")),
        "copy_gb_per_s": copied / 1e9,
        "contribution_gb_per_s": count * size / seconds["sumpter"] / 1e9,
        "correct": True,
    }


def _rate(traffic: int, seconds: float | None) -> float | None:
    return None if seconds is None else traffic / seconds / 1e9


def _over_best(seconds: dict[str, float]) -> float | None:
    """How many times as fast as the faster rival, for the same elements."""
    theirs = [seconds[name] for name in ("numpy", "torch") if name in seconds]
    return min(theirs) / seconds["sumpter"] if theirs else None


def _verify(op: str, dtype: str) -> None:
    """One application to random values gives what NumPy gives, bit for bit."""
    random = np.random.default_rng(0)
    values = [random.integers(1, 100, _ELEMENTS_CHECKED) for _ in range(2)]
    acc = memory.ones(_ELEMENTS_CHECKED, memory.accumulator(dtype))
    x = memory.ones(_ELEMENTS_CHECKED, dtype)
    acc[:] = values[0]
    x[:] = (
        (values[1].astype(np.float32).view(np.uint32) >> 16) if dtype == "bfloat16" else values[1]
    )
    wide_x = memory.to_float32(x, dtype) if acc.dtype != x.dtype else x
    expected = acc.copy()
    rivals.numpy_call(op, memory.accumulator(dtype), expected, wide_x)()
    native((op, dtype, acc, x, len(x)))(1)
    if not np.array_equal(acc, expected):
        raise WrongResult(f"{op} of {dtype} is not what NumPy gives")


def _relate_to_float32(rows: list[Row]) -> None:
    """Adds, for 16-bit floats, their rates as parts of float32's, of traffic and of elements."""
    by_key = {(row["place"], row["dtype"], row["op"]): row for row in rows}
    for row in rows:
        whole = by_key.get((row["place"], "float32", row["op"]))
        row["of_float32"] = row["elements_of_float32"] = None
        if whole and row["dtype"] in ("float16", "bfloat16"):
            row["of_float32"] = row["gb_per_s"] / whole["gb_per_s"]
            elements = row["contribution_gb_per_s"] / whole["contribution_gb_per_s"]
            row["elements_of_float32"] = elements * 4 / 2


def measure_cycle(chunk_bytes: int, contributions: int, rounds: int) -> list[Row]:
    """The whole life of a chunk in a lane, per byte of contribution: for 16-bit floats widening,
    accumulations, narrowing; for float32 accumulations alone (the first contribution's buffer
    becomes the sum). Contributions come from one buffer in cache, as a lane receives them."""
    torch = rivals.load_torch()
    rows = []
    with rivals.torch_threads(torch, 1):
        for dtype in ("float32", "float16", "bfloat16"):
            rows.append(_cycle(dtype, chunk_bytes, contributions, rounds, torch))
    for row in rows:
        row["of_float32"] = row["contribution_gb_per_s"] / rows[0]["contribution_gb_per_s"]
    return rows


def _cycle(
    dtype: str, chunk_bytes: int, contributions: int, rounds: int, torch: ModuleType | None
) -> Row:
    size, wide = memory.SIZES[dtype]
    count = max(chunk_bytes // size, 1)
    acc, x = memory.ones(count, memory.accumulator(dtype)), memory.ones(count, dtype)
    steps = [("sum", dtype, acc, x, count)] * (contributions - 1)
    if wide != size:
        steps = [("widen", dtype, acc, x, count), *steps, ("narrow", dtype, acc, acc[:0], count)]
        _verify_cycle(dtype, contributions)
    runners = {"sumpter": native(*steps)}
    if torch:
        to = memory.ones(count, dtype)
        call = rivals.torch_call(torch, "sum", dtype, to, x)
        tiny = (memory.ones(_IDLE_ELEMENTS, dtype), memory.ones(_IDLE_ELEMENTS, dtype))
        idle = rivals.torch_call(torch, "sum", dtype, *tiny)
        if call and idle:
            runners["torch"] = looped(call, idle)
    seconds = medians(runners, rounds)
    contributed = contributions * count * size
    theirs = seconds.get("torch")
    ours = contributed / seconds["sumpter"] / 1e9
    rival = None if theirs is None else contributed / (theirs * (contributions - 1)) / 1e9
    return {
        "dtype": dtype,
        "chunk_bytes": count * size,
        "contributions": contributions,
        "contribution_gb_per_s": ours,
        "torch_contribution_gb_per_s": rival,
        "over_torch": None if rival is None else ours / rival,
        "correct": True,
    }


def _verify_cycle(dtype: str, contributions: int) -> None:
    """Ones add up to the number of contributions, rounded once, at the front of the buffer."""
    count = _ELEMENTS_CHECKED
    acc, x = memory.ones(count, "float32"), memory.ones(count, dtype)
    steps = [("sum", dtype, acc, x, count)] * (contributions - 1)
    native(("widen", dtype, acc, x, count), *steps, ("narrow", dtype, acc, acc[:0], count))(1)
    narrow = acc.view(memory.storage(dtype))[:count]
    if not (memory.to_float32(narrow, dtype) == contributions).all():
        raise WrongResult(f"{contributions} ones of {dtype} do not add up")
