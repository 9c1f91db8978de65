"""Where the processes run: this machine's loopback, or an emulated cluster with a narrow server.

In the cluster each job has a machine of its own, and only the server's link is narrow: what is
measured then is how that link is shared, and not the cores.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from sumpter_lab.scaffold.network import cluster, namespaces
from sumpter_lab.scaffold.network.cluster import Machine
from sumpter_lab.scaffold.network.site import Loopback, Namespace, Place
from sumpter_lab.scaffold.units import RATE_MBIT_RANGE

# A job's link carries so much more than the server's that it never is what limits.
_WIDER = 4
# Wide enough that what jobs may have on their way is what the server allows each.
_RECEIVE_WINDOW = "4096 262144 2097152"


@dataclass(frozen=True)
class Site:
    """All machines of a run."""

    jobs: tuple[Machine, ...]
    server: Place
    coordinator: Place


@contextlib.contextmanager
def loopback(jobs: int) -> Iterator[Site]:
    """Plain processes; needs no root."""
    machine = [Machine("gpu", index, "", Loopback.address, 0.0) for index in range(jobs)]
    yield Site(tuple(machine), Loopback("cpu"), Loopback("coordinator"))


@contextlib.contextmanager
def shaped(jobs: int, rate_mbit: float) -> Iterator[Site]:
    """Network namespaces; the server's link carries `rate_mbit` each way."""
    namespaces.check_tools()
    wide_mbit = min(_WIDER * rate_mbit, RATE_MBIT_RANGE[1])
    rates = ([wide_mbit] * jobs, [rate_mbit, wide_mbit])
    with cluster.emulated(*rates, receive_window=_RECEIVE_WINDOW) as built:
        switch = f"{namespaces.run_prefix()}switch"
        server, coordinator = (Namespace(machine, switch) for machine in built.cpu)
        yield Site(built.gpu, server, coordinator)
