"""Namespaces: a job's name, its token and its coordinator, which its workers need to connect."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from sumpter import _json, _native
from sumpter._errors import ConfigError

# Addresses that mean every interface: no worker can connect to them.
_EVERYWHERE = ("0.0.0.0", "[::]", "")


@dataclass(frozen=True)
class Ticket:
    """What a worker needs to connect to a namespace. It holds the token: keep it secret."""

    namespace: str
    coordinator: str  # HOST:PORT
    token: str = field(repr=False)
    workers: int
    servers: int = 0  # that the namespace waits for at its start

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the ticket to a file that only this user can read; replaces an older one."""
        path = Path(path)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(dataclasses.asdict(self), file)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Ticket:
        """Reads what save() has written. Raises OSError, or ConfigError for another file."""
        try:
            found = _json.parse(Path(path).read_text(encoding="utf-8"), "a ticket")
            if not isinstance(found, dict):
                raise ValueError("expected the JSON of a ticket, which is an object")
            ticket = Ticket(**found)
            if not all(
                type(getattr(ticket, each.name)).__name__ == each.type
                for each in dataclasses.fields(ticket)
            ):
                raise ValueError("a field is of another type than a ticket's")
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path} is not a ticket of create_service(): {error}") from None
        return ticket


class Service:
    """A namespace that create_service() has made; as a context manager it ends with the block."""

    def __init__(self, ticket: Ticket, coordinator: _native.Coordinator | None) -> None:
        self.ticket = ticket
        self._coordinator = coordinator

    def __enter__(self) -> Service:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def wait(self) -> None:
        """Returns when the workers have come and gone; at once if the coordinator is elsewhere."""
        if self._coordinator is not None:
            self._coordinator.wait()

    def close(self) -> None:
        """Ends the coordinator if create_service() has started it. May be repeated.

        It waits a few seconds for members that have not left.
        """
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            coordinator.stop()


def create_service(
    namespace: str,
    *,
    workers: int,
    servers: int = 0,
    coordinator: str | None = None,
    token: str | None = None,
    listen: str = "127.0.0.1:0",
    repeated: bool = False,
    **settings: object,
) -> Service:
    """Makes a namespace for `workers` workers; its ticket is what they connect with.

    Without `coordinator` one starts in this process and listens on `listen`, an address by which
    workers reach this machine (port 0 is any free port); it lives until close(). Its token is
    `token`, or a new one. `servers` CPU machines join by `sumpter serve` with the coordinator's
    address and token, and the workers wait for them at the start. It serves one run of the workers,
    after which the servers end, or, if `repeated`, as many as begin. Further `settings` are the
    coordinator's.

    With `coordinator` the namespace is one that a running coordinator admits, such as a job of its
    file of tenants, and `token` is the token of that namespace. Raises AuthError if the coordinator
    does not admit that namespace with that token, StartError if it cannot be reached, ConfigError
    for settings that cannot be.
    """
    if not namespace:
        raise ConfigError("a namespace needs a name")
    if workers < 1 or servers < 0:
        raise ConfigError(
            f"workers={workers}, servers={servers}: there must be 1 worker or more, and 0 servers "
            "or more"
        )
    given = {name: str(value) for name, value in settings.items()}
    if coordinator is not None:
        if not token:
            raise ConfigError(
                f"namespace {namespace!r} is on the coordinator at {coordinator}: pass the token "
                "with which it admits the namespace"
            )
        # The answer comes after both have proved the token for this namespace.
        _native.status({**given, "coordinator": coordinator, "token": token}, namespace)
        return Service(Ticket(namespace, coordinator, token, workers, servers), None)
    if listen.rpartition(":")[0] in _EVERYWHERE:
        raise ConfigError(
            f"listen is {listen!r}: name the address by which workers reach this machine, such as "
            "10.0.0.1:0"
        )
    token = token or _native.generate_token()
    started = _native.Coordinator(listen, {**given, "token": token}, repeated=repeated)
    return Service(Ticket(namespace, started.address, token, workers, servers), started)
