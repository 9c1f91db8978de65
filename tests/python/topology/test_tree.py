"""The parser of sysfs: links, nodes, damaged trees, and random ones against a simple oracle."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorded_machines import MACHINES, FakeNvml, expand, load, report, topology, write
from sumpter.topology import NvLink, Sysfs, Topology, read_nvlink, read_topology
from sumpter.topology.devices import BRIDGES, Device
from sumpter.topology.links import GENERATIONS, Rate, read_link, read_rate
from sumpter.topology.numa import count_cores, read_nodes

NO_NVML = read_nvlink(None)
GPU = "030200 10de:1db1"
NIC = "020000 15b3:1017"
PORT = "060400 8086:6f04"
PLX = "060400 10b5:8764"


def machine(root: Path, *lines: str, nvlink: NvLink = NO_NVML) -> Topology:
    """A machine with these lines of a PCI tree."""
    return read_topology(expand({"pci": "\n".join(lines)}, root), nvlink)


def devices(found: Topology) -> dict[str, Device]:
    return {each.address: each for bridge in found.bridges for each in bridge.walk()}


def reasons(found: Topology, what: str) -> list[str]:
    return [each.why for each in found.unknown if each.what == what]


@pytest.mark.parametrize(
    ("speed", "width", "gigabytes_per_s"),
    [
        ("2.5 GT/s PCIe", 1, 0.25),
        ("5.0 GT/s PCIe", 8, 4.0),
        ("8.0 GT/s PCIe", 16, 15.754),
        # As kernels before 5.7 wrote it.
        ("8 GT/s", 16, 15.754),
        ("16.0 GT/s PCIe", 16, 31.508),
        ("32.0 GT/s PCIe", 16, 63.015),
        ("64.0 GT/s PCIe", 16, 128.0),
    ],
)
def test_bandwidth_is_what_the_encoding_leaves(
    tmp_path: Path, speed: str, width: int, gigabytes_per_s: float
) -> None:
    folder = "bus/pci/devices/0000:01:00.0"
    write(tmp_path, f"{folder}/current_link_speed", speed)
    write(tmp_path, f"{folder}/current_link_width", str(width))
    rate = read_rate(Sysfs(tmp_path), "0000:01:00.0", "current", "a rate")
    assert rate is not None
    assert round(rate.gigabytes_per_s, 3) == gigabytes_per_s


@given(st.sampled_from(sorted(GENERATIONS)), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_bandwidth_is_at_most_the_transfers(speed: float, lanes: int) -> None:
    rate = Rate(speed, lanes)
    assert 0.8 <= rate.gigabytes_per_s / (speed * lanes / 8) <= 1
    assert Rate(speed, 2 * lanes).gigabytes_per_s == 2 * rate.gigabytes_per_s


@pytest.mark.parametrize(
    ("speed", "width", "name", "why"),
    [
        ("Unknown", "16", "speed", "'Unknown'"),
        ("Unknown speed", "0", "speed", "no known speed"),
        ("7.0 GT/s PCIe", "16", "speed", "no known speed"),
        ("8.0 GT/s PCIe", "0", "width", "down"),
        ("8.0 GT/s PCIe", "255", "width", "does not report"),
        ("8.0 GT/s PCIe", "63", "width", "does not report"),
        ("8.0 GT/s PCIe", "-1", "width", "does not report"),
        ("8.0 GT/s PCIe", "wide", "width", "no number"),
        ("8.0 GT/s PCIe", "", "width", "empty"),
        ("", "16", "speed", "empty"),
    ],
)
def test_a_link_without_a_rate_is_unknown_with_its_path(
    tmp_path: Path, speed: str, width: str, name: str, why: str
) -> None:
    """Unplugged devices, links that are down, and what virtual machines report."""
    folder = "bus/pci/devices/0000:01:00.0"
    write(tmp_path, f"{folder}/max_link_speed", speed)
    write(tmp_path, f"{folder}/max_link_width", width)
    sysfs = Sysfs(tmp_path)
    link = read_link(sysfs, "0000:01:00.0", None)
    assert (link.current, link.highest, link.reduced) == (None, None, False)
    current, highest = sysfs.unknown
    assert current.path == str(tmp_path / folder / "current_link_speed")
    assert current.why == "no such file or directory"
    assert highest.path == str(tmp_path / folder / f"max_link_{name}")
    assert why in highest.why


def test_a_link_is_as_fast_as_both_ends_allow_or_unknown(tmp_path: Path) -> None:
    lines = ("host 0000:00 numa 0", f" 00:01.0 {PORT} 8x8", f"  01:00.0 {GPU} 8x8/16x16")
    link = devices(machine(tmp_path, *lines))["0000:01:00.0"].link
    assert link and link.highest == Rate(8.0, 8) and not link.reduced
    (tmp_path / "devices/pci0000:00/0000:00:01.0/max_link_speed").unlink()
    found = read_topology(tmp_path, NO_NVML)
    link = devices(found)["0000:01:00.0"].link
    assert link and link.current == Rate(8.0, 8) and link.highest is None
    paths = [each.path for each in found.unknown if "highest" in each.what]
    assert paths == [str(tmp_path / "bus/pci/devices/0000:00:01.0/max_link_speed")]


@pytest.mark.parametrize(
    ("cores", "count"),
    [("", 0), ("0", 1), ("0-19,40-59", 40), ("0,2,4-5", 4), ("3-1", None), ("all", None)],
)
def test_lists_of_cores_are_counted(cores: str, count: int | None) -> None:
    assert count_cores(cores) == count


def test_nodes_may_have_no_cores_or_no_memory(tmp_path: Path) -> None:
    folder = "devices/system/node"
    write(tmp_path, f"{folder}/node10/cpulist")
    write(tmp_path, f"{folder}/node10/meminfo", "Node 10 MemTotal: 1024 kB")
    write(tmp_path, f"{folder}/node2/cpulist", "0-3,x")
    write(tmp_path, f"{folder}/node2/meminfo", "Node 2 MemFree: 1024 kB")
    write(tmp_path, f"{folder}/online", "2,10")
    sysfs = Sysfs(tmp_path)
    two, ten = read_nodes(sysfs)
    assert (two.number, two.cores, two.core_count, two.memory_bytes) == (2, None, None, None)
    assert (ten.number, ten.cores, ten.core_count, ten.memory_bytes) == (10, "", 0, 1 << 20)
    assert [each.what for each in sysfs.unknown] == [
        "cores of NUMA node 2",
        "memory of NUMA node 2",
    ]


def test_a_node_of_minus_one_is_unknown_not_zero(tmp_path: Path) -> None:
    found = machine(tmp_path, "host 0000:00 numa -1", f" 00:01.0 {PORT}", f"  01:00.0 {GPU} 8x16")
    assert devices(found)["0000:01:00.0"].numa_node is None
    assert found.bridges[0].numa_node is None
    (why,) = reasons(found, "NUMA node of 0000:01:00.0")
    assert why.startswith("is -1")


def test_bridges_without_devices_are_kept_apart(tmp_path: Path) -> None:
    """Empty slots, a switch without cards and a bridge to conventional PCI."""
    found = machine(
        tmp_path,
        "host 0000:00 numa 0",
        f" 00:01.0 {PORT}",
        f" 00:02.0 {PORT}",
        f"  01:00.0 {PLX}",
        f"   02:00.0 {PLX}",
        f"   02:01.0 {PLX}",
        f" 00:03.0 {PORT}",
        "  03:00.0 060400 1a03:1150",
        "   04:00.0 030000 1a03:2000",
    )
    kinds = {address: each.kind for address, each in devices(found).items()}
    assert kinds == {
        "0000:00:01.0": "root port",
        "0000:00:02.0": "root port",
        "0000:01:00.0": "switch",
        "0000:02:00.0": "downstream port",
        "0000:02:01.0": "downstream port",
        "0000:00:03.0": "root port",
        "0000:03:00.0": "bridge",
    }
    assert found.facts.switches == ()
    assert not [each for each in found.unknown if "rate" in each.what]
    assert "switch" not in report(found)
    assert "1 host bridge" in report(found)


def test_a_device_that_goes_away_meanwhile_is_unknown(tmp_path: Path) -> None:
    lines = ["host 0000:00 numa 0"]
    for number in (1, 2):
        lines += [f" 00:0{number}.0 {PORT}", f"  0{number}:00.0 {GPU} 8x16"]
    expand({"pci": "\n".join(lines)}, tmp_path)
    shutil.rmtree(tmp_path / "devices/pci0000:00/0000:00:02.0/0000:02:00.0")
    found = read_topology(tmp_path, NO_NVML)
    assert devices(found)["0000:02:00.0"].kind == "unknown"
    assert reasons(found, "class of 0000:02:00.0") == ["no such file or directory"]
    assert not found.facts.placed
    assert "unknown device 0000:02:00.0" in report(found)


def test_an_entry_that_is_no_link_into_the_tree_is_recorded(tmp_path: Path) -> None:
    expand({"pci": f"host 0000:00 numa 0\n 00:01.0 {PORT}\n  01:00.0 {GPU} 8x16"}, tmp_path)
    write(tmp_path, "bus/pci/devices/0000:09:00.0/class", "0x030200")
    os.symlink("loop", tmp_path / "bus/pci/devices/loop")
    found = read_topology(tmp_path, NO_NVML)
    assert reasons(found, "place of 0000:09:00.0") and reasons(found, "place of loop")
    assert not found.facts.placed


def test_what_the_user_may_not_read_is_unknown(tmp_path: Path) -> None:
    class Guarded(Sysfs):
        def _text(self, path: Path) -> str:
            if path.name in ("numa_node", "max_link_speed"):
                raise PermissionError(13, "Permission denied")
            return super()._text(path)

        def _listed(self, path: Path) -> list[str]:
            if path.name == "net":
                raise PermissionError(13, "Permission denied")
            return super()._listed(path)

    expand(load("dgx1"), tmp_path)
    found = read_topology(Guarded(tmp_path), NO_NVML)
    gpu = devices(found)["0000:06:00.0"]
    assert gpu.numa_node is None
    assert gpu.link and gpu.link.current and gpu.link.highest is None
    assert reasons(found, "NUMA node of 0000:06:00.0") == ["permission denied"]
    assert reasons(found, "network interfaces") == ["permission denied"]
    assert [each.gpus for each in found.facts.switches if "mlx5_0" in each.nics] == [
        ("GPU0", "GPU1")
    ]


def test_interfaces_are_found_below_virtio_and_off_pci(tmp_path: Path) -> None:
    expand(
        {
            "pci": "host 0000:00 numa 0\n"
            " 00:03.0 020000 1af4:1041 via=virtio2 net=eth0:10000:up\n"
            " 00:14.0 0c0330 8086:8d31 via=usb1 net=usb0:425:up"
        },
        tmp_path,
    )
    write(tmp_path, "devices/vmbus/net/eth1/operstate", "up")
    write(tmp_path, "devices/vmbus/net/eth1/device/")
    (tmp_path / "class/net/eth1").symlink_to(tmp_path / "devices/vmbus/net/eth1")
    write(tmp_path, "class/net/lo/operstate", "unknown")
    found = read_topology(tmp_path, NO_NVML)
    assert [each.name for each in devices(found)["0000:00:03.0"].interfaces] == ["eth0"]
    assert [each.name for each in found.elsewhere] == ["eth1", "usb0"]
    assert [each.speed_gbps for each in found.elsewhere] == [None, 0.425]
    assert not found.facts.placed


def test_a_virtual_function_counts_only_if_it_has_an_interface_here(tmp_path: Path) -> None:
    found = machine(
        tmp_path,
        "host 0000:00 numa 0",
        f" 00:01.0 {PORT}",
        f"  01:00.0 {NIC} 8x16 net=eth0:1000:up",
        "  01:00.1 020000 15b3:1018 8x16 physfn=0000:01:00.0 net=eth1:1000:up",
        "  01:00.2 020000 15b3:1018 8x16 physfn=0000:01:00.0",
    )
    assert [each for each in devices(found) if each.startswith("0000:01")] == [
        "0000:01:00.0",
        "0000:01:00.1",
    ]
    assert devices(found)["0000:01:00.0"].virtual_functions == 1


def test_domains_of_a_bridge_that_is_a_device_itself_are_read(tmp_path: Path) -> None:
    """Intel VMD puts a host bridge with a domain of its own below a PCI device."""
    expand({"pci": "host 0000:5d numa 0\n 5d:05.5 010400 8086:201d"}, tmp_path)
    inner = "devices/pci0000:5d/0000:5d:05.5/pci10000:00/10000:00:02.0"
    write(tmp_path, f"{inner}/class", "0x060400")
    for name, text in (("class", "0x030200"), ("vendor", "0x10de"), ("device", "0x20b0")):
        write(tmp_path, f"{inner}/10000:01:00.0/{name}", text)
    for place in (inner, f"{inner}/10000:01:00.0"):
        (tmp_path / "bus/pci/devices" / Path(place).name).symlink_to(tmp_path / place)
    found = read_topology(tmp_path, NO_NVML)
    assert [(each.address, each.domain) for each in found.bridges] == [
        ("0000:5d", 0),
        ("10000:00", 0x10000),
    ]
    assert devices(found)["10000:01:00.0"].name == "GPU0"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("030200 10de:2330", "gpu"),
        ("030000 10de:2204", "gpu"),
        ("038000 1002:740f", "gpu"),
        ("120000 1002:74a1", "gpu"),
        ("120000 1da3:1020", "gpu"),
        ("030000 8086:56c0", "gpu"),
        ("030000 1a03:2000", None),
        ("030000 102b:0536", None),
        ("010802 144d:a824", None),
        ("020700 15b3:1021", "nic"),
        ("020000 1d0f:efa1", "nic"),
        ("068000 10de:22a3", "nvswitch"),
        ("068000 8086:22a3", None),
    ],
)
def test_devices_of_interest_are_told_by_class_and_vendor(
    tmp_path: Path, line: str, kind: str | None
) -> None:
    found = machine(tmp_path, "host 0000:00 numa 0", f" 00:01.0 {PORT}", f"  01:00.0 {line} 8x16")
    device = devices(found).get("0000:01:00.0")
    assert (device.kind if device else None) == kind


# Random trees: a branch is a device, or a switch with the branches of its downstream ports.
Branch = str | list["Branch"]
BRANCHES = st.recursive(
    st.sampled_from([GPU, NIC, "010802 144d:a824"]),
    lambda inner: st.lists(inner, min_size=1, max_size=3),
    max_leaves=12,
)


def draw_tree(root_ports: list[Branch]) -> tuple[str, list[tuple[str, str, str | None]]]:
    """The lines of a tree, and for each device its address, line and topmost switch."""
    lines, expected = ["host 0000:00 numa 0"], []
    buses = iter(range(1, 256))

    def add(branch: Branch, bus: int, depth: int, top: str | None) -> None:
        """What is behind a port, on a bus of its own."""
        address = f"{bus:02x}:00.0"
        if isinstance(branch, str):
            lines.append(f"{' ' * depth}{address} {branch} 8x16")
            expected.append((f"0000:{address}", branch, top))
            return
        lines.append(f"{' ' * depth}{address} {PLX} 8x16")
        inner = next(buses)
        for number, each in enumerate(branch):
            lines.append(f"{' ' * (depth + 1)}{inner:02x}:{number:02x}.0 {PLX} 8x16")
            add(each, next(buses), depth + 2, top or f"0000:{address}")

    for number, branch in enumerate(root_ports):
        lines.append(f" 00:{number + 1:02x}.0 {PORT} 8x16")
        add(branch, next(buses), 2, None)
    return "\n".join(lines), expected


@settings(max_examples=30)
@given(st.lists(BRANCHES, max_size=5))
def test_a_tree_is_read_as_it_was_drawn(root_ports: list[Branch]) -> None:
    pci, expected = draw_tree(root_ports)
    with tempfile.TemporaryDirectory() as folder:
        found = read_topology(expand({"pci": pci}, Path(folder)), NO_NVML)
    ends = {a: each for a, each in devices(found).items() if each.kind not in BRIDGES}
    wanted = {address: line for address, line, _ in expected if line in (GPU, NIC)}
    assert set(ends) == set(wanted)
    for address, line in wanted.items():
        assert ends[address].kind == ("gpu" if line == GPU else "nic")
        assert ends[address].link and ends[address].link.current == Rate(8.0, 16)
    groups: dict[str, set[str]] = {}
    for address, _, top in expected:
        if top and address in ends:
            groups.setdefault(top, set()).add(ends[address].name)
    assert {s.address: {*s.gpus, *s.nics} for s in found.facts.switches} == groups
    assert found.facts.placed == bool(root_ports)


# What reading a file gives instead: an error, or another text.
DAMAGES: list[OSError | str] = [
    FileNotFoundError(2, "No such file or directory"),
    PermissionError(13, "Permission denied"),
    OSError(22, "Invalid argument"),
    IsADirectoryError(21, "Is a directory"),
    "",
    "\x00?",
    "9" * 5000,
]


class Damaged(Sysfs):
    """A tree in which some files are damaged."""

    def __init__(self, root: Path, damages: dict[Path, OSError | str]) -> None:
        super().__init__(root)
        self.damages = damages

    def _text(self, path: Path) -> str:
        damage = self.damages.get(path.resolve())
        if isinstance(damage, OSError):
            raise damage
        return super()._text(path) if damage is None else damage


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, NvLink]]:
    """All machines, expanded once, and their NVLinks."""
    found = {}
    for name in MACHINES:
        machine = load(name)
        links = read_nvlink(FakeNvml(machine["nvml"]) if "nvml" in machine else None)
        found[name] = (expand(machine, tmp_path_factory.mktemp(name).resolve()), links)
    return found


@settings(max_examples=50)
@given(st.sampled_from(MACHINES), st.data())
def test_damage_makes_things_unknown_and_nothing_wrong(
    recorded: dict[str, tuple[Path, NvLink]], name: str, data: st.DataObject
) -> None:
    """Nothing raises, every value that is lost has its path, and no other rule comes out."""
    root, links = recorded[name]
    whole = read_topology(root, links)
    files = sorted(p for p in (root / "devices").rglob("*") if p.is_file())
    damages = st.dictionaries(
        st.sampled_from(files), st.sampled_from(DAMAGES), min_size=1, max_size=20
    )
    found = read_topology(Damaged(root, data.draw(damages)), links)
    json.dumps(found.as_dict(), allow_nan=False)
    assert report(found)
    assert found.facts.rule in (whole.facts.rule, None)
    seen = devices(found)
    for address, before in devices(whole).items():
        now = seen.get(address)
        if now is None or now.kind != before.kind:
            lost = (f"class of {address}", f"vendor id of {address}")
            assert any(each.what in lost for each in found.unknown)
            continue
        if now.numa_node != before.numa_node:
            assert now.numa_node is None and reasons(found, f"NUMA node of {address}")
        if before.link and now.link != before.link:
            assert any(each.what.endswith(f"PCIe rate of {address}") for each in found.unknown)
    for before, now in zip(whole.nodes, found.nodes, strict=True):
        # An empty list of cores is that of a node with memory only.
        kept = now == before or now == replace(before, cores="", core_count=0)
        number = f"NUMA node {before.number}"
        assert kept or any(each.what.endswith(number) for each in found.unknown)


@pytest.mark.parametrize("name", MACHINES)
def test_a_recorded_machine_is_read_the_same_each_time(name: str, tmp_path: Path) -> None:
    first = topology(name, tmp_path / "one").as_dict()
    assert topology(name, tmp_path / "two").as_dict() == first
