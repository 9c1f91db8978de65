"""Rounds in which sums update parameters, where the sums are made.

Shows what an optimizer on the servers costs beside sums of the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.optim import SGD, Adagrad, Adam, Optimizer, RMSprop

from sumpter._core import membership
from sumpter.torch.training.variables import rule_of
from sumpter_lab.scaffold.jobs.payload import PERIOD, Payload

# A power of two: with plain SGD every value is exact.
RATE = 2.0**-10
# torch's optimizer of each rule in `spec.RULES`. foreach=False has the rule's order of operations.
OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], Optimizer]] = {
    "sgd": lambda p: SGD(p, RATE, foreach=False),
    "sgd_momentum": lambda p: SGD(p, RATE, momentum=0.9, foreach=False),
    "sgd_nesterov": lambda p: SGD(p, RATE, momentum=0.9, nesterov=True, foreach=False),
    "adam": lambda p: Adam(p, RATE, foreach=False),
    "rmsprop": lambda p: RMSprop(p, RATE, foreach=False),
    "adagrad": lambda p: Adagrad(p, RATE, foreach=False),
}
# Of the others, a library may not round square roots correctly.
EXACT = frozenset({"sgd", "sgd_momentum", "sgd_nesterov"})


class Updates:
    """All tensors as gradients of variables, submitted last one first like gradients.

    Each value begins with zeros and lies beside its gradient. What it must be follows from torch's
    optimizer, applied to a parameter with one element for each that differs.
    """

    def __init__(self, rule: str, payload: Payload, gradients: list[torch.Tensor]) -> None:
        self._exact = rule in EXACT
        self._payload, self._gradients = payload, gradients
        self._values = [torch.zeros_like(gradient) for gradient in gradients]
        self._reference = torch.nn.Parameter(torch.zeros(PERIOD))
        self._optimizer = OPTIMIZERS[rule]([self._reference])
        self._steps = 0
        session = membership.current()
        self._variables = [
            session.declare(f"bench.{rule}.{index}", "update", value.shape, "float32", rule=rule)
            for index, value in enumerate(self._values)
        ]
        parts = [[memoryview(value.flatten().numpy()).cast("B")] for value in self._values]
        puts = [one.set_state(part) for one, part in zip(self._variables, parts, strict=True)]
        for put in puts:
            put.wait()

    def prepare(self, number: int) -> None:
        """Makes this rank's gradients and the coefficients of the step."""
        self._payload.fill(self._gradients, number)
        self._steps += 1
        (group,) = self._optimizer.param_groups
        self._coefficients = rule_of(self._optimizer)(self._steps, group).coefficients

    def run(self) -> None:
        """Sends the gradients and receives the new values."""
        count = len(self._variables)
        handles = [
            self._variables[index].submit(
                self._gradients[index].data_ptr(),
                self._values[index].data_ptr(),
                keep=(self._gradients[index], self._values[index]),
                priority=count - index,
                update=self._coefficients,
            )
            for index in reversed(range(count))
        ]
        for handle in handles:
            handle.wait()

    def check(self, number: int) -> None:
        """Raises unless the values are those of torch's optimizer."""
        self._reference.grad = self._payload.sums(number)
        self._optimizer.step()
        expected = self._reference.detach()
        self._payload.check_values(self._values, number, expected, self._exact)
