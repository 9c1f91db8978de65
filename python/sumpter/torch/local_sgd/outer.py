"""The outer optimizer of DiLoCo: on the servers, or in each worker.

Both take pseudo-gradients, which are on the parameters' device, average them over the ranks, and
put new values into `theta`, the parameters as all ranks know them, which lie in host memory.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from sumpter._core import membership
from sumpter._core.handles import Handle, RoundHandle
from sumpter._core.process_sets import ProcessSet, label
from sumpter._core.reduction import Average, Reduction
from sumpter.torch.collectives.reduction import RepeatedReduction
from sumpter.torch.local_sgd.fragments import Names
from sumpter.torch.local_sgd.theta import Theta
from sumpter.torch.training.shares import StateShare
from sumpter.torch.training.variables import Variables, load_exactly

# Below that of gradients, which the next step waits for.
PRIORITY = -1

PseudoGradients = Mapping[torch.nn.Parameter, torch.Tensor]


class Outer:
    """Takes the outer steps of each fragment's parameters."""

    def start(self) -> None:
        """Makes ready for pseudo-gradients; every rank must call this, `theta` being settled."""

    def begin(self, pseudogradients: PseudoGradients) -> None:
        """Sends pseudo-gradients; `theta` must not be read before end()."""
        raise NotImplementedError

    def end(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Waits for what was begun; `theta` has the new values then."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """The outer optimizer's state, as torch has it."""
        raise NotImplementedError

    def load(self, state: dict[str, Any]) -> None:
        """Goes on from such a state, and from `theta` as it is."""
        raise NotImplementedError

    def is_shared(self) -> bool:
        """Whether the state is on the servers, so that all ranks must ask for it together."""
        return False


class OuterOnServers(Outer):
    """The servers apply the optimizer's rule to the averages, and keep its state."""

    def __init__(
        self,
        names: Names,
        theta: Theta,
        optimizer: torch.optim.Optimizer,
        process_set: ProcessSet,
    ) -> None:
        self._optimizer = optimizer
        self._variables = Variables(names, optimizer, True, process_set, theta.tensors)
        self._handles: dict[torch.nn.Parameter, RoundHandle] = {}

    def start(self) -> None:
        self._variables.follow_session()
        if not self._variables.declared:
            self._variables.declare()

    def begin(self, pseudogradients: PseudoGradients) -> None:
        for parameter, pseudogradient in pseudogradients.items():
            variables = self._variables
            self._handles[parameter] = variables[parameter].begin(
                pseudogradient,
                variables.rule,
                variables.groups[parameter],
                variables.names[parameter],
                PRIORITY,
            )

    def end(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        for parameter in parameters:
            self._handles.pop(parameter).wait()
            # Hyper-parameters were those of begin(): a scheduler may have gone on since.
            variables = self._variables
            variables[parameter].end(variables.rule, variables.groups[parameter])

    def state_dict(self) -> dict[str, Any]:
        self._optimizer.state.update(self._variables.gather())
        try:
            return self._optimizer.state_dict()
        finally:
            self._optimizer.state.clear()

    def load(self, state: dict[str, Any]) -> None:
        self._handles.clear()
        self._optimizer.load_state_dict(state)
        load_exactly(self._optimizer, state)
        self._variables.follow_session()
        self._variables.load(self._optimizer)

    def is_shared(self) -> bool:
        self._variables.follow_session()
        return self._variables.declared

    def share(self) -> tuple[Any, StateShare]:
        """What is alike on all ranks, and this rank's share of the state on the servers."""
        return self._optimizer.state_dict()["param_groups"], self._variables.share()

    def resume(self, groups: Any, shares: Sequence[StateShare]) -> None:
        """Goes on from the shares of all ranks, and from `theta`; every rank must call this."""
        self._handles.clear()
        self._optimizer.load_state_dict({"state": {}, "param_groups": groups})
        self._variables.follow_session()
        self._variables.resume(self._optimizer, shares)


class OuterInWorkers(Outer):
    """Each rank takes the same step of the optimizer with the averages, which are all-reduced."""

    def __init__(
        self,
        names: Names,
        theta: Theta,
        optimizer: torch.optim.Optimizer,
        process_set: ProcessSet,
    ) -> None:
        self._theta, self._optimizer = theta, optimizer
        among = f"Pseudogradient{label(process_set)}"
        scope = f"{among}.{membership.current().count(among)}."
        self._reductions = {
            parameter: RepeatedReduction(scope + name, Reduction(Average), process_set)
            for parameter, name in names.items()
        }
        self._handles: dict[torch.nn.Parameter, Handle[torch.Tensor]] = {}

    def begin(self, pseudogradients: PseudoGradients) -> None:
        for parameter, pseudogradient in pseudogradients.items():
            self._handles[parameter] = self._reductions[parameter].start(pseudogradient, PRIORITY)

    def end(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        averages = {p: self._handles.pop(p).synchronize() for p in parameters}
        with self._at_theta(averages):
            self._optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    def load(self, state: dict[str, Any]) -> None:
        self._handles.clear()
        self._optimizer.load_state_dict(state)

    @contextlib.contextmanager
    def _at_theta(self, averages: PseudoGradients) -> Iterator[None]:
        """Within it, parameters are `theta`, with the averages as gradients and no others."""
        everyone = [p for group in self._optimizer.param_groups for p in group["params"]]
        gradients = {parameter: parameter.grad for parameter in everyone}
        local = {parameter: parameter.detach().clone() for parameter in averages}
        for parameter in everyone:
            parameter.grad = None
        for parameter, average in averages.items():
            parameter.data.copy_(self._theta.near(parameter))
            parameter.grad = average
        try:
            yield
        finally:
            for parameter, before in local.items():
                self._theta.take(parameter, parameter.detach())
                parameter.data.copy_(before)
            for parameter, gradient in gradients.items():
                parameter.grad = gradient
