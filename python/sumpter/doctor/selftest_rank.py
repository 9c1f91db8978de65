"""One rank of the self-test: sums random arrays and compares them with NumPy's sums."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

import sumpter

# Two contributions are added once, in either order: rounding leaves one result.
DTYPES = ("float32", "float64", "float16", "int32", "int64", "uint8")
COUNTS = (1, 1001, 300_000)
TIMED_BYTES = 16 << 20
TIMED_ROUNDS = 5


def contribution(rank: int, dtype: str, count: int) -> np.ndarray:
    """What a rank adds; every rank can work out every other's."""
    numbers = np.random.default_rng([rank, count]).standard_normal(count) * 50
    return numbers.astype(np.int8).astype(dtype) if dtype[0] in "iu" else numbers.astype(dtype)


def wrong_sums() -> list[str]:
    """The arrays whose sum is not NumPy's, to the last bit."""
    wrong = []
    for dtype in DTYPES:
        for count in COUNTS:
            arrays = [contribution(rank, dtype, count) for rank in range(sumpter.size())]
            what = f"{dtype} x {count}"
            total = sumpter.push_pull(arrays[sumpter.rank()], name=what, average=False)
            if total.tobytes() != (arrays[0] + arrays[1]).tobytes():
                wrong.append(what)
    return wrong


def bytes_per_s() -> float:
    """Bytes of gradients summed a second by this rank, of the best round."""
    array = np.ones(TIMED_BYTES // 4, dtype=np.float32)
    best = float("inf")
    for _ in range(TIMED_ROUNDS):
        sumpter.barrier()
        started = time.perf_counter()
        sumpter.push_pull(array, name="timed", average=False)
        best = min(best, time.perf_counter() - started)
    return TIMED_BYTES / best


def main() -> None:
    sumpter.init()
    report: dict[str, Any] = {
        "wrong": wrong_sums(),
        "checked": len(DTYPES) * len(COUNTS),
        "bytes_per_s": bytes_per_s(),
    }
    sumpter.shutdown()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
