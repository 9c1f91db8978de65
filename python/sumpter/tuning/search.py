"""Tuners that try points, settle on the fastest, and try again when the speed changes."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod

from sumpter._errors import ConfigError
from sumpter.tuning.points import CREDITS, GRID, PARTITIONS, Choice, Job, Point, acts_as, point

# A change of speed that is no noise: AutoByte's.
TRIGGER = 0.05
# Groups in a row that must differ so much before a search begins anew.
GROUPS_THAT_DIFFER = 2
# What another point must gain over the one the search began at; less is not worth a change.
LEAST_GAIN = 0.01


class Fixed:
    """Leaves everything as it is."""

    name = "fixed"

    def observe(self, at: Point, speed: float, job: Job) -> Choice:
        return Choice(at)


class Search(ABC):
    """Measures the point it begins at, then those that `propose` gives, then keeps the fastest."""

    name = "search"

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.tried: dict[Point, float] = {}
        self._start: Point | None = None
        self._settled: float | None = None
        self._differs = 0

    @abstractmethod
    def propose(self) -> Point | None:
        """The next point to try, given `self.tried`; None when that is enough."""

    def knows(self, at: Point) -> bool:
        """Whether a point was tried that gives the same plan as this one."""
        return acts_as(at) in map(acts_as, self.tried)

    def observe(self, at: Point, speed: float, job: Job) -> Choice:
        if self._settled is not None:
            return self._watch(at, speed)
        if self._start is None:
            self._start = at
        self.tried[at] = speed
        following = self.propose()
        if following is not None:
            return Choice(following, f"tries {following} ({at} gave {speed:.2f} iterations/s)")
        best = max(self.tried, key=self.tried.__getitem__)
        began = self.tried[self._start]
        if self.tried[best] < began * (1 + LEAST_GAIN):
            best = self._start
        self._settled = self.tried[best]
        gain = self._settled / began - 1
        return Choice(
            best,
            f"keeps {best}: {self._settled:.2f} iterations/s, {gain:+.1%} over {self._start}, the "
            f"fastest of {len(self.tried)}",
        )

    def _watch(self, at: Point, speed: float) -> Choice:
        assert self._settled is not None
        change = speed / self._settled - 1
        if abs(change) <= TRIGGER:
            # Slow drift is none of the network's doing.
            self._settled += 0.1 * (speed - self._settled)
            self._differs = 0
            return Choice(at)
        self._differs += 1
        if self._differs < GROUPS_THAT_DIFFER:
            return Choice(at)
        self._begin()
        following = self.observe(at, speed, Job(1)).point
        return Choice(following, f"tries anew from {following}: the speed changed by {change:+.0%}")


class Grid(Search):
    """Every pair of partition and credit of the grid, once."""

    name = "grid"

    def propose(self) -> Point | None:
        return next((point for point in GRID if not self.knows(point)), None)


class Bayes(Search):
    """Bayesian optimisation with a Gaussian process over the logarithms of both sizes."""

    name = "bayes"
    trials = 12  # groups of a search, of which the grid has 19

    def __init__(self) -> None:
        try:
            import bayes_opt
        except ImportError:
            raise ConfigError(
                "tuner bayes needs bayesian-optimization, which is not installed: "
                "pip install 'sumpter[tuning]'"
            ) from None
        self._library = bayes_opt
        # Its every evaluation is a line of its own.
        logging.getLogger("bayes_opt").setLevel(logging.WARNING)
        super().__init__()

    def _begin(self) -> None:
        super()._begin()
        self._bounds = {
            "partition": (math.log2(PARTITIONS[0]), math.log2(PARTITIONS[-1])),
            "credit": (math.log2(CREDITS[0]), math.log2(CREDITS[-1])),
        }

    def propose(self) -> Point | None:
        if len(self.tried) > self.trials:
            return None
        # Spread over the credit first: a process of no points knows nothing.
        first = ((0.5, 0.5), (0.5, 0.1), (0.9, 0.9))
        if len(self.tried) <= len(first):
            parts = first[len(self.tried) - 1]
            bounds = zip(self._bounds.values(), parts, strict=True)
            return self._near(*(low + (high - low) * part for (low, high), part in bounds))
        optimizer = self._library.BayesianOptimization(
            f=None,
            pbounds=self._bounds,
            random_state=len(self.tried),
            verbose=0,
            allow_duplicate_points=True,
        )
        for tried, speed in self.tried.items():
            at = math.log2(tried.partition), math.log2(tried.credit)
            inside = {
                name: min(max(value, bounds[0]), bounds[1])
                for (name, bounds), value in zip(self._bounds.items(), at, strict=True)
            }
            optimizer.register(params=inside, target=speed)
        proposed = optimizer.suggest()
        return self._near(proposed["partition"], proposed["credit"])

    def _near(self, partition: float, credit: float) -> Point | None:
        """The point of these logarithms, rounded to a quarter of an octave; a new one."""
        for shift in range(24):
            # Credits below and above, in turn.
            size = 2 ** (round(credit * 4 + (-1) ** shift * ((shift + 1) // 2)) / 4)
            size = min(max(size, CREDITS[0]), CREDITS[-1])
            found = point(round(2 ** (round(partition * 4) / 4)), round(size))
            if not self.knows(found):
                return found
        return None
