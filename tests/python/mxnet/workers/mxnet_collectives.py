"""Collectives against NumPy: every element type, row-sparse arrays, process sets, bad input."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np

import sumpter.mxnet as sm

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DTYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64")


def expect_error(kind: type[BaseException], call: Callable[[], object], *parts: str) -> None:
    try:
        call()
    except kind as error:
        missing = [part for part in parts if part not in str(error)]
        assert not missing, f"{missing} not in: {error}"
    else:
        raise AssertionError(f"expected {kind}")


def expect(found: Any, value: np.ndarray, what: object) -> None:
    assert isinstance(found, mx.nd.NDArray), (what, type(found))
    found = found.asnumpy()
    assert found.dtype == value.dtype, (what, found.dtype, value.dtype)
    assert found.tobytes() == value.tobytes(), (what, found, value)


def check_values() -> None:
    for dtype in DTYPES:
        kind = np.dtype(dtype)
        every = [((np.arange(12) + rank) % 5).astype(kind).reshape(4, 3) for rank in range(SIZE)]
        total = sum(every[1:], every[0])
        mean = total // kind.type(SIZE) if kind.kind in "iu" else total / kind.type(SIZE)
        own = mx.nd.array(every[RANK], dtype=dtype)
        expected = {
            "mean": (lambda x: sm.allreduce(x), mean),
            "sum": (lambda x: sm.allreduce(x, average=False, priority=3), total),
            "max": (lambda x: sm.allreduce(x, op=sm.Max), np.maximum.reduce(every)),
            "min": (lambda x: sm.allreduce(x, op=sm.Min, name="min"), np.minimum.reduce(every)),
            "push_pull": (lambda x: sm.push_pull(x, average=False, name="pull"), total),
            "group": (lambda x: sm.grouped_allreduce([x, x], name="group")[1], mean),
            "twice": (lambda x: sm.allreduce(x, False, postscale_factor=2.0), 2 * total),
            "root": (lambda x: sm.broadcast(x, SIZE - 1), every[-1]),
            "gather": (sm.allgather, np.concatenate(every)),
            "uneven": (lambda x: sm.allgather(x[: RANK + 1], "uneven"), uneven(every)),
            "share": (
                lambda x: sm.reducescatter(x, sm.Sum),
                np.array_split(total, SIZE)[RANK],
            ),
            "uneven share": (
                lambda x: sm.grouped_reducescatter([x, x[:3]], name="share")[1],
                np.array_split(mean[:3], SIZE)[RANK],
            ),
        }
        for name, (call, value) in expected.items():
            expect(call(own), value.astype(kind), (name, dtype))
        expect(own, every[RANK], ("unchanged", dtype))
        in_place(own, every, total.astype(kind), mean.astype(kind))


def in_place(
    own: mx.nd.NDArray, every: list[np.ndarray], total: np.ndarray, mean: np.ndarray
) -> None:
    """Within record() too, where MXNet refuses assignments of its own."""
    one, other, last = own.copy(), own.copy(), own.copy()
    with mx.autograd.record():
        assert sm.allreduce_(one, average=False, name="place") is one
        assert sm.grouped_allreduce_([other], name="places")[0] is other
        assert sm.broadcast_(last, 0, name="start") is last
    assert sm.byteps_push_pull(own, name="bytes", is_average=False) is None
    for found, value in ((one, total), (other, mean), (last, every[0]), (own, total)):
        expect(found, value, ("in place", value.dtype))
    half = mx.nd.array(every[RANK], dtype=total.dtype)
    sm.allreduce_(half[1:3], average=False, name="view")
    expect(half[1:3], total[1:3], "a view")
    expect(half[3:], every[RANK][3:], "beside a view")


def uneven(every: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([one[: rank + 1] for rank, one in enumerate(every)])


def check_alltoall() -> None:
    for dtype in DTYPES:
        rows = [np.full((SIZE, 2), rank, dtype) for rank in range(SIZE)]
        own = mx.nd.array(rows[RANK], dtype=dtype)
        expect(sm.alltoall(own), np.repeat(np.arange(SIZE), 2).reshape(-1, 2).astype(dtype), dtype)
    # Rank r sends i rows to rank i.
    total = sum(range(SIZE))
    own = mx.nd.full((total, 2), RANK, dtype="int32")
    for splits in (list(range(SIZE)), mx.nd.array(range(SIZE), dtype="int32")):
        received, counts = sm.alltoall(own, splits, "moved")
        assert counts.asnumpy().tolist() == [RANK] * SIZE and counts.dtype == np.int32
        value = np.repeat(np.arange(SIZE), RANK * 2).reshape(-1, 2).astype("int32")
        expect(received, value, "alltoall")
    expect_error(ValueError, lambda: sm.alltoall(own, [1] * SIZE), "splits", "add up")


def check_numpy_arrays() -> None:
    """Arrays of mx.np stay such arrays, of no dimension and of no rows too."""
    mx.npx.set_np()
    scalar = sm.allreduce(mx.np.array(float(RANK)), average=False)
    assert (
        type(scalar) is mx.np.ndarray and scalar.shape == () and float(scalar) == sum(range(SIZE))
    )
    place = mx.np.array(float(RANK))
    sm.broadcast_(place, SIZE - 1)
    assert float(place) == SIZE - 1
    assert sm.allgather(mx.np.array(float(RANK))).tolist() == [float(r) for r in range(SIZE)]
    assert sm.allgather(mx.np.zeros((0, 3))).shape == (0, 3)
    assert sm.allreduce(mx.np.zeros((0, 3))).shape == (0, 3)
    truth = sm.broadcast(mx.np.array([RANK == 1, True], dtype="bool"), 1)
    assert truth.dtype == np.bool_ and truth.tolist() == [True, True]
    mx.npx.reset_np()


def check_rows() -> None:
    """Each rank has its own row, and the last one, of a row-sparse array."""
    shape = (SIZE + 2, 2)
    value = np.array([[RANK + 1.0] * 2, [1.0, 2.0]], "float32")
    own = mx.nd.sparse.row_sparse_array((value, [RANK, SIZE + 1]), shape=shape)
    dense = np.zeros(shape, "float32")
    dense[:SIZE] = np.arange(1, SIZE + 1)[:, None]
    dense[-1] = SIZE, 2 * SIZE
    total = sm.allreduce(own, average=False, name="rows")
    assert total.stype == "row_sparse" and total.indices.asnumpy().tolist() == [
        *range(SIZE),
        SIZE + 1,
    ]
    expect(total.tostype("default"), dense, "rows")
    expect(sm.allreduce(own).tostype("default"), dense / np.float32(SIZE), "mean of rows")
    sm.allreduce_(own, average=False, prescale_factor=2.0)
    expect(own.tostype("default"), 2 * dense, "rows in place")
    none = sm.allreduce(mx.nd.sparse.zeros("row_sparse", shape), name="none")
    assert none.stype == "row_sparse" and not none.asnumpy().any()
    some = own if RANK == 0 else mx.nd.sparse.zeros("row_sparse", shape)
    expect(sm.allreduce(some, average=False).tostype("default"), 2 * dense, "rows of one rank only")
    expect_error(sm.UnsupportedError, lambda: sm.allreduce(own, op=sm.Max), "sums and averages")


def check_sets_objects_and_codecs() -> None:
    last = sm.add_process_set([SIZE - 1])
    if last.included():
        assert sm.allreduce(mx.nd.ones(2), False, process_set=last).asnumpy().tolist() == [1, 1]
        expect_error(
            ValueError, lambda: sm.broadcast(mx.nd.ones(2), 0, process_set=last), "root_rank 0"
        )
    own = {"rank": RANK, "text": "x" * 100 * RANK}
    assert sm.broadcast_object(own if RANK == 1 else None, 1)["rank"] == 1
    assert [one["rank"] for one in sm.allgather_object(own)] == list(range(SIZE))
    big = mx.nd.full((64, 64), 1.0 + RANK)
    mean = (SIZE + 1) / 2
    found = sm.allreduce(big, compression=sm.Compression.bf16, name="coded")
    assert np.all(found.asnumpy() == mean)
    found = sm.push_pull(big, name="dictionary", compression={"compressor": "topk", "k": 64 * 64})
    assert np.allclose(found.asnumpy(), mean)
    sm.byteps_declare_tensor("declared", byteps_compressor_type="topk", byteps_compressor_k=1)
    spike = mx.nd.zeros((64, 64))
    spike[0, RANK], spike[0, 10] = 1.0, 5.0
    sm.byteps_push_pull(spike, name="declared", is_average=False)
    assert spike.asnumpy()[0, 10] == 5 * SIZE and not spike.asnumpy()[0, :SIZE].any()
    assert sm.get_pushpull_speed()[1] > 0
    sm.barrier()


def check_bad_input() -> None:
    csr = mx.nd.ones((2, 2)).tostype("csr")
    expect_error(sm.UnsupportedError, lambda: sm.allreduce(csr, name="odd"), "array odd", "csr")
    truth = mx.nd.ones(2, dtype="bool")
    expect_error(sm.UnsupportedError, lambda: sm.allreduce(truth, name="odd"), "odd is of bool")
    brain = mx.nd.zeros(3, dtype=np.dtype([("bfloat16", np.uint16)]))
    expect_error(sm.UnsupportedError, lambda: sm.allreduce(brain, name="odd"), "odd is of bfloat16")
    assert sm.broadcast(brain, 0).dtype == brain.dtype
    expect_error(TypeError, lambda: sm.allreduce(np.ones(2), name="odd"), "odd is a ndarray")
    expect_error(TypeError, lambda: sm.broadcast([1.0], 0), "not an array of MXNet")
    expect_error(
        ValueError, lambda: sm.allreduce(mx.nd.ones(1), average=True, op=sm.Sum), "not both"
    )
    expect_error(sm.UnsupportedError, lambda: sm.allreduce(mx.nd.ones(1), op=sm.Adasum), "Adasum")
    expect_error(ValueError, lambda: sm.broadcast(mx.nd.ones(1), SIZE), str(SIZE))
    differs = mx.nd.ones(3 + (RANK == 0))
    parts = ("rank 0", "[3]", "[4]")
    expect_error(sm.MismatchError, lambda: sm.allreduce(differs, name="shape"), "shape", *parts)
    rows = mx.nd.ones((2, 3 + (RANK == 0)))
    expect_error(sm.MismatchError, lambda: sm.allgather(rows, name="row"), "row")
    kinds = mx.nd.ones(3, dtype="float32" if RANK else "float64")
    expect_error(sm.MismatchError, lambda: sm.allreduce(kinds, name="kind"), "float64")
    names = {"a" if RANK else "b": mx.nd.ones(3)}
    expect_error(sm.MismatchError, lambda: sm.broadcast_parameters(names), "broadcast_parameters")
    expect_error(ValueError, lambda: sm.broadcast_parameters([mx.nd.ones(1)]), "collect_params")
    # MXNet's own error of what it could not compute, when the collective waits for that.
    failed = [mx.nd.ones(3), mx.nd.random.normal(0, -1, (2, 2))]
    expect_error(mx.base.MXNetError, lambda: sm.grouped_allreduce(failed, name="failed"), "scale")
    # After all of these a job goes on.
    assert sm.allreduce(mx.nd.ones(3), average=False).asnumpy().tolist() == [float(SIZE)] * 3


sm.init()
assert (sm.rank(), sm.size()) == (RANK, SIZE)
check_values()
check_alltoall()
check_numpy_arrays()
check_rows()
check_sets_objects_and_codecs()
check_bad_input()
sm.shutdown()
