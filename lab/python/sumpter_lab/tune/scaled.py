"""A tuner on a model of a cluster: sizes are divided, times multiplied, and it knows of neither.

It works with the sizes, speeds and bandwidths of the cluster that the model stands for; what it
chooses is divided before it reaches the job. So its grid, its training and its messages apply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sumpter.tuning.points import Choice, Job, Point, Tuner
from sumpter_lab.scaffold.scaled import small


@dataclass(frozen=True)
class Model:
    """What sizes were divided by, and what times were multiplied by."""

    scale: float
    slowdown: float

    def small(self, point: Point) -> Point:
        """The sizes that stand for these, as far as the settings take them."""
        partition, credit, chunk = (
            small(size, self.scale) for size in (point.partition, point.credit, point.chunk)
        )
        return Point(partition, max(partition, credit), min(partition, chunk))

    def full(self, point: Point) -> Point:
        """The sizes that these stand for."""
        return Point(*(round(n * self.scale) for n in (point.partition, point.credit, point.chunk)))

    def full_job(self, job: Job) -> Job:
        """The job that this one stands for."""
        layers = job.layers * np.array([1 / self.slowdown, 1 / self.slowdown, self.scale])
        faster = self.scale * self.slowdown
        return replace(
            job, up_gbps=job.up_gbps * faster, down_gbps=job.down_gbps * faster, layers=layers
        )


class Scaled:
    """A tuner that sees what its job stands for; calls `note` for each group in the job's sizes."""

    def __init__(
        self, inner: Tuner, model: Model, note: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        self.name, self._inner, self._model, self._note = inner.name, inner, model, note
        # By what stands for it, since rounding makes one of several.
        self._asked: dict[Point, Point] = {}

    def observe(self, at: Point, speed: float, job: Job) -> Choice:
        full = self._asked.get(at, self._model.full(at))
        seen = speed * self._model.slowdown
        choice = self._inner.observe(full, seen, self._model.full_job(job))
        small = at if choice.point == full else self._model.small(choice.point)
        self._asked[small] = choice.point
        if self._note is not None:
            sizes = {"partition_bytes": at.partition, "credit_bytes": at.credit}
            self._note({**sizes, "iterations_per_s": speed, "said": choice.why})
        return Choice(small, choice.why)
