"""A worker that trains models, with one codec after the other."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

import sumpter.torch as bps
from sumpter_lab.convergence.spec import MOMENTUM, Case, Training
from sumpter_lab.convergence.tasks import TASKS, Task
from sumpter_lab.scaffold.jobs.rank import Worker


class CodecTrainer(Worker):
    """One rank of the job. All start a training with the same parameters."""

    def begin(self, training: Training, case: Case, seed: int) -> None:
        """Makes a new model and its optimizer."""
        self._training, self._step = training, 0
        self._task = self._task_of(training.model)
        torch.manual_seed(seed)
        self._model = self._task.make_model()
        self._draw = torch.Generator().manual_seed(seed)
        if case.nudge:
            _nudge(self._model, case.nudge, seed)
        momentum = 0.0 if case.has_momentum else MOMENTUM
        sgd = torch.optim.SGD(
            self._model.parameters(), training.rate, momentum, nesterov=momentum > 0
        )
        # A tensor of another name has nothing left from the training before.
        run = f"{training.model}.{case.name}.{seed}"
        named = [(f"{run}.{name}", p) for name, p in self._model.named_parameters()]
        self._optimizer = bps.DistributedOptimizer(sgd, named, compression=case.codec)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, training.rate_at)
        self._sent_before = self._sent_bytes()

    def steps(self, count: int) -> None:
        """Takes steps, each with this rank's share of the batch of all."""
        share = slice(self._rank, None, self._world_size)
        for _ in range(count):
            self._optimizer.zero_grad()
            batch = self._training.batch
            self._task.batch_loss(self._model, batch, share, self._draw).backward()
            self._optimizer.step()
            self._schedule.step()
        self._step += count

    def end(self) -> dict[str, Any]:
        """What this rank has sent, a digest of its parameters, and from rank 0 the losses."""
        sent = self._sent_bytes() - self._sent_before
        digest = hashlib.sha256()
        for parameter in self._model.parameters():
            digest.update(parameter.detach().contiguous().numpy().tobytes())
        found: dict[str, Any] = {
            "sent_bytes_per_step": sent / self._step,
            "digest": digest.hexdigest(),
        }
        if self._rank == 0:
            trained, held_out = self._task.losses(self._model)
            found |= {"loss": trained, "held_out_loss": held_out}
        del self._optimizer, self._schedule
        return found

    def _task_of(self, model: str) -> Task:
        tasks = self.__dict__.setdefault("_tasks", {})
        return tasks.get(model) or tasks.setdefault(model, TASKS[model]())

    def _sent_bytes(self) -> int:
        return int(json.loads(self.stats())["counters"]["bytes_sent"])


def _nudge(model: torch.nn.Module, part: float, seed: int) -> None:
    """Changes every parameter by about this part of itself."""
    draw = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + part * torch.randn(parameter.shape, generator=draw))
