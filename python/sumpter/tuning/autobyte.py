"""AutoByte: predicts which sizes are fastest, goes there if it is worth it, and learns on."""

from __future__ import annotations

from collections import deque

from sumpter.tuning.network import MetaNetwork
from sumpter.tuning.points import GRID, Choice, Job, Point

# The predicted gain over which a job changes its sizes.
LEAST_GAIN = 0.05
# The difference between prediction and truth over which the network adapts.
MOST_ERROR = 0.10
# Groups that it learns from: what is older may be of another network.
REMEMBERED = 12
# Groups in a row at one point whose speed is another than before: the network has changed.
TRIGGER = 0.05


class AutoByte:
    """The meta-network as a tuner. The same points as the grid's are weighed; none is swept."""

    name = "autobyte"

    def __init__(self, network: MetaNetwork | None = None) -> None:
        self._network = network if network is not None else MetaNetwork()
        self._seen: deque[tuple[Job, Point, float]] = deque(maxlen=REMEMBERED)
        # What points gave that were tried: a prediction that was wrong is not believed again.
        self._gave: dict[Point, float] = {}

    def observe(self, at: Point, speed: float, job: Job) -> Choice:
        before = self._gave.get(at)
        if before is not None and abs(speed / before - 1) > TRIGGER:
            # Another network: what was measured before says nothing of it.
            self._gave.clear()
            self._seen.clear()
        self._gave[at] = speed if at not in self._gave else (self._gave[at] + speed) / 2
        self._seen.append((job, at, speed))
        predicted = float(self._network.speeds(job, [at])[0])
        learned = ""
        if abs(predicted / speed - 1) > MOST_ERROR:
            self._network.adapt(list(self._seen))
            learned = f"; learned, since it had predicted {predicted:.2f}"
        expected = self._network.speeds(job, (at, *GRID))
        here = float(expected[0])
        # What was measured counts, before what is predicted from it.
        gain = {
            point: self._gave.get(point, speed * float(value) / here) / speed - 1
            for point, value in zip(GRID, expected[1:], strict=True)
        }
        best = max(gain, key=gain.__getitem__)
        known = best in self._gave
        if best == at or gain[best] <= (0.02 if known else LEAST_GAIN):
            return Choice(at)
        how = "measured" if known else "predicted"
        why = f"goes to {best}: {gain[best]:+.0%} {how} over {at} at {speed:.2f} iterations/s"
        return Choice(best, why + learned)
