"""Optimizers whose updates the servers make, at once, deferred, or overlapped with forward."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from sumpter._core.handles import Handle
from sumpter._errors import UnsupportedError
from sumpter.torch.optimizer.wrapped import Wrapped
from sumpter.torch.training.deferred import DeferredServerUpdates
from sumpter.torch.training.on_servers import OverlappedServerUpdates, ServerUpdates
from sumpter.torch.training.overlap import Updates, needs_whole_step, unless_lost
from sumpter.torch.training.server_gradient import clip_
from sumpter.torch.training.variables import load_exactly


class OnServers(Wrapped):
    """Leaves the updates to the servers."""

    is_shared = True

    _exchange: ServerUpdates
    _synchronized = False

    def synchronize(self) -> None:
        """Waits until all parameters are updated by what backward has made.

        The step() that follows is the same step. Without a backward pass before, it does nothing.
        """
        if self._exchange.begun:
            self._exchange.finish()
            self._synchronized = True

    def skip_synchronize(self) -> Any:
        """Refused: gradients and steps are one."""
        raise AssertionError("skip_synchronize() has no meaning with on_servers=True")

    # Step hooks are called around it, as torch does for the optimizer's own step().
    @torch.optim.Optimizer.profile_hook_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Sends what backward has not reached, and waits for the new parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._exchange.begun or not self._synchronized:
            self._exchange.finish()
        self._synchronized = False
        return loss

    def clip_grad_norm_(self, max_norm: float, **_: Any) -> torch.Tensor:
        """Refused: the rule is applied as soon as gradients are summed."""
        raise ValueError(
            f"clip_grad_norm_({max_norm}): the servers apply the rule as soon as gradients are "
            "summed; make the DistributedOptimizer with deferred=True to clip them before"
        )

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, gathered from what the ranks mirror; for all ranks to call."""
        self._exchange.check_settled("state_dict()")
        self.state.update(self._exchange.gather())
        try:
            return super().state_dict()
        finally:
            self.state.clear()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Has the servers go on from this state and the parameters as they are; on all ranks."""
        self._exchange.check_settled("load_state_dict()")
        self._synchronized = False
        before = self.param_groups
        try:
            super().load_state_dict(state_dict)
            load_exactly(self, state_dict)
            self._exchange.load(self)
        except ValueError:
            # Nothing is loaded, so the groups go on with the hyper-parameters that they had.
            self.param_groups = before
            self.state.clear()
            raise

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group between two steps; on all ranks, where its parameters become rank 0's."""
        if self._exchange.begun:
            raise AssertionError(
                "add_param_group() was called between backward() and step(): call it before or "
                "after them"
            )
        super().add_param_group(param_group)
        try:
            self._exchange.add(self.param_groups[-1])
        except BaseException:
            self.param_groups.pop()
            raise

    def _in_between(self) -> bool:
        return self._exchange.pending


class Deferred(OnServers):
    """Decides in step() what the servers do."""

    _exchange: DeferredServerUpdates

    # A GradScaler calls step() whatever it found, and leaves its scale and what it found here.
    _step_supports_amp_scaling = True
    grad_scale: torch.Tensor | None
    found_inf: torch.Tensor | None

    def synchronize(self) -> None:
        """Sends what backward has not reached; gradients may be clipped and scaled then."""
        self._exchange.join()

    def skip_synchronize(self) -> Any:
        """Within it, step() is what it always is: for scripts that call synchronize() before."""
        return contextlib.nullcontext()

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Clips the gradients, as they will be averaged or summed over all ranks, by their norm.

        As torch.nn.utils.clip_grad_norm_ of all parameters of this optimizer; also of those that
        backward has not reached on this rank. Waits for the sums and returns their total norm.
        UnsupportedError for another `norm_type` than 2; RuntimeError for a norm that is not finite,
        if `error_if_nonfinite`.
        """
        if norm_type != 2:
            raise UnsupportedError(
                f"the norm of order {norm_type} of gradients that are on the servers, which know "
                "the 2-norm"
            )
        self._exchange.join()
        return clip_(self._exchange.gradients(), max_norm, error_if_nonfinite)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Sets the gradients to None: what is on the servers cannot be set to zeros here."""
        super().zero_grad(set_to_none=True)

    @torch.optim.Optimizer.profile_hook_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Has the servers apply the rule to the sums as they were clipped and scaled, and waits.

        Parameters, state and the number of steps stay as they are if a GradScaler has found sums
        that are not finite.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scale, found = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        skips = found is not None and bool(found)
        self._exchange.finish_deferred(1.0 if scale is None else 1.0 / float(scale), skips)
        return loss


class OverlappedOnServers(OnServers):
    """Leaves the updates to the servers, and waiting for them to the next forward pass."""

    _exchange: OverlappedServerUpdates
    _updates: Updates

    def _begin(self) -> None:
        parameters = [p for group in self.param_groups for p in group["params"]]
        self._updates = Updates(parameters, dict(self._exchange.names))
        self._exchange.updates = self._updates

    def synchronize(self) -> None:
        """Waits for the new parameters after step(); refused between backward() and step()."""
        if self._exchange.pending:
            raise AssertionError(
                "synchronize() between backward() and step() has no meaning with on_servers=True: "
                "the servers update by the gradients as backward() makes them; call it after step()"
            )
        self._updates.finish()

    def synchronize_parameters(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Waits for these parameters' new values, for who uses them directly."""
        self._updates.take(parameters)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Sends what backward has not reached, and returns; the gradients belong to the step.

        With a closure, or of an optimizer with step hooks, it waits, as without overlap_forward.
        """
        self._updates.finish()
        if closure is not None or needs_whole_step(self):
            return super().step(closure)
        handles = {
            parameter: Handle(round_, lambda: None)
            for parameter, round_ in self._exchange.hand_over().items()
        }
        # A parameter is new when its round is done: nothing is left for the optimizer to do.
        self._updates.begin(self.param_groups, handles, lambda groups: None)
        return None

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, gathered when the last step is done; for all ranks to call."""
        self._updates.finish()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Has the servers go on from this state, when the last step is done; on all ranks."""
        with unless_lost():
            self._updates.finish()
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group when the last step is done; on all ranks."""
        self._updates.finish()
        super().add_param_group(param_group)
        self._updates.adopt(self.param_groups[-1]["params"], self._exchange.names)
