"""Optimizers that step on averaged gradients: in step(), or in the next forward pass."""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from sumpter._core.compression.memory import COMPRESSION
from sumpter.torch.optimizer.wrapped import InWorkers
from sumpter.torch.training.gradients import GradientExchange
from sumpter.torch.training.overlap import (
    OverlappedExchange,
    Updates,
    needs_whole_step,
    unless_lost,
)
from sumpter.torch.training.rates import LearningRates


class Distributed(InWorkers):
    """Exchanges gradients while backward makes them, and waits for them in step()."""

    _exchange: GradientExchange
    _synchronized = False
    _skip = False
    _warned = False

    def _begin(self) -> None:
        super()._begin()
        self._exchange.rates = LearningRates(self)

    def synchronize(self) -> None:
        """Waits until all gradients are averaged; step() then does not exchange them again."""
        self._average()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, step() exchanges nothing: for use after an explicit synchronize()."""
        self._skip = True
        try:
            yield
        finally:
            self._skip = False

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Averages the gradients over all ranks and takes a step of the user's optimizer.

        What `closure` leaves behind is averaged each time that it is called.
        """
        if closure is not None:
            result = super().step(closure if self._skip else self._exchanging(closure))
            self._synchronized = False
            return result
        if not self._skip:
            if self._are_averages():
                self._warn_once()
            else:
                self._average()
        self._synchronized = False
        return super().step()

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, and under COMPRESSION what this rank keeps for its codec.

        So each rank saves its own. Another rank that loads it goes on without what this one had
        left out of its gradients. Raises MismatchError between backward() and step() while
        compressed gradients are in flight.
        """
        state, kept = super().state_dict(), self._exchange.compression_state()
        return {**state, COMPRESSION: kept} if kept else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the optimizer's state; gradients in flight and backward passes are forgotten."""
        own = {key: value for key, value in state_dict.items() if key != COMPRESSION}
        super().load_state_dict(own)
        self._synchronized = False
        self._exchange.load_compression_state(state_dict.get(COMPRESSION, {}))

    def _in_between(self) -> bool:
        return self._exchange.pending

    def _are_averages(self) -> bool:
        """Whether synchronize() has averaged the gradients, and backward made none since."""
        return self._synchronized and not self._exchange.begun

    def _average(self) -> None:
        self._take_in()
        self._exchange.finish()
        self._synchronized = True

    def _exchanging(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def exchanged() -> Any:
            with torch.enable_grad():
                loss = closure()
            self._take_in()
            self._exchange.finish()
            return loss

        return exchanged

    def _warn_once(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() after "
                "optimizer.synchronize(): gradients are not exchanged again; wrap step() in "
                "`with optimizer.skip_synchronize():` to say so",
                stacklevel=3,
            )


class Overlapped(Distributed):
    """Leaves the updates to the next forward pass, which waits for them layer by layer."""

    _exchange: OverlappedExchange
    _updates: Updates
    _steps = 0
    _final_step: int | None = None

    def _begin(self) -> None:
        super()._begin()
        parameters = [p for group in self.param_groups for p in group["params"]]
        self._updates = Updates(parameters, dict(self._parameter_names))
        self._exchange.updates = self._updates

    def synchronize(self) -> None:
        """Takes the updates that wait, and waits for the gradients that backward has made.

        After step() this ends the step: parameters are up to date. After backward() gradients are
        averages, and the step() that follows is taken at once, for all parameters.
        """
        self._updates.finish()
        # Gradients of what was unfrozen have begun no exchange yet.
        found = self._take_in()
        if found or self._exchange.begun:
            self._average()

    def synchronize_parameters(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Takes the updates that wait for these parameters, for who uses them directly."""
        self._updates.take(parameters)

    def finish_from(self, final_step: int) -> None:
        """Has the step of this number, counted from 1, and those after it wait for all updates."""
        self._final_step = final_step

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Begins a step of the user's optimizer and returns; the gradients belong to it.

        Taken at once, as without overlap_forward, are steps after synchronize(), with a closure,
        of an optimizer with step hooks, and those to which a GradScaler gives its scale.
        """
        self._updates.finish()
        self._steps += 1
        if closure is not None or self._skip or self._are_averages() or needs_whole_step(self):
            return super().step(closure)
        self._synchronized = False
        self._take_in()
        self._exchange.check_untouched()
        handles = self._exchange.hand_over()
        self._updates.begin(self.param_groups, handles, self._step_groups)
        if self._final_step is not None and self._steps >= self._final_step:
            self._updates.finish()
        return None

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, when all updates have been taken."""
        self._updates.finish()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the optimizer's state when all updates have been taken, or cannot be any more."""
        with unless_lost():
            self._updates.finish()
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group when all updates have been taken; on all ranks alike."""
        self._updates.finish()
        super().add_param_group(param_group)
        self._updates.adopt(self.param_groups[-1]["params"], self._parameter_names)

    def _step_groups(self, groups: list[dict[str, Any]]) -> None:
        whole, self.param_groups = self.param_groups, groups
        try:
            super(Distributed, self).step()
        finally:
            self.param_groups = whole
