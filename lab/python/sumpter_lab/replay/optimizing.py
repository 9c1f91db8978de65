"""Iterations that end with an optimizer's step: in the workers, or on the servers with the sums.

What a step in a worker takes is real, unlike compute: torch's optimizer runs on this machine's
cores over the tensors that are summed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from sumpter._core import membership
from sumpter._core.compression.choice import BY_SETTING, Limits
from sumpter._core.tensor import Tensor
from sumpter_lab.replay.play import Clock, Pace, Sum, periods, play
from sumpter_lab.replay.script import Script
from sumpter_lab.replay.variants import Optimizing
from sumpter_lab.scaffold.jobs.payload import Payload
from sumpter_lab.scaffold.jobs.updates import OPTIMIZERS, Reference, Updates

if TYPE_CHECKING:
    from sumpter._native import Decision


def declare_gradient(index: int, gradient: torch.Tensor) -> Tensor:
    """The sum of a gradient, encoded as the setting `compression` says."""
    session = membership.current()
    limits = Limits.of(session.worker)
    codec = limits.codec_of(BY_SETTING, gradient.shape, "float32", sums=True, named=True)
    return session.declare(
        f"replay.{index}", "all_reduce", gradient.shape, "float32", compression=codec
    )


class InWorkers:
    """Sums of gradients; when all are there, every worker takes the optimizer's step."""

    def __init__(
        self,
        payload: Payload,
        script: Script,
        gradients: list[torch.Tensor],
        what: Optimizing,
        iterations: int,
    ) -> None:
        self._payload, self._script, self._iterations = payload, script, iterations
        self._gradients = gradients
        self._parameters = [torch.nn.Parameter(torch.zeros_like(one)) for one in gradients]
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        fused = what.place == "workers-fused"
        how = {"fused": True} if fused else {"foreach": False}
        self._optimizer = OPTIMIZERS[what.rule](self._parameters, **how)
        self._reference = Reference(what.rule, payload, fused=fused)
        self.periods_s: list[float] = []
        self.steps_s: list[float] = []

    def prepare(self, number: int) -> None:
        self._payload.fill(self._gradients, number)

    def run(self) -> None:
        self.steps_s = []
        starts_s = play(
            *(self._script, self._submit, self._iterations, Pace(Clock())),
            overlap=False,
            optimizer=self,
        )
        self.periods_s = periods(starts_s)

    def check(self, number: int) -> None:
        values = [parameter.detach() for parameter in self._parameters]
        self._reference.check(values, number, self._iterations + 1)

    def decide(self) -> None:
        """Nothing is decided before the sums are there."""

    def step(self) -> None:
        """Takes the step."""
        begun = time.perf_counter()
        self._optimizer.step()
        self.steps_s.append(time.perf_counter() - begun)

    def _submit(self, index: int) -> Sum:
        gradient, total = self._gradients[index], self._parameters[index].grad
        assert total is not None, "made by the constructor"
        declared = declare_gradient(index, gradient)
        return declared.submit(gradient.data_ptr(), total.data_ptr(), keep=(gradient, total))


class OnServers:
    """Rounds that update; deferred ones when the norm of all gradients is known."""

    # Steps are the servers'.
    steps_s: tuple[float, ...] = ()

    def __init__(
        self,
        payload: Payload,
        script: Script,
        gradients: list[torch.Tensor],
        what: Optimizing,
        iterations: int,
    ) -> None:
        self._script, self._iterations = script, iterations
        self._updates = Updates(what.rule, payload, gradients, scope=what.name)
        # The coefficients of the first step; each step makes those of the next one.
        self._updates.advance()
        self._is_deferred = what.place == "servers-deferred"
        self._decisions: list[Decision | None] = []
        self.periods_s: list[float] = []

    def prepare(self, number: int) -> None:
        self._updates.fill(number)

    def run(self) -> None:
        starts_s = play(
            *(self._script, self._submit, self._iterations, Pace(Clock())),
            overlap=False,
            optimizer=self,
        )
        self.periods_s = periods(starts_s)

    def check(self, number: int) -> None:
        self._updates.check(number, self._iterations + 1)

    def decide(self) -> None:
        """Has deferred rounds update, as clipping by the norm would."""
        if self._is_deferred:
            decisions, self._decisions = self._decisions, []
            self._updates.decide(decisions)

    def step(self) -> None:
        """Begins the next step."""
        self._updates.advance()

    def _submit(self, index: int) -> Sum:
        if not self._is_deferred:
            return self._updates.submit(index)
        handle, decision = self._updates.submit_deferred(index)
        self._decisions.append(decision)
        return handle
