"""How the ranks of a job find their coordinator.

Given an address, they use it. Without one, rank 0 embeds a coordinator and the others learn its
address: from a board that the framework offers (torch's store), or, where there is none, by a
rule (one port above MASTER_PORT), which needs a token that everyone knows already.
"""

import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from sumpter import _environment, _native
from sumpter._errors import StartError

EVERYWHERE = "0.0.0.0"


class Board(Protocol):
    """Where rank 0 posts one text for the other ranks of its job."""

    @property
    def host(self) -> str:
        """A host on the network that the ranks share."""

    def post(self, text: str) -> None:
        """Publishes `text`; called by rank 0 only, once."""

    def read(self, timeout_s: float) -> str:
        """Waits for what rank 0 posted; raises StartError when the time runs out."""


@dataclass(frozen=True)
class Meeting:
    """What a rank needs to join: its settings, and the coordinator if it embeds one."""

    settings: dict[str, str]
    coordinator: _native.Coordinator | None = None
    # Whether the coordinator is embedded, in this rank 0 or in another process'.
    is_in_rank_0: bool = True


def meet(given: dict[str, str], board: Callable[[], Board] | None) -> Meeting:
    """Finds or starts the coordinator for a process with the settings `given`.

    What the environment says in other launchers' words is among the settings that come back.
    """
    given = {**_environment.read(given).settings, **given}
    if _setting(given, "coordinator"):
        return Meeting(given, is_in_rank_0=False)
    if is_elastic(given):
        raise StartError(
            "elastic workers (min_workers) need a coordinator outside the workers: start "
            "them with `sumpter run --min-workers`, or run `sumpter coordinator` and set "
            "SUMPTER_COORDINATOR to its HOST:PORT"
        )
    world_size = int(_number(given, "world_size"))
    if world_size == 1:
        return _embed(given, "127.0.0.1:0")
    rank = int(_number(given, "rank"))
    if board is not None:
        return _meet_at_board(given, rank, board())
    return _meet_by_rule(given, rank, world_size)


def start_timeout_s(given: Mapping[str, str] = MappingProxyType({})) -> float:
    """How long to wait for the other ranks at the start."""
    given = {**_environment.read(given).settings, **given}
    return _number(given, "start_timeout_s")


def is_elastic(given: Mapping[str, str]) -> bool:
    """Whether the job goes on when workers die."""
    return _number(given, "min_workers") > 0


def has_timeline(given: Mapping[str, str]) -> bool:
    """Whether a timeline is written from the start."""
    return bool(_setting(given, "timeline"))


def device_group(given: Mapping[str, str]) -> str:
    """The name of this rank's device group, or how to find it; nothing without one."""
    return _setting(given, "device_group")


def job_name(given: Mapping[str, str]) -> str:
    """The name of the job."""
    return _setting(given, "job") or _row("job")["default"]


def _meet_at_board(given: dict[str, str], rank: int, board: Board) -> Meeting:
    if rank != 0:
        notice = json.loads(board.read(start_timeout_s(given)))
        if "error" in notice:
            raise StartError(f"rank 0 could not start the coordinator: {notice['error']}")
        return Meeting({**given, **notice})
    try:
        own = own_address(board.host)
        meeting = _embed(given, f"[{own}]:0" if ":" in own else f"{own}:0")
    except Exception as error:
        board.post(json.dumps({"error": str(error)}))
        raise
    notice = {"coordinator": meeting.settings["coordinator"]}
    if not _has_token(given):
        # A board may be readable by others on the network, so a token that the ranks were given
        # is never posted; one made up for this run has to be.
        notice["token"] = meeting.settings["token"]
    board.post(json.dumps(notice))
    return meeting


def _meet_by_rule(given: dict[str, str], rank: int, world_size: int) -> Meeting:
    environment = _environment.read(given)
    host, port = environment.master_host, environment.master_port
    if not host or not port:
        raise StartError(
            f"world_size is {world_size} but no coordinator is known: set SUMPTER_COORDINATOR to "
            "HOST:PORT of a running one (`sumpter run` does), or MASTER_ADDR and MASTER_PORT, "
            "equal on every rank, so that rank 0 can start one on the next port"
        )
    if not _has_token(given):
        raise StartError(
            f"world_size is {world_size} and there is no token: set SUMPTER_TOKEN to the same "
            "secret on every rank, or start the job with `sumpter run`, which makes one"
        )
    if not port.isdigit() or not 0 < int(port) < 65535:
        raise StartError(f"MASTER_PORT is {port!r}: it must be a port number below 65535")
    address = int(port) + 1
    if rank == 0:
        meeting = _embed(given, f"{EVERYWHERE}:{address}")
        return Meeting(
            {**meeting.settings, "coordinator": f"{host}:{address}"}, meeting.coordinator
        )
    return Meeting({**given, "coordinator": f"{host}:{address}"})


def _embed(given: dict[str, str], listen: str) -> Meeting:
    settings = dict(given)
    if not _has_token(given):
        settings["token"] = _native.generate_token()
    coordinator = _native.Coordinator(listen, settings)
    settings["coordinator"] = coordinator.address
    return Meeting(settings, coordinator)


def own_address(host: str) -> str:
    """This machine's address on its way to `host`: the one under which other ranks reach it."""
    try:
        found = socket.getaddrinfo(host, 1, socket.AF_INET, socket.SOCK_DGRAM)
    except socket.gaierror:
        found = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)
    family, kind, _, _, address = found[0]
    # Connecting a datagram socket sends nothing; it only asks the routing table.
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def is_own_address(address: str) -> bool:
    """Whether an IPv4 address is one of this machine's."""
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return bool(address)


def _has_token(given: Mapping[str, str]) -> bool:
    return bool(_setting(given, "token") or _setting(given, "token_file"))


def _number(given: Mapping[str, str], name: str) -> float:
    text = _setting(given, name) or _row(name)["default"]
    try:
        return float(text)
    except ValueError:
        raise StartError(f"setting {name} is {text!r}: it must be a number") from None


def _setting(given: Mapping[str, str], name: str) -> str:
    """The text of a setting: an argument, else its environment variable, else nothing."""
    return given.get(name) or _environment.own_variable(name)


def _row(name: str) -> dict[str, str]:
    return next(row for row in _native.settings() if row["name"] == name)
