"""What the environment says of the job that would be started: where it meets, how large it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sumpter import _native

# What the documentation uses for a coordinator of its own.
COORDINATOR_PORT = 7700
# The default of torch's launchers.
MASTER_PORT = 29500


@dataclass(frozen=True)
class Meeting:
    """The host where the ranks meet, and what it is to them."""

    host: str
    source: str


@dataclass(frozen=True)
class Ports:
    """Ports that something listens on; `needed` if this environment asks for exactly these."""

    what: str
    ports: tuple[int, ...]
    needed: bool
    remedy: str


def meeting_point(environment: Mapping[str, str]) -> Meeting | None:
    """The coordinator's host, else the master's."""
    coordinator = host_and_port(environment.get("SUMPTER_COORDINATOR", ""))
    if coordinator is not None:
        return Meeting(coordinator[0], "the coordinator")
    master = environment.get("MASTER_ADDR")
    return Meeting(master, "MASTER_ADDR") if master else None


def host_and_port(text: str) -> tuple[str, int] | None:
    """The parts of HOST:PORT or [ADDRESS]:PORT; None if it is neither."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def number(environment: Mapping[str, str], setting: str) -> int:
    """A whole number of the settings table, its default where the environment has none."""
    row = next(row for row in _native.settings() if row["name"] == setting)
    text = environment.get(row["env"], "")
    # A malformed one is reported by the settings' check.
    return int(text if text.isdigit() else row["default"] or 0)


def machines(environment: Mapping[str, str]) -> int | None:
    """How many machines the workers are on; None if nothing says so."""
    local, world = environment.get("LOCAL_WORLD_SIZE", ""), environment.get("WORLD_SIZE", "")
    if not local.isdigit() or not world.isdigit() or int(local) == 0:
        return None
    return -(-int(world) // int(local))


def ports(environment: Mapping[str, str], cores: int) -> list[Ports]:
    """The ports that a coordinator, an embedded coordinator and a server would take here."""
    found = []
    if not environment.get("SUMPTER_COORDINATOR"):
        found.append(
            Ports(
                "coordinator's port",
                (COORDINATOR_PORT,),
                needed=False,
                remedy="if it is not your coordinator, give another port: sumpter coordinator "
                f"--listen 0.0.0.0:{COORDINATOR_PORT + 1}",
            )
        )
        found.append(_embedded(environment))
    first = number(environment, "port")
    if first:
        lanes = number(environment, "lanes") or cores
        listed = tuple(range(first, min(first + lanes, 1 << 16)))
        remedy = "choose another SUMPTER_PORT, or end the server that holds it"
        found.append(Ports("lanes' ports", listed, needed=True, remedy=remedy))
    return found


def _embedded(environment: Mapping[str, str]) -> Ports:
    """Where rank 0 listens if no store announces a free port to the others."""
    text = environment.get("MASTER_PORT", "")
    given = text.isdigit() and int(text) < 65535
    port = int(text) + 1 if given else MASTER_PORT + 1
    needed = given and number(environment, "world_size") > 1 and number(environment, "rank") == 0
    return Ports(
        "MASTER_PORT + 1",
        (port,),
        needed=needed,
        remedy="choose another MASTER_PORT, or start a coordinator and set SUMPTER_COORDINATOR",
    )
