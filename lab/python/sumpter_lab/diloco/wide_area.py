"""Two sites and the wide-area link between them: a network namespace each, and a relay.

The kernel's netem would delay packets, but not every kernel has it; the relay needs TUN devices
only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from sumpter._failure import Failure
from sumpter_lab.diloco.path import Shape
from sumpter_lab.diloco.relay import TUN_DEVICE
from sumpter_lab.scaffold.jobs.remote import Remote, call_all
from sumpter_lab.scaffold.network import cluster, namespaces
from sumpter_lab.scaffold.network.cluster import INTERFACE, Machine
from sumpter_lab.scaffold.network.namespaces import ip
from sumpter_lab.scaffold.network.tournament import START_TIMEOUT_S

SITES = 2
_NETWORK = "10.84.0"
# The relay is no part of the network that it makes.
_OUTSIDE = Machine("relay", 0, "", "", 0.0)


def check_host() -> None:
    """Raises unless two namespaces can be joined here."""
    namespaces.check_tools()
    if not os.path.exists(TUN_DEVICE):
        raise Failure(f"this machine has no {TUN_DEVICE}: load the module tun")


@contextlib.contextmanager
def joined(shape: Shape, *, idle_restart: bool = True) -> Iterator[tuple[list[Machine], Remote]]:
    """Two sites and the relay between them; all is removed when the block is left, however.

    `idle_restart` is tcp_slow_start_after_idle of both.
    """
    with namespaces.of_this_run() as prefix:
        sites = [
            Machine("gpu", index, f"{prefix}site{index}", f"{_NETWORK}.{1 + index}", 0.0)
            for index in range(SITES)
        ]
        with cluster.inherited(cluster.CONGESTION_CONTROL):
            for site in sites:
                ip("netns", "add", site.namespace)
        relay = Remote(_OUTSIDE, "Relay", [site.namespace for site in sites], shape)
        try:
            # Its first answer comes when it has made its devices.
            call_all([relay], START_TIMEOUT_S, "counts")
            for site in sites:
                _address(site, idle_restart)
            yield sites, relay
        finally:
            relay.end(timeout_s=1.0)


def _address(site: Machine, idle_restart: bool) -> None:
    own = site.namespace
    ip("addr", "add", f"{site.address}/24", "dev", INTERFACE, namespace=own)
    ip("link", "set", "lo", "up", namespace=own)
    name = "/proc/sys/net/ipv4/tcp_slow_start_after_idle"
    namespaces.call("ip", "netns", "exec", own, "sh", "-ec", f'echo "{int(idle_restart)}" > {name}')
