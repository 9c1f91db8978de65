"""Optimizers that step on each rank and add the step to parameters that all ranks share."""

from collections.abc import Callable
from typing import Any

from sumpter._errors import UnsupportedError
from sumpter.torch.optimizer.wrapped import Wrapped
from sumpter.torch.training.asynchronous import AsynchronousSteps


class Asynchronous(Wrapped):
    """Takes a step of the user's optimizer on each rank and adds it to what all ranks share."""

    is_shared = True

    _exchange: AsynchronousSteps

    def synchronize(self) -> None:
        """Ends with the same parameters on all ranks, which must all call this."""
        self._exchange.agree()

    def skip_synchronize(self) -> Any:
        """Refused: it is step() that exchanges."""
        raise AssertionError("skip_synchronize() has no meaning in asynchronous training")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes a step of the user's optimizer, adds it, and gets the shared parameters."""
        for number, group in enumerate(self.param_groups):
            for parameter in group["params"]:
                if parameter.requires_grad and parameter not in self._exchange.names:
                    raise ValueError(
                        f"a parameter of shape {list(parameter.shape)} in group {number} was "
                        "frozen when the DistributedOptimizer was made and is trained now: it "
                        "would differ between ranks; make a new one"
                    )
        return self._exchange.step(lambda: super(Asynchronous, self).step(closure))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from this state and the parameters as they are; on all ranks."""
        super().load_state_dict(state_dict)
        self._exchange.load()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: ranks share the parameters that there were at the start."""
        raise UnsupportedError(
            "parameters cannot be added in asynchronous training; make a new DistributedOptimizer"
        )

    def _in_between(self) -> bool:
        return False
