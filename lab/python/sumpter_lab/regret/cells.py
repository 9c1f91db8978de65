"""A cell of the evaluation, and the time of its iterations by partition and credit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from sumpter import _native
from sumpter.profiles import Profile
from sumpter.tuning.driver import describe
from sumpter.tuning.layers import Summed
from sumpter.tuning.points import CHUNK, KIB, MIB, Job, Point, point
from sumpter_lab import profiles, whatif

# Of the settings' defaults.
PARTITION = 256 * KIB
# The axes of the best: wider than the tuners' own grid, up to what a setting accepts in practice.
PARTITIONS = tuple(16 * KIB << power for power in range(9))  # to 4 MiB
CREDITS = tuple(128 * KIB << power for power in range(6))  # to 4 MiB


@dataclass(frozen=True)
class Cell:
    """A model on a cluster."""

    model: str
    workers: int
    servers: int
    gbps: float
    overlaps: bool  # the next forward pass begins early, in the order of need
    switched_gbps: float | None = None  # what the bandwidth changes to, and back from
    first: Point | None = None  # the sizes at the start; None: a job's own

    @property
    def start(self) -> Point:
        """The sizes at the start, by default those of a job on these links: a plan cuts partitions
        to fit the credit."""
        if self.first is not None:
            return self.first
        return Point(PARTITION, _native.default_credit(self.gbps), CHUNK)


class Surface:
    """Seconds of an iteration by sizes, at full size."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self._seconds: dict[tuple[float, Point], float] = {}

    @cached_property
    def profile(self) -> Profile:
        return profiles.published(self.cell.model)

    @cached_property
    def tensors(self) -> list[Summed]:
        """As rank 0 of a job would know them: the first layer's is the most urgent."""
        count = len(self.profile.tensors)
        priority = (lambda index: count - index) if self.cell.overlaps else (lambda index: 0)
        first = min(one.ready_s for one in self.profile.tensors)
        return [
            Summed(one.bytes, priority(i), one.ready_s - first)
            for i, one in enumerate(self.profile.tensors)
        ]

    def simulate(self, points: Iterable[Point], gbps: float | None = None) -> None:
        """Simulates many points at once: those of one partition size share its placement."""
        rate = self.cell.gbps if gbps is None else gbps
        new = sorted({at for at in points if (rate, at) not in self._seconds}, key=_by_partition)
        cases = [self._case(at, rate) for at in new]
        outcomes = whatif.simulate(self.profile, cases, bottleneck=False)
        for at, outcome in zip(new, outcomes, strict=True):
            self._seconds[rate, at] = outcome.iteration_time_s

    def seconds(self, at: Point, gbps: float | None = None) -> float:
        rate = self.cell.gbps if gbps is None else gbps
        if (rate, at) not in self._seconds:
            self.simulate([at], gbps)
        return self._seconds[rate, at]

    def best(self, gbps: float | None = None) -> Point:
        """The fastest of all pairs of the axes, and of the default."""
        points = [self.cell.start, *PAIRS]
        self.simulate(points, gbps)
        return min(points, key=lambda at: self.seconds(at, gbps))

    def job(self, gbps: float, fastest: float, profiled: bool) -> Job:
        """The features that a tuner gets, by the function that a running job uses."""
        cell = self.cell
        known = self.profile if profiled else None
        # As they get ready, without priorities: the last layer's first.
        tensors = self.tensors if cell.overlaps else self.tensors[::-1]
        return describe(
            cell.workers, cell.servers, "sumpter", (gbps, gbps), tensors, fastest, known
        )

    def _case(self, at: Point, gbps: float) -> whatif.Case:
        return whatif.Case(
            workers=self.cell.workers,
            servers=self.cell.servers,
            architecture="sumpter",
            bandwidth_gbps=gbps,
            partition_bytes=at.partition,
            credit_bytes=at.credit,
            overlap_forward=self.cell.overlaps,
        )


def _by_partition(at: Point) -> tuple[int, int]:
    return at.partition, at.credit


# A credit under a partition acts as one partition, so it is no point of its own.
PAIRS = tuple(
    point(partition, credit)
    for partition in PARTITIONS
    for credit in CREDITS
    if partition <= min(credit, 4 * MIB)
)
