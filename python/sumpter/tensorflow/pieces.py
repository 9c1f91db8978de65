"""Collectives that move pieces of tensors: allgather, reducescatter and alltoall.

Where pieces differ in size, ranks first tell each other the sizes, and pad to the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from sumpter._calls import collective as kinds
from sumpter._calls.codecs import CompressionLike
from sumpter._calls.refusals import Checking
from sumpter._core.compression.choice import choose
from sumpter._core.compression.codecs import Compression, NoneCompressor
from sumpter._core.pieces import check_splits
from sumpter._core.process_sets import ProcessSet, global_process_set, members
from sumpter._core.reduction import Average, ReduceOp
from sumpter._errors import UnsupportedError
from sumpter.tensorflow.calls import (
    call,
    checking,
    dense,
    described,
    reducible,
    reduction,
    scaled,
)


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Returns all ranks' rows, joined by rank; ranks may have different numbers of them."""
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Returns all ranks' rows of each tensor, in two calls: of their numbers, and of the rows."""
    with checking_rows(name, process_set):
        given = [_with_rows(dense(tensor, name), name) for tensor in tensors]
    if not given:
        return []
    rows = tf.stack([tf.shape(tensor, tf.int64)[0] for tensor in given])
    (counts,) = call(kinds.ALL_GATHER, [rows], name and f"{name}.rows", process_set)
    counts = tf.reshape(counts, (-1, len(given)))
    # Padded to the rank with the most, and so that ever new numbers need few names in the core.
    most = _rounded(tf.reduce_max(counts, axis=0))
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
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduces a tensor over all ranks and returns this rank's share of the rows.

    The first ranks get one row more where the rows cannot be shared out evenly.
    """
    return grouped_reducescatter(
        [tensor],
        *(device_dense, compression, op, process_set, prescale_factor, postscale_factor, name),
    )[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: CompressionLike = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[tf.Tensor]:
    """Reduces each tensor over all ranks and returns this rank's shares, in one call."""
    ranks, given = len(members(process_set)), []
    with checking(kinds.REDUCE_SCATTER, tensors, name, process_set):
        chosen, choice = reduction(None, op), choose(compression)
        if choice.codec or choice.compressor is not NoneCompressor:
            raise UnsupportedError(
                f"reducescatter sends tensors as they are, not by {compression!r}"
            )
        for tensor in tensors:
            one = _checked_rows(scaled(reducible(tensor, name), prescale_factor), name)
            rows = one.shape[0] or tf.shape(one, tf.int64)[0]
            given.append((one, [(rows + ranks - 1 - place) // ranks for place in range(ranks)]))
    padded = [_in_blocks(one, shares, shares[0]) for one, shares in given]
    results = call(kinds.REDUCE_SCATTER, padded, name, process_set, op=chosen)
    own = process_set.rank()
    return [
        scaled(result[: shares[own]], postscale_factor)
        for result, (_, shares) in zip(results, given, strict=True)
    ]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Sends `splits[i]` rows of `tensor` to rank i; returns the rows received, by rank.

    Without `splits` every rank gets equally many rows. With them, how many rows came from each
    rank is returned as well. ValueError for splits that do not add up to the rows; within
    tf.function an error of TensorFlow's when it runs, where they are not known before. Rows travel
    in blocks as long as the longest of all ranks'.
    """
    ranks, own = len(members(process_set)), process_set.rank()
    with Checking(kinds.ALL_GATHER, name and f"{name}.splits", process_set):
        given = _checked_rows(dense(tensor, name), name)
        counts = _splits(given, splits, ranks)
    (table,) = call(kinds.ALL_GATHER, [counts], name and f"{name}.splits", process_set)
    table = tf.reshape(table, (ranks, ranks))
    longest = tf.reduce_max(table) if splits is None else _rounded(tf.reduce_max(table))
    blocks = _in_blocks(given, tf.unstack(counts), longest)
    (moved,) = call(kinds.ALL_TO_ALL, [blocks], name, process_set)
    received = table[:, own]
    rows = tf.concat(
        [moved[place * longest : place * longest + received[place]] for place in range(ranks)],
        axis=0,
    )
    if splits is None:
        return rows
    return rows, tf.cast(received, getattr(splits, "dtype", tf.int32))


def checking_rows(name: str | None, process_set: ProcessSet) -> Checking:
    """The checks of a gather, which begins with the numbers of rows."""
    return Checking(kinds.ALL_GATHER, name and f"{name}.rows", process_set)


def _rounded(rows: tf.Tensor) -> tf.Tensor:
    """padded_rows() of each number, in a graph as well."""
    steps = tf.constant([1 << bit for bit in range(40)], tf.int64)
    step = tf.reduce_max(tf.where(rows[..., tf.newaxis] >= 16 * steps, steps, 1), axis=-1)
    return -(-rows // step) * step


def _splits(tensor: tf.Tensor, splits: Any, ranks: int) -> tf.Tensor:
    """How many rows go to each rank."""
    rows = tf.shape(tensor, tf.int64)[0]
    if splits is not None:
        given = tf.convert_to_tensor(splits)
        if not given.dtype.is_integer or not given.shape.is_compatible_with([ranks]):
            raise ValueError(
                f"splits must be a list of {ranks} whole numbers, one for each rank, not of "
                f"{given.dtype.name} {given.shape}"
            )
        counts = tf.ensure_shape(tf.cast(given, tf.int64), (ranks,))
    else:
        counts = tf.fill([ranks], rows // ranks)
    known, total = tf.get_static_value(counts), tf.get_static_value(rows)
    if known is not None and total is not None:
        check_splits(int(total), None if splits is None else known.tolist(), ranks)
        return counts
    text = f"alltoall needs {ranks} splits from 0 up that add up to the rows of the tensor"
    with tf.control_dependencies(
        [
            tf.debugging.assert_non_negative(counts, message=text),
            tf.debugging.assert_equal(tf.reduce_sum(counts), rows, message=text),
        ]
    ):
        return tf.identity(counts)


def _in_blocks(tensor: tf.Tensor, counts: Sequence[Any], longest: Any) -> tf.Tensor:
    """The rows in as many blocks as there are counts, each filled up with zeros."""
    blocks, start = [], 0
    for count in counts:
        rest = [[0, 0]] * (tensor.shape.rank - 1)
        blocks.append(tf.pad(tensor[start : start + count], [[0, longest - count], *rest]))
        start += count
    return tf.concat(blocks, axis=0)


def _checked_rows(tensor: tf.Tensor, name: str | None) -> tf.Tensor:
    if not tensor.shape.rank:
        raise ValueError(
            f"{described(name)} needs rows to share out: it is of shape {tensor.shape}"
        )
    return tensor


def _with_rows(tensor: tf.Tensor, name: str | None) -> tf.Tensor:
    if tensor.shape.rank is None:
        raise ValueError(f"{described(name)} has an unknown number of dimensions")
    return tf.reshape(tensor, (1,)) if tensor.shape.rank == 0 else tensor
