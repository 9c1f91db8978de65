"""What a run of `sumpter bench tune` was asked to do."""

from __future__ import annotations

from dataclasses import dataclass

from sumpter._failure import UsageError
from sumpter.tuning.tuners import TUNERS, make
from sumpter_lab.replay import spec
from sumpter_lab.replay.spec import Point

# How the job schedules its sums.
SYSTEM = "overlap"


@dataclass(frozen=True)
class Spec:
    """One run: each tuner plays the same iterations."""

    job: spec.Spec  # one number of workers and of servers, one ratio; its iterations count
    tuners: tuple[str, ...]
    # Rates that links take in turn, and for how many iterations each; empty: theirs throughout.
    rates_mbit: tuple[float, ...] = ()
    every: int = 20
    # Iterations between which a second job plays the same.
    second_job: tuple[int, int] | None = None
    # Whether the tuner is given the profile.
    profiled: bool = False

    @property
    def point(self) -> Point:
        """The only cell."""
        return self.job.cells()[0]

    def rate_at(self, iteration: int) -> float:
        """What links carry in an iteration, in Mb/s."""
        if not self.rates_mbit:
            return self.job.bandwidth_mbps
        return self.rates_mbit[max(iteration, 0) // self.every % len(self.rates_mbit)]


def check(asked: Spec) -> None:
    """Raises unless the run makes sense and this machine can do it."""
    job = asked.job
    if len(job.workers) != 1 or len(job.servers) != 1 or len(job.ratios) > 1:
        raise UsageError("bench tune measures one job: give one --workers, --servers and --ratio")
    if not asked.tuners:
        raise UsageError(f"--tuner: nothing is left to measure; choose from {', '.join(TUNERS)}")
    for name in asked.tuners:
        # A tuner without its library is refused here, not in the middle of the run.
        make(name)
    if asked.second_job is not None:
        first, last = asked.second_job
        if not 0 <= first < last <= job.iterations:
            raise UsageError(
                f"--second-job {first}:{last}: give two of the {job.iterations} iterations, the "
                "second after the first"
            )
    spec.check(job)
