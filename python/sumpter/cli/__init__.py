"""The `sumpter` command.

Without a command it prints its help, on standard output and with code 0, as cargo and uv do. A
cause that Sumpter knows is one red line on standard error: exit code 2 when the command was
used wrongly, 1 when it was used rightly and failed. Only an unknown cause shows a traceback.
Nothing here imports torch, and each command imports what it needs when it runs, so that
`sumpter --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from sumpter.cli.errors import exit_code_of, is_help, message_of

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits with its code."""
    from sumpter.cli.app import app

    try:
        code = _run(app, arguments)
    except BrokenPipeError:
        # The reader went away (`sumpter plan | head`): the error has no reader.
        sys.stderr.close()
        code = 1
    except Exception as error:
        known = exit_code_of(error)
        if known is None:
            raise
        _print_error(message_of(error))
        code = known
    sys.exit(code if isinstance(code, int) else 0)


def _run(app: Typer, arguments: Sequence[str] | None) -> object:
    try:
        return app(arguments, prog_name="sumpter", standalone_mode=False)
    except Exception as error:
        if not is_help(error):
            raise
        print(message_of(error), flush=True)
        return 0


def _print_error(message: str) -> None:
    from rich.console import Console
    from rich.text import Text

    line = " ".join(message.split())
    text = Text.assemble(("error: ", "bold red"), (line, "red"))
    Console(stderr=True, soft_wrap=True, highlight=False).print(text)
