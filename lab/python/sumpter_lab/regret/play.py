"""One tuner on one cell: the iterations that it plays, and what they lose against the best."""

from __future__ import annotations

from dataclasses import dataclass

from sumpter.tuning.driver import GROUP, UNMEASURED
from sumpter.tuning.points import Point, Tuner
from sumpter.tuning.tuners import make
from sumpter_lab.regret.cells import Cell, Surface


@dataclass(frozen=True)
class Played:
    """What one tuner did on one cell. Regrets are ratios: 0.02 is 2 % more time than the best."""

    tuner: str
    cell: Cell
    best: Point
    best_s: float
    settled: Point
    settled_regret: float  # of the last iteration's sizes
    regret: float  # of all iterations together: the search costs time as well
    changes: int


# What a change of sizes adds to the step it falls into: pause, new plan, new connections.
CHANGE_S = 0.02


def play(
    name: str,
    surface: Surface,
    iterations: int,
    *,
    profiled: bool = False,
    every: int = 0,
    change_s: float = CHANGE_S,
) -> Played:
    """Plays iterations from the default sizes on, in the groups that a running job measures.

    With `every` and a cell that has a second bandwidth, the link changes between the two after so
    many iterations; the best sizes are those of each bandwidth. A change costs `change_s` seconds.
    """
    cell, tuner = surface.cell, make(name)
    at = cell.start
    spent = least = 0.0
    changes = done = 0
    fastest = 0.0
    while done < iterations:
        gbps = _bandwidth(cell, done, every)
        seconds = surface.seconds(at, gbps)
        best_s = surface.seconds(surface.best(gbps), gbps)
        # The first steps under a plan are not measured, as in a running job.
        count = min(UNMEASURED + GROUP, iterations - done)
        spent += count * seconds
        least += count * best_s
        done += count
        fastest = max(fastest, 1 / seconds)
        following = _asked(tuner, at, surface, gbps, fastest, profiled)
        if following != at:
            changes += 1
            spent += change_s
            at = following
    gbps = _bandwidth(cell, iterations - 1, every)
    best = surface.best(gbps)
    settled = surface.seconds(at, gbps) / surface.seconds(best, gbps) - 1
    own = f"{name} with a profile" if profiled else name
    return Played(
        own, cell, best, surface.seconds(best, gbps), at, settled, spent / least - 1, changes
    )


def _asked(
    tuner: Tuner, at: Point, surface: Surface, gbps: float, fastest: float, profiled: bool
) -> Point:
    job = surface.job(gbps, fastest, profiled)
    return tuner.observe(at, 1 / surface.seconds(at, gbps), job).point


def _bandwidth(cell: Cell, iteration: int, every: int) -> float:
    if cell.switched_gbps is None or every == 0 or iteration // every % 2 == 0:
        return cell.gbps
    return cell.switched_gbps
