"""Horovod's and BytePS' collectives on MXNet's arrays, each of which returns when it is done."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from sumpter import _joining as joining
from sumpter._calls import collective as kinds
from sumpter._calls.codecs import CompressionLike, choice_for
from sumpter._calls.exchange import gather, scatter
from sumpter._calls.refusals import Checking
from sumpter._core import membership
from sumpter._core.compression.choice import Choice, Limits
from sumpter._core.compression.codecs import Compression
from sumpter._core.process_sets import ProcessSet, global_process_set, label, members
from sumpter._core.reduction import Average, ReduceOp
from sumpter._core.session import Session
from sumpter.mxnet.arrays import (
    assign,
    check_dense,
    check_reducible,
    described,
    dtype_name,
    is_sparse,
    like,
    view,
)
from sumpter.mxnet.calls import call, checking, paths_of, reduce_all, reduction_of


def init(
    comm: object = None, process_sets: object = None, lazy: bool = True, **settings: object
) -> None:
    """Joins the job; does nothing if this process has joined already.

    `comm` and `lazy` are Horovod's and BytePS' first argument. `comm` may list the ranks of the
    job, all of them; `lazy` changes nothing. `process_sets` are added at once. Settings given by
    name override the environment.
    """
    joining.enter(comm, process_sets, settings)


def resume(num_workers: int, num_servers: int, global_rank: int, context: object = None) -> None:
    """Joins a job of `num_workers` machines after suspend(), as its rank `global_rank`.

    As in BytePS a worker is a machine with as many ranks as this one had before suspend(), and
    `num_servers` summation servers must have joined before the job starts. `context` is accepted
    for compatibility. Raises ValueError without a suspend() before it.
    """
    joining.resume(num_workers, num_servers, global_rank, init)


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
    compression: CompressionLike = Compression.none,
) -> Any:
    """Returns the reduction of an array over all ranks, by default its average.

    Averages of integers are rounded down. Row-sparse arrays have sums and averages. What has a
    higher `priority` is sent first.
    """
    factors = prescale_factor, postscale_factor, process_set, op, compression
    return grouped_allreduce([tensor], average, name, priority, *factors)[0]


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
    compression: CompressionLike = Compression.none,
) -> Any:
    """Replaces an array by its reduction over all ranks, and returns it."""
    factors = prescale_factor, postscale_factor, process_set, op, compression
    return grouped_allreduce_([tensor], average, name, priority, *factors)[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
    compression: CompressionLike = Compression.none,
) -> list[Any]:
    """Returns the reduction of each array over all ranks, in one call."""
    said = average, op, prescale_factor, postscale_factor
    results = _reduced(tensors, name, priority, process_set, said, compression)
    return [
        result if is_sparse(result) else like(result, tensor)
        for result, tensor in zip(results, tensors, strict=True)
    ]


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
    compression: CompressionLike = Compression.none,
) -> Sequence[Any]:
    """Replaces each array by its reduction over all ranks, in one call, and returns them."""
    said = average, op, prescale_factor, postscale_factor
    results = _reduced(tensors, name, priority, process_set, said, compression)
    for tensor, result in zip(tensors, results, strict=True):
        assign(tensor, result)
    return tensors


def push_pull(
    tensor: Any,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: CompressionLike = Compression.none,
) -> Any:
    """Returns the average of an array over all ranks, or its sum: BytePS' name for allreduce.

    `version` is accepted for compatibility; Sumpter counts rounds itself.
    """
    return allreduce(tensor, average, name, priority, compression=compression)


def byteps_push_pull(
    tensor: Any,
    version: int = 0,
    priority: int = 0,
    name: str | None = None,
    is_average: bool = True,
) -> None:
    """Replaces an array by its average over all ranks, or its sum.

    It travels by the codec that byteps_declare_tensor() was told for the name, if any.
    """
    chosen = _declared.get(membership.current(), {}).get(name or "", Choice())
    said = is_average, None
    (result,) = _reduced([tensor], name, priority, global_process_set, said, chosen)
    assign(tensor, result)


def byteps_declare_tensor(name: str, **parameters: object) -> None:
    """Says by which codec byteps_push_pull() sends the tensor of a name.

    `parameters` are the keys of BytePS' compression_params, with or without the prefixes by which
    BytePS passes them on. Without any nothing is needed: tensors are declared when first used.
    """
    named = _declared.setdefault(membership.current(), {})
    named[name] = choice_for(parameters, "byteps_declare_tensor") if parameters else Choice()


def allgather(
    tensor: Any,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns all ranks' rows, joined by rank; ranks may have different numbers of them."""
    return grouped_allgather([tensor], name, priority, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns all ranks' rows of each array, in one call."""
    paths = dict.fromkeys(paths_of(len(tensors)))
    with Checking(kinds.ALL_GATHER, name, process_set, paths):
        given = [_rows(tensor, name) for tensor in tensors]
    gathered = gather(given, name, process_set, priority)
    return [
        like(np.concatenate(pieces), tensor)
        for pieces, tensor in zip(gathered, tensors, strict=True)
    ]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends `splits[i]` rows of an array to rank i; returns the rows received, by rank.

    Without `splits` every rank gets equally many rows. With them, how many rows came from each
    rank is returned as well.
    """
    with Checking(kinds.EXCHANGE_ROWS, name, process_set):
        counts = splits.asnumpy() if isinstance(splits, mx.nd.NDArray) else splits
        rows = _rows(tensor, name)
    pieces = scatter(rows, counts, name, process_set, priority)
    received = like(np.concatenate(pieces), tensor)
    if splits is None:
        return received
    numbers = np.array([len(piece) for piece in pieces], np.int32)
    return received, mx.nd.array(numbers, dtype="int32", ctx=mx.cpu())


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns rank `root_rank`'s array; the root is a rank of the job."""
    return like(_broadcast(tensor, root_rank, name, priority, process_set), tensor)


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Replaces an array by rank `root_rank`'s, and returns it."""
    assign(tensor, _broadcast(tensor, root_rank, name, priority, process_set))
    return tensor


def reducescatter(
    tensor: Any,
    op: ReduceOp = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces an array over all ranks and returns this rank's share of the rows.

    The first ranks get one row more where the rows cannot be shared out evenly.
    """
    factors = prescale_factor, postscale_factor
    return grouped_reducescatter([tensor], op, name, priority, process_set, *factors)[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    op: ReduceOp = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Reduces each array over all ranks and returns this rank's shares, in one call."""
    paths = dict.fromkeys(paths_of(len(tensors)))
    with Checking(kinds.REDUCE_SCATTER, name, process_set, paths):
        given = [check_dense(check_reducible(tensor, name), name) for tensor in tensors]
        for tensor in given:
            if not tensor.ndim:
                raise ValueError(f"{described(name)} has no rows to share out: give it a dimension")
        reduction = reduction_of(None, op, prescale_factor, postscale_factor)
    if not given:
        return []
    results = call(
        kinds.REDUCE_SCATTER,
        given,
        name,
        process_set,
        reduction=reduction,
        priorities=[priority] * len(given),
    )
    return [like(result, tensor) for result, tensor in zip(results, given, strict=True)]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank of the set has called it."""
    ranks = None if process_set is global_process_set else members(process_set)
    membership.current().barrier("barrier" + label(process_set), ranks).wait()


# What byteps_declare_tensor() was told, by names.
_declared: weakref.WeakKeyDictionary[Session, dict[str, Choice]] = weakref.WeakKeyDictionary()


def _reduced(
    tensors: Sequence[Any],
    name: str | None,
    priority: int,
    process_set: ProcessSet,
    said: tuple[Any, ...],
    compression: CompressionLike | Choice,
) -> list[Any]:
    """The reductions of arrays; `said` are the arguments of reduction_of()."""
    limits, named, count = Limits.of(membership.current().worker), name is not None, len(tensors)
    with checking(tensors, name, process_set):
        reduction = reduction_of(*said)
        given = [check_reducible(tensor, name) for tensor in tensors]
        if not isinstance(compression, Choice):
            compression = choice_for(compression, "a reduction of MXNet's arrays")
        sums = reduction.op.wire_name == "sum"
        codecs = [
            "" if is_sparse(one)
            else limits.codec_of(compression, one.shape, dtype_name(one), sums=sums, named=named)
            for one in given
        ]  # fmt: skip
    return reduce_all(
        given,
        name,
        process_set,
        paths=paths_of(count),
        reduction=reduction,
        codecs=codecs,
        priorities=[priority] * count,
    )


def _broadcast(
    tensor: Any, root_rank: int, name: str | None, priority: int, process_set: ProcessSet
) -> np.ndarray:
    with Checking(kinds.BROADCAST, name, process_set):
        check_root(root_rank, process_set)
        given = [check_dense(tensor, name)]
    options = {"root": root_rank, "priorities": [priority]}
    return call(kinds.BROADCAST, given, name, process_set, **options)[0]


def check_root(root_rank: int, process_set: ProcessSet) -> None:
    """Raises ValueError unless a rank is one of the set's."""
    membership.check_root(membership.current(), root_rank)
    if root_rank not in members(process_set):
        raise ValueError(f"root_rank {root_rank} is not in {process_set}")


def _rows(tensor: Any, name: str | None) -> np.ndarray:
    array = view(check_dense(tensor, name))
    return array if array.ndim else array.reshape(1)
