"""What every kind of DistributedOptimizer adds to, and changes in, the user's class."""

from typing import Any

import torch

from sumpter.torch.optimizer.parameters import name_added, trainable
from sumpter.torch.training.gradients import Names, PassCounter


def wrap(
    optimizer: torch.optim.Optimizer,
    kind: "type[Wrapped]",
    exchange: PassCounter,
    names: Names | None = None,
) -> torch.optim.Optimizer:
    """An instance of the optimizer's class and of `kind`, with the groups and the state it has.

    `names` are those of all its parameters, frozen ones too, if `exchange` does not know them.
    """
    base = type(optimizer)
    made = type(base.__name__, (kind, base), {})
    # The hooks of step() are run in it. Without this mark load_state_dict() would have torch run
    # them around it as well, twice a step.
    made.step.hooked = True  # type: ignore[attr-defined]
    wrapped = object.__new__(made)
    # A scheduler made earlier has put its own `step` into the old instance; ours must not be
    # shadowed by it.
    wrapped.__dict__.update({k: v for k, v in optimizer.__dict__.items() if k != "step"})
    wrapped._exchange = exchange
    # Horovod's attribute, which scripts read.
    wrapped._parameter_names = dict(exchange.names if names is None else names)
    wrapped._begin()
    return wrapped


class Wrapped:
    """What both kinds of DistributedOptimizer add to, and change in, the user's class."""

    # Whether ranks share what a state is loaded into, so that all of them must load it.
    is_shared = False

    _exchange: PassCounter
    _parameter_names: dict[torch.nn.Parameter, str]

    def _begin(self) -> None:
        """Called when the instance is complete."""

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes how many backward passes make one exchange."""
        self._exchange.passes = passes

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients; refused between backward() and step()."""
        if self._in_between():
            raise AssertionError(
                "zero_grad() was called after backward() and before step() or synchronize(): "
                "the gradients are still being exchanged"
            )
        super().zero_grad(set_to_none=set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the optimizer's state; gradients in flight and backward passes are forgotten."""
        self._exchange.abandon()
        super().load_state_dict(state_dict)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refused: a copy, or a pickle, would have no part in the exchange."""
        raise TypeError(
            "a DistributedOptimizer cannot be copied or pickled, since the other ranks take part "
            "in what it does: keep its state_dict()"
        )

    def _in_between(self) -> bool:
        raise NotImplementedError


class InWorkers(Wrapped):
    """What is added to those that step in the workers: parameters that are trained later."""

    # Parameters that needed no gradients when they were last looked at.
    _frozen: list[torch.nn.Parameter]

    def _begin(self) -> None:
        self._frozen = [p for p in self._parameter_names if p not in self._exchange.names]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, whose gradients are exchanged like the others'; on all ranks alike."""
        super().add_param_group(param_group)
        added = name_added(self.param_groups[-1], self._parameter_names)
        self._parameter_names.update(added)
        self._frozen.extend(added)
        self._take_in()

    def _take_in(self) -> dict[torch.nn.Parameter, str]:
        """Has the exchange take in what needs gradients now, and did not before."""
        found = trainable(
            {parameter: self._parameter_names[parameter] for parameter in self._frozen}
        )
        if found:
            self._exchange.take_in(found)
            self._frozen = [parameter for parameter in self._frozen if parameter not in found]
        return found
