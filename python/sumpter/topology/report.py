"""A topology as text, for 80 columns: the tree with the bandwidth of each link, NVLink as a matrix,
what shares a switch, the facts that decide the local reduction, and what is not known."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sumpter._words import counted
from sumpter.topology.devices import BRIDGES, NIC, SWITCH, Device, HostBridge, order
from sumpter.topology.facts import RULES, Facts
from sumpter.topology.interfaces import Interface
from sumpter.topology.links import Link
from sumpter.topology.machine import Topology
from sumpter.topology.nvlink import NvLink
from sumpter.topology.sysfs import ADDRESS, Unknown

UNKNOWN = "unknown"
_WARNING = "yellow"


def print_topology(topology: Topology, console: Console) -> None:
    """All parts of the report."""
    _print_part("NUMA nodes", _nodes(topology), console)
    _print_part("PCIe", _tree(topology), console)
    if topology.facts.gpus or topology.nvlink.gpus:
        _print_part("NVLink", _nvlink(topology), console)
    if topology.facts.switches:
        _print_part("Shared switches", _switches(topology.facts), console)
    _print_part("Local reduction", _facts(topology.facts), console)
    if topology.unknown:
        _print_part("Unknown", _unknown(topology.unknown), console)


def _print_part(title: str, table: Table, console: Console) -> None:
    console.print(Text(title, "bold"))
    console.print(Padding(table, (0, 0, 0, 2)))


def _grid(columns: int) -> Table:
    """Columns of which the last takes what is left and folds."""
    table = Table.grid(padding=(0, 2))
    for _ in range(columns - 1):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    return table


def _row(table: Table, *cells: Text | str) -> None:
    """A row of literal text: rich would take the `:ab:` of an address for an emoji."""
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def _nodes(topology: Topology) -> Table:
    table = _grid(2)
    for node in topology.nodes:
        cores = f"cores {node.cores} ({node.core_count})" if node.cores else "no cores"
        size = node.memory_bytes
        memory = f"{UNKNOWN} memory" if size is None else f"{size / 2**30:.0f} GiB"
        cores = f"{UNKNOWN} cores" if node.cores is None else cores
        _row(table, f"node {node.number}", f"{cores}, {memory}")
    if not topology.nodes:
        _row(table, "nodes", Text(UNKNOWN, _WARNING))
    return table


def _tree(topology: Topology) -> Table:
    """A host bridge a root, then switches and devices; ports are left out of the text."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    table.add_column(no_wrap=True)
    models = {gpu.address: gpu.name for gpu in topology.nvlink.gpus}
    empty = 0
    for bridge in topology.bridges:
        shown = [device for child in bridge.children for device in _visible(child)]
        if not shown:
            empty += 1
            continue
        _row(table, f"host bridge {bridge.address}", _node_of(bridge), "")
        for guide, device in _guided(shown, ""):
            detail = models.get(device.address, _detail(device))
            _row(table, f"{guide}{_label(device)}", detail, _link(device))
    for each in topology.elsewhere:
        _row(table, f"interface {each.name}", f"{_speed(each)}, {each.state or UNKNOWN}", "no NIC")
    if empty:
        _row(table, counted(empty, "host bridge"), "without GPUs, NICs and NVSwitches", "")
    if not table.row_count:
        _row(table, "PCI devices", Text(UNKNOWN, _WARNING), "")
    return table


def _visible(device: Device) -> Iterator[Device]:
    """The devices and switches that the text shows of a branch."""
    if device.kind == SWITCH and any(each.kind not in BRIDGES for each in device.walk()):
        yield device
    elif device.kind in BRIDGES:
        for child in device.children:
            yield from _visible(child)
    else:
        yield device


def _guided(devices: list[Device], before: str) -> Iterator[tuple[str, Device]]:
    for number, device in enumerate(devices, 1):
        last = number == len(devices)
        yield f"{before}{'└─ ' if last else '├─ '}", device
        below = [shown for child in device.children for shown in _visible(child)]
        yield from _guided(below, f"{before}{'   ' if last else '│  '}")


def _label(device: Device) -> str:
    word = {NIC: "NIC", SWITCH: "switch"}.get(device.kind)
    if word is None:
        word = device.name.removesuffix(device.address).strip()
    return f"{word} {device.address}"


def _detail(device: Device) -> str:
    if device.kind != NIC or not (device.interfaces or device.rdma):
        return device.model
    names = [each.name for each in device.interfaces]
    names += dict.fromkeys(port.device for port in device.rdma)
    speeds = [each.speed_gbps for each in device.interfaces] + [p.speed_gbps for p in device.rdma]
    known = [speed for speed in speeds if speed is not None]
    states = [each.state for each in device.interfaces] + [port.state for port in device.rdma]
    speed = f"{max(known):g} Gb/s" if known else "speed unknown"
    detail = f"{', '.join(names)}, {speed}, {_state(states)}"
    if device.virtual_functions:
        detail += f", {counted(device.virtual_functions, 'virtual function')}"
    return detail


def _state(states: list[str | None]) -> str:
    if any(state in ("up", "active") for state in states):
        return "up"
    return (
        next((state for state in states if state not in (None, UNKNOWN)), None) or "state unknown"
    )


def _speed(interface: Interface) -> str:
    speed = interface.speed_gbps
    return "speed unknown" if speed is None else f"{speed:g} Gb/s"


def _node_of(bridge: HostBridge) -> Text | str:
    if bridge.numa_node is not None:
        return f"NUMA node {bridge.numa_node}"
    ends = [device for device in bridge.walk() if device.kind not in BRIDGES]
    nodes = sorted({device.numa_node for device in ends if device.numa_node is not None})
    if nodes:
        return f"NUMA nodes {', '.join(map(str, nodes))}"
    return Text("NUMA node unknown", _WARNING)


def _link(device: Device) -> Text | str:
    link: Link | None = device.link
    if link is None:
        return "on the root bus" if device.kind not in BRIDGES else ""
    if link.current is None:
        highest = "" if link.highest is None else f"\nhighest {link.highest}"
        return Text(f"link unknown{highest}", _WARNING)
    if link.reduced:
        return Text(f"{link.current}\nof {link.highest}", _WARNING)
    return str(link.current)


def _nvlink(topology: Topology) -> Table:
    found, names = topology.nvlink, topology.names()
    if found.unknown:
        table = _grid(1)
        _row(table, Text(f"unknown: {found.unknown}", _WARNING))
        return table
    if not found.pairs:
        table = _grid(1)
        _row(table, "no GPU has NVLink to another")
        return table
    gpus = sorted((gpu.address for gpu in found.gpus), key=order)
    cells = Table.grid(padding=(0, 1))
    for _ in range(len(gpus) + 1):
        cells.add_column(no_wrap=True, justify="right")
    _row(cells, "", *(names[gpu].removeprefix("GPU") for gpu in gpus))
    for one in gpus:
        links = [str(found.between(one, other) or ".") for other in gpus]
        links[gpus.index(one)] = "X"
        _row(cells, names[one], *links)
    table = _grid(1)
    _row(table, _legend(found))
    table.add_row(cells)
    return table


def _legend(found: NvLink) -> str:
    speeds = sorted({gpu.gigabytes_per_s for gpu in found.gpus if gpu.gigabytes_per_s})
    speed = " or ".join(f"{each:.1f}" for each in speeds)
    rate = f"{speed} GB/s a link, each way" if speeds else "speed unknown"
    through = " through NVSwitch" if any(pair.through_switch for pair in found.pairs) else ""
    return f"links between GPUs{through}; {rate}"


def _switches(facts: Facts) -> Table:
    table = _grid(2)
    for switch in facts.switches:
        _row(table, f"switch {switch.address}", ", ".join((*switch.gpus, *switch.nics)))
    return table


def _facts(facts: Facts) -> Table:
    table = _grid(2)
    _row(table, "GPUs", str(facts.gpus))
    if facts.gpus:
        _row(table, "NVLink among GPUs", facts.nvlink or UNKNOWN)
        _row(table, "NIC and GPU share switch", _answer(facts.shares_switch))
        _row(table, "switches with GPUs", _counts(facts))
    if facts.rule:
        _row(table, "rule", f"{facts.rule}: {RULES[facts.rule]}")
    else:
        _row(table, "rule", Text(f"none: {facts.why}", _WARNING if facts.gpus > 1 else ""))
    return table


def _answer(value: bool | None) -> str:
    return UNKNOWN if value is None else "yes" if value else "no"


def _counts(facts: Facts) -> str:
    sizes = facts.gpus_per_switch
    if sizes is None:
        return UNKNOWN
    said = f"{facts.with_nic} with a NIC, {facts.without_nic} without"
    if sizes:
        each = f"{sizes[0]} each" if len(set(sizes)) == 1 else ", ".join(map(str, sizes))
        said += f"; GPUs: {each}"
    if facts.gpus_without_switch:
        said += f"; {counted(facts.gpus_without_switch, 'GPU')} without a switch"
    return said


def _unknown(unknown: tuple[Unknown, ...]) -> Table:
    """What is not known; what differs only in the device is one entry."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for each in unknown:
        key = (ADDRESS.sub("ADDRESS", each.what), ADDRESS.sub("ADDRESS", each.path), each.why)
        found = ADDRESS.search(each.path)
        groups.setdefault(key, []).append(found[0] if found else "")
    table = _grid(1)
    for (what, path, why), addresses in groups.items():
        place = path.replace("ADDRESS", addresses[0]) if len(addresses) == 1 else path
        named = what.replace("ADDRESS", ", ".join(sorted(addresses)))
        _row(table, Text(named, _WARNING))
        _row(table, f"  {place}: {why}")
    return table
