"""Where the processes run: machines of an emulated cluster, or this machine's loopback."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass

from sumpter._failure import Failure
from sumpter_lab.scaffold.network import cluster, namespaces
from sumpter_lab.scaffold.network.site import Loopback, Namespace, Place


@dataclass(frozen=True)
class Site:
    """All machines of a run."""

    workers: tuple[Place, ...]
    servers: tuple[Place, ...]
    coordinator: Place


@contextlib.contextmanager
def emulated(workers: int, slots: int, rate_mbit: float) -> Iterator[Site]:
    """A network namespace for each machine, one more for the coordinator."""
    _check_emulation()
    with cluster.emulated([rate_mbit] * workers, [rate_mbit] * (slots + 1)) as built:
        switch = f"{namespaces.run_prefix()}switch"
        place = functools.partial(Namespace, switch=switch)
        cpu = [place(machine) for machine in built.cpu]
        yield Site(tuple(place(machine) for machine in built.gpu), tuple(cpu[:-1]), cpu[-1])


@contextlib.contextmanager
def local(workers: int, slots: int) -> Iterator[Site]:
    """Plain processes on loopback; needs no root."""
    yield Site(
        tuple(Loopback(f"gpu-{index}") for index in range(workers)),
        tuple(Loopback(f"cpu-{index}") for index in range(slots)),
        Loopback("coordinator"),
    )


def _check_emulation() -> None:
    try:
        namespaces.check_tools()
    except Failure as failure:
        reason = str(failure)
        raise Failure(f"{reason}; --local has plain processes on loopback instead") from None
