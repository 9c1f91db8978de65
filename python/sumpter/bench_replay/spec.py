"""What a run of `sumpter bench replay` was asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from sumpter.bench import spec
from sumpter.bench_replay.script import Script, script_of
from sumpter.bench_replay.variants import BY_NAME, PEERS, scaled_settings
from sumpter.cli.errors import UsageError
from sumpter.profiles import Profile


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
    ratio: float | None
    systems: tuple[str, ...]  # variants, then peers
    iterations: int
    turns: int
    settings: dict[str, str] = field(default_factory=dict)

    def cells(self) -> list[tuple[int, int]]:
        """Workers and servers of each cell, in the order they run."""
        return [(n, k) for n in self.workers for k in self.servers]

    def slowdown(self, allreduce_s: float) -> float:
        """What times are multiplied by; `allreduce_s` is what all sums take without servers.

        A network of which the links are a factor slower stands for itself if sizes divided by
        `scale` and times multiplied by the slowdown make up for that factor.
        """
        if self.ratio is not None:
            return allreduce_s / (self.ratio * self.profile.iteration_s)
        assert self.network_gbps is not None, "one of the two is given"
        return self.network_gbps * 1000 / self.bandwidth_mbps / self.scale

    def script(self, allreduce_s: float) -> Script:
        """What a worker plays."""
        return script_of(self.profile, self.scale, self.slowdown(allreduce_s))

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
            settings=scaled_settings(self.scale, self.settings),
        )


def check(asked: Spec) -> None:
    """Raises unless the run makes sense and this machine can do it."""
    if not asked.scale >= 1:
        raise UsageError(f"--scale {asked.scale:g}: sizes are divided by 1 or more")
    if min(asked.workers) < 2:
        raise UsageError("--workers: with one worker nothing is sent; give 2 or more")
    if asked.ratio is not None and not 0 < asked.ratio <= 1000:
        raise UsageError(f"--ratio {asked.ratio:g} is not within 0 to 1000")
    if asked.network_gbps is not None and asked.network_gbps <= 0:
        raise UsageError(f"--network-gbps {asked.network_gbps:g} is not above 0")
    if not asked.systems:
        raise UsageError("--scheduling and --peers: nothing is left to measure")
    unknown = [name for name in asked.systems if name not in (*BY_NAME, *PEERS)]
    if unknown:
        known = f"--scheduling {', '.join(BY_NAME)}; --peers {', '.join(PEERS)}"
        raise UsageError(f"'{unknown[0]}' is unknown; choose from {known}")
    spec.check(asked.cluster())
