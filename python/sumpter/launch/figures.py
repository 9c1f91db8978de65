"""Figures that people judge a run by, from the counters of its status.

Goodput is what training sees: bytes of gradients summed for a second in which at least one
operation was under way. Its share of the optimum is t_opt of the same bytes over that time, where
t_opt comes from the planner and the bandwidths that are set or that the machines' systems state.
"""

from __future__ import annotations

import json
from functools import lru_cache

from sumpter import _native
from sumpter.launch.links import optimal_s_per_byte
from sumpter.launch.status import Job, Member

# The planner is asked once about this many bytes; t_opt is proportional to them.
_PLANNED_BYTES = 10**12


def mean(members: tuple[Member, ...], counter: str) -> float:
    """The mean of one counter over members that have counted anything."""
    values = [getattr(member.stats, counter) for member in members if member.stats.rounds]
    return sum(values) / len(values) if values else 0.0


def goodput_gbps(tensor_bytes: float, busy_s: float) -> float | None:
    """Gigabits of sums for a busy second; None before there was any."""
    return tensor_bytes * 8e-9 / busy_s if busy_s > 0 and tensor_bytes > 0 else None


def optimum_share(
    job: Job, tensor_bytes: float, busy_s: float, bandwidth_gbps: float | None
) -> float | None:
    """t_opt over the busy time; None without a network to judge.

    Of links whose bandwidth is known to the coordinator unless one is given for all; None if one of
    them is not known.
    """
    if busy_s <= 0 or job.gpu_machines < 2:
        return None
    if bandwidth_gbps is None:
        s_per_byte = optimal_s_per_byte(job)
    else:
        s_per_byte = _optimal_s_per_byte(job.gpu_machines, job.cpu_machines, bandwidth_gbps)
    return None if s_per_byte is None else tensor_bytes * s_per_byte / busy_s


@lru_cache(maxsize=16)
def _optimal_s_per_byte(workers: int, servers: int, bandwidth_gbps: float) -> float:
    request = {
        "workers": workers,
        "servers": servers,
        "bytes": _PLANNED_BYTES,
        "bandwidth_gbps": bandwidth_gbps,
    }
    report = json.loads(_native.plan(json.dumps(request)))
    return float(report["time_s"]) / _PLANNED_BYTES


def format_bytes(count: float) -> str:
    """`1.5 GiB`, with three significant digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            # From 1000 on, three significant digits would take an exponent.
            return f"{count:.3g} {unit}" if abs(count) < 999.5 else f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:,.3g} TiB" if count < 1000 else f"{count:,.0f} TiB"


def format_setting(name: str, value: str) -> str:
    """The value of a setting; of one in bytes with its unit."""
    return format_bytes(int(value)) if name.endswith("_bytes") and value.isdecimal() else value


def format_rate(bytes_per_s: float) -> str:
    """`1.5 Gb/s` of so many bytes a second, with three significant digits: the unit of links."""
    bits = bytes_per_s * 8
    for unit in ("b/s", "kb/s", "Mb/s"):
        if abs(bits) < 999.5:
            return f"{bits:.3g} {unit}"
        bits /= 1000
    return f"{bits:.3g} Gb/s" if abs(bits) < 999.5 else f"{bits:,.0f} Gb/s"


def format_seconds(time_s: float) -> str:
    """`113.3 ms`, with four significant digits."""
    for scale, unit in ((1, "s"), (1e3, "ms")):
        if time_s * scale >= 1:
            return f"{time_s * scale:.4g} {unit}"
    return f"{time_s * 1e6:.4g} us"


def format_optional(value: float | None, template: str) -> str:
    """The value in the template, or a dash where there is none."""
    return "-" if value is None else template.format(value)
