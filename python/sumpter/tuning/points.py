"""What a tuner chooses among, and what it says of its choice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sumpter import _native

KIB, MIB = 1 << 10, 1 << 20
# What a plan distinguishes: over 32 KiB it cuts by itself to an eighth of the credit, and all but
# tensors of many MiB finer still.
PARTITIONS = tuple(16 * KIB << power for power in range(4))  # to 128 KiB
CREDITS = tuple(128 * KIB << power for power in range(6))  # to 4 MiB
CHUNK = 256 * KIB  # the setting's default; smaller for smaller partitions
# Layers that a model is described by, whatever its number of layers.
BUCKETS = 16


@dataclass(frozen=True)
class Point:
    """The sizes of a plan, in bytes. The credit is not under a partition, a chunk not over it."""

    partition: int
    credit: int
    chunk: int

    def __str__(self) -> str:
        return f"partition {readable(self.partition)}, credit {readable(self.credit)}"


def readable(size: int) -> str:
    """A size as people write it: `4MiB`."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def point(partition: int, credit: int) -> Point:
    """A partition and a credit of about these sizes, both multiples of 4 KiB."""
    grain = 4 * KIB
    partition = max(grain, partition // grain * grain)
    return Point(partition, max(partition, credit // grain * grain), min(CHUNK, partition))


def acts_as(at: Point) -> Point:
    """The point that a plan makes of this one: it cuts partitions finer beside a small credit."""
    partition = _native.cut_bytes(at.partition, at.credit)
    return Point(partition, at.credit, min(at.chunk, partition))


_PAIRS = tuple(point(partition, credit) for credit in CREDITS for partition in PARTITIONS)
GRID = tuple(at for at in _PAIRS if acts_as(at) == at)


@dataclass(frozen=True)
class Job:
    """What is known of a job beside its speed. Layers are in forward order, each a row."""

    workers: int  # machines with workers (n)
    servers: int = 0  # machines that only help (k)
    up_gbps: float = 10.0  # of a worker's machine
    down_gbps: float = 10.0
    # Whether the next forward pass begins while sums are on their way.
    overlaps: bool = False
    # Seconds of the forward and backward pass, and bytes of the gradients: shape (BUCKETS, 3).
    layers: np.ndarray = field(default_factory=lambda: uniform_layers(0.1, 100 * MIB))
    # Which machines reduce: `sumpter` (all), `allreduce` (those of workers) or `ps` (the others).
    architecture: str = "sumpter"

    @property
    def compute_s(self) -> float:
        """The compute of one iteration."""
        return float(self.layers[:, :2].sum())


def link_bytes(job: Job) -> float:
    """Bytes the busiest link carries each way for each byte of a gradient, as in OSDI'20."""
    n, k = job.workers, job.servers
    if n < 2:
        return 0.0
    if job.architecture == "ps":
        # A worker sends every byte once; a server receives its shard from every worker.
        return max(1.0, n / max(k, 1))
    if job.architecture == "allreduce":
        k = 0
    return max(2 * n * (n - 1) / (n * n + k * n - 2 * k), 1.0 if k >= n else 0.0)


def uniform_layers(compute_s: float, gradient_bytes: float) -> np.ndarray:
    """A model of which no more is known: a third of its compute is the forward pass."""
    row = np.array([compute_s / 3, compute_s * 2 / 3, gradient_bytes]) / BUCKETS
    return np.tile(row, (BUCKETS, 1))


def embedded(layers: np.ndarray) -> np.ndarray:
    """Any number of layers as BUCKETS of them: shape (m, 3) to (BUCKETS, 3), with equal sums."""
    totals = np.vstack([np.zeros(3), np.cumsum(layers, axis=0)])
    ends = np.linspace(0, len(layers), BUCKETS + 1)
    at = [np.interp(ends, np.arange(len(totals)), column) for column in totals.T]
    return np.diff(np.stack(at, axis=1), axis=0)


@dataclass(frozen=True)
class Choice:
    """The point of the next group of iterations, and why."""

    point: Point
    why: str = ""


class Tuner(Protocol):
    """Chooses points from the speeds that were measured: no clock, no network, no threads."""

    name: str

    def observe(self, at: Point, speed: float, job: Job) -> Choice:
        """What to do after a group of iterations at a point, at `speed` iterations a second.

        A choice with words is logged; one without is for a point that stays.
        """
        ...
