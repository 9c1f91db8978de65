"""What a training run is made of, and how it is kept, taken back and given to others."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

import torch

from sumpter._core import membership, seat, staging
from sumpter._core.reduction import Max, Sum
from sumpter._errors import HostsUpdatedInterrupt, UnsupportedError
from sumpter.torch.collectives.allreduces import allreduce
from sumpter.torch.elastic.sampler import ElasticSampler
from sumpter.torch.elastic.shares import Share, is_shared, sync_shares, take_share
from sumpter.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from sumpter.torch.training.gradients import GradientExchange

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
        news = torch.tensor([seat.has_changed(), leaves], dtype=torch.int32)
        has_changed, any_leaves = allreduce(news, op=Max, name="elastic.changed").tolist()
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
        everyone = torch.zeros(membership.size(), dtype=torch.int32)
        everyone[membership.rank()] = 2 if leaves else 1
        # Of workers that have died there is a zero.
        said = allreduce(everyone, op=Sum, name="elastic.leaving").tolist()
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


class TorchState(ObjectState):
    """A state with models, optimizers, samplers and whatever else has a state_dict().

    `model`, `optimizer` and every other keyword become attributes. Those with `state_dict` and
    `load_state_dict` are kept and synchronized by these, the others as they are. A copy of all is
    kept in memory; of optimizer state on the servers, each rank's share, and that of the commit
    before as well.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        given = {"model": model, "optimizer": optimizer, **kwargs}
        given = {name: value for name, value in given.items() if value is not None}
        held = {name: value for name, value in given.items() if _has_state(value)}
        self._held: dict[str, Any] = dict.fromkeys(held)
        # What the next sync() goes on from, of state on the servers.
        self._offers: dict[str, list[Share]] = {}
        super().__init__(**{name: value for name, value in given.items() if name not in held})
        self._set({"model": model, "optimizer": optimizer, **held})
        self._save_held()

    def save(self) -> None:
        """Keeps copies of everything."""
        super().save()
        self._save_held()

    def restore(self) -> None:
        """Takes everything back to the last save(); state on the servers with the next sync()."""
        for name, saved in self._held.items():
            if is_shared(value := getattr(self, name)):
                self._offers[name] = saved
            else:
                value.load_state_dict(copy.deepcopy(saved))
        super().restore()

    def carry_over(self) -> None:
        """Keeps what goes with the job: this rank's share of optimizer state on the servers, and
        what codecs have left out of its gradients."""
        for name in self._held:
            if is_shared(value := getattr(self, name)):
                self._offers[name] = [take_share(value)]
        for exchange in self._exchanges():
            exchange.carry_over()

    def hand_on(self, staying: Collection[int], leaving: Collection[int]) -> None:
        """Gives the lowest rank that stays what codecs of those that leave have left out."""
        for exchange in self._exchanges():
            exchange.hand_on(staying, leaving)

    def sync(self) -> None:
        """Gives everything the state of the oldest rank, and keeps it."""
        for name in self._held:
            if is_shared(value := getattr(self, name)):
                sync_shares(value, self._offers.pop(name, None) or [take_share(value)], OLDEST)
            else:
                _sync(value)
        super().sync()

    def reset(self) -> None:
        """Lets samplers share the data out among the workers that are there now."""
        for name in self._held:
            reset = getattr(getattr(self, name), "reset", None)
            if callable(reset):
                reset()

    def _exchanges(self) -> Iterable[GradientExchange]:
        """Of the optimizers that average gradients."""
        for name in self._held:
            exchange = getattr(value := getattr(self, name), "_exchange", None)
            if isinstance(exchange, GradientExchange) and not is_shared(value):
                yield exchange

    def _save_held(self) -> None:
        for name, before in self._held.items():
            if is_shared(value := getattr(self, name)):
                now = take_share(value)
                # Ranks that were interrupted in a commit may have made one more than others. What
                # is alike comes from the oldest rank's newest.
                older = [share for share in before or [] if share.mark != now.mark]
                self._held[name] = [now, *(share._replace(alike=None) for share in older[:1])]
            else:
                self._held[name] = copy.deepcopy(value.state_dict())


class _HasState(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...


def _has_state(value: object) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _sync(value: _HasState) -> None:
    if isinstance(value, torch.nn.Module):
        broadcast_parameters(value.state_dict(), OLDEST)
    elif isinstance(value, torch.optim.Optimizer):
        broadcast_optimizer_state(value, OLDEST)
    elif isinstance(value, ElasticSampler):
        # Each rank knows what it has processed itself.
        everyone = allgather_object(value.state_dict(), name="elastic.sampler")
        value.load_state_dict(ElasticSampler.merge(everyone))
    else:
        state = broadcast_object(value.state_dict(), OLDEST)
        value.load_state_dict(state)
