"""Reductions of MXNet's arrays: all rounds of a call begin before the first is waited for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import mxnet as mx
import numpy as np

from sumpter._calls import collective as kinds
from sumpter._calls.collective import Collective
from sumpter._calls.exchange import gather
from sumpter._calls.refusals import Checking
from sumpter._calls.rounds import perform
from sumpter._core.process_sets import ProcessSet, members
from sumpter._core.reduction import Adasum, Average, ReduceOp, Reduction, Sum, choose_op
from sumpter._errors import UnsupportedError
from sumpter.mxnet.arrays import MXNET, described, dtype_name, is_sparse, view


def call(
    kind: str,
    arrays: Sequence[mx.nd.NDArray],
    name: str | None,
    process_set: ProcessSet,
    *,
    paths: Sequence[str] = (),
    reduction: Reduction | None = None,
    root: int = 0,
    codecs: Sequence[str] = (),
    priorities: Sequence[int] = (),
) -> list[np.ndarray]:
    """Carries out a collective on dense arrays together, in the order in which they are given.

    Each array begins when MXNet has computed it, while MXNet goes on with the next. `paths` are
    what their names end with.
    """
    count = len(arrays)
    reduction = reduction or Reduction(Sum)
    paths = paths or paths_of(count)
    called = Collective(
        *(MXNET, kind, tuple(paths), name, reduction.op, root, process_set),
        *(len(members(process_set)), tuple(codecs) or ("",) * count),
    )

    def computed() -> Iterator[np.ndarray]:
        for array in arrays:
            yield _scaled(view(array), reduction.prescale)

    results = perform(called, computed(), priorities)
    return [_scaled(result, reduction.postscale) for result in results]


def checking(
    arrays: Sequence[Any], name: str | None, process_set: ProcessSet, paths: Sequence[str] = ()
) -> Checking:
    """The checks of a reduce_all() of these arrays, which begins with all dense ones."""
    paths = paths or paths_of(len(arrays))
    dense = [path for path, array in zip(paths, arrays, strict=True) if not is_sparse(array)]
    if dense or not paths:
        return Checking(kinds.ALL_REDUCE, name, process_set, dict.fromkeys(dense))
    return _checking_rows(name if name is None else f"{name}{paths[0]}", process_set)


def _checking_rows(name: str | None, process_set: ProcessSet) -> Checking:
    # Of the places of the rows, and of the rows.
    return Checking(kinds.ALL_GATHER, name, process_set, dict.fromkeys(paths_of(2)))


def paths_of(count: int) -> list[str]:
    """What the names of so many arrays of a call end with."""
    return [""] if count == 1 else [f".{index}" for index in range(count)]


def reduction_of(
    average: bool | None, op: ReduceOp | None, prescale: float = 1.0, postscale: float = 1.0
) -> Reduction:
    """What Horovod's arguments for it say."""
    chosen = choose_op(op, average)
    if chosen is Adasum:
        raise UnsupportedError("there is no Adasum of MXNet's arrays: use Average")
    return Reduction(chosen, prescale, postscale)


def reduce_rows(
    array: mx.nd.sparse.RowSparseNDArray,
    name: str | None,
    process_set: ProcessSet,
    reduction: Reduction,
    priority: int = 0,
) -> mx.nd.sparse.RowSparseNDArray:
    """The sum, or the average, of row-sparse arrays: the rows that any rank has.

    All ranks' rows are gathered and added in the order of ranks.
    """
    with _checking_rows(name, process_set):
        if reduction.op not in (Sum, Average):
            raise UnsupportedError(
                f"{described(name)} is of storage type 'row_sparse', which has sums and averages "
                f"only, not {reduction.op.value}"
            )
    dtype = np.dtype(dtype_name(array))
    indices, rows = np.zeros(0, np.int64), np.zeros((0, *array.shape[1:]), dtype)
    if array.indices.size:
        indices, rows = array.indices.asnumpy(), _scaled(array.data.asnumpy(), reduction.prescale)
    places, values = gather([indices, rows], name, process_set, priority)
    found = np.unique(np.concatenate(places))
    total = np.zeros((len(found), *array.shape[1:]), dtype)
    for place, value in zip(places, values, strict=True):
        # A rank has each row once.
        total[np.searchsorted(found, place)] += value
    if reduction.op is Average:
        size = len(places)
        total = total / dtype.type(size) if dtype.kind == "f" else total // size
    form = {"shape": array.shape, "dtype": dtype, "ctx": array.context}
    if not found.size:
        return mx.nd.sparse.zeros("row_sparse", **form)
    scaled = _scaled(total, reduction.postscale)
    return mx.nd.sparse.row_sparse_array((scaled, found), **form)


def reduce_all(
    arrays: Sequence[Any],
    name: str | None,
    process_set: ProcessSet,
    *,
    paths: Sequence[str],
    reduction: Reduction,
    codecs: Sequence[str],
    priorities: Sequence[int],
) -> list[Any]:
    """The reductions of dense and row-sparse arrays; row-sparse ones are exchanged one by one."""
    results: list[Any] = [None] * len(arrays)
    dense = [place for place, array in enumerate(arrays) if not is_sparse(array)]
    if dense:
        reduced = call(
            kinds.ALL_REDUCE,
            [arrays[place] for place in dense],
            name,
            process_set,
            paths=[paths[place] for place in dense],
            reduction=reduction,
            codecs=[codecs[place] for place in dense],
            priorities=[priorities[place] for place in dense],
        )
        for place, result in zip(dense, reduced, strict=True):
            results[place] = result
    for place, array in enumerate(arrays):
        if is_sparse(array):
            own = None if name is None else f"{name}{paths[place]}"
            form = process_set, reduction, priorities[place]
            results[place] = reduce_rows(array, own, *form)
    return results


def _scaled(array: np.ndarray, factor: float) -> np.ndarray:
    """An array times a number; integers are rounded towards zero, as Horovod does."""
    if factor == 1.0:
        return array
    if array.dtype.kind == "f":
        return array * array.dtype.type(factor)
    return (array.astype(np.float64) * factor).astype(array.dtype)
