"""`sumpter bench sum`: every summation kernel beside NumPy, torch and a plain copy; checksums.

Traffic counts the bytes that a kernel must read and write: an accumulation reads two operands and
writes one, a copy reads one and writes one. (A store to memory that is not in cache also reads
the line first; this is not counted for anyone, and for a copy it is a larger part.)
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import numpy as np

from sumpter_lab.local import memory, rivals
from sumpter_lab.local.timing import Runner, Step, looped, medians, native
from sumpter_lab.scaffold.results.table import Row

OPS = ("sum", "min", "max", "product")
DTYPES = tuple(memory.SIZES)

_ELEMENTS_CHECKED = 1000

# What the CRC-32C of these bytes is, by every catalogue of checksums.
_CHECKED_BYTES, _THEIR_CHECKSUM = b"123456789", 0xE3069283

# What a link of 100 Gb/s delivers: BytePS' paper counts the cores that add as much.
LINK_GB_PER_S = 12.5

# What a call costs is that of a call on so many elements: they take a hundredth of it themselves,
# while a single element would take a slower path than arrays do.
_IDLE_ELEMENTS = 256


class WrongResult(Exception):
    """A kernel's result is not what it must be."""


@dataclass(frozen=True)
class Place:
    """Where the sums lie, and how many bytes of them."""

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
                if "sum" in ops and memory.accumulator(dtype) != dtype:
                    rows.append(_accumulation(place, dtype, rounds))
    _relate_to_float32(rows)
    return rows


def _kernel(place: Place, dtype: str, op: str, rounds: int, torch: ModuleType | None) -> Row:
    """`op` in `dtype`, which rounds 16-bit floats each time, as NumPy and torch do."""
    size, _ = memory.SIZES[dtype]
    count = max(place.bytes // size, 1)
    to, x = memory.ones(count, dtype), memory.ones(count, dtype)
    runners: dict[str, Runner] = {"sumpter": native(Step(op, dtype, to, x, count))}
    tiny = memory.ones(_IDLE_ELEMENTS, dtype), memory.ones(_IDLE_ELEMENTS, dtype)
    numpy_call = rivals.numpy_call(op, dtype, to, x)
    if numpy_call:
        runners["numpy"] = looped(numpy_call, rivals.numpy_call(op, dtype, *tiny))
    torch_call = rivals.torch_call(torch, op, dtype, to, x) if torch else None
    if torch and torch_call:
        runners["torch"] = looped(torch_call, rivals.torch_call(torch, op, dtype, *tiny))
    _verify(op, dtype)
    return _row(place, (dtype, op), (to, x), runners, rounds)


def _accumulation(place: Place, dtype: str, rounds: int) -> Row:
    """A contribution in 16-bit floats to a sum in float32, which neither rival can do."""
    count = max(place.bytes // 4, 1)
    acc, x = memory.ones(count, "float32"), memory.ones(count, dtype)
    runners = {"sumpter": native(Step("accumulate", dtype, acc, x, count))}
    _verify("accumulate", dtype)
    return _row(place, (dtype, "sum in float32"), (acc, x), runners, rounds)


def _row(
    place: Place,
    of: tuple[str, str],
    operands: tuple[np.ndarray, np.ndarray],
    runners: dict[str, Runner],
    rounds: int,
) -> Row:
    to, x = operands
    other = np.ones_like(to)
    copied_type = "bfloat16" if to.dtype == np.uint16 else str(to.dtype)
    runners = {
        **runners,
        "copy": native(Step("copy", copied_type, other, to, len(to))),
        "numpy copy": looped(lambda: np.copyto(other, to)),
    }
    with np.errstate(over="ignore"):
        seconds = medians(runners, rounds)
    rate = (2 * to.nbytes + x.nbytes) / seconds["sumpter"]
    copied = 2 * to.nbytes / min(seconds["copy"], seconds["numpy copy"])
    return {
        "place": place.name,
        "bytes": to.nbytes,
        "dtype": of[0],
        "op": of[1],
        "gb_per_s": rate / 1e9,
        "of_copy_limit": rate / copied,
        "over_best_rival": _over_best(seconds),
        "numpy_gb_per_s": _rate(3 * x.nbytes, seconds.get("numpy")),
        "torch_gb_per_s": _rate(3 * x.nbytes, seconds.get("torch")),
        "copy_gb_per_s": copied / 1e9,
        "contribution_gb_per_s": x.nbytes / seconds["sumpter"] / 1e9,
        "correct": True,
    }


def _rate(traffic: int, seconds: float | None) -> float | None:
    return None if seconds is None else traffic / seconds / 1e9


def _over_best(seconds: dict[str, float]) -> float | None:
    """How many times as fast as the faster rival, for the same elements."""
    theirs = [seconds[name] for name in ("numpy", "torch") if name in seconds]
    return min(theirs) / seconds["sumpter"] if theirs else None


def _verify(op: str, dtype: str) -> None:
    """One application to random values gives what NumPy gives, bit for bit: they are small whole
    numbers, so that no format rounds a sum."""
    random = np.random.default_rng(0)
    values = [random.integers(1, 12, _ELEMENTS_CHECKED) for _ in range(2)]
    of = memory.accumulator(dtype) if op == "accumulate" else dtype
    to, x = memory.of_values(values[0], of), memory.of_values(values[1], dtype)
    expected = values[0].copy()
    rivals.numpy_call("sum" if op == "accumulate" else op, "int64", expected, values[1])()
    native(Step(op, dtype, to, x, _ELEMENTS_CHECKED))(1)
    if not np.array_equal(to, memory.of_values(expected, of)):
        raise WrongResult(f"{op} of {dtype} is not what NumPy gives")


def _relate_to_float32(rows: list[Row]) -> None:
    """Adds, for 16-bit floats, their rates as parts of float32's, of traffic and of elements."""
    by_key = {(row["place"], row["dtype"], row["op"]): row for row in rows}
    for row in rows:
        whole = by_key.get((row["place"], "float32", row["op"].removesuffix(" in float32")))
        row["of_float32"] = row["elements_of_float32"] = None
        if whole and row["dtype"] in ("float16", "bfloat16"):
            row["of_float32"] = row["gb_per_s"] / whole["gb_per_s"]
            elements = row["contribution_gb_per_s"] / whole["contribution_gb_per_s"]
            row["elements_of_float32"] = elements * 4 / 2


def measure_cycle(places: list[Place], contributions: list[int], rounds: int) -> list[Row]:
    """The additions of a lane, per byte of contribution: those to a chunk one after the other where
    the place is "cache", and those of each contribution to a whole tensor where it is not, so that
    every addition finds the sum out of cache. The first contribution's buffer becomes the sum;
    16-bit floats are summed in float32 if there are more than two. Contributions come from one
    buffer of half of the first place's bytes, in cache, as a lane receives them."""
    torch = rivals.load_torch()
    chunk_bytes = places[0].bytes // 2
    rows = []
    with rivals.torch_threads(torch, 1):
        for place in places:
            for count in contributions:
                group = [
                    _cycle(place, dtype, chunk_bytes, count, rounds, torch)
                    for dtype in ("float32", "float16", "bfloat16")
                ]
                for row in group:
                    whole = group[0]["contribution_gb_per_s"]
                    row["of_float32"] = row["contribution_gb_per_s"] / whole
                rows += group
    return rows


def measure_checksum(places: list[Place], rounds: int) -> list[Row]:
    """What the checksum of a payload costs, beside a copy of the same bytes."""
    _verify_checksum()
    rows = []
    for place in places:
        of = memory.ones(place.bytes, "uint8")
        to, copied = memory.ones(4, "uint8"), memory.ones(place.bytes, "uint8")
        runners = {
            "checksum": native(Step("checksum", "uint8", to, of, place.bytes)),
            "copy": native(Step("copy", "uint8", copied, of, place.bytes)),
        }
        seconds = medians(runners, rounds)
        row: Row = {"place": place.name, "bytes": place.bytes}
        row["payload_gb_per_s"] = place.bytes / seconds["checksum"] / 1e9
        row["copied_gb_per_s"] = place.bytes / seconds["copy"] / 1e9
        row["of_copy"] = seconds["copy"] / seconds["checksum"]
        rows.append({**row, "correct": True})
    return rows


def _verify_checksum() -> None:
    of, to = np.frombuffer(_CHECKED_BYTES, np.uint8), memory.ones(4, "uint8")
    native(Step("checksum", "uint8", to, of, len(of)))(1)
    if int.from_bytes(to.tobytes(), "little") != _THEIR_CHECKSUM:
        raise WrongResult("the checksum of the usual example is not CRC-32C's")


def _cycle(
    place: Place,
    dtype: str,
    chunk_bytes: int,
    contributions: int,
    rounds: int,
    torch: ModuleType | None,
) -> Row:
    size, _ = memory.SIZES[dtype]
    count = max(chunk_bytes // size, 1)
    chunks = 1 if place.name == "cache" else max(place.bytes // chunk_bytes, 1)
    steps, _ = _cycle_steps(dtype, count, contributions, chunks)
    _verify_cycle(dtype, contributions)
    runners = {"sumpter": native(*steps)}
    if torch and chunks == 1:
        to, x = memory.ones(count, dtype), memory.ones(count, dtype)
        call = rivals.torch_call(torch, "sum", dtype, to, x)
        tiny = (memory.ones(_IDLE_ELEMENTS, dtype), memory.ones(_IDLE_ELEMENTS, dtype))
        idle = rivals.torch_call(torch, "sum", dtype, *tiny)
        if call and idle:
            runners["torch"] = looped(call, idle)
    seconds = medians(runners, rounds)
    contributed = contributions * chunks * count * size
    theirs = seconds.get("torch")
    ours = contributed / seconds["sumpter"] / 1e9
    rival = None if theirs is None else contributed / (theirs * (contributions - 1)) / 1e9
    return {
        "place": place.name,
        "dtype": dtype,
        "chunk_bytes": count * size,
        "contributions": contributions,
        "contribution_gb_per_s": ours,
        "cores_for_100_gb_per_s": LINK_GB_PER_S / ours,
        "torch_contribution_gb_per_s": rival,
        "over_torch": None if rival is None else ours / rival,
        "correct": True,
    }


def _cycle_steps(
    dtype: str, count: int, contributions: int, chunks: int = 1
) -> tuple[list[Step], np.ndarray]:
    """What a lane calls for so many chunks of ones, and where the result will be."""
    first, x = memory.ones(chunks * count, dtype), memory.ones(count, dtype)
    cuts = [slice(i * count, (i + 1) * count) for i in range(chunks)]
    if contributions == 2 or memory.accumulator(dtype) == dtype:
        each = [Step("sum", dtype, first[cut], x, count) for cut in cuts]
        return each * (contributions - 1), first
    acc, out = memory.ones(chunks * count, "float32"), memory.ones(chunks * count, dtype)
    begin = [Step("pair", dtype, acc[cut], x, count, other=first[cut]) for cut in cuts]
    between = [Step("accumulate", dtype, acc[cut], x, count) for cut in cuts]
    end = [Step("last", dtype, out[cut], x, count, other=acc[cut]) for cut in cuts]
    return [*begin, *between * (contributions - 3), *end], out


def _verify_cycle(dtype: str, contributions: int) -> None:
    """Ones add up to the number of contributions."""
    steps, out = _cycle_steps(dtype, _ELEMENTS_CHECKED, contributions, chunks=2)
    native(*steps)(1)
    sums = memory.to_float32(out, dtype) if dtype == "bfloat16" else out
    if not (sums == contributions).all():
        raise WrongResult(f"{contributions} ones of {dtype} do not add up")
