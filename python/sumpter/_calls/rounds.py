"""Carries out a call on host memory: begins the rounds of all its arrays, then waits for all.

It blocks, and is called where a framework runs eagerly, or by the program that it has compiled. The
core sees copies only: when a round has failed, queued frames may still refer to its memory, and the
framework uses its own for something else by then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sumpter._arrays import check_movable, wire_form
from sumpter._calls import collective as kinds
from sumpter._calls.collective import Collective
from sumpter._calls.refusals import refuse
from sumpter._core import membership, names
from sumpter._core.compression.choice import FLOATS
from sumpter._core.handles import RoundHandle
from sumpter._core.names import Identity
from sumpter._core.pieces import describe_row, exchange_counts, padded, rows_form
from sumpter._core.process_sets import global_process_set, label, members
from sumpter._core.reduction import Average
from sumpter._core.session import Session
from sumpter._core.tensor import Description
from sumpter._errors import MismatchError, SumpterError, UnsupportedError
from sumpter._results import ResultMemory

_results = ResultMemory()


def perform(
    collective: Collective, arrays: Iterable[np.ndarray], priorities: Sequence[int] = ()
) -> list[np.ndarray]:
    """Returns the results of a call, in new memory, when they are there.

    Each array's rounds begin before the next array is asked for, so that an iterator may wait for
    what is still computed. What has the highest of `priorities`, one for each array, is sent first.
    All rounds that have begun are over when this raises the first of what went wrong.
    """
    if collective.kind == kinds.BARRIER:
        finish([begin_barrier(collective)])
        return []
    begun: list[Begun] = []
    try:
        for index, array in enumerate(arrays):
            priority = priorities[index] if priorities else 0
            begun.append(begin(collective, index, array, priority))
    except Exception as error:
        # The framework's own, of an array that it could not compute; what has begun is waited for.
        left = collective.paths[len(begun) :]
        refuse(*collective.series(), error, dict.fromkeys(left))
        begun.append(failed(error))
    return finish(begun)


def begin(collective: Collective, index: int, array: np.ndarray, priority: int = 0) -> Begun:
    """Starts the rounds of one of a call's arrays, of which a copy is taken.

    What goes wrong is raised by `finish`: the others of the call have to begin as well.
    """
    try:
        session = membership.current()
        _check_size(collective)
        return _call_of(session, collective, index, array).begin(array, priority)
    except (SumpterError, ValueError) as error:
        return failed(error)


def begin_barrier(collective: Collective) -> Begun:
    """Starts a barrier, as `begin` does the rounds of an array."""
    try:
        session = membership.current()
        _check_size(collective)
        return Begun([_barrier(session, collective)], lambda: np.empty(0))
    except (SumpterError, ValueError) as error:
        return failed(error)


def finish(begun: Sequence[Begun]) -> list[np.ndarray]:
    """Waits for all rounds; their results, or what went wrong with the first that failed."""
    results: list[np.ndarray] = []
    errors: list[Exception] = []
    for one in begun:
        failures = len(errors)
        for round_ in one.rounds:
            try:
                round_.wait()
            except SumpterError as error:
                errors.append(error)
        if len(errors) > failures:
            continue
        try:
            results.append(one.finish())
        except (SumpterError, ValueError) as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results


def failed(error: Exception) -> Begun:
    """What could not begin, for this reason."""

    def finish() -> np.ndarray:
        raise error

    return Begun([], finish)


def _check_size(collective: Collective) -> None:
    size = collective.process_set.size()
    if size != collective.size and collective.depends_on_size():
        raise UnsupportedError(
            f"the program was compiled for {collective.size} ranks, and there are {size} now: "
            f"{collective.front.recompile} after init() has joined a job of another size"
        )


def _barrier(session: Session, collective: Collective) -> RoundHandle:
    process_set = collective.process_set
    name = "barrier" if collective.name is None else f"barrier.{collective.name}"
    ranks = None if process_set is global_process_set else members(process_set)
    return session.barrier(name + label(process_set), ranks)


class Begun(NamedTuple):
    """The rounds of an array, and what makes its result when they are done."""

    rounds: list[RoundHandle]
    finish: Callable[[], np.ndarray]


class _Call:
    """The calls of one description on arrays of one kind, under one name."""

    def __init__(
        self, session: Session, collective: Collective, index: int, array: np.ndarray
    ) -> None:
        process_set = collective.process_set
        self.kind, self.op, self.root = collective.kind, collective.op, collective.root
        self.codec = collective.codecs[index]
        self.members = members(process_set)
        self.rank = session.rank
        self.session = session
        # Of the rounds that begin.
        self._priority = 0
        self._ranks = None if process_set is global_process_set else tuple(self.members)
        detail = (
            f"root {self.root}"
            if self.kind in (kinds.BROADCAST, kinds.REDUCE)
            else (f"{self.op.value} by {self.codec}" if self.codec else self.op.value)
        )
        name, dtype = collective.name_of(index), array.dtype.name
        form = (dtype, array.shape, detail)
        if self.kind == kinds.ALL_GATHER:
            form = rows_form(name, dtype, array.shape[1:])
        self.process_set = process_set
        self._names = names.Operation(session, self.kind, name, *form, process_set)

    def begin(self, array: np.ndarray, priority: int = 0) -> Begun:
        """Starts the rounds of one call."""
        self._priority = priority
        return _BEGIN[self.kind](self, self._names.next(), array)

    def submit(
        self,
        identity: Identity,
        collective: str,
        form: tuple[tuple[int, ...], str],
        send: int,
        receive: int,
        keep: object,
        root: int = 0,
        ranks: tuple[int, ...] | None = None,
    ) -> RoundHandle:
        """Starts one round on memory at two addresses; 0 for what is not needed.

        `collective` is the core's word for the round. It is among `ranks`, or else among all that
        make the call.
        """
        tensors = self._names.tensors
        tensor = tensors.get(identity.name)
        if is_first := tensor is None:
            reduces = collective != "broadcast"
            described = Description(
                collective,
                *form,
                op=self.op.wire_name if reduces else "sum",
                root=root,
                average=reduces and self.averages_in_core(form[1]),
                ranks=ranks or self._ranks,
                compression=self.codec if collective == "all_reduce" else "",
            )
            tensor = tensors[identity.name] = self.session.declare(identity.name, *described)
        round_ = tensor.submit(
            *(send, receive), keep=keep, priority=self._priority, tag=identity.tag
        )
        identity.note(round_)
        if is_first:
            names.share_refusal(self.session, identity, tensor, round_)
        return round_

    def averages_in_core(self, dtype: str) -> bool:
        """Whether the core divides; integers are divided, and rounded down, afterwards."""
        return self.op is Average and dtype in FLOATS

    def averaged(self, total: np.ndarray) -> np.ndarray:
        """The result of a reduction, divided by the number of ranks if the core has not."""
        if self.op is Average and total.dtype.name not in FLOATS:
            np.floor_divide(total, len(self.members), out=total)
        return total


def _call_of(session: Session, collective: Collective, index: int, array: np.ndarray) -> _Call:
    key = (
        collective.front.name,
        *(collective.kind, collective.name_of(index), array.dtype, array.shape, collective.op),
        *(collective.root, collective.process_set, collective.codecs[index]),
    )
    call = session.operations.get(key)
    if call is None:
        call = session.operations[key] = _Call(session, collective, index, array)
    return call


def _all_reduce(call: _Call, identity: Identity, array: np.ndarray) -> Begun:
    memory = _copy(array)
    address = memory.ctypes.data
    form = _reduced_form(memory)
    round_ = call.submit(identity, "all_reduce", form, address, address, memory)
    return Begun([round_], lambda: call.averaged(memory))


def _broadcast(call: _Call, identity: Identity, array: np.ndarray) -> Begun:
    is_root = call.rank == call.root
    memory = _copy(array) if is_root else _results.empty_like(array)
    address = memory.ctypes.data
    round_ = call.submit(
        identity,
        *("broadcast", wire_form(memory), address if is_root else 0, address, memory),
        root=call.root,
    )
    return Begun([round_], lambda: memory)


def _reduce(call: _Call, identity: Identity, array: np.ndarray) -> Begun:
    is_root = call.rank == call.root
    memory = _copy(array)
    address = memory.ctypes.data
    round_ = call.submit(
        identity,
        *("reduce", _reduced_form(memory), address, address if is_root else 0, memory),
        root=call.root,
    )
    return Begun([round_], lambda: memory if is_root else np.zeros_like(memory))


def _all_gather(call: _Call, identity: Identity, array: np.ndarray) -> Begun:
    """Tells the other ranks how many rows this one has, as exchange.py does, but does not wait.

    The shape of the result was known before, so ranks need equally many rows, or the call fails.
    """
    check_movable(array)
    ranks, rows = call.members, array.shape[0]
    capacity = padded(array.nbytes) if array.nbytes else 0
    row = describe_row(array.dtype.name, array.shape[1:])
    told = exchange_counts(call.session, identity, [rows], row, call.process_set, even=True)
    memory = np.empty((len(ranks), capacity), np.uint8)
    rounds, parts = [told.round], []
    for root, piece in zip(ranks, memory, strict=True):
        if root == call.rank:
            piece[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            piece[array.nbytes :] = 0
        if capacity:
            address = piece.ctypes.data
            send = address if root == call.rank else 0
            part, form = identity.part(f"{root}.{capacity}"), ((capacity,), "uint8")
            parts.append(part)
            rounds.append(
                call.submit(
                    part, *("broadcast", form, send, address, memory), root=root, ranks=tuple(ranks)
                )
            )
    lock = threading.Lock()

    def compare() -> None:
        with lock:
            told.synchronize()

    def check() -> None:
        """Ends what has begun where rows differ: it has no counterpart."""
        try:
            compare()
        except MismatchError as error:
            text = f"rank {call.rank} cannot take part: {error}"[: names.LONGEST_REASON]
            for part in parts:
                call.session.refuse_name(part.name, text)
        except SumpterError:
            return

    told.round.on_done(check)

    def finish() -> np.ndarray:
        compare()
        pieces = memory[:, : array.nbytes].reshape(-1).view(array.dtype)
        result = pieces.reshape(rows * len(ranks), *array.shape[1:])
        # The transpose of an averaging reduce_scatter.
        if call.op is Average:
            np.divide(result, result.dtype.type(len(ranks)), out=result)
        return result

    return Begun(rounds, finish)


def _reduce_scatter(call: _Call, identity: Identity, array: np.ndarray) -> Begun:
    ranks = call.members
    source = _copy(array)
    # The first ranks get one row more where the rows cannot be shared out evenly.
    pieces = np.array_split(source, len(ranks))
    result = np.empty_like(pieces[ranks.index(call.rank)])
    # Ranks of another front begin only when all are there.
    rounds = [names.agree(call.session, identity, ranks).round]
    for root, piece in zip(ranks, pieces, strict=True):
        receive = result.ctypes.data if root == call.rank else 0
        keep, form = (source, result), _reduced_form(piece)
        rounds.append(
            call.submit(
                identity.part(root),
                *("reduce_scatter", form, piece.ctypes.data, receive, keep),
                root=root,
                ranks=tuple(ranks),
            )
        )
    return Begun(rounds, lambda: call.averaged(result))


def _all_to_all(call: _Call, identity: Identity, array: np.ndarray) -> Begun:
    ranks, own = call.members, call.members.index(call.rank)
    source, result = _copy(array), _results.empty_like(array)
    blocks = (len(ranks), array.shape[0] // len(ranks), *array.shape[1:])
    sent, received = source.reshape(blocks), result.reshape(blocks)
    received[own] = sent[own]
    rounds = []
    for place, other in enumerate(ranks):
        if place == own:
            continue
        pair, form = tuple(sorted((other, call.rank))), wire_form(sent[own])
        for root, memory in ((call.rank, sent[place]), (other, received[place])):
            address = memory.ctypes.data
            send = address if root == call.rank else 0
            to = other if root == call.rank else call.rank
            rounds.append(
                call.submit(
                    identity.part(f"{root}.to.{to}"),
                    *("broadcast", form, send, address, (source, result)),
                    root=root,
                    ranks=pair,
                )
            )
    return Begun(rounds, lambda: result)


_BEGIN = {
    kinds.ALL_REDUCE: _all_reduce,
    kinds.BROADCAST: _broadcast,
    kinds.REDUCE: _reduce,
    kinds.ALL_GATHER: _all_gather,
    kinds.REDUCE_SCATTER: _reduce_scatter,
    kinds.ALL_TO_ALL: _all_to_all,
}


def _copy(array: np.ndarray) -> np.ndarray:
    memory = _results.empty_like(array)
    np.copyto(memory, array)
    return memory


def _reduced_form(array: np.ndarray) -> tuple[tuple[int, ...], str]:
    """Shape and element type for the core: with 0 and 1, a bool's maximum means "any"."""
    name = array.dtype.name
    return array.shape, "uint8" if name == "bool" else name
