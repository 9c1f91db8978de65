"""Follows a running job: polls its status, and draws the live line from two successive ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rich.text import Text

from sumpter.launch.figures import format_optional, goodput_gbps, mean, optimum_share
from sumpter.launch.status import Job, merge, read_status

# A person reads the line; a status call costs well under a millisecond.
_POLL_INTERVAL_S = 1.0


class Progress:
    """The last status of a job; a thread of its own fetches it, so slow calls delay no output."""

    def __init__(self, fetch: Callable[[], str], bandwidth_gbps: float | None) -> None:
        self._fetch = fetch
        self._bandwidth_gbps = bandwidth_gbps
        self._ended = threading.Event()
        self._previous: tuple[float, Job] | None = None
        self._current: tuple[float, Job] | None = None
        self._thread = threading.Thread(target=self._poll, name="status", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> Job | None:
        """Ends polling after a last look; the job as it was last seen."""
        self._ended.set()
        self._thread.join(timeout=_POLL_INTERVAL_S)
        return self._current[1] if self._current else None

    def has_workers(self) -> bool:
        """Whether any worker is a member of a job at the moment."""
        try:
            jobs = read_status(self._fetch())
        except RuntimeError:
            return False
        return any(not worker.gone for job in jobs for worker in job.workers)

    def line(self) -> Text:
        """The live line: step, samples, goodput, share of the optimum."""
        current, previous = self._current, self._previous
        if current is None or not current[1].workers:
            return Text("waiting for the workers to join", style="dim")
        now_s, job = current
        before_s, before = previous or (now_s, job)
        step = max(worker.stats.step for worker in job.workers)
        summed = mean(job.workers, "tensor_bytes") - mean(before.workers, "tensor_bytes")
        busy_s = mean(job.workers, "busy_s") - mean(before.workers, "busy_s")
        samples = sum(worker.stats.samples for worker in job.workers)
        new_samples = samples - sum(worker.stats.samples for worker in before.workers)
        speed = new_samples / (now_s - before_s) if samples and now_s > before_s else None
        share = optimum_share(job, summed, busy_s, self._bandwidth_gbps)
        parts = (
            ("step ", f"{step:.0f}"),
            ("samples/s ", format_optional(speed, "{:,.0f}")),
            ("goodput ", format_optional(goodput_gbps(summed, busy_s), "{:.2f} Gb/s")),
            ("of the optimum ", format_optional(share, "{:.0%}")),
        )
        line = Text(f"n={job.gpu_machines} k={job.cpu_machines}", style="dim")
        for name, value in parts:
            line.append(f"  {name}").append(value, style="bold not dim")
        line.no_wrap = True
        line.overflow = "ellipsis"
        return line

    def _poll(self) -> None:
        ended = False
        while not ended:
            ended = self._ended.wait(_POLL_INTERVAL_S)
            try:
                jobs = read_status(self._fetch())
            except RuntimeError:
                # The coordinator is busy or ending; the next look may succeed.
                continue
            if jobs:
                job = max(jobs, key=lambda job: job.generation)
                known = self._current
                if known is not None and known[1].name != job.name:
                    # Another generation of an elastic job counts from the start.
                    known = None
                self._previous = known
                self._current = (time.monotonic(), merge(known[1] if known else None, job))
