"""What a call says apart from its arrays; frameworks compare and hash it with compiled programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sumpter._core.process_sets import ProcessSet, global_process_set
from sumpter._core.reduction import Average, ReduceOp, Sum

# What a call is for, with which the names of its tensors begin: one word for all fronts, so that
# ranks of several frameworks meet under a name.
ALL_REDUCE = "allreduce"
BROADCAST = "broadcast"
# To one rank; the others get zeros. The transpose of a broadcast.
REDUCE = "reduce"
# Ranks may have different numbers of rows, which they tell each other.
ALL_GATHER = "allgather"
REDUCE_SCATTER = "reducescatter"
# The rows of an array in equal blocks, one to each rank.
ALL_TO_ALL = "all_to_all"
# The same of rows of which ranks may have different numbers, as exchange.py moves them.
EXCHANGE_ROWS = "alltoall"
BARRIER = "barrier"

_TRANSPOSED = {
    ALL_REDUCE: ALL_REDUCE,
    BROADCAST: REDUCE,
    REDUCE: BROADCAST,
    ALL_GATHER: REDUCE_SCATTER,
    REDUCE_SCATTER: ALL_GATHER,
    ALL_TO_ALL: ALL_TO_ALL,
}

# What the names of derived calls end with.
_TANGENT = ".tangent"
_GRADIENT = ".gradient"


class Front(NamedTuple):
    """Who calls: a framework's name, and how its programs are compiled anew."""

    name: str
    recompile: str


class Collective(NamedTuple):
    """One collective on several arrays, begun together."""

    front: Front
    kind: str
    # What each array's name ends with: its place in the caller's pytree.
    paths: tuple[str, ...] = ()
    # None for calls that are matched by their order.
    name: str | None = None
    op: ReduceOp = Sum
    # A rank of the job.
    root: int = 0
    process_set: ProcessSet = global_process_set
    # How many ranks the set had when the call was traced: shapes depend on it.
    size: int = 1
    # By which each array travels; empty for none.
    codecs: tuple[str, ...] = ()

    def name_of(self, index: int) -> str | None:
        """The name of an array; None if it is matched by the order of calls."""
        return None if self.name is None else self.name + self.paths[index]

    def series(self) -> tuple[str, str | None, ProcessSet]:
        """What it has in common with its other calls, but for the paths."""
        return self.kind, self.name, self.process_set

    def part(self, index: int) -> Collective:
        """The call on one of its arrays."""
        return self._select([index])

    def is_linear(self) -> bool:
        """Whether it has a derivative: sums, averages and copies, but no minimum."""
        return self.op in (Sum, Average)

    def tangent(self, indices: Sequence[int]) -> Collective:
        """The call on the tangents of some of its arrays."""
        return self._select(indices)._ending(_TANGENT)

    def transposed(self, indices: Sequence[int]) -> Collective:
        """The call that takes gradients of some of its results to gradients of its arrays.

        The loss is the sum of all ranks' losses.
        """
        chosen = self._select(indices)
        return chosen._replace(kind=_TRANSPOSED[self.kind])._ending(_GRADIENT)

    def depends_on_size(self) -> bool:
        """Whether its arrays or results have other shapes with another number of ranks."""
        return self.kind in (ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL)

    def result_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a result, from that of its array."""
        if self.kind == ALL_GATHER:
            return (shape[0] * self.size, *shape[1:])
        if self.kind == REDUCE_SCATTER:
            return (shape[0] // self.size, *shape[1:])
        return shape

    def _select(self, indices: Sequence[int]) -> Collective:
        return self._replace(
            paths=tuple(self.paths[index] for index in indices),
            codecs=tuple(self.codecs[index] for index in indices),
        )

    def _ending(self, ending: str) -> Collective:
        paths = tuple(path.removesuffix(_TANGENT) + ending for path in self.paths)
        return self._replace(paths=paths)
