"""Machines in tests/data/machines: each a TOML file that becomes a folder that looks like sysfs,
and an NVML that answers as the machine's would. The report of each is in a text file beside it:

    python tests/python/support/recorded_machines.py NAME > tests/data/machines/NAME.txt

`pci` is one line a device, indented below its bridge: a host bridge has its bus and the NUMA node
of what is below it; a device its address, class, ids and, if it reports it, the speed in GT/s and
width of its link (`8x16`, or `2.5x16/8x16` for current and highest). Then `numa=`, `via=` (a device
between it and its interface), `net=NAME:SPEED:STATE` (Mb/s), `rdma=NAME:SPEED:LAYER` (Gb/s) and
`physfn=`. Files that a line does not mention do not exist.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import tomllib
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from sumpter.topology import Topology, read_nvlink, read_topology
from sumpter.topology.devices import GPU, NIC, SWITCH, Device
from sumpter.topology.report import print_topology

FOLDER = Path(__file__).resolve().parents[2] / "data" / "machines"
MACHINES = sorted(path.stem for path in FOLDER.glob("*.toml"))


def topology(name: str, folder: Path) -> Topology:
    """A machine read from a folder that is made for it, with the paths of a real one."""
    machine = load(name)
    nvlink = read_nvlink(FakeNvml(machine["nvml"]) if "nvml" in machine else None)
    found = read_topology(expand(machine, folder), nvlink)
    paths = [(each, each.path.replace(str(folder), "/sys")) for each in found.unknown]
    unknown = tuple(replace(each, path=path) for each, path in paths)
    return replace(found, sysfs="/sys", unknown=unknown)


def report(found: Topology, width: int = 80) -> str:
    """What `sumpter doctor --topology` prints, without spaces at the ends of lines."""
    console = Console(width=width, highlight=False, file=StringIO())
    print_topology(found, console)
    text = console.file.getvalue()
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def load(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text())


def machine_list(found: Topology) -> str:
    """Two such machines as `sumpter plan --machines` reads them; every link has 100 Gb/s."""
    devices: list[dict[str, object]] = []
    nics: list[dict[str, object]] = []

    def add(device: Device, parent: str) -> None:
        if device.kind == NIC:
            nics.append({"name": device.name, "gbps": 100, "device": parent})
        elif device.kind in (SWITCH, GPU):
            place = {"name": device.name, "parent": parent, "gbps": 100}
            devices.append({"kind": device.kind, **place})
            parent = device.name
        for child in device.children:
            add(child, parent)

    nodes = sorted({bridge.numa_node or 0 for bridge in found.bridges})
    for node in nodes:
        above = {} if node == nodes[0] else {"parent": f"cpu{nodes[0]}", "gbps": 100}
        devices.append({"name": f"cpu{node}", "kind": "cpu", **above})
    for bridge in found.bridges:
        for child in bridge.children:
            add(child, f"cpu{bridge.numa_node or 0}")
    names = found.names()
    islands = [sorted(names[gpu] for gpu in island) for island in found.nvlink.islands()]
    nvlinks = [{"devices": gpus, "gbps": 1000} for gpus in islands if len(gpus) > 1]
    parts = {"nics": nics, "devices": devices, "nvlinks": nvlinks}
    keys = [f"{key} = {_toml(value)}" for key, value in parts.items() if value]
    return "\n".join(["[[machine]]", 'role = "gpu"', "count = 2", *keys, ""])


def _toml(value: object) -> str:
    """A value of a TOML file, on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def expand(machine: dict[str, Any], root: Path) -> Path:
    """Writes the machine's sysfs below `root`, which is returned."""
    write(root, "bus/pci/devices/")
    write(root, "class/net/")
    for number, node in machine.get("nodes", {}).items():
        folder = f"devices/system/node/node{number}"
        write(root, f"{folder}/cpulist", node["cores"])
        memory = (
            f"Node {number} MemTotal:       {node['memory_kib']} kB\nNode {number} MemFree: 1 kB"
        )
        write(root, f"{folder}/meminfo", memory)
    above: list[tuple[int, str]] = []
    numa, domain = "-1", "0000"
    for line in machine["pci"].splitlines():
        words = line.split()
        depth = len(line) - len(line.lstrip())
        if not words:
            continue
        above = [(d, folder) for d, folder in above if d < depth]
        if words[0] == "host":
            domain = words[1].partition(":")[0]
            numa = words[3]
            above = [(depth, f"devices/pci{words[1]}")]
            continue
        address = f"{domain}:{words[0]}"
        folder = f"{above[-1][1]}/{address}"
        above.append((depth, folder))
        _device(root, folder, address, words[1:], numa)
    return root


def _device(root: Path, folder: str, address: str, words: list[str], numa: str) -> None:
    kind, ids, *rest = words
    vendor, device = ids.split(":")
    write(root, f"{folder}/class", f"0x{kind}")
    write(root, f"{folder}/vendor", f"0x{vendor}")
    write(root, f"{folder}/device", f"0x{device}")
    link(root, f"bus/pci/devices/{address}", folder)
    options = [word.split("=", 1) for word in rest if "=" in word]
    given = dict(options)
    write(root, f"{folder}/numa_node", given.get("numa", numa))
    for word in rest:
        if "=" not in word:
            current, _, highest = word.partition("/")
            for which, rate in (("current", current), ("max", highest or current)):
                speed, lanes = rate.split("x")
                write(root, f"{folder}/{which}_link_speed", f"{float(speed)} GT/s PCIe")
                write(root, f"{folder}/{which}_link_width", lanes)
    if "physfn" in given:
        link(root, f"{folder}/physfn", f"{os.path.dirname(folder)}/{given['physfn']}")
    between = f"{folder}/{given['via']}" if "via" in given else folder
    for option, value in options:
        if option == "net":
            name, speed, state = value.split(":")
            place = f"{between}/net/{name}"
            write(root, f"{place}/speed", speed)
            write(root, f"{place}/operstate", state)
            link(root, f"{place}/device", between)
            link(root, f"class/net/{name}", place)
        elif option == "rdma":
            name, speed, layer = value.split(":")
            port = f"{folder}/infiniband/{name}/ports/1"
            write(root, f"{port}/rate", f"{speed} Gb/sec (4X)")
            write(root, f"{port}/link_layer", layer)
            write(root, f"{port}/state", "4: ACTIVE")
            link(root, f"{folder}/infiniband/{name}/device", folder)
            link(root, f"class/infiniband/{name}", f"{folder}/infiniband/{name}")


def write(root: Path, path: str, text: str = "") -> None:
    """A file with a line, or a folder if the path ends so."""
    place = root / path
    if path.endswith("/"):
        place.mkdir(parents=True, exist_ok=True)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"{text}\n")


def link(root: Path, path: str, target: str) -> None:
    """A relative link, as sysfs has them."""
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(os.path.relpath(root / target, place.parent))


class FakeNvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class FakeNvml:
    """What sumpter.topology.nvlink calls of pynvml, with its names, for a recorded machine.

    `links` has, for each GPU, the address that each of its links leads to. Handles are numbers.
    `hidden` are pairs of GPUs that the host does not let use NVLink; `failing` are the error codes
    of calls that fail.
    """

    NVMLError = FakeNvmlError
    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON = 90
    NVML_NVLINK_DEVICE_TYPE_GPU = 0
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2
    NVML_NVLINK_MAX_LINKS = 18
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0

    def __init__(self, recorded: dict[str, Any]) -> None:
        self.name = recorded["name"]
        self.speed_mbps = recorded.get("speed_mbps", 0)
        self.gpus: list[str] = recorded["gpus"]
        self.links: list[list[str]] = [[] for _ in self.gpus]
        for pair in recorded.get("direct", []):
            one, other, count = map(int, pair.split())
            self.links[one] += [self.gpus[other]] * count
            self.links[other] += [self.gpus[one]] * count
        for address, count in recorded.get("switches", {}).items():
            for found in self.links:
                found += [address] * count
        self.hidden: set[frozenset[int]] = set()
        self.failing: dict[str, int] = {}
        self.running = 0

    def _call(self, name: str) -> None:
        if name in self.failing:
            raise FakeNvmlError(self.failing[name])

    def nvmlInit(self) -> None:
        self._call("nvmlInit")
        self.running += 1

    def nvmlShutdown(self) -> None:
        self.running -= 1

    def nvmlDeviceGetCount(self) -> int:
        self._call("nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.name

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:
        return self._info(self.gpus[handle])

    def nvmlDeviceGetNvLinkState(self, handle: int, number: int) -> int:
        self._call("nvmlDeviceGetNvLinkState")
        if not self.links[handle]:
            raise FakeNvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        if number >= len(self.links[handle]):
            raise FakeNvmlError(self.NVML_ERROR_INVALID_ARGUMENT)
        return 1

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, number: int) -> SimpleNamespace:
        return self._info(self.links[handle][number])

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, number: int) -> int:
        to_gpu = self.links[handle][number] in self.gpus
        return self.NVML_NVLINK_DEVICE_TYPE_GPU if to_gpu else self.NVML_NVLINK_DEVICE_TYPE_SWITCH

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, index: int) -> int:
        assert index == self.NVML_P2P_CAPS_INDEX_NVLINK
        return 5 if frozenset((one, other)) in self.hidden else self.NVML_P2P_STATUS_OK

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> list[SimpleNamespace]:
        assert fields == [self.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON]
        value = SimpleNamespace(uiVal=self.speed_mbps)
        return [SimpleNamespace(nvmlReturn=0 if self.speed_mbps else 3, value=value)]

    def _info(self, address: str) -> SimpleNamespace:
        return SimpleNamespace(busId=f"0000{address}".upper().encode())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(report(topology(sys.argv[1], Path(place))), end="")
