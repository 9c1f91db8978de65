"""What is known of the machines' links, and the optimum that follows from it.

A machine of which nothing is known counts as the slowest known one in the plan. The optimum is not
computed from such a guess: what lacks a bandwidth is named instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from sumpter import _native
from sumpter.launch.status import Job, Member

# The planner is asked about this many bytes; t_opt is proportional to them.
_PLANNED_BYTES = 10**12

# More names would bury what a line says.
_NAMED = 4


# The largest bandwidth that a plan takes.
_MOST_GBPS = 10_000.0

_RACKS_NAMED = 8
_RACKS_SUM = {
    True: "each sums its machines' contributions before they leave it",
    False: "their uplinks limit nothing that is known, so no rack sums by itself",
}


class Link(NamedTuple):
    """A machine's link."""

    role: str  # of the machine: "gpu" or "cpu"
    host: str
    gbps: float | None
    source: str  # "configured" or "interface"; empty if nothing is known
    rack: str = ""  # empty if it is not known
    trunk_gbps: float | None = None  # of that rack, as this machine says


def links(job: Job) -> list[Link]:
    """The links of the job's machines: those with workers, then those that only sum."""
    living = [worker for worker in job.workers if not worker.gone]
    # All are gone once the job is over.
    gpu = _by_machine("gpu", living or job.workers)
    cpu = _by_machine("cpu", job.servers)
    return [*gpu.values(), *(link for machine, link in cpu.items() if machine not in gpu)]


def _by_machine(role: str, members: Iterable[Member]) -> dict[str, Link]:
    known: dict[str, Link] = {}
    for member in members:
        # One process of a machine may know what the others do not.
        machine = member.machine or f"{member.role} {member.number}"
        link = Link(
            role,
            member.host or machine,
            member.bandwidth_gbps,
            member.bandwidth_source,
            member.rack,
            member.trunk_gbps,
        )
        before = known.get(machine, link)
        if before.gbps is not None:
            link = link._replace(host=before.host, gbps=before.gbps, source=before.source)
        if before.rack:
            link = link._replace(rack=before.rack, trunk_gbps=before.trunk_gbps)
        known[machine] = link
    return known


def without_bandwidth(job: Job) -> list[str]:
    """The hosts of machines of whose links nothing is known."""
    return [link.host for link in links(job) if link.gbps is None]


def why_no_optimum(job: Job) -> str:
    """Who lacks a bandwidth, or that there is no network; empty if the optimum is known."""
    if sum(link.role == "gpu" for link in links(job)) < 2:
        return "one machine has no network to judge"
    unknown = without_bandwidth(job)
    if not unknown:
        return ""
    if len(unknown) == len(links(job)):
        return "no machine's bandwidth is known: give --bandwidth-gbps, or set bandwidth_gbps"
    return f"no bandwidth is known of {_listed(unknown)}: set bandwidth_gbps there"


def describe_links(job: Job) -> str:
    """In a line: each machine's bandwidth and where it is known from."""
    known = [link.gbps for link in links(job) if link.gbps is not None]
    if not known:
        return "no machine's bandwidth is known, so all count as equal"
    groups: dict[str, list[str]] = {}
    for link in links(job):
        if link.gbps is None:
            text = f"assumed {min(known):g} Gb/s, as nothing is known"
        else:
            text = f"{link.gbps:g} Gb/s ({link.source or 'source unknown'})"
        groups.setdefault(text, []).append(link.host)
    return "; ".join(f"{_listed(hosts)} {text}" for text, hosts in groups.items())


def describe_racks(job: Job) -> str:
    """In a line, as rank 0 logs it: the racks and what the plan makes of them; "" without any."""
    if not job.racks:
        return ""
    many = len(job.racks) > _RACKS_NAMED
    names = f"{len(job.racks)} racks" if many else f"racks {', '.join(job.racks)}"
    hubs = job.rack_hubs
    if hubs is None:
        return names
    # Not where they are summed by workers only, which is what a job without servers does.
    servers = f"{hubs.on_servers} server{'s' * (hubs.on_servers != 1)}"
    where = f", on {'workers and ' * hubs.on_workers}{servers}" if hubs.on_servers else ""
    return f"{names}: {_RACKS_SUM[hubs.sum]}{where}"


def optimal_s_per_byte(job: Job) -> float | None:
    """t_opt of a byte under the optimal plan (BytePS, OSDI'20, section 4; with racks whose trunks
    are known, that of the linear program).

    None with one machine of workers, and unless the bandwidth of every machine is known.
    """
    if why_no_optimum(job):
        return None
    known = links(job)
    # As a job's own plan has it: a machine of which no rack is known is one.
    racks = list(dict.fromkeys(link.rack or index for index, link in enumerate(known)))
    places = [racks.index(link.rack or index) for index, link in enumerate(known)]
    trunks = [_trunk_gbps(known, places, rack) for rack in range(len(racks))]
    machines = tuple((link.role, link.gbps) for link in known)
    if all(link.trunk_gbps is None for link in known):
        return _planned(machines, (), ())
    return _planned(machines, tuple(places), tuple(trunks))


def _trunk_gbps(known: list[Link], places: list[int], rack: int) -> float:
    """The least that a machine of a rack says of its uplink, else what they all can send."""
    here = [link for link, place in zip(known, places, strict=True) if place == rack]
    said = [link.trunk_gbps for link in here if link.trunk_gbps is not None]
    return min([*(said or [sum(link.gbps or 0.0 for link in here)]), _MOST_GBPS])


@lru_cache(maxsize=64)
def _planned(
    machines: tuple[tuple[str, float | None], ...],
    places: tuple[int, ...],
    trunks: tuple[float, ...],
) -> float:
    entries = [
        f'[[rack]]\nname = "{rack}"\ntrunk_gbps = {gbps}' for rack, gbps in enumerate(trunks)
    ]
    for index, (role, gbps) in enumerate(machines):
        entries.append(f'[[machine]]\nrole = "{role}"\nbandwidth_gbps = {gbps}')
        entries += [f'rack = "{places[index]}"'] if places else []
    request = {"bytes": _PLANNED_BYTES, "machines": "\n".join(entries)}
    return float(json.loads(_native.plan(json.dumps(request)))["time_s"]) / _PLANNED_BYTES


def _listed(hosts: list[str]) -> str:
    names = list(dict.fromkeys(hosts))
    shown = ", ".join(names[:_NAMED])
    rest = len(names) - _NAMED
    return f"{shown} and {rest} more" if rest > 0 else shown
