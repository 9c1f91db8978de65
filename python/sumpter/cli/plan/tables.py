"""The tables of `sumpter plan`: shares, times, memory, bandwidth and prices."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

# Longer lists show machines, racks and links that are alike once.
LISTED = 8


def table(first: str, *others: str) -> Any:
    """A table whose first column is text and whose others are figures."""
    from rich.table import Table

    made = Table(box=None, header_style="bold", pad_edge=False)
    made.add_column(first, no_wrap=True)
    for name in others:
        made.add_column(name, justify="right", no_wrap=True)
    return made


def alike(
    rows: Iterable[dict[str, Any]], key: Callable[[dict[str, Any]], Hashable]
) -> list[tuple[dict[str, Any], int]]:
    """Each kind of row with how many are of it, in order; every row where they are few."""
    rows = list(rows)
    if len(rows) <= LISTED:
        return [(row, 1) for row in rows]
    groups: dict[Hashable, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [(group[0], len(group)) for group in groups.values()]


def rounded(value: float | None) -> str | None:
    """A figure as far as it tells rows apart."""
    return None if value is None else f"{value:.6g}"


def called(name: str, count: int) -> str:
    """One row's name for several that are alike."""
    return name if count == 1 else f"{name} and {count - 1} like it"


def count(number: int, kind: str) -> str:
    return f"{number} {kind} machine{'' if number == 1 else 's'}"


def shares(report: dict[str, Any]) -> Any:
    from rich.text import Text

    from sumpter.launch.figures import format_bytes

    hubs = "trees" in report
    columns = ("link", "share of M", "sums", *(("hub of",) if hubs else ()))
    made = table("machine", *columns, "link carries each way")
    for row in _rows(report):
        sums, carries = format_bytes(row["share"] * report["bytes"]), format_bytes(row["bytes"])
        hub = (f"{row['hub'] or 0:.3%}",) if hubs else ()
        link = f"{row['gbps']:g} Gb/s"
        made.add_row(Text(row["name"]), link, f"{row['share']:.3%}", sums, *hub, carries)
        for nic in row["nics"]:
            numa = f", NUMA node {nic['numa']}" if "numa" in nic else ""
            blank = ("",) * (3 if hubs else 2)
            speed, carries = f"{nic['bandwidth_gbps']:g} Gb/s", format_bytes(nic["link_bytes"])
            made.add_row(Text(f"  {nic['name']}{numa}"), speed, *blank, carries)
    return made


def _rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    listed = report.get("machines")
    if listed is not None:

        def key(row: dict[str, Any]) -> Hashable:
            figures = (row["bandwidth_gbps"], row["share"], row["link_bytes"], row.get("hub"))
            nics = tuple((nic["name"], nic["bandwidth_gbps"]) for nic in row.get("nics", ()))
            return (row["role"], *map(rounded, figures), nics)

        return [
            {
                "name": f"{called(row['name'], number)} ({row['role']})",
                "gbps": row["bandwidth_gbps"],
                "share": row["share"],
                "bytes": row["link_bytes"],
                "hub": row.get("hub"),
                "nics": row.get("nics", ()),
            }
            for row, number in alike(listed, key)
        ]
    roles = [("gpu", "GPU", report["workers"]), ("cpu", "CPU", report["servers"])]
    return [
        {
            "name": f"{'each of ' if number > 1 else ''}{count(number, kind)}",
            "gbps": report["bandwidth_gbps"],
            "share": report[f"share_{role}"],
            "bytes": report[f"link_bytes_{role}"],
            "nics": (),
        }
        for role, kind, number in roles
        if number
    ]


def times(report: dict[str, Any]) -> Any:
    from sumpter.launch.figures import format_seconds

    made = table("way", "time of a round", "gain of this plan")
    rows: list[tuple[str, float | None, float | None]] = [("this plan", report["time_s"], None)]
    ring = "all-reduce"
    if "trees" in report:
        job = report["trees"]["job"]
        gain = job["time_s"] / report["time_s"] if report["time_s"] else None
        rows.append((f"a job: {job['shape']}", job["time_s"], gain))
        ring = "all-reduce, a ring from rack to rack"
    rows += [
        (ring, report["allreduce_time_s"], report["gain_over_allreduce"]),
        ("parameter server on the CPU machines", report["ps_time_s"], report["gain_over_ps"]),
    ]
    for way, time_s, gain in rows:
        if time_s is not None:
            time = format_seconds(time_s) if time_s else "none"
            made.add_row(way, time, "" if gain is None else f"{gain:.3f} x")
    return made


def optimizer(found: dict[str, Any]) -> Any:
    from sumpter.launch.figures import format_bytes

    made = table(f"memory of {found['rule']}", "bytes")
    rows = [
        ("state in every worker, as without on_servers", found["worker_bytes"]),
        ("on servers: mirror in every worker", found["mirror_bytes"]),
        ("on servers: lane of a GPU machine", found["lane_bytes_gpu"]),
        ("on servers: lanes of a CPU machine", found["lane_bytes_cpu"]),
        ("mirrors on each link, in a step", found["mirror_link_bytes"]),
        ("the same in asynchronous training, at most", found["asynchronous_mirror_link_bytes"]),
    ]
    for name, size in rows:
        if size is not None:
            made.add_row(name, format_bytes(size))
    return made


def bandwidth(report: dict[str, Any], compute_s: float) -> Any:
    """The bandwidth that hides communication behind computing, of the busiest machine."""
    made = table(f"to hide communication behind {compute_s:g} s", "each way", "both ways (PHub)")
    found = report["minimum_bandwidth"]
    rows = [
        ("one server beside a worker (CC)", found["colocated_central_gbps"]),
        ("a server beside every worker, all-reduce (CS)", found["colocated_sharded_gbps"]),
        ("one server machine (NCC)", found["noncolocated_central_gbps"]),
        ("as many server machines as workers (NCS)", found["noncolocated_sharded_gbps"]),
    ]
    for name, gbps in rows:
        made.add_row(name, f"{gbps / 2:.4g} Gb/s", f"{gbps:.4g} Gb/s")
    own = report.get("plan_minimum_gbps")
    if own is not None:
        made.add_row("this plan", f"{own:.4g} Gb/s", f"{2 * own:.4g} Gb/s")
    return made


def offers(found: list[dict[str, Any]]) -> Any:
    """What other machines and links bring for their price."""
    columns = ("steps/s", "price", "NICs twice", "steps/s per 1000", "gained per 1000 more")
    made = table("cluster", *columns)
    for offer in found:
        gained = offer["gained_per_1000"]
        made.add_row(
            offer["change"],
            f"{offer['steps_per_s']:.4g}",
            f"{offer['price']:,.0f}",
            f"{offer['price_as_printed']:,.0f}",
            f"{offer['steps_per_s_per_1000']:.4g}",
            "" if gained is None else f"{gained:.4g}",
        )
    return made
