"""Collectives on tensors in Horovod's and BytePS' words, eagerly and within tf.function.

Without a name, calls are matched by their order. Arguments that name a device for the reduction are
taken and mean nothing: the core reduces in host memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from sumpter._calls import collective as kinds
from sumpter._core import membership
from sumpter._core.compression.codecs import Compression
from sumpter._core.process_sets import ProcessSet, global_process_set, label, members
from sumpter._core.reduction import Average, ReduceOp
from sumpter._errors import UnsupportedError
from sumpter.tensorflow.calls import (
    CompressionLike,
    call,
    codecs_of,
    dense,
    described,
    reducible,
    reduction,
)


def init(**settings: object) -> None:
    """Joins the job; does nothing if this process has joined already.

    Settings given by name override the environment.
    """
    membership.join(settings)


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressionLike = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the reduction of a tensor over all ranks, by default its average.

    Averages of integers are rounded down. Of IndexedSlices, the slices of all ranks are gathered,
    and averages divide their values.
    """
    if isinstance(tensor, tf.IndexedSlices):
        return _gathered_slices(tensor, reduction(average, op), name, process_set)
    return grouped_allreduce(
        [tensor],
        *(average, device_dense, device_sparse, compression, op),
        *(prescale_factor, postscale_factor, name, process_set),
    )[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressionLike = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Returns the reduction of each tensor over all ranks, in one call."""
    chosen = reduction(average, op)
    given = [_scaled(reducible(tensor, name), prescale_factor) for tensor in tensors]
    codecs = codecs_of(given, compression, chosen, named=name is not None)
    results = call(kinds.ALL_REDUCE, given, name, process_set, op=chosen, codecs=codecs)
    return [_scaled(result, postscale_factor) for result in results]


def push_pull(
    tensor: Any,
    scope: str = "",
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressionLike = Compression.none,
    op: ReduceOp | None = None,
    enable_async: bool = False,
    name: str | None = None,
) -> Any:
    """BytePS' name for allreduce. `scope` goes in front of the name.

    Raises UnsupportedError for `enable_async`: asynchronous training is of sumpter.torch and
    sumpter.service.
    """
    if enable_async:
        raise UnsupportedError(
            "enable_async is not there in TensorFlow: use sumpter.torch with a staleness"
        )
    named = None if name is None else f"{scope}{name}"
    return allreduce(tensor, average, "", "", compression, op, name=named)


def allgather(
    tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> tf.Tensor:
    """Returns all ranks' rows, joined by rank; ranks may have different numbers of them."""
    return grouped_allgather([tensor], name, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[tf.Tensor]:
    """Returns all ranks' rows of each tensor, in two calls: of their numbers, and of the rows."""
    given = [_with_rows(dense(tensor, name), name) for tensor in tensors]
    if not given:
        return []
    rows = tf.stack([tf.shape(tensor, tf.int64)[0] for tensor in given])
    (counts,) = call(kinds.ALL_GATHER, [rows], name and f"{name}.rows", process_set)
    counts = tf.reshape(counts, (-1, len(given)))
    # Padded to the rank with the most, which costs bytes only where ranks differ.
    most = tf.reduce_max(counts, axis=0)
    padded = [
        tf.pad(tensor, [[0, most[index] - rows[index]], *[[0, 0]] * (tensor.shape.rank - 1)])
        for index, tensor in enumerate(given)
    ]
    gathered = call(kinds.ALL_GATHER, padded, name, process_set)
    joined = []
    for index, result in enumerate(gathered):
        pieces = [
            result[rank * most[index] : rank * most[index] + counts[rank, index]]
            for rank in range(len(members(process_set)))
        ]
        joined.append(tf.concat(pieces, axis=0))
    return joined


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: CompressionLike = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduces a tensor over all ranks and returns this rank's share of the rows.

    ValueError unless the number of ranks divides that of the rows, which must be known.
    """
    return grouped_reducescatter(
        [tensor],
        *(device_dense, compression, op, name, process_set, prescale_factor, postscale_factor),
    )[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: CompressionLike = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """Reduces each tensor over all ranks and returns this rank's shares, in one call."""
    chosen, size = reduction(None, op), len(members(process_set))
    given = [_scaled(reducible(tensor, name), prescale_factor) for tensor in tensors]
    for tensor in given:
        rows = tensor.shape[0] if tensor.shape.rank else None
        if rows is None or rows % size:
            raise ValueError(
                f"{described(name)} has the shape {tensor.shape}, whose rows cannot be shared out "
                f"evenly among {size} ranks: pad it to a multiple"
            )
    results = call(kinds.REDUCE_SCATTER, given, name, process_set, op=chosen)
    return [_scaled(result, postscale_factor) for result in results]


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Returns rank `root_rank`'s tensor; its gradient arrives at the root, others get zeros."""
    return grouped_broadcast([tensor], root_rank, name, process_set)[0]


def grouped_broadcast(
    tensors: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Returns rank `root_rank`'s tensors, in one call; the root is a rank of the job."""
    membership.check_root(membership.current(), root_rank)
    if root_rank not in members(process_set):
        raise ValueError(f"root_rank {root_rank} is not in {process_set}")
    given = [dense(tensor, name) for tensor in tensors]
    return call(kinds.BROADCAST, given, name, process_set, root=root_rank)


def barrier(name: str | None = None, process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank of the set has called it; not for use within tf.function."""
    ranks = None if process_set is global_process_set else members(process_set)
    word = "barrier" if name is None else f"barrier.{name}"
    membership.current().barrier(word + label(process_set), ranks).wait()


def rank_op(name: str | None = None) -> tf.Tensor:
    """This rank's number, looked up when a graph runs."""
    return _number(membership.rank, name)


def size_op(name: str | None = None) -> tf.Tensor:
    """The number of ranks, looked up when a graph runs."""
    return _number(membership.size, name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This rank's number on its machine, looked up when a graph runs."""
    return _number(membership.local_rank, name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """The number of ranks on this machine, looked up when a graph runs."""
    return _number(membership.local_size, name)


def _number(look_up: Any, name: str | None) -> tf.Tensor:
    found = tf.numpy_function(lambda: tf.int32.as_numpy_dtype(look_up()), [], tf.int32, name=name)
    found.set_shape(())
    return found


def _scaled(tensor: tf.Tensor, factor: float) -> tf.Tensor:
    """A tensor times a number; integers are rounded towards zero, as Horovod does."""
    if factor == 1.0:
        return tensor
    if tensor.dtype.is_floating:
        return tensor * tf.cast(factor, tensor.dtype)
    return tf.cast(tf.cast(tensor, tf.float64) * factor, tensor.dtype)


def _with_rows(tensor: tf.Tensor, name: str | None) -> tf.Tensor:
    if tensor.shape.rank is None:
        raise ValueError(f"{described(name)} has an unknown number of dimensions")
    return tf.reshape(tensor, (1,)) if tensor.shape.rank == 0 else tensor


def _gathered_slices(
    slices: tf.IndexedSlices, op: ReduceOp, name: str | None, process_set: ProcessSet
) -> tf.IndexedSlices:
    if op.wire_name != "sum":
        raise ValueError(f"IndexedSlices have no reduction by {op.value}: use Sum or Average")
    reducible(slices.values, name)
    values, indices = grouped_allgather([slices.values, slices.indices], name, process_set)
    if op is Average:
        values = values / tf.cast(len(members(process_set)), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)
