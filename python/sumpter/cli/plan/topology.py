"""The tables of `sumpter plan` for machines in racks and for what is inside machines."""

from __future__ import annotations

from typing import Any

from sumpter.cli.plan.tables import alike, called, rounded, table

_REDUCTIONS = {
    "cpu-assisted": "reduce-scatter below each switch, then the CPU adds",
    "reduce-scatter": "reduce-scatter and all-gather over NVLink",
    "reduce-broadcast": "reduce and broadcast over NVLink",
}


def parts(trees: dict[str, Any]) -> Any:
    """The shapes of reduction trees: how much of the model has each, and each by itself."""
    from sumpter.launch.figures import format_seconds

    made = table("reduction trees", "part of M", "time of a round by itself")
    used = {part["shape"]: part["part"] for part in trees["parts"]}
    for other in trees["alternatives"]:
        part = used.get(other["shape"], 0.0)
        made.add_row(other["shape"], f"{part:.1%}", format_seconds(other["time_s"]))
    return made


def racks(trees: dict[str, Any]) -> Any:
    """What each trunk carries."""
    from rich.text import Text

    from sumpter.launch.figures import format_bytes, format_seconds

    columns = ("machines", "trunk", "oversubscribed", "trunk carries each way", "takes")
    made = table("rack", *columns)

    def key(rack: dict[str, Any]) -> tuple[Any, ...]:
        figures = (rack["trunk_gbps"], rack["oversubscription"], rack["trunk_bytes"])
        return (rack["workers"], rack["servers"], *map(rounded, figures))

    for rack, number in alike(trees["racks"], key):
        made.add_row(
            Text(called(rack["name"], number)),
            f"{rack['workers']} GPU, {rack['servers']} CPU",
            f"{rack['trunk_gbps']:g} Gb/s",
            f"{rack['oversubscription']:.3g}:1",
            format_bytes(rack["trunk_bytes"]),
            format_seconds(rack["time_s"]),
        )
    if trees["core_gbps"] is not None:
        carries = format_bytes(trees["core_bytes"])
        time_s = trees["core_bytes"] * 8e-9 / trees["core_gbps"]
        made.add_row(
            "core", "", f"{trees['core_gbps']:g} Gb/s", "", carries, format_seconds(time_s)
        )
    return made


def decision(phub: dict[str, Any] | None) -> Any:
    """PHub's inequality in both readings."""
    from sumpter.launch.figures import format_seconds

    if phub is None:
        return (
            "PHub's decision (section 3.4) needs racks with as many GPU machines each, two or more."
        )
    made = table("PHub's inequality (section 3.4)", "without hubs", "with hubs", "hubs pay")
    for case in phub["cases"]:
        pays = "yes" if case["hubs_pay"] else "no"
        sides = (format_seconds(case["flat_s"]), format_seconds(case["hubs_s"]))
        made.add_row(f"{case['reading']}, {case['exchange']}", *sides, pays)
    return made


def inside(found: dict[str, Any]) -> list[Any]:
    """What GPUs of a machine do, and what each link inside carries."""
    from rich.text import Text

    from sumpter.launch.figures import format_bytes, format_seconds

    report = found["report"]
    title = f"inside {called(found['machine'], found['count'])}: "
    title += _REDUCTIONS[report["reduction"]]
    if report["direct"] > 0:
        title += f"; {report['direct']:.1%} of M copied to the CPU as it is"
    if report["roots"]:
        title += f"; roots in turn: {', '.join(report['roots'])}"
    made = table("link", "bandwidth", "carries each way", "takes")
    groups: dict[tuple[Any, ...], list[str]] = {}
    for link in report["links"]:
        figures = (link["parent"], link["gbps"], rounded(link["bytes"]), link["time_s"])
        groups.setdefault(figures[:3], [figures[3], link["bytes"]]).append(link["device"])
    for (parent, gbps, _), (time_s, carried, *devices) in groups.items():
        names = ", ".join(devices) if len(devices) < 3 else f"{devices[0]} to {devices[-1]}"
        carries, takes = format_bytes(carried), format_seconds(time_s)
        made.add_row(Text(f"{names} - {parent}"), f"{gbps:g} Gb/s", carries, takes)
    return [title, made, _verdict(report)]


def _verdict(report: dict[str, Any]) -> str:
    from sumpter.launch.figures import format_seconds

    copies = report["without_local_step_s"] / report["time_s"]
    direct = (
        "GPUs and a NIC share a switch: GPU-direct is possible there."
        if report["gpu_direct"]
        else "No GPU shares a switch with a NIC: no GPU-direct."
    )
    takes = format_seconds(report["time_s"])
    return (
        f"The busiest link takes {takes}; copying from every GPU without a local step takes "
        f"{copies:.3g} times as long. {direct}"
    )
