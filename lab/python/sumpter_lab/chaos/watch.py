"""How training goes on: every round of rank 0 as it ends, and the coordinator's view."""

from __future__ import annotations

import json
import os
import select
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sumpter import _native
from sumpter_lab.scaffold.network.site import Place

_PATIENCE_S = 0.2
_STATUS_EVERY_S = 0.5
_READ_BYTES = 1 << 16
# Rank 0 has two spans for an operation: this one is its wait for the name.
_WAIT_PREFIX = "NEGOTIATE_"


@dataclass(frozen=True)
class Round:
    """One operation of rank 0 that is over."""

    at_s: float  # on this process' monotonic clock
    bytes: int
    failed: bool


class _Watch:
    """A thread that looks until the block is left."""

    def __init__(self, name: str) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError


class Rounds(_Watch):
    """Rank 0's timeline, read while it is written: the file is a pipe."""

    def __init__(self, path: Path) -> None:
        self.seen: list[Round] = []
        os.mkfifo(path, 0o600)
        # Open before the writer is, which would wait for a reader.
        self._pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        super().__init__("rounds")

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        os.close(self._pipe)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        rest = b""
        while True:
            # Without a writer the pipe is always ready, with nothing in it.
            ready = any(event & select.POLLIN for _, event in poll.poll(_PATIENCE_S * 1000))
            data = os.read(self._pipe, _READ_BYTES) if ready else b""
            if not data:
                if self._over.is_set():
                    return
                time.sleep(0.01)
                continue
            now = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            self.seen += [found for line in lines if (found := parse_round(line, now))]


def parse_round(line: bytes, at_s: float) -> Round | None:
    """The operation that a line of the timeline records; None for any other line."""
    try:
        entry = json.loads(line.rstrip(b",\r "))
    except ValueError:
        return None
    if not isinstance(entry, dict) or entry.get("ph") != "X":
        return None
    if entry["name"].startswith(_WAIT_PREFIX):
        return None
    return Round(at_s, int(entry["args"]["bytes"]), bool(entry["args"].get("failed")))


class Views(_Watch):
    """What `sumpter status` says, again and again: epochs, and how many machines help."""

    def __init__(self, place: Place, settings: dict[str, str]) -> None:
        self.epoch = 0
        self.helpers: Counter[int] = Counter()  # looks, by k
        self._place, self._settings = place, settings
        super().__init__("views")

    def _run(self) -> None:
        self._place.enter()
        while not self._over.wait(_STATUS_EVERY_S):
            try:
                view = json.loads(_native.status(self._settings))
            except RuntimeError:
                continue  # it is down, or busy; the next look may succeed
            for job in view.get("jobs") or []:
                if job.get("state") == "running":
                    self.epoch = max(self.epoch, int(job.get("epoch") or 0))
                    self.helpers[int((job.get("machines") or {}).get("cpu") or 0)] += 1
