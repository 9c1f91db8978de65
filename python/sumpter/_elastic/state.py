"""What a training run is made of, and how it is kept, taken back and given to others."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any

from sumpter._calls.objects import broadcast_object, reduce_numbers
from sumpter._core import membership, seat, staging
from sumpter._core.reduction import Max, Sum
from sumpter._errors import HostsUpdatedInterrupt, UnsupportedError

_log = logging.getLogger("sumpter")

# Who has been at work longest: it has what newcomers need.
OLDEST = 0

# The exit code of a worker that was asked to leave: that of a process that SIGTERM ends.
LEFT = 143


class State:
    """What elastic.run() keeps through changes of the workers; a base for states of your own."""

    def __init__(
        self,
        bcast_object: Callable[..., Any] = broadcast_object,
        get_rank: Callable[[], int] = membership.rank,
    ) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: list[Callable[[], object]] = []
        self._leaves = False

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Adds functions to call when the workers have changed, before training goes on.

        They change what depends on the number of workers, such as the learning rate.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called when the workers have changed."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Keeps the state to come back to, then meets the others anew if workers have changed.

        It costs a copy of the state and a small all-reduce, so that all ranks decide alike.
        """
        session = membership.peek()
        if session is not None:
            # What streams still wait for may fail, and leave nothing that is worth keeping.
            staging.settle(session)
        self.save()
        self.check_host_updates()

    def leave(self) -> None:
        """Has this worker leave the job at its next commit, in good order.

        There it hands what codecs have left out of its gradients to a worker that stays, and ends
        with exit code 143; the others go on without it. It may be called by a signal handler.
        UnsupportedError in a job that is not elastic.
        """
        if not seat.held():
            raise UnsupportedError(
                "leave() is for a worker of an elastic job: set min_workers, and call it after "
                "init()"
            )
        self._leaves = True

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on all ranks if workers were lost, have come, or leave.

        On those that leave it ends the process, by SystemExit.
        """
        if not seat.held():
            return
        leaves = self._leaves
        # A coordinator that has come back knows no seat of a worker that died meanwhile.
        changed = seat.has_changed() or membership.current().has_lost_workers()
        news = [int(changed), int(leaves)]
        has_changed, any_leaves = reduce_numbers(news, Max, "elastic.changed")
        if not has_changed and not any_leaves:
            return
        self.carry_over()
        if any_leaves:
            self._hand_on(leaves)
        if leaves:
            _log.warning("this worker was asked to leave: the others go on without it")
            raise SystemExit(LEFT)
        raise HostsUpdatedInterrupt

    def _hand_on(self, leaves: bool) -> None:
        """What those that leave have, and would be lost, goes to one that stays."""
        everyone = [0] * membership.size()
        everyone[membership.rank()] = 2 if leaves else 1
        # Of workers that have died there is a zero.
        said = reduce_numbers(everyone, Sum, "elastic.leaving")
        staying = [rank for rank, word in enumerate(said) if word == 1]
        leaving = [rank for rank, word in enumerate(said) if word == 2]
        self.hand_on(staying, leaving)

    def save(self) -> None:
        """Keeps the state in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Takes back what has changed since the last save()."""
        raise NotImplementedError

    def carry_over(self) -> None:
        """Keeps what goes with this job, for sync() in the next: called on all ranks."""

    def hand_on(self, staying: Collection[int], leaving: Collection[int]) -> None:
        """Gives ranks that stay what would be lost with those that leave: called on all ranks."""

    def sync(self) -> None:
        """Gives all ranks the state of the oldest."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapts the state to other workers."""


class ObjectState(State):
    """A state of Python objects: attributes that can be pickled, named by the keywords."""

    def __init__(
        self,
        bcast_object: Callable[..., Any] = broadcast_object,
        get_rank: Callable[[], int] = membership.rank,
        **kwargs: Any,
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._set(kwargs)
        self._saved = copy.deepcopy(kwargs)

    def save(self) -> None:
        """Keeps a copy of the attributes."""
        self._saved = copy.deepcopy(self._current())

    def restore(self) -> None:
        """Gives the attributes their values at the last save()."""
        self._set(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Gives the attributes the values of the oldest rank, and keeps them."""
        if self._saved:
            self._set(self._bcast_object(self._current(), OLDEST))
        self.save()

    def _current(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._saved}

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)
