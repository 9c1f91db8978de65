"""The emulated cluster: one network namespace a machine, all joined by one bridge.

Each machine has one interface, `net0`. Both ends of its link are shaped, so that each direction
carries its rate and no more. What the recipe is for:

- cubic, since it is what users have; namespaces inherit it from the root namespace when they are
  made and cannot set it themselves, so it is set there for that moment and put back;
- a small token bucket keeps the rate honest, a deep queue behind it avoids losses;
- bounded receive windows keep queues and round trips short, and flows fair;
- connections start slowly again after a pause, as the kernel has it by default, or do not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sumpter_lab.scaffold.network import namespaces
from sumpter_lab.scaffold.network.namespaces import ip, tc

INTERFACE = "net0"
CONGESTION_CONTROL = "cubic"
MTU_BYTES = 1500
GSO_BYTES = 65536
SHAPING = ("burst", "70kb", "limit", "4mb")
RECEIVE_WINDOW = "4096 65536 131072"
# The bridge's namespace is no one else's network, so any private range will do.
_NETWORK = "10.83.0"
MOST_MACHINES = 250

_LOCK_FILE = Path("/run/sumpter-emulate.lock")
_CONGESTION_FILE = Path("/proc/sys/net/ipv4/tcp_congestion_control")


@dataclass(frozen=True)
class Machine:
    """One machine of the cluster."""

    role: str  # "gpu" or "cpu"
    index: int
    namespace: str
    address: str
    rate_mbit: float

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"


@dataclass(frozen=True)
class Cluster:
    """The machines of a cluster, those with workers first."""

    gpu: tuple[Machine, ...]
    cpu: tuple[Machine, ...]

    @property
    def machines(self) -> tuple[Machine, ...]:
        return self.gpu + self.cpu


@contextlib.contextmanager
def emulated(
    gpu_rates_mbit: list[float],
    cpu_rates_mbit: list[float],
    *,
    receive_window: str = RECEIVE_WINDOW,
    idle_restart: bool = True,
) -> Iterator[Cluster]:
    """Builds the cluster and removes it when the block is left, however it is left.

    What runs that were killed have left behind is removed first, with a line that says so.
    `receive_window` is what connections may have on their way, as in tcp_rmem: bytes at least, at
    first and at most; `idle_restart` is tcp_slow_start_after_idle.
    """
    kernel = {"tcp_rmem": receive_window, "tcp_slow_start_after_idle": str(int(idle_restart))}
    with namespaces.of_this_run() as prefix:
        yield _build(prefix, gpu_rates_mbit, cpu_rates_mbit, kernel)


def reshape(cluster: Cluster, rate_mbit: float) -> None:
    """Gives all links this rate from now on; what is queued stays."""
    rate = f"{rate_mbit:g}mbit"
    for machine in cluster.machines:
        switch, port = _port(machine)
        for namespace, device in ((machine.namespace, INTERFACE), (switch, port)):
            tc(
                *("qdisc", "change", "dev", device, "root", "tbf", "rate", rate, *SHAPING),
                namespace=namespace,
            )


def _build(
    prefix: str,
    gpu_rates_mbit: list[float],
    cpu_rates_mbit: list[float],
    kernel: dict[str, str],
) -> Cluster:
    cluster = Cluster(
        _machines(prefix, "gpu", gpu_rates_mbit, 1),
        _machines(prefix, "cpu", cpu_rates_mbit, 1 + len(gpu_rates_mbit)),
    )
    switch = f"{prefix}switch"
    with inherited(CONGESTION_CONTROL):
        for name in (switch, *(machine.namespace for machine in cluster.machines)):
            ip("netns", "add", name)
    ip("link", "add", "bridge", "type", "bridge", namespace=switch)
    ip("link", "set", "bridge", "up", namespace=switch)
    for machine in cluster.machines:
        _connect(machine, kernel)
    return cluster


def _port(machine: Machine) -> tuple[str, str]:
    """The bridge's end of a machine's link: its namespace and its device."""
    prefix = machine.namespace.removesuffix(f"{machine.role}{machine.index}")
    return f"{prefix}switch", f"port-{machine.role}{machine.index}"


def _machines(prefix: str, role: str, rates: list[float], first: int) -> tuple[Machine, ...]:
    return tuple(
        Machine(role, index, f"{prefix}{role}{index}", f"{_NETWORK}.{first + index}", rate)
        for index, rate in enumerate(rates)
    )


def _connect(machine: Machine, kernel: dict[str, str]) -> None:
    """Plugs a machine into the bridge with a shaped link, and gives it its kernel's settings."""
    switch, port = _port(machine)
    own, limits = machine.namespace, ("mtu", str(MTU_BYTES), "gso_max_size", str(GSO_BYTES))
    ip("link", "add", INTERFACE, "netns", own, "type", "veth", "peer", port, "netns", switch)
    for namespace, device in ((own, INTERFACE), (switch, port)):
        ip("link", "set", device, *limits, namespace=namespace)
        rate = f"{machine.rate_mbit:g}mbit"
        tc(
            *("qdisc", "add", "dev", device, "root", "tbf", "rate", rate, *SHAPING),
            namespace=namespace,
        )
    ip("link", "set", port, "master", "bridge", "up", namespace=switch)
    ip("addr", "add", f"{machine.address}/24", "dev", INTERFACE, namespace=own)
    for device in ("lo", INTERFACE):
        ip("link", "set", device, "up", namespace=own)
    # The tree under /proc/sys/net is that of the writer's namespace.
    lines = (f'echo "{value}" > /proc/sys/net/ipv4/{name}' for name, value in kernel.items())
    namespaces.call("ip", "netns", "exec", own, "sh", "-ec", "\n".join(lines))


@contextlib.contextmanager
def inherited(control: str) -> Iterator[None]:
    """Makes `control` the congestion control that new namespaces inherit."""
    # Two runs at once would put back each other's value, or too early. Not a lock on the folder
    # of namespaces: `ip netns add` takes that one itself.
    lock = os.open(_LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = _CONGESTION_FILE.read_text().strip()
        try:
            _CONGESTION_FILE.write_text(control)
            yield
        finally:
            _CONGESTION_FILE.write_text(before)
    finally:
        os.close(lock)
