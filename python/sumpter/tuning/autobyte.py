"""AutoByte: predicts which sizes are fastest, goes there if it is worth it, and learns on."""

from __future__ import annotations

from collections import deque

from sumpter.tuning.network import MetaNetwork
from sumpter.tuning.points import GRID, Choice, Job, Point

# The predicted gain over which a job changes its sizes.
LEAST_GAIN = 0.05
# The gain over which it goes back to what it has measured.
MEASURED_GAIN = 0.01
# The difference between prediction and truth over which the network adapts.
MOST_ERROR = 0.10
# Groups that it learns from: what is older may be of another network.
REMEMBERED = 12
# A change of speed at the same sizes that is no noise, if so many groups in a row show it.
TRIGGER, GROUPS_THAT_DIFFER = 0.05, 2
# Predictions that may fail before it stays with the fastest of what it has measured.
MOST_MISSES = 3


class AutoByte:
    """The meta-network as a tuner. The same points as the grid's are weighed; none is swept."""

    name = "autobyte"

    def __init__(self, network: MetaNetwork | None = None) -> None:
        self._network = network if network is not None else MetaNetwork()
        self._forget()

    def _forget(self) -> None:
        self._seen: deque[tuple[Job, Point, float]] = deque(maxlen=REMEMBERED)
        # What points gave: a prediction that was wrong is not believed again.
        self._gave: dict[Point, float] = {}
        self._differs, self._misses = 0, 0

    def observe(self, at: Point, speed: float, job: Job) -> Choice:
        if not self._takes(at, speed):
            return Choice(at)
        self._seen.append((job, at, speed))
        predicted = float(self._network.speeds(job, [at])[0])
        learned = ""
        if abs(predicted / speed - 1) > MOST_ERROR:
            self._network.adapt(list(self._seen))
            learned = f" (learned, since it had predicted {predicted:.2f})"
        known = max(self._gave, key=self._gave.__getitem__)
        best = self._gave[known]
        new = [point for point in GRID if point not in self._gave]
        if new and self._misses < MOST_MISSES:
            expected = self._network.speeds(job, [known, *new])
            gains = expected[1:] / expected[0] - 1
            gain, point = max(zip(gains.tolist(), new, strict=True), key=lambda pair: pair[0])
            if gain > LEAST_GAIN:
                why = f"goes to {point}: {gain:+.0%} predicted over {known} at {best:.2f}"
                return Choice(point, f"{why} iterations/s{learned}")
        if known != at and best > speed * (1 + MEASURED_GAIN):
            gain = best / speed - 1
            why = f"goes back to {known}: {gain:+.1%} measured over {at} at {speed:.2f}"
            return Choice(known, f"{why} iterations/s{learned}")
        return Choice(at)

    def _takes(self, at: Point, speed: float) -> bool:
        """Notes a speed; not one that may be the first of another network."""
        before = self._gave.get(at)
        if before is None:
            if self._gave and speed < max(self._gave.values()) * (1 + MEASURED_GAIN):
                self._misses += 1
            self._gave[at] = speed
            return True
        if abs(speed / before - 1) <= TRIGGER:
            self._differs = 0
            self._gave[at] += 0.3 * (speed - before)
            return True
        self._differs += 1
        if self._differs < GROUPS_THAT_DIFFER:
            return False
        # What was measured before says nothing of this network.
        self._forget()
        self._gave[at] = speed
        return True
