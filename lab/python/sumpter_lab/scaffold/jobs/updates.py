"""Rounds in which sums update parameters, where the sums are made.

Shows what an optimizer on the servers costs beside sums of the same tensors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch.optim import SGD, Adagrad, Adam, Optimizer, RMSprop

from sumpter._core import membership
from sumpter._core.handles import RoundHandle
from sumpter.torch.training.variables import rule_of
from sumpter_lab.scaffold.jobs.payload import PERIOD, Payload

if TYPE_CHECKING:
    from sumpter._native import Decision

# A power of two: with plain SGD every value is exact.
RATE = 2.0**-10
# torch's optimizer of each rule in `spec.RULES`. foreach=False has the rule's order of operations.
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": functools.partial(SGD, lr=RATE),
    "sgd_momentum": functools.partial(SGD, lr=RATE, momentum=0.9),
    "sgd_nesterov": functools.partial(SGD, lr=RATE, momentum=0.9, nesterov=True),
    "adam": functools.partial(Adam, lr=RATE),
    "rmsprop": functools.partial(RMSprop, lr=RATE),
    "adagrad": functools.partial(Adagrad, lr=RATE),
}
# Of the others, a library may not round square roots correctly.
EXACT = frozenset({"sgd", "sgd_momentum", "sgd_nesterov"})


class Reference:
    """What torch's optimizer makes of the sums of a payload, of one element for each that differs.

    Beginning with zeros. Kernels that are `fused` round once where the rule rounds twice.
    """

    def __init__(self, rule: str, payload: Payload, *, fused: bool = False) -> None:
        self._exact, self._payload = rule in EXACT and not fused, payload
        self._parameter = torch.nn.Parameter(torch.zeros(PERIOD))
        self.optimizer = OPTIMIZERS[rule]([self._parameter], foreach=False)

    def check(self, values: list[torch.Tensor], number: int, steps: int = 1) -> None:
        """Takes so many steps more, by the sums of round `number`; raises unless values agree."""
        self._parameter.grad = self._payload.sums(number)
        for _ in range(steps):
            self.optimizer.step()
        expected = self._parameter.detach()
        self._payload.check_values(values, number, expected, self._exact)


class Updates:
    """All tensors as gradients of variables, submitted last one first like gradients.

    Each value begins with zeros and lies beside its gradient.
    """

    def __init__(
        self, rule: str, payload: Payload, gradients: list[torch.Tensor], scope: str = ""
    ) -> None:
        self._payload, self._gradients = payload, gradients
        self._values = [torch.zeros_like(gradient) for gradient in gradients]
        self._reference = Reference(rule, payload)
        self._steps = 0
        session = membership.current()
        self._variables = [
            session.declare(
                f"bench.{scope or rule}.{index}", "update", value.shape, "float32", rule=rule
            )
            for index, value in enumerate(self._values)
        ]
        parts = [[memoryview(value.flatten().numpy()).cast("B")] for value in self._values]
        puts = [one.set_state(part) for one, part in zip(self._variables, parts, strict=True)]
        for put in puts:
            put.wait()

    def prepare(self, number: int) -> None:
        """Makes this rank's gradients and the coefficients of the step."""
        self.fill(number)
        self.advance()

    def fill(self, number: int) -> None:
        """Makes this rank's gradients."""
        self._payload.fill(self._gradients, number)

    def advance(self) -> None:
        """Makes the coefficients of the next step."""
        self._steps += 1
        optimizer = self._reference.optimizer
        (group,) = optimizer.param_groups
        self._coefficients = rule_of(optimizer)(self._steps, group).coefficients

    def run(self) -> None:
        """Sends the gradients and receives the new values."""
        count = len(self._variables)
        handles = [self.submit(index, count - index) for index in reversed(range(count))]
        for handle in handles:
            handle.wait()

    def submit(self, index: int, priority: int = 0) -> RoundHandle:
        """Starts the round of a gradient, which updates its value."""
        gradient, value = self._gradients[index], self._values[index]
        return self._variables[index].submit(
            gradient.data_ptr(),
            value.data_ptr(),
            keep=(gradient, value),
            priority=priority,
            update=self._coefficients,
        )

    def submit_deferred(self, index: int) -> tuple[RoundHandle, Decision | None]:
        """Starts the round of a gradient, and returns what decides about its update as well."""
        gradient, value = self._gradients[index], self._values[index]
        return self._variables[index].submit_deferred(
            gradient.data_ptr(), value.data_ptr(), keep=(gradient, value)
        )

    def decide(self, decisions: list[Decision | None]) -> float:
        """Has rounds update by their sums as they are; returns the 2-norm of these together."""
        made = [decision for decision in decisions if decision is not None]
        norm = math.sqrt(math.fsum(decision.squares() for decision in made))
        for decision in made:
            decision.decide(self._coefficients)
        return norm

    def check(self, number: int, steps: int = 1) -> None:
        """Raises unless the values are those of torch's optimizer after so many steps more."""
        self._reference.check(self._values, number, steps)
