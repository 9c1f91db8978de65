"""This process' seat in an elastic job, from the first init() to the end of the process.

Every session of an elastic process is a generation of the job: an ordinary job of the name
JOB@GENERATION, with the rank that the seat brings. The seat stays when a session ends, which tells
the coordinator that this process lives.
"""

import atexit
import contextlib
import ctypes
import logging
import os
import sys
from collections.abc import Iterator, Mapping

from sumpter import _native
from sumpter._errors import UnsupportedError

_log = logging.getLogger("sumpter")

# What a generation decides.
_PLACE = ("rank", "world_size", "local_rank", "local_size")

_seat: _native.Seat | None = None
# Whether what the process came for is done; its end is a failure otherwise.
_done = False


def take(
    given: Mapping[str, str], settings: dict[str, str], job: str
) -> tuple[dict[str, str], _native.Seat]:
    """Waits for a place in the next generation; the settings to join it with.

    `given` are the arguments among the `settings`, and `job` is the name that these say. Ends the
    process if the job's work is done.
    """
    global _seat
    fixed = [name for name in _PLACE if name in given]
    if fixed:
        raise UnsupportedError(
            f"{' and '.join(fixed)} cannot be given to a worker of an elastic job (min_workers is "
            "set): ranks change with every generation. torch.distributed's process groups cannot "
            "change either; use sumpter.torch.elastic"
        )
    if _seat is None:
        _seat = _native.Seat(settings)
    place = _seat.ask()
    if place is None:
        _log.warning("the job's work is done: this worker came too late to take part")
        sys.exit(0)
    generation, *numbers = place
    from_seat = {name: str(number) for name, number in zip(_PLACE, numbers, strict=True)}
    return {**settings, **from_seat, "job": f"{job}@{generation}"}, _seat


def held() -> bool:
    """Whether this process is a worker of an elastic job."""
    return _seat is not None


def has_changed() -> bool:
    """Whether the next generation would be another: some have died, or others could be taken in."""
    return _seat is not None and (_seat.newcomers > 0 or _seat.lost > 0)


@contextlib.contextmanager
def working() -> Iterator[None]:
    """The job's work: the end of the process is a failure unless it ends without an exception."""
    global _done
    _done = False
    yield
    _done = True


@atexit.register
def _leave() -> None:
    global _seat
    seat, _seat = _seat, None
    if seat is not None:
        # The interpreter leaves the exception that ends it here, but not a SystemExit.
        seat.leave(done=_done and getattr(sys, "last_value", None) is None)


def _after_fork() -> None:
    global _seat
    seat, _seat = _seat, None
    if seat is not None:
        # Its thread does not exist here: ending it would never return.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(seat))


os.register_at_fork(after_in_child=_after_fork)
