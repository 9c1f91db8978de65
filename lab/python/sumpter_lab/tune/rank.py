"""The worker of a job that is tuned, in a process of its own on its machine."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_long
from typing import Any

import torch

import sumpter
from sumpter.tuning import settings
from sumpter.tuning.points import Tuner
from sumpter.tuning.tuners import TUNERS
from sumpter_lab.replay.play import Sum
from sumpter_lab.replay.rank import Player, Summing
from sumpter_lab.replay.script import Script
from sumpter_lab.replay.variants import BY_NAME
from sumpter_lab.scaffold.jobs.payload import Payload
from sumpter_lab.scaffold.jobs.rank import System
from sumpter_lab.tune.scaled import Model, Scaled


class Tuned(Player):
    """One rank; rank 0 notes what its tuner does, and says which iteration is under way."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        address: str,
        settings: dict[str, str],
        load: tuple[Script, Model, c_long],
    ) -> None:
        script, self._model, self._at = load
        super().__init__(rank, world_size, address, settings, (script, 1))
        self._sizes: list[dict[str, Any]] = []
        self._groups: list[dict[str, Any]] = []
        if rank == 0:
            for name, make in list(TUNERS.items()):
                TUNERS[name] = self._scaled(make)

    def begin(self, system: str, iterations: int) -> None:
        """The next run is of so many iterations."""
        playing = self._systems[system]
        assert isinstance(playing, Noting)
        playing.begin(iterations)
        self._sizes, self._groups = [], []
        self._at.value = -1

    def tune(self, tuner: str, profile: str | None) -> None:
        """Starts anew with the job's first sizes; called on rank 0."""
        sumpter.tune(reset=True, tuner=tuner, profile=profile)

    def noted(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The sizes with the iteration from which on they held, and the tuner's groups."""
        return self._sizes, self._groups

    def _make(self, system: str, payload: Payload, tensors: list[torch.Tensor]) -> System:
        note = self._note if self._rank == 0 else None
        return Noting(payload, self._script, tensors, BY_NAME[system], note)

    def _scaled(self, make: Callable[[], Tuner]) -> Callable[[], Tuner]:
        def note(group: dict[str, Any]) -> None:
            self._groups.append({"iteration": self._at.value, **group})

        return lambda: Scaled(make(), self._model, note)

    def _note(self, iteration: int) -> None:
        self._at.value = iteration
        now = settings()
        if not self._sizes or any(self._sizes[-1][name] != now[name] for name in now):
            self._sizes.append({"iteration": iteration, **now})


class Noting(Summing):
    """Sums that report each iteration when its first gradient is ready."""

    def __init__(self, *arguments: Any) -> None:
        *of_sums, self._note = arguments
        super().__init__(*of_sums, 1)
        self._submitted = 0

    def begin(self, iterations: int) -> None:
        """The next run is of so many iterations, after one that does not count."""
        self._iterations, self._submitted = iterations, 0

    def _submit(self, index: int) -> Sum:
        iteration, of_it = divmod(self._submitted, len(self._sums))
        if self._note is not None and of_it == 0:
            self._note(iteration - 1)
        self._submitted += 1
        return super()._submit(index)
