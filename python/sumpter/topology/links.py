"""Bandwidth of PCIe links from what the kernel reports of them: current and highest possible."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sumpter.topology.sysfs import Sysfs

# GT/s: the generation, and the share of bits that the encoding leaves (8b/10b, 128b/130b, none), as
# Linux counts it (PCIE_SPEED2MBS_ENC in drivers/pci/pci.h). Packet headers take a further part.
GENERATIONS = {
    2.5: (1, 8 / 10),
    5.0: (2, 8 / 10),
    8.0: (3, 128 / 130),
    16.0: (4, 128 / 130),
    32.0: (5, 128 / 130),
    64.0: (6, 1.0),
}
# Most lanes of a link; the kernel reports 63 or 255 where a device tells nothing.
_MOST_LANES = 32
_SPEED = re.compile(r"(\d{1,3}(?:\.\d{1,3})?) GT/s")


@dataclass(frozen=True, order=True)
class Rate:
    """A speed and a width. `gigatransfers_per_s` is one of `GENERATIONS`."""

    gigatransfers_per_s: float
    lanes: int

    @property
    def generation(self) -> int:
        return GENERATIONS[self.gigatransfers_per_s][0]

    @property
    def gigabytes_per_s(self) -> float:
        """10^9 bytes a second each way, after the encoding."""
        return self.gigatransfers_per_s * GENERATIONS[self.gigatransfers_per_s][1] * self.lanes / 8

    def __str__(self) -> str:
        return f"{self.generation}.0 x{self.lanes}, {self.gigabytes_per_s:.1f} GB/s"

    def as_dict(self) -> dict[str, float]:
        return {
            "generation": self.generation,
            "gigatransfers_per_s": self.gigatransfers_per_s,
            "lanes": self.lanes,
            "gigabytes_per_s": round(self.gigabytes_per_s, 3),
        }


@dataclass(frozen=True)
class Link:
    """The link between a device and the port above it. None is what is not known."""

    current: Rate | None
    highest: Rate | None

    @property
    def reduced(self) -> bool:
        """Whether it is slower than both ends could be; an idle GPU's often is."""
        if self.current is None or self.highest is None:
            return False
        return self.current.gigabytes_per_s < self.highest.gigabytes_per_s

    def as_dict(self) -> dict[str, object]:
        return {
            "current": self.current and self.current.as_dict(),
            "highest": self.highest and self.highest.as_dict(),
            "reduced": self.reduced,
        }


def read_link(sysfs: Sysfs, address: str, above: str | None) -> Link:
    """The link above a device. `above` is the port at its other end, whose limits hold as well."""
    current = read_rate(sysfs, address, "current", f"current PCIe rate of {address}")
    what = f"highest PCIe rate of {address}"
    ends = [read_rate(sysfs, end, "max", what) for end in (address, above) if end]
    known = [end for end in ends if end]
    if len(known) < len(ends):
        return Link(current, None)
    speed = min(end.gigatransfers_per_s for end in known)
    return Link(current, Rate(speed, min(end.lanes for end in known)))


def read_rate(sysfs: Sysfs, address: str, which: str, what: str) -> Rate | None:
    """One end's `current` or `max` speed and width; None, recorded, if either is not known."""
    folder = f"bus/pci/devices/{address}"
    path = f"{folder}/{which}_link_speed"
    text = sysfs.read(path, what)
    if text is None:
        return None
    match = _SPEED.match(text)
    speed = float(match[1]) if match else None
    if speed not in GENERATIONS:
        sysfs.missing(what, path, f"holds {text[:40]!r}, which is no known speed")
        return None
    path = f"{folder}/{which}_link_width"
    lanes = sysfs.integer(path, what)
    if lanes is None:
        return None
    if lanes == 0:
        sysfs.missing(what, path, "is 0: the link is down, or a hypervisor hides it")
        return None
    if not 0 < lanes <= _MOST_LANES:
        sysfs.missing(what, path, f"is {lanes}: the device does not report it")
        return None
    return Rate(speed, lanes)
