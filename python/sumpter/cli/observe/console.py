"""`sumpter console`: the jobs of a coordinator, live in a browser."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from sumpter import _native
from sumpter._failure import Failure
from sumpter.cli.options import (
    CoordinatorOption,
    JobOption,
    TokenFileOption,
    TokenOption,
    reached,
)

if TYPE_CHECKING:
    from sumpter.console.access import Access
    from sumpter.console.server import Console

EXAMPLE = (
    "Example: sumpter console --job last\n\n"
    "Example: sumpter console --coordinator 10.0.0.1:7700 --token-file cluster.token"
)
DEFAULT = "127.0.0.1:7780"
# What the page says when the last job is over.
ENDED = "The last `sumpter run` has ended; the page shows the next one"
START = "sumpter run -n 2 -s 1 -- python train.py"


def console(
    coordinator: CoordinatorOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    job: JobOption = None,
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Where browsers find the page; port 0 takes any free one. On an address that "
            "other machines reach, the page is read-only.",
        ),
    ] = DEFAULT,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Leave out the buttons that drain and tune.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", metavar="SECONDS", min=0.2, max=3600.0, help="Time between two looks."
        ),
    ] = 1.0,
) -> None:
    """Show jobs, workers and servers on a live web page, with buttons that drain and tune.

    It shows what `sumpter top` shows, with curves, the ranks that others wait for, epochs and
    faults. The buttons need the job's token or the code that this command prints. Ctrl-C ends it.
    """
    from sumpter.console.access import Access
    from sumpter.console.server import Address, Console
    from sumpter.console.watch import Watcher

    address = Address.parse(listen)
    wanted = reached(coordinator, token, token_file, job)

    def again() -> tuple[dict[str, str], str | None]:
        try:
            # The last job may be another one by now.
            return reached(coordinator, token, token_file, job)
        except Failure:
            raise Failure(f"{ENDED}: {START}") from None

    watcher = Watcher(lambda: _native.status(*again()), interval)
    access = Access(
        lambda: again()[0],
        lambda settings: _native.status(settings, wanted[1]),
        read_only=read_only or not address.is_loopback,
        loopback=address.is_loopback,
        names=frozenset() if address.is_loopback else _names(address.host),
    )
    # What is wrong from the start is said here; what goes wrong later, on the page.
    watcher.look()
    served = Console(address, watcher, access, job=wanted[1] or "")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        served.start()
        _say(served, access, read_only)
        threading.Event().wait()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:
        served.close()


def _say(served: Console, access: Access, wanted: bool) -> None:
    typer.echo(f"The console is at {served.address.url} (Ctrl-C ends it)")
    if not access.read_only:
        typer.echo(f"To drain and tune there, give the job's token or the code {access.code}")
    elif not wanted:
        typer.echo(
            "It is read-only, since the token would travel unencrypted; to drain and tune from "
            "another machine, leave out --listen and use ssh -t -L 7780:127.0.0.1:7780"
        )


def _names(host: str) -> frozenset[str]:
    """What others may call this machine."""
    return frozenset({host, socket.gethostname(), socket.getfqdn()})
