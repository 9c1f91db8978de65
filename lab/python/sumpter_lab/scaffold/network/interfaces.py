"""Further network interfaces for machines of an emulated cluster.

Interface q of a machine is `netQ`, with a link of its own, shaped as the machine's first one, and
an address in network q. A machine with fewer interfaces has its address in network q at its first
one, so that every machine reaches every interface of every other, and the routing table sends each
answer back by the interface that was asked. An interface answers for its own address only.
"""

from __future__ import annotations

from collections.abc import Mapping

from sumpter_lab.scaffold.network import namespaces
from sumpter_lab.scaffold.network.cluster import (
    GSO_BYTES,
    INTERFACE,
    MTU_BYTES,
    SHAPING,
    Cluster,
    Machine,
)
from sumpter_lab.scaffold.network.namespaces import ip, tc

# The kernel would answer for every address of a machine on every interface of it.
_ONE_ANSWER = ("arp_ignore=1", "arp_announce=2")


def name(number: int) -> str:
    """What interface `number` of a machine is called there."""
    return f"{INTERFACE.rstrip('0')}{number}"


def names(count: int) -> str:
    """The first interfaces of a machine, as the setting `interfaces`."""
    return ",".join(map(name, range(count)))


def plug(cluster: Cluster, counts: Mapping[str, int]) -> None:
    """Gives machines, by name, so many interfaces in all; the others keep one."""
    most = max(counts.values(), default=1)
    for machine in cluster.machines:
        own = counts.get(machine.name, 1)
        for number in range(1, most):
            if number < own:
                _connect(machine, number)
            device = name(number) if number < own else INTERFACE
            ip("addr", "add", f"{address(machine, number)}/24", "dev", device, **_in(machine))
        lines = "\n".join(
            f"echo {value} > /proc/sys/net/ipv4/conf/all/{setting}"
            for setting, value in (text.split("=") for text in _ONE_ANSWER)
        )
        namespaces.call("ip", "netns", "exec", machine.namespace, "sh", "-ec", lines)


def address(machine: Machine, number: int) -> str:
    """The address of a machine in network `number`."""
    first, second, third, host = machine.address.split(".")
    return f"{first}.{second}.{int(third) + number}.{host}"


def take_down(machine: Machine, number: int) -> None:
    """The machine's interface carries nothing any more."""
    ip("link", "set", name(number), "down", **_in(machine))


def bring_up(machine: Machine, number: int) -> None:
    """The machine's interface carries data again."""
    ip("link", "set", name(number), "up", **_in(machine))


def _connect(machine: Machine, number: int) -> None:
    own, short = machine.namespace, f"{machine.role}{machine.index}"
    switch = f"{own.removesuffix(short)}switch"
    device, end = name(number), f"port-{short}-{number}"
    ip("link", "add", device, "netns", own, "type", "veth", "peer", end, "netns", switch)
    for namespace, each in ((own, device), (switch, end)):
        limits = ("mtu", str(MTU_BYTES), "gso_max_size", str(GSO_BYTES))
        ip("link", "set", each, *limits, namespace=namespace)
        rate = ("tbf", "rate", f"{machine.rate_mbit:g}mbit", *SHAPING)
        tc("qdisc", "add", "dev", each, "root", *rate, namespace=namespace)
    ip("link", "set", end, "master", "bridge", "up", namespace=switch)
    ip("link", "set", device, "up", namespace=own)


def _in(machine: Machine) -> dict[str, str]:
    return {"namespace": machine.namespace}
