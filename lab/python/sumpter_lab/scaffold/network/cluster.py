"""The emulated cluster: one network namespace a machine, all joined by one bridge.

Each machine has one interface, `net0`. Both ends of its link are shaped, so that each direction
carries its rate and no more. With racks, each rack has a bridge of its own, and a link that is
shaped in the same way, its *trunk*, joins that to the common one, the core. What the recipe is for:

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sumpter_lab.scaffold.network import namespaces
from sumpter_lab.scaffold.network.namespaces import ip, tc

INTERFACE = "net0"
CONGESTION_CONTROL = "cubic"
MTU_BYTES = 1500
GSO_BYTES = 65536
# What may wait for a machine's link: more than the receive windows of its connections.
_QUEUE_MB = 4
SHAPING = ("burst", "70kb", "limit", f"{_QUEUE_MB}mb")
RECEIVE_WINDOW = "4096 65536 131072"
# The bridge's namespace is no one else's network, so any private range will do.
_NETWORK = "10.83.0"
MOST_MACHINES = 250
# The bridge that joins machines, or trunks.
_CORE = "bridge"

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
    rack: str | None = None

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"


@dataclass(frozen=True)
class Racks:
    """Racks with equally many machines of each role, and what the trunk of each carries."""

    count: int
    trunk_mbit: float  # each way


@dataclass(frozen=True)
class Trunk:
    """The link between the bridge of a rack and the core."""

    index: int
    namespace: str  # of both bridges
    rate_mbit: float

    @property
    def rack(self) -> str:
        return f"rack-{self.index}"

    @property
    def device(self) -> str:
        """The rack's end: it sends what leaves the rack."""
        return f"trunk-{self.index}"

    @property
    def core_device(self) -> str:
        return f"core-{self.index}"


@dataclass(frozen=True)
class Cluster:
    """The machines of a cluster, those with workers first; with racks, one rack after the other."""

    gpu: tuple[Machine, ...]
    cpu: tuple[Machine, ...]
    trunks: tuple[Trunk, ...] = ()

    @property
    def machines(self) -> tuple[Machine, ...]:
        return self.gpu + self.cpu

    def part(self, workers: int, servers: int) -> Cluster:
        """The first machines of each role; with racks, the first of each rack and role."""
        return Cluster(self._first(self.gpu, workers), self._first(self.cpu, servers), self.trunks)

    def _first(self, machines: tuple[Machine, ...], count: int) -> tuple[Machine, ...]:
        if not self.trunks:
            return machines[:count]
        racks = [[one for one in machines if one.rack == trunk.rack] for trunk in self.trunks]
        return tuple(one for rack in racks for one in rack[: count // len(racks)])


@contextlib.contextmanager
def emulated(
    gpu_rates_mbit: list[float],
    cpu_rates_mbit: list[float],
    *,
    receive_window: str = RECEIVE_WINDOW,
    idle_restart: bool = True,
    racks: Racks | None = None,
) -> Iterator[Cluster]:
    """Builds the cluster and removes it when the block is left, however it is left.

    What runs that were killed have left behind is removed first, with a line that says so.
    `receive_window` is what connections may have on their way, as in tcp_rmem: bytes at least, at
    first and at most; `idle_restart` is tcp_slow_start_after_idle. With `racks`, machines of a role
    are spread evenly: the first ones are in the first rack.
    """
    kernel = {"tcp_rmem": receive_window, "tcp_slow_start_after_idle": str(int(idle_restart))}
    with namespaces.of_this_run() as prefix:
        yield _build(prefix, gpu_rates_mbit, cpu_rates_mbit, kernel, racks)


def reshape(cluster: Cluster, rate_mbit: float) -> None:
    """Gives the links of all machines this rate from now on; what is queued stays."""
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
    racks: Racks | None,
) -> Cluster:
    switch = f"{prefix}switch"
    count, trunk_mbit = (racks.count, racks.trunk_mbit) if racks else (0, 0.0)
    trunks = tuple(Trunk(index, switch, trunk_mbit) for index in range(count))
    cluster = Cluster(
        _machines(prefix, "gpu", gpu_rates_mbit, 1, trunks),
        _machines(prefix, "cpu", cpu_rates_mbit, 1 + len(gpu_rates_mbit), trunks),
        trunks,
    )
    with inherited(CONGESTION_CONTROL):
        for name in (switch, *(machine.namespace for machine in cluster.machines)):
            ip("netns", "add", name)
    for bridge in (_CORE, *(trunk.rack for trunk in trunks)):
        ip("link", "add", bridge, "type", "bridge", namespace=switch)
        ip("link", "set", bridge, "up", namespace=switch)
    for trunk in trunks:
        _join(trunk, sum(machine.rack == trunk.rack for machine in cluster.machines))
    for machine in cluster.machines:
        _connect(machine, kernel)
    return cluster


def _port(machine: Machine) -> tuple[str, str]:
    """The bridge's end of a machine's link: its namespace and its device."""
    prefix = machine.namespace.removesuffix(f"{machine.role}{machine.index}")
    return f"{prefix}switch", f"port-{machine.role}{machine.index}"


def _machines(
    prefix: str, role: str, rates: list[float], first: int, trunks: Sequence[Trunk]
) -> tuple[Machine, ...]:
    def rack(index: int) -> str | None:
        return trunks[index * len(trunks) // len(rates)].rack if trunks else None

    return tuple(
        Machine(
            *(role, index, f"{prefix}{role}{index}", f"{_NETWORK}.{first + index}", rate),
            rack(index),
        )
        for index, rate in enumerate(rates)
    )


def _connect(machine: Machine, kernel: dict[str, str]) -> None:
    """Plugs a machine into its bridge with a shaped link, and gives it its kernel's settings."""
    switch, port = _port(machine)
    own = machine.namespace
    ip("link", "add", INTERFACE, "netns", own, "type", "veth", "peer", port, "netns", switch)
    for namespace, device in ((own, INTERFACE), (switch, port)):
        _shape(namespace, device, machine.rate_mbit, SHAPING)
    ip("link", "set", port, "master", machine.rack or _CORE, "up", namespace=switch)
    ip("addr", "add", f"{machine.address}/24", "dev", INTERFACE, namespace=own)
    for device in ("lo", INTERFACE):
        ip("link", "set", device, "up", namespace=own)
    # The tree under /proc/sys/net is that of the writer's namespace.
    lines = (f'echo "{value}" > /proc/sys/net/ipv4/{name}' for name, value in kernel.items())
    namespaces.call("ip", "netns", "exec", own, "sh", "-ec", "\n".join(lines))


def _join(trunk: Trunk, machines: int) -> None:
    """Joins a rack's bridge to the core; its queue is as deep as those of its machines together."""
    namespace, ends = trunk.namespace, (trunk.device, trunk.core_device)
    ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1], namespace=namespace)
    shaping = (*SHAPING[:-1], f"{_QUEUE_MB * machines}mb")
    for device, bridge in zip(ends, (trunk.rack, _CORE), strict=True):
        _shape(namespace, device, trunk.rate_mbit, shaping)
        ip("link", "set", device, "master", bridge, "up", namespace=namespace)


def _shape(namespace: str, device: str, rate_mbit: float, shaping: Sequence[str]) -> None:
    limits = ("mtu", str(MTU_BYTES), "gso_max_size", str(GSO_BYTES))
    ip("link", "set", device, *limits, namespace=namespace)
    tc(
        *("qdisc", "add", "dev", device, "root", "tbf", "rate", f"{rate_mbit:g}mbit", *shaping),
        namespace=namespace,
    )


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
