"""One cell of `sumpter bench emulate`: the rounds of all systems, and the figures of the cell."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

from sumpter import _native
from sumpter_lab.emulate import trunks
from sumpter_lab.scaffold import experiment, spec
from sumpter_lab.scaffold.jobs.emulated import (
    EmulatedJob,
    LaneMemory,
    PlainTransfer,
    Round,
    emulated_job,
    plain_transfer,
    rack_settings,
)
from sumpter_lab.scaffold.network import counters
from sumpter_lab.scaffold.network.cluster import Cluster, Machine
from sumpter_lab.scaffold.network.tournament import Links
from sumpter_lab.scaffold.optimum import Optimum, optimum
from sumpter_lab.scaffold.results.figures import (
    BUSY_CORES,
    STOLEN,
    fraction,
    idle_shares,
    ratio,
    stolen,
)
from sumpter_lab.scaffold.spec import Load, Spec

# Busy cores and idle links: then the cores, not the links, set the time.
IDLE_LINKS = 0.05


Turn = dict[str, Round]  # one round of each system, right after each other


@dataclass
class Measured:
    """The rounds of one cell."""

    rounds: dict[str, list[Round]] = field(default_factory=dict)
    disturbed: int = 0  # turns among them during which other guests took the cores
    repeated: int = 0  # turns that were left out for that reason
    lane_memory_bytes: dict[str, LaneMemory] = field(default_factory=dict)

    def seconds(self, system: str) -> float | None:
        """The median round of a system; None if it was not run."""
        rounds = self.rounds.get(system)
        return statistics.median(item.seconds for item in rounds) if rounds else None


def duration_s(asked: Spec, load: Load, times: Optimum, servers: int) -> float:
    """About how long a cell takes."""
    systems = asked.systems(load, servers)
    own = (name for name in systems if not name.startswith("gloo"))
    each = dict.fromkeys(own, max(times.seconds, times.flat_seconds))
    each["ps"] = times.ps_seconds
    turn_s = sum(each.get(name) or times.allreduce_seconds for name in systems)
    return (asked.rounds + asked.warmup) * 1.1 * turn_s + experiment.START_S


def run_cell(
    asked: Spec,
    cluster: Cluster,
    links: Links,
    load: Load,
    advance: Callable[[float], None],
) -> dict[str, Any]:
    """Measures one cell on its machines; `advance` is called with each finished share of it."""
    here = links.only(cluster.machines)
    times = optimum(cluster.gpu, cluster.cpu, load.bytes, here)
    measured = _measure(asked, load, cluster, here, times, advance)
    return figures(asked, load, (cluster.gpu, cluster.cpu), here, times, measured)


def _measure(
    asked: Spec,
    load: Load,
    cluster: Cluster,
    links: Links,
    times: Optimum,
    advance: Callable[[float], None],
) -> Measured:
    gpu, cpu = cluster.gpu, cluster.cpu
    systems = asked.systems(load, len(cpu))
    settings = {**asked.settings, "lanes": str(asked.lanes)}
    bandwidths = spec.bandwidths_gbps(links.goodput_mbit)
    racks = rack_settings(cluster.machines, spec.bandwidths_gbps(links.trunks_mbit))

    def job(names: list[str], varied: dict[str, str]) -> AbstractContextManager[EmulatedJob]:
        return emulated_job(
            *(gpu, cpu, {**settings, **varied}, bandwidths, load.shapes, names),
            own_settings=None if names == ["flat"] else racks,
            trunks=cluster.trunks,
        )

    slowest_s = max(times.allreduce_seconds, times.ps_seconds or 0.0, times.flat_seconds)
    timeout_s = experiment.timeout_s(slowest_s)
    with ExitStack() as running:
        # Jobs of their own, since a job has one architecture and its settings; idle while another
        # has a turn.
        jobs = asked.own_jobs(len(cpu))
        own = [system for system in systems if system not in jobs and system != "plain"]
        first = running.enter_context(job(own, {}))
        by_system: dict[str, EmulatedJob | PlainTransfer] = dict.fromkeys(own, first)
        if "plain" in systems:
            moving = plain_transfer(cluster, times.shares, load.bytes)
            by_system["plain"] = running.enter_context(moving)
        for name, varied in jobs.items():
            by_system[name] = running.enter_context(job([name], varied))
        share = 1 / ((asked.warmup + asked.rounds) * len(systems))
        turns: list[Turn] = []
        for number in range(asked.warmup + 2 * asked.rounds):
            turn = {}
            # Each system is the first in some turns.
            start = number % len(systems)
            for system in (*systems[start:], *systems[:start]):
                turn[system] = by_system[system].round(system, number, timeout_s)
                advance(share)
            if number >= asked.warmup:
                turns.append(turn)
            if sum(not is_disturbed(turn) for turn in turns) == asked.rounds:
                break
        measured = select(turns, asked.rounds)
        measured.lane_memory_bytes = {
            name: by_system[name].lane_memory_bytes() for name in ("sumpter", *jobs)
        }
    return measured


def select(turns: Sequence[Turn], rounds: int) -> Measured:
    """The turns that were disturbed least, in their order. Times do not take part in the choice."""
    best = sorted(sorted(range(len(turns)), key=lambda i: stolen_of(turns[i]))[:rounds])
    kept = [turns[index] for index in best]
    return Measured(
        rounds={system: [turn[system] for turn in kept] for system in kept[0]},
        disturbed=sum(map(is_disturbed, kept)),
        repeated=len(turns) - len(kept),
    )


def stolen_of(turn: Turn) -> float:
    """The share of the cores' time that other guests of the host took."""
    return stolen(sum((item.cores for item in turn.values()), counters.NO_TICKS))


def is_disturbed(turn: Turn) -> bool:
    return stolen_of(turn) > STOLEN


def figures(
    asked: Spec,
    load: Load,
    machines: tuple[Sequence[Machine], Sequence[Machine]],
    links: Links,
    times: Optimum,
    measured: Measured,
) -> dict[str, Any]:
    """The row of a cell."""
    gpu, cpu = machines
    seconds = measured.seconds("sumpter")
    assert seconds is not None, "every cell runs Sumpter"
    gloo_s = measured.seconds("gloo_ddp" if load.name else "gloo")
    gain, plain_s = ratio(gloo_s, seconds), measured.seconds("plain")
    return {
        "workers": len(gpu),
        "servers": len(cpu),
        "bytes": load.bytes,
        "model": load.name or None,
        "tensors": len(load.shapes),
        "rate_mbit": gpu[0].rate_mbit,
        "rates_mbit": {machine.name: machine.rate_mbit for machine in (*gpu, *cpu)},
        "link_goodput_mbit": links.median_mbit,
        "goodput_by_machine_mbit": links.measured_mbit,
        "seconds": seconds,
        "optimum_seconds": times.seconds,
        "optimum_fraction": fraction(times.seconds, seconds),
        "gloo_seconds": gloo_s,
        "gain_over_gloo": gain,
        "gain_optimum": times.gain_over_allreduce,
        "gain_ratio": ratio(gain, times.gain_over_allreduce),
        "ps_seconds": measured.seconds("ps"),
        "ps_optimum_seconds": times.ps_seconds,
        "plain_seconds": plain_s,
        "plain_fraction": ratio(plain_s, seconds),
        "sumpter_ddp_seconds": measured.seconds("sumpter_ddp"),
        "rounds_s": {
            system: [item.seconds for item in rounds] for system, rounds in measured.rounds.items()
        },
        **_costs(measured.rounds["sumpter"], load, machines, links),
        **_limits(measured.rounds["sumpter"], gpu, links),
        **trunks.figures(asked.racks, measured.rounds, links, times),
        "lane_memory_bytes": measured.lane_memory_bytes["sumpter"].servers,
        "lane_memory_bytes_workers": measured.lane_memory_bytes["sumpter"].workers,
        "variants": {
            name: _variant(name, measured, load) for name in asked.own_jobs(len(cpu)) if "=" in name
        },
        "rules": {rule: _rule(rule, measured, load) for rule in asked.rules},
        **_memory(asked, load, machines, links, times),
        "lanes": asked.lanes,
        "settings": asked.settings,
        "idle_restart": asked.idle_restart,
        "disturbed_rounds": measured.disturbed,
        "repeated_rounds": measured.repeated,
        # Any wrong element would have ended the run.
        "checked_rounds": sum(map(len, measured.rounds.values())),
    }


def _variant(name: str, measured: Measured, load: Load) -> dict[str, Any]:
    """Sumpter with another setting beside Sumpter: above 1, the other setting is the dearer one."""
    memory, own = measured.lane_memory_bytes[name], measured.lane_memory_bytes["sumpter"]
    return {
        **_beside(name, measured, load),
        "lane_memory_bytes": memory.total,
        "lane_memory_ratio": ratio(memory.total, own.total),
    }


def _rule(name: str, measured: Measured, load: Load) -> dict[str, Any]:
    """Rounds that update beside rounds that only sum: goodput, time, bytes and processor time."""
    beside = _beside(name, measured, load)

    def link_bytes(rounds: Sequence[Round]) -> int:
        return sum(of.sent_bytes for item in rounds for of in item.links.values())

    of, own = measured.rounds[name], measured.rounds["sumpter"]
    goodput_ratios = [sums.seconds / one.seconds for one, sums in zip(of, own, strict=True)]
    return {
        **beside,
        "goodput_ratio": statistics.median(goodput_ratios),
        "goodput_ratios": goodput_ratios,
        "link_bytes": link_bytes(of) / len(of),
        "link_bytes_ratio": ratio(link_bytes(of), link_bytes(own)),
    }


def _beside(name: str, measured: Measured, load: Load) -> dict[str, Any]:
    """The time and the processor time of a system, and over those of Sumpter in the same turns."""
    pairs = list(zip(measured.rounds[name], measured.rounds["sumpter"], strict=True))

    def cpu_s(rounds: Sequence[Round]) -> float:
        return sum(item.worker_cpu_s + item.server_cpu_s for item in rounds)

    return {
        "seconds": measured.seconds(name),
        "seconds_ratio": statistics.median(one.seconds / other.seconds for one, other in pairs),
        "seconds_ratios": [one.seconds / other.seconds for one, other in pairs],
        "cpu_s_per_gb": cpu_s(measured.rounds[name]) / (len(pairs) * load.bytes) * 1e9,
        "cpu_ratio": ratio(cpu_s(measured.rounds[name]), cpu_s(measured.rounds["sumpter"])),
    }


def _costs(
    rounds: Sequence[Round],
    load: Load,
    machines: tuple[Sequence[Machine], Sequence[Machine]],
    links: Links,
) -> dict[str, float | None]:
    """CPU seconds for 1e9 bytes of tensor, and for 1e9 bytes sent and received by a role."""
    worker_cpu_s = sum(item.worker_cpu_s for item in rounds)
    server_cpu_s = sum(item.server_cpu_s for item in rounds)
    summed = len(rounds) * load.bytes

    def per_moved(cpu_s: float, role: Sequence[Machine]) -> float | None:
        moved = sum(
            (item.links[machine.name].sent_bytes + item.links[machine.name].received_bytes) / 2
            for item in rounds
            for machine in role
        )
        return ratio(cpu_s * 1e9, moved)

    gpu, cpu = machines
    return {
        "cpu_s_per_gb": (worker_cpu_s + server_cpu_s) / summed * 1e9,
        "cpu_s_per_gb_workers": worker_cpu_s / summed * 1e9,
        "cpu_s_per_gb_servers": server_cpu_s / summed * 1e9,
        "cpu_s_per_gb_moved_workers": per_moved(worker_cpu_s, gpu),
        "cpu_s_per_gb_moved_servers": per_moved(server_cpu_s, cpu),
        "cpu_s_per_gb_moved_raw": links.raw_cpu_s_per_gb_moved,
    }


def _limits(rounds: Sequence[Round], gpu: Sequence[Machine], links: Links) -> dict[str, Any]:
    """How idle links and cores were, and which of them set the time."""
    seconds = sum(item.seconds for item in rounds)
    moved = {
        name: sum((item.links[name] for item in rounds), counters.NO_LINK)
        for name in rounds[0].links
    }
    idle = {
        name: idle_shares(counts, seconds, links.goodput_mbit[name])
        for name, counts in moved.items()
    }
    cores = sum((item.cores for item in rounds), counters.NO_TICKS)
    cores_idle = ratio(cores.idle, cores.total)
    # The links of workers are the narrow part of every optimal plan, unless trunks are narrower.
    of_workers = statistics.median(min(idle[machine.name].values()) for machine in gpu)
    narrow = min([of_workers, *trunks.idle(rounds, links).values()])
    bound = cpu_bound(cores_idle, narrow)
    return {
        "link_idle": idle,
        "link_idle_median_workers": of_workers,
        "retransmits": sum(counts.retransmits for counts in moved.values()),
        "retransmits_by_machine": {name: counts.retransmits for name, counts in moved.items()},
        "cores_idle": cores_idle,
        "cores_steal": ratio(cores.steal, cores.total),
        "cpu_bound": bound,
        "suggested_rate_mbit": (suggested_rate_mbit(gpu[0].rate_mbit, narrow) if bound else None),
    }


def cpu_bound(cores_idle: float | None, links_idle: float) -> bool:
    """Whether cores were busy while links were not: the figure is then the machine's own."""
    return cores_idle is not None and cores_idle < 1 - BUSY_CORES and links_idle > IDLE_LINKS


def suggested_rate_mbit(rate_mbit: float, links_idle: float) -> float:
    """A rate that the cores can move: what they moved, with a fifth to spare."""
    return max(1.0, float(int(rate_mbit * (1 - links_idle) * 0.8)))


def _memory(
    asked: Spec,
    load: Load,
    machines: tuple[Sequence[Machine], Sequence[Machine]],
    links: Links,
    times: Optimum,
) -> dict[str, Any]:
    """What each server may hold at most: twice its share and the credit of all workers, and of
    each variable two rounds as well and all its parts."""
    gpu, cpu = machines
    slots = _native.update_rules()
    held_shares = 2 + sum(2 + 1 + len(slots[rule]) for rule in asked.rules)
    credit_bytes = len(gpu) * spec.credit_bytes(asked, links.goodput_mbit)
    bounds = [
        round(held_shares * times.shares[machine.name] * load.bytes + 2 * credit_bytes)
        for machine in cpu
    ]
    return {"lane_memory_bound_bytes": bounds}
