"""Ways to train, and what they have in common; free of torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mode:
    """One way to train."""

    name: str
    sync_every: int = 1  # steps between exchanges; 1 trains synchronously
    outer: bool = False  # DiLoCo, else averages
    fragments: int = 1
    delay: int = 0  # steps between sending a fragment and using the result


@dataclass(frozen=True)
class Training:
    """What all modes have in common."""

    steps: int
    batch: int  # of each worker
    compute_s: float  # that a step's forward and backward pass take at least
    every: int  # steps between two measurements of the loss
    inner_rate: float = 2e-3
    outer_rate: float = 0.7
    outer_momentum: float = 0.9


@dataclass(frozen=True)
class Load:
    """What a worker is made with besides its rank."""

    shapes: tuple[tuple[int, ...], ...]  # of the sums that test the link
    per_site: int
