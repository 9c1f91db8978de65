"""`sumpter top`: the jobs of a coordinator, live in a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from sumpter import _native
from sumpter.cli.options import (
    CoordinatorOption,
    JobOption,
    JsonOption,
    TokenFileOption,
    TokenOption,
    reached,
)

if TYPE_CHECKING:
    from sumpter.launch.top import Top

EXAMPLE = "Example: sumpter top --coordinator 10.0.0.1:7700 --token-file cluster.token"


def top(
    coordinator: CoordinatorOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    job: JobOption = None,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", metavar="SECONDS", min=0.2, max=3600.0, help="Time between two looks."
        ),
    ] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one look, with means since the start, and end.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Watch jobs, workers and servers: goodput, share of the optimum, stragglers, queues.

    Figures are of the time between two looks. The share of the optimum needs bandwidth_gbps of
    every machine. Without a terminal, and with --json, it prints one look with means since the
    start. q or Ctrl-C ends it.
    """
    from sumpter.launch.top import Top, render

    settings, job = reached(coordinator, token, token_file, job)
    watched = Top(lambda: _native.status(settings, job))
    if as_json:
        typer.echo(json.dumps(watched.look().as_dict(), indent=2))
    elif once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        from rich.console import Console

        console = Console(highlight=False)
        console.print(render(watched.look(), console.width))
    else:
        _watch(watched, interval)


def _watch(watched: Top, interval: float) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from sumpter.launch.top import render

    view = watched.look()
    note = Text("means since the start; q ends", style="dim")
    console = Console(highlight=False)
    with (
        # Ctrl-C is a way to end like any other, wherever it comes.
        suppress(KeyboardInterrupt),
        _keys() as pressed,
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        while True:
            # The width may have changed.
            live.update(Group(render(view, console.width), Text(""), note), refresh=True)
            if pressed(interval) in ("q", "Q"):
                return
            try:
                view = watched.look()
                note = Text(f"every {interval:g} s; q ends", style="dim")
            except _native.SumpterError as error:
                # It may come back: the figures of the last look stay.
                note = Text(f"{error}; q ends", style="red")


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Gives a function that waits for a key for some seconds; the terminal shows none of them."""
    import select
    import termios
    import tty

    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([stdin], [], [], seconds)
        return sys.stdin.read(1) if ready else ""

    try:
        tty.setcbreak(stdin)
        yield pressed
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
