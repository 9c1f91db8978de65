"""Carries out reductions and broadcasts of host arrays: begins all rounds, then waits for all.

The core sees copies only: when a round has failed, queued frames may still refer to its memory, and
TensorFlow uses its own for something else by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sumpter._arrays import wire_form
from sumpter._core import membership, names
from sumpter._core.compression.choice import FLOATS
from sumpter._core.handles import RoundHandle
from sumpter._core.process_sets import global_process_set
from sumpter._core.reduction import Average, ReduceOp, Sum
from sumpter._core.session import Session
from sumpter._core.tensor import Description
from sumpter._errors import SumpterError

ALL_REDUCE = "all_reduce"
BROADCAST = "broadcast"


class Collective(NamedTuple):
    """One collective on several arrays, begun together."""

    kind: str
    # One for each array; None for those that are matched by the order of calls.
    names: tuple[str | None, ...]
    op: ReduceOp = Sum
    root: int = 0


def perform(collective: Collective, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the results in new memory; all rounds have ended when it raises the first error."""
    session = membership.current()
    begun, results = [], []
    errors: list[Exception] = []
    for name, array in zip(collective.names, arrays, strict=True):
        memory = np.array(array, order="C")
        try:
            begun.append((_begin(session, collective, name, memory), memory))
        except (SumpterError, ValueError) as error:
            errors.append(error)
    for round_, memory in begun:
        try:
            round_.wait()
            results.append(memory)
        except SumpterError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    if collective.op is Average:
        for memory in results:
            if memory.dtype.name not in FLOATS:
                np.floor_divide(memory, session.world_size, out=memory)
    return results


def _begin(
    session: Session, collective: Collective, name: str | None, memory: np.ndarray
) -> RoundHandle:
    reduces = collective.kind == ALL_REDUCE
    op, root = collective.op, collective.root
    key = ("tensorflow", collective.kind, name, memory.dtype, memory.shape, op, root)
    operation = session.operations.get(key)
    if operation is None:
        operation = session.operations[key] = names.Operation(
            session,
            collective.kind,
            name,
            memory.dtype.name,
            memory.shape,
            op.value if reduces else f"root {root}",
            global_process_set,
        )
    identity = operation.next()
    tensor = operation.tensors.get(identity.name)
    if tensor is None:
        form = (memory.shape, memory.dtype.name) if reduces else wire_form(memory)
        described = Description(
            collective.kind,
            *form,
            op=op.wire_name if reduces else "sum",
            root=root,
            average=reduces and op is Average and memory.dtype.name in FLOATS,
        )
        tensor = session.declare(identity.name, *described)
        operation.tensors[identity.name] = tensor
    address = memory.ctypes.data
    send = address if reduces or session.rank == root else 0
    round_ = tensor.submit(send, address, keep=memory, tag=identity.tag)
    identity.note(round_)
    return round_
