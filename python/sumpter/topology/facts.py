"""What decides how the GPUs of a machine should add their gradients (BytePS, OSDI'20, section 4.2).

A switch here is everything below one root port, cascaded switches together: they share the link to
the CPU, which is what the rules save. A GPU with a root port of its own shares its link with no
NIC, so for the rule it is a switch without one. `sumpter plan` counts in the same way
(`local_reduction` in crates/plan). The rule has its name only where all that it depends on is
known:

| NVLink among all GPUs | switches with GPUs | rule |
|---|---|---|
| no, or only among some | any | cpu-assisted |
| yes | some with, some without a NIC | reduce-broadcast |
| yes | all with, or all without a NIC | reduce-scatter |
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sumpter.topology.devices import GPU, NIC, ROOT_PORT, SWITCH, UNKNOWN, Device, HostBridge
from sumpter.topology.nvlink import NvLink

ALL = "all"
SOME = "some"
NONE = "none"

RULES = {
    "cpu-assisted": "reduce-scatter below each switch, then the CPU adds",
    "reduce-scatter": "reduce-scatter and all-gather over NVLink",
    "reduce-broadcast": "reduce to, and broadcast from, GPUs that share no switch with a NIC",
}


@dataclass(frozen=True)
class Switch:
    """The topmost switch below a root port, and the names of what is below it."""

    address: str
    gpus: tuple[str, ...]
    nics: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        return {"address": self.address, "gpus": list(self.gpus), "nics": list(self.nics)}


@dataclass(frozen=True)
class Facts:
    """What is known of GPUs, NICs and switches; None is what is not known.

    `nvlink` says whether GPUs reach each other over NVLink: "all", "some" or "none"; None where it
    is not known or there are not two GPUs. `rule` is a key of `RULES`, else `why` says why not.
    """

    gpus: int
    nics: int
    nvlink: str | None
    switches: tuple[Switch, ...]
    placed: bool
    rule: str | None
    why: str

    @property
    def with_nic(self) -> int | None:
        """Switches that have GPUs and a NIC."""
        return sum(1 for each in self._of_gpus() if each.nics) if self.placed else None

    @property
    def without_nic(self) -> int | None:
        """Switches that have GPUs and no NIC."""
        return sum(1 for each in self._of_gpus() if not each.nics) if self.placed else None

    @property
    def gpus_per_switch(self) -> tuple[int, ...] | None:
        """GPUs of each switch that has any."""
        return tuple(len(each.gpus) for each in self._of_gpus()) if self.placed else None

    @property
    def gpus_without_switch(self) -> int | None:
        """GPUs with a root port of their own."""
        return self.gpus - sum(self.gpus_per_switch or ()) if self.placed else None

    @property
    def shares_switch(self) -> bool | None:
        """Whether a NIC and a GPU are below one switch."""
        return None if self.with_nic is None else self.with_nic > 0

    def _of_gpus(self) -> list[Switch]:
        return [switch for switch in self.switches if switch.gpus]

    def as_dict(self) -> dict[str, object]:
        return {
            "gpus": self.gpus,
            "nics": self.nics,
            "nvlink": self.nvlink,
            "nic_shares_switch": self.shares_switch,
            "switches_with_nic": self.with_nic,
            "switches_without_nic": self.without_nic,
            "gpus_per_switch": None if self.gpus_per_switch is None else list(self.gpus_per_switch),
            "gpus_without_switch": self.gpus_without_switch,
            "switches": [switch.as_dict() for switch in self.switches],
            "rule": self.rule,
            "why": self.why or None,
        }


def gather(bridges: tuple[HostBridge, ...], nvlink: NvLink, whole: bool) -> Facts:
    """The facts of a machine. `whole` is whether every PCI device is in the tree and every network
    interface with hardware belongs to one."""
    devices = [device for bridge in bridges for device in bridge.walk()]
    gpus = [device for device in devices if device.kind == GPU]
    nics = [device for device in devices if device.kind == NIC]
    unknown = [device for device in devices if device.kind == UNKNOWN]
    named = {gpu.address for gpu in gpus}
    every = named | {gpu.address for gpu in nvlink.gpus}
    placed = whole and not unknown and named == every
    placed = placed and all(device.placed for device in gpus + nics)
    found = tuple(_switch(device) for device in devices if device.kind == ROOT_PORT)
    switches = tuple(each for each in found if each and (each.gpus or each.nics))
    among = _nvlink_among(every, nvlink)
    facts = Facts(len(every), len(nics), among, switches, placed, None, "")
    rule, why = _rule(facts)
    return replace(facts, rule=rule, why=why)


def _switch(port: Device) -> Switch | None:
    """The switch right below a root port, if there is one."""
    top = next((child for child in port.children if child.kind == SWITCH), None)
    if top is None:
        return None
    below = list(top.walk())
    return Switch(
        top.address,
        tuple(device.name for device in below if device.kind == GPU),
        tuple(device.name for device in below if device.kind == NIC),
    )


def _nvlink_among(gpus: set[str], nvlink: NvLink) -> str | None:
    seen = {gpu.address for gpu in nvlink.gpus}
    if len(gpus) < 2 or nvlink.unknown or not gpus <= seen:
        return None
    islands = nvlink.islands()
    if any(gpus <= island for island in islands):
        return ALL
    return SOME if any(len(gpus & island) > 1 for island in islands) else NONE


def _rule(facts: Facts) -> tuple[str | None, str]:
    if facts.gpus < 2:
        return None, "there is only one GPU" if facts.gpus else "no GPU is seen"
    if not facts.placed:
        return None, "it is not known below which switches GPUs and NICs are"
    if facts.nvlink is None:
        return None, "it is not known whether GPUs have NVLink among each other"
    if facts.nvlink != ALL:
        return "cpu-assisted", ""
    alone = facts.without_nic or facts.gpus_without_switch
    return "reduce-broadcast" if facts.with_nic and alone else "reduce-scatter", ""
