"""The progress of a long measurement on standard error: a bar for people, notes for logs."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from sumpter_lab.scaffold.network.tournament import Links


class Bar:
    """A bar over the whole run, in seconds of expected time."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            # Without a terminal a bar would only fill a log.
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("building the cluster", total=None)
        self._expected_s = 0.0
        self._done_s = 0.0

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def note(self, text: str, style: str = "") -> None:
        """A line above the bar."""
        self._console.print(text, style=style, soft_wrap=True)

    def estimate(self, total_s: float) -> None:
        self._bar.update(self._task, total=total_s)
        self.note(f"this takes about {_duration(total_s)}")

    def stage(self, what: str, expected_s: float) -> None:
        # Whatever the stage before really took, its expected time is over now.
        self._done_s += self._expected_s
        self._expected_s = expected_s
        self._bar.update(self._task, description=what, completed=self._done_s)

    def advance(self, share: float) -> None:
        self._bar.advance(self._task, share * self._expected_s)

    def links(self, links: Links) -> None:
        figures = sorted(set(round(mbit, 1) for mbit in links.goodput_mbit.values()))
        listed = ", ".join(f"{mbit:g}" for mbit in figures)
        self.note(f"links carry {listed} Mb/s of payload each way, both ways at once")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
