"""What a run of `sumpter bench replay` was asked to do."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field

from sumpter._failure import UsageError
from sumpter.profiles import Profile
from sumpter_lab.replay.script import Script, script_of
from sumpter_lab.replay.variants import BY_NAME, OPTIMIZING, PEERS, scaled
from sumpter_lab.scaffold import spec


@dataclass(frozen=True)
class Point:
    """What one cell of a run is about."""

    workers: int
    servers: int
    ratio: float | None  # as of Spec.ratios
    settings: dict[str, str]  # those that differ between cells


@dataclass(frozen=True)
class Spec:
    """One run."""

    profile: Profile
    workers: list[int]
    servers: list[int]
    bandwidth_mbps: float
    scale: float
    # What the links stand for, or how long sums take without CPU machines, over the compute.
    network_gbps: float | None
    ratios: list[float]
    systems: tuple[str, ...]  # variants, then peers
    iterations: int
    turns: int
    settings: dict[str, str] = field(default_factory=dict)
    # Values of settings of which each combination is measured.
    grid: dict[str, list[str]] = field(default_factory=dict)

    def cells(self) -> list[Point]:
        """What is measured, in the order of measuring."""
        ratios = self.ratios or [None]
        combinations = [
            dict(zip(self.grid, values, strict=True))
            for values in itertools.product(*self.grid.values())
        ]
        return [
            Point(*point)
            for point in itertools.product(self.workers, self.servers, ratios, combinations)
        ]

    def slowdown(self, ratio: float | None, allreduce_s: float) -> float:
        """What times are multiplied by; `allreduce_s` is what all sums take without servers.

        A network of which the links are a factor slower stands for itself if sizes divided by
        `scale` and times multiplied by the slowdown make up for that factor.
        """
        if ratio is not None:
            return allreduce_s / (ratio * self.profile.iteration_s)
        assert self.network_gbps is not None, "one of the two is given"
        return self.network_gbps * 1000 / self.bandwidth_mbps / self.scale

    def script(self, ratio: float | None, allreduce_s: float) -> Script:
        """What a worker plays."""
        return script_of(self.profile, self.scale, self.slowdown(ratio, allreduce_s))

    def settings_at(self, point: Point) -> dict[str, str]:
        """All settings of a cell's job."""
        return scaled(self.scale, {**self.settings, **point.settings})

    @property
    def sized(self) -> Script:
        """The script with its sizes, when times do not matter."""
        return script_of(self.profile, self.scale, 1.0)

    def cluster(self) -> spec.Spec:
        """The emulated cluster that this needs, with its load, as `bench emulate` describes it."""
        load = spec.Load(self.profile.name, self.sized.shapes)
        return spec.Spec(
            workers=self.workers,
            servers=self.servers,
            gpu_rates_mbit=[self.bandwidth_mbps] * max(self.workers),
            cpu_rates_mbit=[self.bandwidth_mbps] * max(self.servers),
            loads=[load],
            rounds=self.turns,
            warmup=0,
            # As much memory as two jobs of Sumpter and a DDP module.
            peers=("gloo", "ps"),
            settings=scaled(self.scale, self.settings),
            rules=tuple(OPTIMIZING[name].rule for name in self.systems if name in OPTIMIZING),
        )


def check(asked: Spec) -> None:
    """Raises unless the run makes sense and this machine can do it."""
    if not asked.scale >= 1:
        raise UsageError(f"--scale {asked.scale:g}: sizes are divided by 1 or more")
    if min(asked.workers) < 2:
        raise UsageError("--workers: with one worker nothing is sent; give 2 or more")
    for ratio in asked.ratios:
        if not 0 < ratio <= 1000:
            raise UsageError(f"--ratio {ratio:g} is not within 0 to 1000")
    twice = [name for name in asked.grid if name in asked.settings]
    if twice:
        raise UsageError(f"--grid and --set both give '{twice[0]}'")
    if "auto" in (asked.settings.get("credit_bytes"), *asked.grid.get("credit_bytes", ())):
        # It would follow the emulated links, which are slower than those they stand for.
        raise UsageError("credit_bytes=auto: the model is scaled down, so give the credit a size")
    if asked.network_gbps is not None and asked.network_gbps <= 0:
        raise UsageError(f"--network-gbps {asked.network_gbps:g} is not above 0")
    if not asked.systems:
        raise UsageError("--scheduling and --peers: nothing is left to measure")
    unknown = [name for name in asked.systems if name not in (*BY_NAME, *PEERS, *OPTIMIZING)]
    if unknown:
        known = f"--scheduling {', '.join(BY_NAME)}; --peers {', '.join(PEERS)}"
        raise UsageError(f"'{unknown[0]}' is unknown; choose from {known}")
    for point in asked.cells():
        spec.check(dataclasses.replace(asked.cluster(), settings=asked.settings_at(point)))
