"""The state of a training run with torch: models, optimizers, samplers and Python's objects."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable
from typing import Any, Protocol

import torch

from sumpter._elastic.state import OLDEST, ObjectState
from sumpter.torch.elastic.sampler import ElasticSampler
from sumpter.torch.elastic.shares import Share, is_shared, sync_shares, take_share
from sumpter.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from sumpter.torch.training.gradients import GradientExchange


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
