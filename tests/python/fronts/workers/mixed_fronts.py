"""Ranks of several frameworks meet under names, and see where their calls differ.

`TEST_FRONT` says of which front this rank is.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np

import sumpter
from common import RANK, WORLD_SIZE, leave_result, raises

FRONT = os.environ["TEST_FRONT"]
# Those of the ranks, in their order.
FRONTS = os.environ["TEST_FRONTS"].split(",")
front = sumpter if FRONT == "numpy" else importlib.import_module(f"sumpter.{FRONT}")


def given(array: np.ndarray) -> Any:
    """An array of this rank's framework."""
    if FRONT == "torch":
        return importlib.import_module("torch").from_numpy(array.copy())
    if FRONT == "tensorflow":
        return importlib.import_module("tensorflow").constant(array)
    if FRONT == "mxnet":
        return importlib.import_module("mxnet").nd.array(array, dtype=array.dtype)
    return array


def found_in(result: Any) -> np.ndarray:
    return result.asnumpy() if FRONT == "mxnet" else np.asarray(result)


def reduce(array: np.ndarray, name: str, average: bool = False) -> np.ndarray:
    if FRONT == "numpy":
        return sumpter.push_pull(array, average, name)
    call = front.all_reduce if FRONT == "jax" else front.allreduce
    op = front.Average if average else front.Sum
    return found_in(call(given(array), op=op, name=name))


def push_pull(array: np.ndarray, name: str) -> np.ndarray:
    """Under the name that BytePS gave it, where the front has it."""
    if FRONT == "jax":
        return reduce(array, name, average=True)
    return found_in(front.push_pull(given(array), average=True, name=name))


def gather(array: np.ndarray, name: str) -> np.ndarray:
    call = front.all_gather if FRONT == "jax" else front.allgather
    return found_in(call(given(array), name=name))


def scatter(array: np.ndarray, name: str) -> np.ndarray:
    call = front.reduce_scatter if FRONT == "jax" else front.reducescatter
    return found_in(call(given(array), op=front.Sum, name=name))


def expect(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape, (found, expected)
    np.testing.assert_array_equal(found, expected)


def differs(call: Callable[[], object], *parts: str) -> None:
    with raises(sumpter.MismatchError, *parts):
        call()


front.init()
rows = np.arange(300, dtype=np.float32).reshape(100, 3)
total = rows * sum(range(1, WORLD_SIZE + 1))
for dtype in ("float32", "int64"):
    own = (rows * (RANK + 1)).astype(dtype)
    expect(reduce(own, f"sum.{dtype}"), total.astype(dtype))
    mean = np.floor(total / WORLD_SIZE) if dtype == "int64" else total / np.float32(WORLD_SIZE)
    expect(reduce(own, f"average.{dtype}", average=True), mean.astype(dtype))
    expect(push_pull(own, f"byteps.{dtype}"), mean.astype(dtype))
    for root in range(WORLD_SIZE):
        moved = found_in(front.broadcast(given(own), root, name=f"moved.{root}.{dtype}"))
        expect(moved, (rows * (root + 1)).astype(dtype))
front.barrier()
differs(lambda: reduce(rows, "differs", average=RANK == 0), "average)", "sum)", "rank 0 called")
expect(reduce(rows, "agrees"), rows * WORLD_SIZE)
differs(lambda: reduce(rows[RANK:], "long"), "allreduce.long", "must be equal")
# Sums that depend on the order of addition, and their division.
noise = np.random.default_rng(RANK).standard_normal(1000, np.float32)
sums = [reduce(noise, f"noise.{average}", average) for average in (False, True)]
leave_result(b"".join(found.tobytes() for found in sums))
if "jax" not in FRONTS:
    # JAX's front moves arrays only.
    assert front.broadcast_object([FRONT], 1, name="object") == FRONTS[1:2]
    assert front.allgather_object(FRONT, name="objects") == FRONTS
if not {"numpy", "tensorflow"} & set(FRONTS):
    # NumPy's front moves no rows, and TensorFlow's meets only itself there.
    for count in (0, 1, 100):
        expected = np.concatenate([rows[:count] * (rank + 1) for rank in range(WORLD_SIZE)])
        expect(gather(rows[:count] * (RANK + 1), f"rows.{count}"), expected)
    shares = np.split(total[: 33 * WORLD_SIZE], WORLD_SIZE)
    expect(scatter(rows[: 33 * WORLD_SIZE] * (RANK + 1), "share"), shares[RANK])
    if "jax" in FRONTS:
        differs(lambda: gather(rows[: RANK + 1], "uneven"), "1 on rank 0, 2 on rank 1, 3 on rank 2")
        differs(
            lambda: gather(rows[:0] if RANK else rows, "none"),
            "rank 1 needs equally many rows",
            "100 on",
        )
    else:
        uneven = np.concatenate([rows[: rank + 1] for rank in range(WORLD_SIZE)])
        expect(gather(rows[: RANK + 1], "uneven"), uneven)
        expect(gather(rows[:0] if RANK else rows, "none"), rows)
    differs(lambda: gather(rows.reshape(-1) if RANK else rows, "row"), "allgather.row", "float32")
    differs(
        lambda: scatter(rows[: (RANK + 1) * WORLD_SIZE], "uneven"),
        "reducescatter.uneven",
        "must be equal",
    )
front.shutdown()
