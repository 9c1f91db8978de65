"""The optimizer on the servers, with steps that are decided once gradients are summed.

Rounds begin without saying what they do: step() decides, and until then a `ServerGradient` stands
for each gradient, for those who clip, scale or check it.
"""

import contextlib
import math
from typing import TYPE_CHECKING, Any

import torch

from sumpter._core import seat
from sumpter._core.handles import RoundHandle
from sumpter._errors import SumpterError, UnsupportedError
from sumpter.torch.training.on_servers import ServerUpdates
from sumpter.torch.training.server_gradient import ServerGradient

if TYPE_CHECKING:
    from sumpter._native import Decision


class DeferredServerUpdates(ServerUpdates):
    """Sends each gradient as soon as it is complete; step() decides what becomes of the sums."""

    def __init__(self, *arguments: Any) -> None:
        if seat.held():
            raise UnsupportedError(
                "deferred=True cannot be had in an elastic job (min_workers): the norm of a sum "
                "changes with the ranks that are in it; leave it out, or clip in the workers"
            )
        # Of rounds that wait for step(): what decides about them, and what stands for the gradient.
        self._undecided: dict[torch.nn.Parameter, tuple[Decision | None, ServerGradient]] = {}
        super().__init__(*arguments)

    def hand_over(self) -> dict[torch.nn.Parameter, RoundHandle]:
        """Sends what has not been sent, and applies what has not been decided about."""
        self._follow_session()
        self.join()
        self._decide(1.0, skips=False)
        return super().hand_over()

    def finish_deferred(self, scale: float, skips: bool) -> None:
        """Has the servers multiply the gradients by their factors and `scale`, and waits.

        With `skips` parameters and state stay as they are. ValueError if a factor is not finite;
        then they do as well.
        """
        self._follow_session()
        self.join()
        try:
            lost = self._decide(scale, skips)
        except Exception:
            self.abandon()
            raise
        self.finish()
        if lost:
            raise ValueError(
                f"the gradients of {', '.join(lost[:3])} were multiplied by what is not finite, "
                "such as by clipping to the norm of gradients that are not: the step was skipped"
            )

    def join(self) -> list[ServerGradient]:
        """Sends zeros where backward made no gradient; what stands for these."""
        self._take_in_unfrozen()
        late = [p for p in self.names if p not in self._handles and p.requires_grad]
        for parameter in late:
            self._start(parameter)
        return [self._undecided[parameter][1] for parameter in late]

    def gradients(self) -> list[ServerGradient]:
        """What stands for the gradients of the step that waits, in the order of the parameters."""
        return [self._undecided[p][1] for p in self.names if p in self._undecided]

    def check(self, gradient: ServerGradient) -> None:
        """Raises ValueError if the step of a gradient is over."""
        _, waits = self._undecided.get(gradient.parameter, (None, None))
        if gradient is not waits:
            raise ValueError(f"{gradient!r} is of a step that is over: its sum is there no more")

    def squares(self, parameter: torch.nn.Parameter) -> float:
        """Waits for the sum of a gradient over the ranks, and returns that of its squares.

        If the round has failed, so has the step: what else is in flight of it is skipped.
        """
        decision, _ = self._undecided[parameter]
        try:
            return 0.0 if decision is None else decision.squares()
        except SumpterError:
            # The caller may not come to step(), and the other ranks wait for decisions.
            self.abandon()
            raise

    def abandon(self) -> None:
        """Forgets what is in flight, and the variables of a job that has been left."""
        # The servers must not wait for what will never be decided.
        handles = list(self._handles.values())
        before = {p: p.detach().clone() for p in self._handles}
        self._decide(1.0, skips=True)
        super().abandon()
        # What comes back from a round that does nothing must not overwrite what was loaded.
        for handle in handles:
            with contextlib.suppress(SumpterError):
                handle.wait()
        for parameter, value in before.items():
            parameter.data.copy_(value)

    def check_settled(self, what: str) -> None:
        """Rounds that wait for step() have changed nothing."""

    def _begin(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> RoundHandle:
        name = self.names[parameter]
        handle, decision = self._variables[parameter].begin_deferred(gradient, name)
        stand_in = ServerGradient(parameter, name, self)
        self._undecided[parameter] = (decision, stand_in)
        parameter.grad = stand_in
        return handle

    def _end(self, parameter: torch.nn.Parameter) -> bool:
        """Steps are counted, and hyper-parameters taken, where it is decided."""
        del parameter
        return False

    def _decide(self, scale: float, skips: bool) -> list[str]:
        """Says what the rounds do that wait for it; the names of those with useless factors."""
        undecided, self._undecided = self._undecided, {}
        factors = {
            parameter: scale * gradient.factor for parameter, (_, gradient) in undecided.items()
        }
        lost = [self.names[p] for p, factor in factors.items() if not math.isfinite(factor)]
        updates: dict[torch.nn.Parameter, tuple[float, ...]] = {}
        try:
            if not skips and not lost:
                updates = {p: self._update(p, factor) for p, factor in factors.items()}
        finally:
            # Without updates because of an error as well: the other ranks must not wait for them.
            for parameter, (decision, gradient) in undecided.items():
                update = updates.get(parameter)
                if decision is not None:
                    decision.decide(update)
                if update is not None:
                    self._variables[parameter].count_step()
                if parameter.grad is gradient:
                    parameter.grad = None
        return [] if skips else lost

    def _update(self, parameter: torch.nn.Parameter, factor: float) -> tuple[float, ...]:
        """The coefficients of the next step; ValueError unless they are finite."""
        variables = self._variables
        rule, group = variables.rule, variables.groups[parameter]
        update = variables[parameter].update(rule, group, factor)
        if not all(map(math.isfinite, update)):
            raise ValueError(
                f"the hyper-parameters of {self.names[parameter]} are not finite: {update}"
            )
        return update
