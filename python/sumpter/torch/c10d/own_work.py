"""Work objects made in Python, seen through the holder in which torch hands them to the user.

Torch wraps a Work that a Python backend returns in a C++ holder that passes on wait() and
get_future() and nothing else: is_completed() of the holder is always False, a receive from any
rank has no source. Methods of torch's Work that the holder does not pass on are therefore
wrapped here: they ask the holder for a future, which reaches the Work inside, and speak to that
one. For every other Work they do what they did.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

_NOT_PASSED_ON = (
    "exception",
    "is_completed",
    "is_success",
    "result",
    "source_rank",
    "synchronize",
    "_source_rank",
)


class _Question(threading.local):
    """Whether this thread asks a holder what it holds, and the answer."""

    open = False
    answer: "OwnWork | None" = None


_question = _Question()
_nothing: torch.futures.Future = torch.futures.Future()


class OwnWork(dist._Work):
    """A Work made in Python that is found again behind torch's holder."""

    def get_future(self) -> torch.futures.Future:
        """A future of the outputs."""
        if _question.open:
            _question.answer = self
            return _nothing
        return self.make_future()

    def make_future(self) -> torch.futures.Future:
        """The future that get_future() returns."""
        raise NotImplementedError

    def is_completed(self) -> bool:
        """Whether wait() would return, or raise, at once."""
        raise NotImplementedError

    def is_success(self) -> bool:
        """Whether the operation is done and went well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Why the operation failed; None if it did not or is not done."""
        if not self.is_completed():
            return None
        try:
            self.wait()
        except Exception as error:
            return error
        return None

    def synchronize(self) -> None:
        """Waits, since what is computed on the CPU has no stream to order."""
        self.wait()

    def source_rank(self) -> int:
        """The rank a message came from."""
        return self._source_rank()


def install() -> None:
    """Makes torch's Work pass on all its methods to a Work made in Python."""
    if not hasattr(Work, "_sumpter_passes_on"):
        for name in _NOT_PASSED_ON:
            setattr(Work, name, _passing_on(name, getattr(Work, name)))
        Work._sumpter_passes_on = True


def _passing_on(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def method(work: dist.Work) -> Any:
        own = _inside(work)
        return original(work) if own is None else getattr(own, name)()

    method.__name__ = name
    method.__doc__ = original.__doc__
    return method


def _inside(work: dist.Work) -> OwnWork | None:
    """The Work that `work` holds, if it holds one of ours."""
    if isinstance(work, OwnWork):
        return None
    _question.open = True
    try:
        work.get_future()
    except (RuntimeError, NotImplementedError):
        return None  # a backend without futures
    finally:
        _question.open = False
        answer, _question.answer = _question.answer, None
    return answer
