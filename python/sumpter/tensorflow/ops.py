"""Collectives on tensors in Horovod's and BytePS' words, eagerly and within tf.function.

Without a name, calls are matched by their order. Arguments that name a device for the reduction are
taken and mean nothing: the core reduces in host memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from sumpter._calls import collective as kinds
from sumpter._calls.codecs import CompressionLike
from sumpter._core import membership
from sumpter._core.compression.codecs import Compression
from sumpter._core.process_sets import (
    ProcessSet,
    global_process_set,
    members,
    process_set_ids_and_ranks,
)
from sumpter._core.reduction import Average, ReduceOp
from sumpter._errors import UnsupportedError
from sumpter.tensorflow.calls import (
    call,
    checking,
    codecs_of,
    dense,
    reducible,
    reduction,
    scaled,
)
from sumpter.tensorflow.pieces import checking_rows, grouped_allgather


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
    ignore_name_scope: bool = False,
) -> Any:
    """Returns the reduction of a tensor over all ranks, by default its average.

    Averages of integers are rounded down. Of IndexedSlices, the slices of all ranks are gathered,
    and averages divide their values.
    """
    if isinstance(tensor, tf.IndexedSlices):
        return _gathered_slices(tensor, (average, op), name, process_set)
    return grouped_allreduce(
        [tensor],
        *(average, device_dense, device_sparse, compression, op),
        *(prescale_factor, postscale_factor, process_set, ignore_name_scope, name),
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
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[tf.Tensor]:
    """Returns the reduction of each tensor over all ranks, in one call."""
    with checking(kinds.ALL_REDUCE, tensors, name, process_set):
        chosen = reduction(average, op)
        given = [scaled(reducible(tensor, name), prescale_factor) for tensor in tensors]
        codecs = codecs_of(given, compression, chosen, named=name is not None)
    results = call(kinds.ALL_REDUCE, given, name, process_set, op=chosen, codecs=codecs)
    return [scaled(result, postscale_factor) for result in results]


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
    named = None if name is None else f"{scope}{name}"
    with checking(kinds.ALL_REDUCE, [tensor], named):
        if enable_async:
            raise UnsupportedError(
                "enable_async is not there in TensorFlow: use sumpter.torch with a staleness"
            )
    return allreduce(tensor, average, "", "", compression, op, name=named)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    scope: str = "",
    is_variable: bool = True,
) -> tf.Tensor:
    """Returns rank `root_rank`'s tensor; its gradient arrives at the root, others get zeros.

    `scope` and `is_variable` are BytePS': the first goes in front of the name, and the second
    changes nothing.
    """
    named = None if name is None else f"{scope}{name}"
    return grouped_broadcast([tensor], root_rank, named, process_set)[0]


def grouped_broadcast(
    tensors: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Returns rank `root_rank`'s tensors, in one call; the root is a rank of the job."""
    with checking(kinds.BROADCAST, tensors, name, process_set):
        membership.check_root(membership.current(), root_rank)
        if root_rank not in members(process_set):
            raise ValueError(f"root_rank {root_rank} is not in {process_set}")
        given = [dense(tensor, name) for tensor in tensors]
    return call(kinds.BROADCAST, given, name, process_set, root=root_rank)


def rank_op(name: str | None = None) -> tf.Tensor:
    """This rank's number, looked up when a graph runs."""
    return _number(membership.rank, name)


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks of the job or of a process set, looked up when a graph runs."""
    return _number(lambda: len(process_set_ids_and_ranks()[process_set_id]), name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Whether this rank is in a process set, as 1 or 0, looked up when a graph runs."""
    return _number(lambda: membership.rank() in process_set_ids_and_ranks()[process_set_id], name)


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


def _gathered_slices(
    slices: tf.IndexedSlices,
    said: tuple[bool | None, ReduceOp | None],
    name: str | None,
    process_set: ProcessSet,
) -> tf.IndexedSlices:
    with checking_rows(name, process_set):
        op = reduction(*said)
        if op.wire_name != "sum":
            raise ValueError(f"IndexedSlices have no reduction by {op.value}: use Sum or Average")
        reducible(slices.values, name)
    values, indices = grouped_allgather(
        [slices.values, slices.indices], name, process_set=process_set
    )
    if op is Average:
        values = values / tf.cast(len(members(process_set)), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)
