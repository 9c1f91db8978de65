"""In which order a model's parameters are needed, measured while it trains.

Autograd completes a parameter's gradient when the last of its uses has been gone back over, which
is the first one of the forward pass, and it goes back in the opposite order of the forward pass.
So the order in which gradients are completed, reversed, is that of the first use of each parameter:
whatever the parameters are called, in whatever order the model has registered them, and also where
a module uses a parameter that belongs to another. The hooks that start the exchange see it; nothing
is added to the forward pass.

The order is a hint for scheduling. Ranks may have measured different ones, for a while or for ever:
what is exchanged is matched by names, and the sums are the same in any order. Ranks that disagree
only wait longer for each other.
"""

from collections.abc import Iterable

import torch


class NeedOrder:
    """The order of the first use of some parameters, as of the last backward passes.

    Before anything was measured it is the order in which they are given. Parameters that a
    backward pass does not reach keep their places among the others, so that the order of a model
    with branches settles as well.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._numbers = {parameter: number for number, parameter in enumerate(parameters)}
        self._places = list(range(len(self._numbers)))
        self._completed: list[int] = []
        self._adopted: list[int] = []

    def completed(self, parameter: torch.nn.Parameter) -> None:
        """The gradient of a parameter is the next one to be complete in this backward pass."""
        self._completed.append(self._numbers[parameter])

    def adopt(self) -> None:
        """The backward pass is over: goes by what it has shown."""
        measured, self._completed = self._completed, []
        if measured == self._adopted:
            return
        self._adopted = measured
        # Those that were reached share out the places that they have among themselves.
        places = sorted((self._places[number] for number in measured), reverse=True)
        for number, place in zip(measured, places, strict=True):
            self._places[number] = place

    def forget(self) -> None:
        """The backward pass does not count."""
        self._completed = []

    def priority(self, parameter: torch.nn.Parameter) -> int:
        """From 1 for the parameter needed last to their number for the one needed first."""
        return len(self._places) - self._places[self._numbers[parameter]]

    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters in the order in which they are needed."""
        return sorted(self._numbers, key=self.priority, reverse=True)
