"""Runs a training function through the generations of an elastic job."""

import functools
import logging
import re
import sys
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from sumpter import _errors
from sumpter._core import membership, seat
from sumpter._elastic.state import State
from sumpter._errors import ClosedError, HostsUpdatedInterrupt, PeerLostError, SumpterError

_P = ParamSpec("_P")
_T = TypeVar("_T")
_S = TypeVar("_S", bound=State)

_log = logging.getLogger("sumpter")

# How frameworks word an exception that Python has raised in a compiled program.
_RAISED = re.compile(r"\b(PeerLostError|ClosedError|SumpterError): (.*)")


def run(func: Callable[Concatenate[_S, _P], _T]) -> Callable[Concatenate[_S, _P], _T]:
    """Decorates a training function whose first argument is a State.

    All ranks get rank 0's state before `func` begins. When a worker dies, the others complete the
    interrupted operations among themselves and go on. At the next commit, and also when workers
    have joined, all ranks meet in a new job and get the state of the oldest rank, and `func`
    begins again with it. So `func` must go on from what the state says, not from the start. Where
    that cannot be (the root of a broadcast died) or is not wanted (`redo` is off), they go back to
    the last commit first. Errors that would come again (of a setting, of
    ranks that disagree) are raised, as is StartError when fewer than `min_workers` are left.

    In a job that is not elastic (`min_workers` is 0) `func` runs once, and every error is raised.
    """

    return going_on(func, lambda error: error if isinstance(error, SumpterError) else None)


def cause_in(error: Exception) -> SumpterError | None:
    """The error of Sumpter's in what a compiled program has made of it: its name and its text."""
    if isinstance(error, SumpterError):
        return error
    found = _RAISED.search(str(error)) if isinstance(error, _compiled_errors()) else None
    return getattr(_errors, found[1])(found[2]) if found else None


def _compiled_errors() -> tuple[type[BaseException], ...]:
    """What frameworks raise for an exception in a compiled program."""
    found: list[type[BaseException]] = []
    if tensorflow := sys.modules.get("tensorflow"):
        found.append(tensorflow.errors.OpError)
    if jax := sys.modules.get("jax"):
        found.append(jax.errors.JaxRuntimeError)
    return tuple(found)


def going_on(
    func: Callable[Concatenate[_S, _P], _T],
    cause_of: Callable[[Exception], SumpterError | None],
) -> Callable[Concatenate[_S, _P], _T]:
    """run(), where `cause_of` finds the error of Sumpter's in what a framework made of it."""

    @functools.wraps(func)
    def elastic(state: _S, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if not seat.held():
            state.sync()
            return func(state, *args, **kwargs)
        is_new_generation = False
        with seat.working():
            while True:
                try:
                    if is_new_generation:
                        # A callback may communicate, and find that a worker is lost.
                        state.on_reset()
                    state.sync()
                    return func(state, *args, **kwargs)
                except HostsUpdatedInterrupt:
                    _log.info("workers have died or joined: meeting anew")
                except Exception as error:
                    cause = cause_of(error)
                    if cause is None or not _is_lost_peer(cause):
                        raise
                    _log.warning("%s; going back to the last commit", cause)
                    state.restore()
                _meet_again()
                is_new_generation = True

    return elastic


def _is_lost_peer(error: SumpterError) -> bool:
    """Whether it is over with this job, but not with the next: what scripts may raise as well.

    HorovodInternalError is the base class itself.
    """
    return isinstance(error, PeerLostError | ClosedError) or type(error) is SumpterError


def _meet_again() -> None:
    """Leaves the job and joins its next generation."""
    settings = membership.current().settings
    membership.shutdown()
    session = membership.acquire(membership.HOLDER, settings)
    _log.warning("going on as rank %d of %d", session.rank, session.world_size)
