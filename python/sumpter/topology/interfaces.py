"""Network interfaces and RDMA ports, and the PCI devices that they belong to."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from sumpter.topology.sysfs import Sysfs

_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec")


@dataclass(frozen=True)
class Interface:
    """A network interface. `speed_gbps` and `state` are None where they are not known."""

    name: str
    speed_gbps: float | None
    state: str | None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class RdmaPort:
    """A port of an RDMA device. `layer` is InfiniBand or Ethernet; None is what is not known."""

    device: str
    port: int
    speed_gbps: float | None
    layer: str | None
    state: str | None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class Network:
    """Interfaces and RDMA ports by PCI address, and the interfaces of devices that are not PCI
    devices or whose device is not known."""

    interfaces: dict[str, tuple[Interface, ...]]
    ports: dict[str, tuple[RdmaPort, ...]]
    elsewhere: tuple[Interface, ...]


def read_network(sysfs: Sysfs) -> Network:
    """All interfaces with hardware; bridges, tunnels and loopback have none."""
    interfaces: dict[str, tuple[Interface, ...]] = {}
    elsewhere: tuple[Interface, ...] = ()
    for name in sysfs.names("class/net", "network interfaces"):
        if not sysfs.exists(f"class/net/{name}/device"):
            continue
        found = _interface(sysfs, name)
        # With virtio the interface is a device's below the PCI device.
        way = sysfs.addresses(f"class/net/{name}/device")
        if len(way) > 1:
            interfaces[way[-1]] = (*interfaces.get(way[-1], ()), found)
        else:
            elsewhere += (found,)
    ports: dict[str, tuple[RdmaPort, ...]] = {}
    if sysfs.exists("class/infiniband"):
        for name in sysfs.names("class/infiniband", "RDMA devices"):
            way = sysfs.addresses(f"class/infiniband/{name}/device")
            if len(way) > 1:
                ports[way[-1]] = (*ports.get(way[-1], ()), *_ports(sysfs, name))
    return Network(interfaces, ports, elsewhere)


def _interface(sysfs: Sysfs, name: str) -> Interface:
    folder = f"class/net/{name}"
    state = sysfs.read(f"{folder}/operstate", f"state of {name}")
    what, path = f"speed of {name}", f"{folder}/speed"
    speed_mbit = sysfs.integer(path, what)
    if speed_mbit is not None and not 0 < speed_mbit < 2**31:
        # -1, as a number with or without a sign.
        sysfs.missing(what, path, f"is {speed_mbit}: the driver does not report it")
        speed_mbit = None
    return Interface(name, None if speed_mbit is None else speed_mbit / 1000, state)


def _ports(sysfs: Sysfs, device: str) -> list[RdmaPort]:
    found = []
    for number in sysfs.names(f"class/infiniband/{device}/ports", f"ports of {device}"):
        if not re.fullmatch("[0-9]{1,3}", number):
            continue
        folder = f"class/infiniband/{device}/ports/{number}"
        what = f"port {number} of {device}"
        rate = sysfs.read(f"{folder}/rate", f"speed of {what}")
        match = _RATE.match(rate or "")
        if rate is not None and match is None:
            sysfs.missing(f"speed of {what}", f"{folder}/rate", f"holds {rate[:40]!r}")
        # Such as `4: ACTIVE`.
        state = sysfs.read(f"{folder}/state", f"state of {what}")
        found.append(
            RdmaPort(
                device,
                int(number),
                float(match[1]) if match else None,
                sysfs.read(f"{folder}/link_layer", f"link layer of {what}"),
                state and state.rpartition(" ")[2].lower(),
            )
        )
    return found
