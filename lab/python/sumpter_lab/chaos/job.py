"""The processes of one training job: coordinator, servers in their slots, workers."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sumpter import _native
from sumpter.launch.attendant import free_port
from sumpter_lab.chaos.site import Site
from sumpter_lab.scaffold.jobs.processes import Process, first_error, inherited
from sumpter_lab.scaffold.network.site import Place

# A loaded machine may take a minute to import torch four times.
START_TIMEOUT_S = 300
# How long a server may take to drain, and how it ends then.
DRAIN_LIMIT_S = 60.0
DRAINED = (0, 128 + signal.SIGTERM)

_SUMPTER = (sys.executable, "-P", "-m", "sumpter")


class TrainingJob:
    """One job. Started by the constructor; `end` leaves no process."""

    def __init__(
        self,
        site: Site,
        folder: Path,
        settings: Mapping[str, str],
        command: Sequence[str],
        servers: int,
        timeline: Path,
    ) -> None:
        self.site, self.folder = site, folder
        self.servers: dict[int, Process] = {}
        self.stopped: set[int] = set()  # slots whose server got a SIGSTOP
        self.draining: dict[Process, float] = {}
        self.gone: list[Process] = []  # processes that ended, as they should or not
        self.problems: list[str] = []
        self._started = 0
        self._port, store = free_port(), free_port()
        self.spared_ports = frozenset((self._port, store))
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(_native.generate_token())
        self.token = token.read_text()
        names = {row["name"]: row["env"] for row in _native.settings()}
        self._common = {
            **inherited(),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **{names[name]: text for name, text in settings.items()},
            "SUMPTER_COORDINATOR": self.address,
            "SUMPTER_TOKEN_FILE": str(token),
        }
        self.coordinator = self.start_coordinator()
        try:
            for slot in range(servers):
                self.start_server(slot)
            self.workers = tuple(self._worker(command, servers, store, timeline))
        except BaseException:
            self.end()
            raise

    @property
    def address(self) -> str:
        """The coordinator's."""
        return f"{self.site.coordinator.address}:{self._port}"

    def start_coordinator(self) -> Process:
        """Starts one; always at the same address."""
        command = (*_SUMPTER, "coordinator", "--listen", self.address)
        self.coordinator = self._start("coordinator", self.site.coordinator, command, {})
        return self.coordinator

    def start_server(self, slot: int) -> Process:
        """Starts a server in a free slot."""
        place = self.site.servers[slot]
        variables = {"SUMPTER_MACHINE": place.name, "SUMPTER_LANES": "1"}
        process = self._start(f"server-{place.name}", place, (*_SUMPTER, "serve"), variables)
        self.servers[slot] = process
        return process

    def drain(self, slot: int) -> None:
        """Tells a server to finish and leave; its slot is free when it has."""
        self.draining[self.servers[slot]] = time.monotonic()
        self.servers[slot].signal(signal.SIGTERM)

    def kill_server(self, slot: int) -> None:
        """Kills a server; its slot is free at once."""
        self.stopped.discard(slot)
        process = self.servers.pop(slot)
        process.end()
        self.gone.append(process)

    def steady(self) -> list[int]:
        """The slots whose server is there and is neither stopped nor draining."""
        return [
            slot
            for slot, process in sorted(self.servers.items())
            if slot not in self.stopped and process not in self.draining and process.code is None
        ]

    def free(self) -> list[int]:
        """The slots without a server."""
        return [slot for slot in range(len(self.site.servers)) if slot not in self.servers]

    def look(self) -> None:
        """Notices servers that have left, asked or not, and those that should have."""
        now = time.monotonic()
        for slot, process in list(self.servers.items()):
            if process.code is None:
                if now - self.draining.get(process, now) > DRAIN_LIMIT_S:
                    self.problems.append(
                        f"{process.name} had not left {DRAIN_LIMIT_S:.0f} s after SIGTERM"
                    )
                    self.kill_server(slot)
                continue
            # One that has said nothing had hardly started, and may end in any way.
            died = process.code not in DRAINED and bool(process.output())
            if process not in self.draining or died:
                how = "after SIGTERM" if process in self.draining else "unasked"
                said = first_error(process.output()) or "no error in its log"
                self.problems.append(
                    f"{process.name} ended {how} with exit code {process.code}: {said}"
                )
            self.stopped.discard(slot)
            self.gone.append(self.servers.pop(slot))

    def processes(self) -> list[Process]:
        """All that were started."""
        workers = getattr(self, "workers", ())
        return [self.coordinator, *workers, *self.servers.values(), *self.gone]

    def end(self) -> None:
        """Kills what is left."""
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                process.end()

    def _worker(
        self, command: Sequence[str], servers: int, store: int, timeline: Path
    ) -> Iterator[Process]:
        places = self.site.workers
        for rank, place in enumerate(places):
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(places)),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": places[0].address,
                "MASTER_PORT": str(store),
                "SUMPTER_MACHINE": place.name,
                "SUMPTER_SERVERS": str(servers),
                "SUMPTER_START_TIMEOUT_S": str(START_TIMEOUT_S),
                "SUMPTER_TIMELINE": str(timeline),
            }
            yield self._start(f"worker-{rank}", place, command, variables)

    def _start(
        self, name: str, place: Place, command: Sequence[str], variables: Mapping[str, str]
    ) -> Process:
        # Numbered, since there are many of some: each has a log of its own.
        self._started += 1
        log = self.folder / f"{self._started:04}-{name}.log"
        return Process(name, place.command(command), {**self._common, **variables}, log)
