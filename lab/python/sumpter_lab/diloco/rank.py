"""A worker of a site: trains the model in one mode from the start, and says how it went."""

from __future__ import annotations

import contextlib
import socket
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sumpter.torch as bps
from sumpter_lab.diloco.modes import Load, Mode, Training
from sumpter_lab.diloco.text import Model, Text, loss_of
from sumpter_lab.scaffold.jobs.rank import Meeting, Worker

SEED = 1
# Of which the median counts.
_CONNECTIONS = 5
_STEPS_ALONE = 20


class Learner(Worker):
    """One rank of the job, one of `per_site` in its site."""

    def __init__(
        self, rank: int, world_size: int, address: str, settings: dict[str, str], load: Load
    ) -> None:
        super().__init__(rank, world_size, address, settings, load.shapes)
        self._local = (rank % load.per_site, load.per_site)
        self._text = Text()
        self._sites: dict[str, Any] = {}
        self._group: dist.ProcessGroup | None = None

    def join(self, meeting: Meeting, systems: Any) -> None:
        """Joins the job; with several workers a site, they have a group of Gloo."""
        super().join(meeting, systems)
        per_site = self._local[1]
        if per_site > 1:
            self._join_torch(meeting)
            firsts = list(range(0, self._world_size, per_site))
            groups = [
                dist.new_group(list(range(first, first + per_site)), backend="gloo")
                for first in firsts
            ]
            self._group = groups[self._rank // per_site]
            self._sites = {"process_set": bps.add_process_set(firsts), "site": self._group}

    def listen(self) -> int:
        """The port of a listener, to which others may connect to learn the round-trip time."""
        self._listener = socket.create_server((self._address, 0))
        return self._listener.getsockname()[1]

    def round_trip_s(self, host: str, port: int) -> float:
        """The median time that connecting takes, which is one round trip."""
        times = []
        for _ in range(_CONNECTIONS):
            begun = time.perf_counter()
            with socket.create_connection((host, port)):
                times.append(time.perf_counter() - begun)
        return statistics.median(times)

    def train(self, mode: Mode, training: Training) -> dict[str, Any]:
        """Trains a new model; seconds, those in which it waited, and rank 0's loss by time."""
        torch.manual_seed(SEED)
        model = Model()
        inner = torch.optim.AdamW(model.parameters(), lr=training.inner_rate)
        run = _Run(model, self._text, training, torch.Generator().manual_seed(SEED + self._rank))
        alone_s = _step_alone_s(training.inner_rate)
        with self._exchanging(mode, training, run, inner) as (optimizer, periodic):
            bps.broadcast_object(None, 0, name="start")
            run.steps(optimizer)
        run.seconds = time.perf_counter() - run.begun
        if mode.outer:
            run.model.load_state_dict(periodic.global_parameters())
        found = {
            "steps": training.steps,
            "seconds": run.seconds,
            "waiting_s": max(0.0, run.in_step_s - training.steps * alone_s),
            "rounds": training.steps if periodic is None else periodic.rounds,
        }
        return found | (run.losses() if self._rank == 0 else {})

    @contextlib.contextmanager
    def _exchanging(
        self, mode: Mode, training: Training, run: _Run, inner: torch.optim.Optimizer
    ) -> Iterator[tuple[torch.optim.Optimizer, Any]]:
        """The optimizer whose steps exchange what the mode does, and what counts its rounds."""
        model = run.model
        if mode.sync_every == 1:
            yield bps.DistributedOptimizer(inner, model.named_parameters()), None
            return
        if self._group is not None:
            run.trained = DistributedDataParallel(model, process_group=self._group)
        if mode.outer:
            outer = torch.optim.SGD(
                model.parameters(),
                lr=training.outer_rate,
                momentum=training.outer_momentum,
                nesterov=True,
            )
            periodic: Any = bps.DiLoCo(
                *(model, inner, outer, mode.sync_every, mode.fragments, mode.delay), **self._sites
            )
        else:
            periodic = bps.LocalSGD(model, inner, mode.sync_every, **self._sites)
        with periodic:
            yield inner, periodic


class _Run:
    """The training loop, and what it has measured."""

    def __init__(
        self, model: Model, text: Text, training: Training, chooser: torch.Generator
    ) -> None:
        self.model = model
        self.trained: nn.Module = model  # what the forward pass goes through
        self._text, self._training, self._chooser = text, training, chooser
        self.begun = self.in_step_s = self.seconds = 0.0
        self._taken: list[tuple[int, float, dict[str, torch.Tensor]]] = []

    def steps(self, optimizer: torch.optim.Optimizer) -> None:
        """Trains; each step computes for `compute_s`, by waiting first for what it is short of."""
        computing_s = 0.0
        self.begun = time.perf_counter()
        for step in range(1, self._training.steps + 1):
            time.sleep(max(0.0, self._training.compute_s - computing_s))
            started = time.perf_counter()
            optimizer.zero_grad()
            batch = self._text.batch(self._training.batch, self._chooser)
            loss_of(self.trained, batch).backward()
            before = time.perf_counter()
            computing_s = before - started
            optimizer.step()
            now = time.perf_counter()
            self.in_step_s += now - before
            if step % self._training.every == 0:
                state = {name: t.clone() for name, t in self.model.state_dict().items()}
                self._taken.append((step, now - self.begun, state))

    def losses(self) -> dict[str, Any]:
        """The held-out loss at the end, and of the rank's parameters as they were: step, seconds,
        loss."""
        final = self._held_out()
        curve = []
        for step, seconds, state in self._taken:
            self.model.load_state_dict(state)
            curve.append((step, seconds, self._held_out()))
        return {"final_loss": final, "curve": curve}

    @torch.no_grad()
    def _held_out(self) -> float:
        return loss_of(self.model, self._text.held_out).item()


def _step_alone_s(rate: float) -> float:
    """The median time of a step of the inner optimizer that exchanges nothing."""
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    times = []
    for _ in range(_STEPS_ALONE):
        begun = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)
