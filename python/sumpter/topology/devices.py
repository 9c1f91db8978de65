"""The PCI tree: host bridges, ports, switches, and below them GPUs, NICs and NVSwitches.

The part of a port in a switch is in its PCIe capability, which only root can read. Any user can
read which bridge is below which, and that tells the same: a bridge on a root bus is a root port;
one below it with bridges below itself is the upstream port of a switch, and these are the
switch's downstream ports. Other devices (disks, controllers) are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sumpter.topology.interfaces import Interface, Network, RdmaPort
from sumpter.topology.links import Link, read_link
from sumpter.topology.sysfs import Sysfs

ROOT_PORT = "root port"
DOWNSTREAM_PORT = "downstream port"
SWITCH = "switch"
# A bridge that is neither: to conventional PCI, or a switch whose ports are all gone.
BRIDGE = "bridge"
GPU = "gpu"
NIC = "nic"
NVSWITCH = "nvswitch"
# A device whose class cannot be read: it may be any.
UNKNOWN = "unknown"
_OTHER = "other"

_PORTS = (ROOT_PORT, DOWNSTREAM_PORT, BRIDGE)
BRIDGES = (*_PORTS, SWITCH)

NVIDIA, AMD, _INTEL, _HABANA = 0x10DE, 0x1002, 0x8086, 0x1DA3
# QEMU (Red Hat), virtio and VMware make such ports where a virtual machine gets a device; they do
# not show where it is in the host.
_EMULATED = (0x1B36, 0x1AF4, 0x15AD)
VENDORS = {
    NVIDIA: "NVIDIA",
    AMD: "AMD",
    _INTEL: "Intel",
    _HABANA: "Habana",
    0x1000: "Broadcom",
    0x10B5: "PLX",
    0x11F8: "Microchip",
    0x14E4: "Broadcom",
    0x15B3: "Mellanox",
    0x1AE0: "Google",
    0x1AF4: "virtio",
    0x1B36: "QEMU",
    0x1D0F: "Amazon",
    0x15AD: "VMware",
    0x1414: "Microsoft",
}


@dataclass(frozen=True)
class Device:
    """A bridge or a device of interest, with what is below it.

    `link` is that to the port above; None for a device on a root bus and for ports inside a switch,
    which have none, and for bridges without devices of interest. `placed` is whether the tree above
    is the machine's, not one that a hypervisor made up. Ids are numbers, None if unreadable.
    """

    address: str
    kind: str
    name: str
    vendor: int | None
    device: int | None
    numa_node: int | None = None
    link: Link | None = None
    placed: bool = True
    interfaces: tuple[Interface, ...] = ()
    rdma: tuple[RdmaPort, ...] = ()
    virtual_functions: int = 0
    children: tuple[Device, ...] = ()

    @property
    def model(self) -> str:
        """The vendor's name if it is a known one, and both ids."""
        if self.vendor is None:
            return "unknown model"
        ids = f"{self.vendor:04x}:{'????' if self.device is None else f'{self.device:04x}'}"
        return f"{VENDORS.get(self.vendor, '')} {ids}".strip()

    def walk(self) -> Iterator[Device]:
        """This device and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def as_dict(self) -> dict[str, object]:
        found: dict[str, object] = {
            "address": self.address,
            "kind": self.kind,
            "name": self.name,
            "vendor": None if self.vendor is None else f"{self.vendor:04x}",
            "device": None if self.device is None else f"{self.device:04x}",
            "link": self.link and self.link.as_dict(),
        }
        if self.kind in BRIDGES:
            return found | {"children": [child.as_dict() for child in self.children]}
        found |= {"numa_node": self.numa_node, "placed": self.placed}
        if self.kind == NIC:
            found["interfaces"] = [each.as_dict() for each in self.interfaces]
            found["rdma"] = [each.as_dict() for each in self.rdma]
            found["virtual_functions"] = self.virtual_functions
        return found


@dataclass(frozen=True)
class HostBridge:
    """A root bus, as `0000:00`, and the NUMA node of its devices if they agree on one."""

    address: str
    numa_node: int | None
    children: tuple[Device, ...]

    @property
    def domain(self) -> int:
        """The number of the PCI domain (segment)."""
        return int(self.address.partition(":")[0], 16)

    def walk(self) -> Iterator[Device]:
        for child in self.children:
            yield from child.walk()

    def as_dict(self) -> dict[str, object]:
        return {
            "address": self.address,
            "domain": self.domain,
            "numa_node": self.numa_node,
            "children": [child.as_dict() for child in self.children],
        }


def order(address: str) -> tuple[int, ...]:
    """Addresses in the order of their numbers, which is that of nvidia-smi."""
    return tuple(int(part, 16) for part in address.replace(".", ":").split(":"))


def read_tree(sysfs: Sysfs, network: Network) -> tuple[HostBridge, ...]:
    """All host bridges in the order of their addresses."""
    return _Tree(sysfs, network).bridges()


@dataclass
class _Tree:
    """The tree while it is read: what is above each device, and what each device is."""

    sysfs: Sysfs
    network: Network
    above: dict[str, str] = field(default_factory=dict)
    below: dict[str, list[str]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    ids: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)
    hosts: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    functions: dict[str, int] = field(default_factory=dict)

    def bridges(self) -> tuple[HostBridge, ...]:
        self._find()
        for host in self.hosts:
            for address in self.below.get(host, ()):
                self._classify(address)
        for kind, word in ((GPU, "GPU"), (NVSWITCH, "NVSwitch")):
            found = sorted((a for a, k in self.kinds.items() if k == kind), key=order)
            self.names |= {address: f"{word}{number}" for number, address in enumerate(found)}
        return tuple(
            self._host(host) for host in sorted(self.hosts, key=lambda host: order(host[3:]))
        )

    def _find(self) -> None:
        """What is above what."""
        for address in self.sysfs.names("bus/pci/devices", "PCI devices"):
            path = f"bus/pci/devices/{address}"
            way = self.sysfs.addresses(path)
            if len(way) < 2 or way[-1] != address:
                why = "does not lead to a place below a host bridge"
                self.sysfs.missing(f"place of {address}", path, why)
                continue
            parent = f"{path}/physfn"
            if self.sysfs.exists(parent) and address not in self.network.interfaces:
                # A virtual function that another machine or nothing uses.
                physical = self.sysfs.addresses(parent)[-1:]
                for one in physical:
                    self.functions[one] = self.functions.get(one, 0) + 1
                continue
            self.hosts.add(way[0])
            for one, other in zip(way, way[1:], strict=False):
                if other not in self.above:
                    self.above[other] = one
                    self.below.setdefault(one, []).append(other)

    def _classify(self, address: str) -> None:
        what = f"class of {address}"
        number = self.sysfs.integer(f"bus/pci/devices/{address}/class", what, 16)
        read = [
            self.sysfs.integer(f"bus/pci/devices/{address}/{name}", f"{name} id of {address}", 16)
            for name in ("vendor", "device")
        ]
        self.ids[address] = (read[0], read[1])
        children = self.below.get(address, ())
        if children or (number is not None and number >> 8 == 0x0604):
            self.kinds[address] = self._bridge_kind(address)
        elif number is None:
            self.kinds[address] = UNKNOWN
        else:
            self.kinds[address] = kind_of(number >> 8, read[0], self.above[address] in self.hosts)
        for child in children:
            self._classify(child)

    def _bridge_kind(self, address: str) -> str:
        above = self.above[address]
        if above in self.hosts:
            return ROOT_PORT
        if self.kinds[above] == SWITCH:
            return DOWNSTREAM_PORT
        if self.kinds[above] == BRIDGE:
            return BRIDGE
        return SWITCH if any(map(self._is_bridge, self.below.get(address, ()))) else BRIDGE

    def _is_bridge(self, address: str) -> bool:
        if self.below.get(address):
            return True
        path = f"bus/pci/devices/{address}/class"
        number = self.sysfs.integer(path, f"class of {address}", 16)
        return number is not None and number >> 8 == 0x0604

    def _host(self, host: str) -> HostBridge:
        found = [self._device(a) for a in sorted(self.below.get(host, ()), key=order)]
        children = tuple(device for device in found if device)
        ends = [d for child in children for d in child.walk() if d.kind not in BRIDGES]
        nodes = {device.numa_node for device in ends}
        return HostBridge(host[3:], nodes.pop() if len(nodes) == 1 else None, children)

    def _device(self, address: str) -> Device | None:
        """The device with what is below it; None for one of no interest."""
        kind = self.kinds[address]
        if kind == _OTHER:
            return None
        vendor, model = self.ids[address]
        if kind in BRIDGES:
            found = [self._device(a) for a in sorted(self.below.get(address, ()), key=order)]
            children = tuple(device for device in found if device)
            used = any(d.kind not in BRIDGES for child in children for d in child.walk())
            link = self._link(address) if used and kind != DOWNSTREAM_PORT else None
            name = f"{kind} {address}"
            return Device(address, kind, name, vendor, model, link=link, children=children)
        interfaces = self.network.interfaces.get(address, ())
        ports = self.network.ports.get(address, ())
        name = self.names.get(address) or next(
            iter([each.name for each in interfaces] + [each.device for each in ports]),
            f"{'NIC' if kind == NIC else 'unknown device'} {address}",
        )
        return Device(
            address,
            kind,
            name,
            vendor,
            model,
            self._numa_node(address),
            self._link(address),
            self._is_placed(address, kind),
            interfaces,
            ports,
            self.functions.get(address, 0),
        )

    def _link(self, address: str) -> Link | None:
        above = self.above[address]
        return None if above in self.hosts else read_link(self.sysfs, address, above)

    def _numa_node(self, address: str) -> int | None:
        what, path = f"NUMA node of {address}", f"bus/pci/devices/{address}/numa_node"
        node = self.sysfs.integer(path, what)
        if node is not None and node < 0:
            self.sysfs.missing(what, path, f"is {node}: the firmware does not tell it")
            return None
        return node

    def _is_placed(self, address: str, kind: str) -> bool:
        way = [address]
        while self.above[way[-1]] not in self.hosts:
            way.append(self.above[way[-1]])
        ports = way[1:]
        if not ports and kind == NIC:
            # Part of a chipset or processor, if the bus has ports that a hypervisor did not make.
            neighbours = self.below[self.above[address]]
            ports = [other for other in neighbours if self.kinds.get(other) in _PORTS]
        vendors = [self.ids[port][0] for port in ports]
        if any(vendor in _EMULATED for vendor in vendors):
            why = "is below a port that a hypervisor emulates: the host's PCIe tree is hidden"
        elif None in vendors:
            why = "is below a port whose vendor is unknown: a hypervisor may emulate it"
        elif vendors:
            return True
        else:
            why = "has no port above it: the host's PCIe tree is hidden"
        self.sysfs.missing(f"PCIe switch above {address}", f"bus/pci/devices/{address}", why)
        return False


def kind_of(number: int, vendor: int | None, on_root_bus: bool) -> str:
    """What a device is by class and subclass."""
    if number >> 8 == 0x02:
        return NIC
    if number == 0x0680 and vendor == NVIDIA:
        return NVSWITCH
    # 3D controllers and accelerators; a VGA controller is often that of the machine's console.
    is_vga = vendor in (NVIDIA, AMD) or (vendor == _INTEL and not on_root_bus)
    if number in (0x0302, 0x0380) or (number == 0x0300 and is_vga):
        return GPU
    if number in (0x0300, 0x1200) and vendor is None:
        return UNKNOWN
    return GPU if number == 0x1200 and vendor in (AMD, _HABANA, NVIDIA) else _OTHER
