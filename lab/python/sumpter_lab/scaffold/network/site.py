"""A machine that runs commands: of an emulated cluster, or this one's loopback.

A place says how a command gets to it and under which address it is reached, and does to its link
what a fault wants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sumpter_lab.scaffold.network import cluster, namespaces
from sumpter_lab.scaffold.network.cluster import Machine

# What a silenced direction still carries: a packet every other second.
_SILENCE = ("rate", "8kbit", "burst", "1600", "limit", "4mb")


class Place(Protocol):
    """One machine, as the processes on it are started."""

    name: str
    address: str

    def command(self, command: Sequence[str]) -> list[str]: ...
    def enter(self) -> None: ...
    def plug(self, carries: bool) -> None: ...
    def hush(self, outwards: bool, silent: bool) -> None: ...


class Namespace:
    """A machine of an emulated cluster."""

    def __init__(self, machine: Machine, switch: str) -> None:
        self._machine, self._switch = machine, switch
        self.name, self.address = machine.name, machine.address

    def command(self, command: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self._machine.namespace, *command]

    def enter(self) -> None:
        """Moves the calling thread there."""
        namespaces.enter(self._machine.namespace)

    def plug(self, carries: bool) -> None:
        """Takes the cable out at the switch, or puts it in."""
        state = "up" if carries else "down"
        namespaces.ip("link", "set", self._port, state, namespace=self._switch)

    def hush(self, outwards: bool, silent: bool) -> None:
        """Lets one direction of the link carry next to nothing, or its rate again."""
        device = cluster.INTERFACE if outwards else self._port
        namespace = self._machine.namespace if outwards else self._switch
        rate = ("rate", f"{self._machine.rate_mbit:g}mbit", *cluster.SHAPING)
        shaping = _SILENCE if silent else rate
        namespaces.tc(
            *("qdisc", "change", "dev", device, "root", "tbf", *shaping), namespace=namespace
        )

    @property
    def _port(self) -> str:
        return f"port-{self._machine.role}{self._machine.index}"


class Loopback:
    """A machine that only pretends to be one."""

    address = "127.0.0.1"

    def __init__(self, name: str) -> None:
        self.name = name

    def command(self, command: Sequence[str]) -> list[str]:
        return list(command)

    def enter(self) -> None:
        """The calling thread is there already."""

    def plug(self, carries: bool) -> None:
        raise NotImplementedError("loopback has no cable")

    def hush(self, outwards: bool, silent: bool) -> None:
        raise NotImplementedError("loopback has no link")
