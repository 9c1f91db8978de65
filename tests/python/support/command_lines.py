"""Commands as documents print them, read by the real command line."""

from __future__ import annotations

import typer

from documents import Fence, console
from sumpter.cli import app as product
from sumpter.cli import plugins


def parse(words: list[str]) -> None:
    """Raises what the command line would say of these words, and runs nothing."""
    # The static binary takes the options of the commands of the same names.
    command = typer.main.get_command(product.app)
    context = None
    arguments = words[1:]
    while True:
        with command.make_context(words[0], list(arguments), parent=context) as context:
            if not hasattr(command, "resolve_command"):
                return
            rest = [*context._protected_args, *context.args]
            if not rest:
                return
            name, found, arguments = command.resolve_command(context, rest)
        command = found
        if name in plugins.COMMANDS and context.parent is None:
            command = _of_the_laboratory(name)


def _of_the_laboratory(name: str):
    loaded = plugins.load(name)
    return typer.main.get_command(loaded) if isinstance(loaded, typer.Typer) else loaded


def shell_text(fence: Fence) -> str:
    if fence.language == "sh":
        return fence.text
    return "".join(command for command, _ in console(fence.text))
