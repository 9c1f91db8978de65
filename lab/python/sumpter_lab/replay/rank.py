"""The worker of a replay, in a process of its own on its machine.

One call of run() plays some iterations of one variant after each other. All sums of an iteration
are checked by those of the last one: each iteration sums the same numbers, which differ from run
to run.
"""

from __future__ import annotations

import ctypes

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sumpter_lab.replay.optimizing import InWorkers, OnServers, declare_gradient
from sumpter_lab.replay.play import Clock, Pace, Sum, periods, play
from sumpter_lab.replay.script import Script
from sumpter_lab.replay.variants import BY_NAME, DDP, DDP_BUCKET_BYTES, OPTIMIZING, Variant
from sumpter_lab.scaffold.jobs.ddp import Replayed
from sumpter_lab.scaffold.jobs.payload import Payload
from sumpter_lab.scaffold.jobs.rank import System, Worker

_PR_SET_TIMERSLACK = 29
# By default the kernel lets a sleep last 50 us longer than asked, which is more than some layers.
_TIMER_SLACK_NS = 1000


class Player(Worker):
    """One rank of a job."""

    torch_groups = frozenset({DDP})

    def __init__(
        self,
        rank: int,
        world_size: int,
        address: str,
        settings: dict[str, str],
        load: tuple[Script, int],
    ) -> None:
        self._script, self._iterations = load
        super().__init__(rank, world_size, address, settings, self._script.shapes)
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _TIMER_SLACK_NS, 0, 0, 0)

    def periods(self, system: str) -> list[float]:
        """The seconds of each iteration of the last run."""
        return self._systems[system].periods_s

    def steps(self, system: str) -> list[float]:
        """The seconds of each step that an optimizer took in this worker in the last run."""
        return list(getattr(self._systems[system], "steps_s", ()))

    def _make(self, system: str, payload: Payload, tensors: list[torch.Tensor]) -> System:
        if system in BY_NAME:
            return Summing(payload, self._script, tensors, BY_NAME[system], self._iterations)
        if system in OPTIMIZING:
            what = OPTIMIZING[system]
            kind = InWorkers if what.place.startswith("workers") else OnServers
            return kind(payload, self._script, tensors, what, self._iterations)
        return TimedDdp(payload, self._script, self._gloo, self._iterations)


class Summing:
    """Sums by Sumpter's own operations."""

    def __init__(
        self,
        payload: Payload,
        script: Script,
        gradients: list[torch.Tensor],
        variant: Variant,
        iterations: int,
    ) -> None:
        self._payload, self._script, self._variant = payload, script, variant
        self._gradients, self._iterations = gradients, iterations
        self._sums = [torch.zeros_like(gradient) for gradient in gradients]
        self.periods_s: list[float] = []

    def prepare(self, number: int) -> None:
        self._payload.fill(self._gradients, number)
        for total in self._sums:
            total.zero_()

    def run(self) -> None:
        starts_s = play(
            *(self._script, self._submit, self._iterations, Pace(Clock())),
            overlap=self._variant.overlap,
        )
        self.periods_s = periods(starts_s)

    def check(self, number: int) -> None:
        self._payload.check(self._sums, number)

    def _submit(self, index: int) -> Sum:
        gradient, total = self._gradients[index], self._sums[index]
        return declare_gradient(index, gradient).submit(
            gradient.data_ptr(),
            total.data_ptr(),
            keep=(gradient, total),
            # The next forward pass needs the first layers first.
            priority=len(self._sums) - index if self._variant.priority else 0,
        )


class TimedDdp:
    """torch's DDP over Gloo; its module waits where it would compute."""

    def __init__(
        self, payload: Payload, script: Script, group: dist.ProcessGroup, iterations: int
    ) -> None:
        self._payload, self._script, self._iterations = payload, script, iterations
        # Autograd hands in the gradient of the last one first.
        last_ready_first = script.ready[::-1]
        self._ready_s = [ready_s for _, ready_s in last_ready_first]
        shapes = [script.shapes[index] for index, _ in last_ready_first]
        self._module = Replayed(shapes, self._compute_until_ready)
        self._ddp = DistributedDataParallel(
            self._module,
            process_group=group,
            init_sync=False,
            bucket_cap_mb=DDP_BUCKET_BYTES / script.scale / 2**20,
        )
        self._pace = Pace(Clock())
        self._begun_s = 0.0
        self.periods_s: list[float] = []

    def prepare(self, number: int) -> None:
        self._payload.fill([self._module.gradients], number)

    def run(self) -> None:
        self._pace = pace = Pace(Clock())
        forward_s = sum(self._script.forward_s)
        starts_s = [pace.at_s]
        for _ in range(self._iterations + 1):
            for parameter in self._module.parameters():
                parameter.grad = None
            loss = self._ddp(torch.zeros((), requires_grad=True))
            pace.spend(forward_s)
            self._begun_s = pace.at_s
            # Returns when all buckets are averaged.
            loss.backward()
            pace.catch_up()
            pace.until(max(pace.at_s, self._begun_s + self._script.backward_s))
            starts_s.append(pace.at_s)
        self.periods_s = periods(starts_s)

    def check(self, number: int) -> None:
        gradients = [parameter.grad for parameter in self._module.parameters()]
        if any(gradient is None for gradient in gradients):
            raise ArithmeticError("a parameter got no gradient")
        self._payload.check(gradients, number, average=True)

    def _compute_until_ready(self, index: int) -> None:
        self._pace.until(self._begun_s + self._ready_s[index])
