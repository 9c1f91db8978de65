"""The learning rates of an optimizer's parameters, now and when each was last exchanged.

What a codec has left out of a gradient is added to the next one, which takes effect at the rate of
its own step.
"""

import weakref

import torch


class LearningRates:
    """Knows its optimizer weakly, so that the exchange does not keep it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        # The number of each parameter's group; the groups themselves may be replaced.
        self._groups: dict[torch.nn.Parameter, int] = {}
        self._last: dict[torch.nn.Parameter, float] = {}

    def rescale(self, parameter: torch.nn.Parameter) -> float:
        """The last rate over the present one, which becomes the last; 1 where either is 0."""
        rate = self._rate(parameter)
        last = self._last.get(parameter, rate)
        self._last[parameter] = rate
        return last / rate if rate > 0.0 and last > 0.0 else 1.0

    def last(self, parameter: torch.nn.Parameter) -> float | None:
        """The rate at the last exchange of a gradient."""
        return self._last.get(parameter)

    def restore(self, parameter: torch.nn.Parameter, last: float | None) -> None:
        """Goes on from what last() returned."""
        if last is None:
            self._last.pop(parameter, None)
        else:
            self._last[parameter] = last

    def _rate(self, parameter: torch.nn.Parameter) -> float:
        optimizer = self._optimizer()
        if optimizer is None:
            return 0.0
        if parameter not in self._groups:
            self._groups = {
                each: number
                for number, group in enumerate(optimizer.param_groups)
                for each in group["params"]
            }
        number = self._groups.get(parameter)
        return 0.0 if number is None else float(optimizer.param_groups[number].get("lr", 0.0))
