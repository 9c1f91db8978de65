"""Collectives on arrays and pytrees, inside and outside of jit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from sumpter._calls import collective as kinds
from sumpter._calls.codecs import CompressionLike
from sumpter._calls.collective import Collective
from sumpter._calls.refusals import Checking
from sumpter._core import membership
from sumpter._core.compression.choice import Limits, choose
from sumpter._core.compression.codecs import Compression, NoneCompressor
from sumpter._core.process_sets import ProcessSet, global_process_set, members
from sumpter._core.reduction import Adasum, Average, ReduceOp, Sum
from sumpter._errors import UnsupportedError
from sumpter.jax import arrays as leaf_arrays
from sumpter.jax.arrays import Leaves
from sumpter.jax.primitive import bind
from sumpter.jax.programs import JAX


def all_reduce(
    tree: Any,
    op: ReduceOp = Average,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    compression: CompressionLike = Compression.none,
) -> Any:
    """Returns the reduction of every array of `tree` over all ranks, in one call.

    The arrays go through the network together. Averages of integers are rounded down. Gradients
    flow through sums and averages. Without a name, calls are matched by their order. By
    `compression` arrays travel in fewer bytes, as those of `sumpter.push_pull`.
    """

    def codecs_of(leaves: Leaves) -> tuple[str, ...]:
        return _codecs(leaves, compression, ReduceOp(op), named=name is not None)

    return reduce_tree(tree, op, name, process_set, codecs_of)


def reduce_tree(
    tree: Any,
    op: ReduceOp,
    name: str | None,
    process_set: ProcessSet,
    codecs_of: Callable[[Leaves], tuple[str, ...]],
) -> Any:
    """The all_reduce of a pytree, each array by its codec."""
    with _checking(kinds.ALL_REDUCE, tree, name, process_set):
        leaves = leaf_arrays.flatten(tree)
        codecs = codecs_of(leaves)
        op = _checked(op)
        leaf_arrays.check_reducible(leaves, op)
    return _call(kinds.ALL_REDUCE, leaves, leaves.arrays, name, process_set, op, codecs=codecs)


def broadcast(
    tree: Any,
    root_rank: int = 0,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns rank `root_rank`'s arrays, in one call; all ranks pass arrays of the same shapes.

    The gradient arrives at the root, as the sum of all ranks' gradients; others get zeros. The root
    is a rank of the job, in a process set as well.
    """
    with _checking(kinds.BROADCAST, tree, name, process_set):
        if isinstance(root_rank, jax.core.Tracer):
            raise UnsupportedError(
                "root_rank is a value that JAX traces: it must be a number when the function is "
                "compiled, so pass it as one of jit's static_argnames"
            )
        membership.check_root(membership.current(), root_rank)
        if root_rank not in members(process_set):
            raise ValueError(f"root_rank {root_rank} is not in {process_set}")
        leaves = leaf_arrays.flatten(tree)
    return _call(kinds.BROADCAST, leaves, leaves.arrays, name, process_set, root=root_rank)


def all_gather(
    tree: Any, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns all ranks' arrays, joined along the first dimension by rank, in one call.

    Arrays have the same shape on every rank; scalars are joined to a vector. The gradient is the
    sum of all ranks' gradients of this rank's rows.
    """
    with _checking(kinds.ALL_GATHER, tree, name, process_set):
        leaves = leaf_arrays.flatten(tree)
        given = leaf_arrays.with_rows(leaves)
    return _call(kinds.ALL_GATHER, leaves, given, name, process_set)


def reduce_scatter(
    tree: Any,
    op: ReduceOp = Average,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces every array over all ranks and returns this rank's share of the rows, in one call.

    ValueError unless the ranks' number divides that of the rows. The gradient of a sum is the
    all_gather of the gradients.
    """
    with _checking(kinds.REDUCE_SCATTER, tree, name, process_set):
        op = _checked(op)
        leaves = leaf_arrays.flatten(tree)
        leaf_arrays.check_reducible(leaves, op)
        leaf_arrays.check_rows(leaves, len(members(process_set)))
    return _call(kinds.REDUCE_SCATTER, leaves, leaves.arrays, name, process_set, op)


def barrier(name: str | None = None, process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank has called it; within jit, the compiled program waits there."""
    _check_name(name)
    size = len(members(process_set))
    bind(Collective(JAX, kinds.BARRIER, name=name, process_set=process_set, size=size), [])


def _checking(kind: str, tree: Any, name: str | None, process_set: ProcessSet) -> Checking:
    return Checking(kind, name, process_set, lambda: leaf_arrays.paths_of(tree))


def _call(
    kind: str,
    leaves: Leaves,
    given: list[Any],
    name: str | None,
    process_set: ProcessSet,
    op: ReduceOp = Sum,
    root: int = 0,
    codecs: tuple[str, ...] | None = None,
) -> Any:
    _check_name(name)
    size = len(members(process_set))
    none = ("",) * len(given)
    called = Collective(JAX, kind, leaves.paths, name, op, root, process_set, size, codecs or none)
    return jax.tree_util.tree_unflatten(leaves.structure, bind(called, given) if given else [])


def _check_name(name: str | None) -> None:
    if name is not None and not isinstance(name, str):
        raise UnsupportedError(f"name is a {type(name).__name__}: give text, the same on all ranks")


def _checked(op: ReduceOp) -> ReduceOp:
    op = ReduceOp(op)
    if op is Adasum:
        raise UnsupportedError("there is no Adasum of JAX arrays: use Average, or sumpter.torch")
    return op


def _codecs(
    leaves: Leaves, compression: CompressionLike, op: ReduceOp, named: bool
) -> tuple[str, ...]:
    """By which codec each array travels."""
    choice = choose(compression)
    if choice.compressor is not NoneCompressor:
        raise UnsupportedError(
            f"all_reduce of JAX arrays takes codecs of Compression, not {compression!r}: cast the "
            "arrays"
        )
    limits, sums = Limits.of(membership.current().worker), op.wire_name == "sum"
    return tuple(
        limits.codec_of(choice, shape, dtype, sums=sums, named=named)
        for shape, dtype in leaf_arrays.forms(leaves.arrays)
    )
