"""`sumpter record`: runs a training script and writes the profile of its model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from sumpter._failure import UsageError
from sumpter_lab.cli import single

EXAMPLE = "Example: sumpter record -o run.profile.json -- python train.py --epochs 1"


def record(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="`python train.py ...`, or `python -m module ...`."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where the profile goes.")
    ] = Path("run.profile.json"),
    iterations: Annotated[
        int,
        typer.Option(
            "--iterations",
            metavar="N",
            min=1,
            help="Iterations whose layers are watched; of as many others they are not.",
        ),
    ] = 5,
    warmup: Annotated[
        int, typer.Option("--warmup", metavar="N", min=1, help="Iterations before them.")
    ] = 2,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Of the profile (its class).")
    ] = None,
) -> None:
    """Run a training script and write the profile of its model.

    The model is the first module of PyTorch that is called in training mode. A script of JAX,
    TensorFlow or MXNet is recorded by when it begins to reduce each gradient. The script runs to
    its end, in one process: with several workers the times would have their communication in them.
    `sumpter bench replay` plays the profile.
    """
    from sumpter_lab.scaffold.results.output import check_writable

    script = _script(command or [])
    check_writable(output, "--output")
    options = (str(output), str(iterations), str(warmup), name or "")
    call = (sys.executable, "-m", "sumpter_lab.profiles.record_script", *options, *script)
    raise typer.Exit(_run(call))


def _run(call: tuple[str, ...]) -> int:
    """The exit code of a child, as a shell would give it. Ctrl-C reaches the child by itself."""
    child = subprocess.Popen(call)
    while True:
        try:
            code = child.wait()
        except KeyboardInterrupt:
            continue
        return 128 - code if code < 0 else code


def _script(command: list[str]) -> list[str]:
    """The script and its arguments, without the word `python` before it."""
    rest = command[1:] if command and Path(command[0]).name.startswith("python") else command
    if not rest:
        raise UsageError("give a command, as in: sumpter record -- python train.py")
    if rest[0] == "-m":
        if len(rest) == 1:
            raise UsageError("python -m needs a module")
    elif rest[0].startswith("-"):
        raise UsageError(f"options of python are not supported, but -m: {rest[0]}")
    elif not Path(rest[0]).is_file():
        raise UsageError(f"'{rest[0]}' is no file: give a Python script")
    return rest


# Options after the script's name belong to the script.
app = single(record, EXAMPLE, allow_interspersed_args=False)
