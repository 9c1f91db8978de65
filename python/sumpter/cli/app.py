"""The commands of `sumpter`, their options and examples; the work is done elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer

from sumpter import _native
from sumpter.cli import (
    bpslaunch,
    bug_report,
    doctor,
    drain,
    node,
    plan,
    plugins,
    run,
    settings,
    trace,
    tune,
)
from sumpter.cli.groups import GroupedCommands
from sumpter.cli.observe import console, jobs, status, top

app = typer.Typer(
    name="sumpter",
    cls=GroupedCommands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    # Rich help costs half a second of imports and says no more.
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sumpter {_native.__version__}")
        raise typer.Exit


@app.callback()
def sumpter(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Faster data-parallel training: idle CPU machines carry the summation of gradients."""
    # The doctor lists them among its findings.
    if context.invoked_subcommand != "doctor":
        from sumpter import _environment

        for text in _environment.misspelled():
            typer.echo(f"warning: {text}", err=True)


app.command("plan", epilog=plan.EXAMPLE)(plan.plan)
app.command(
    "run",
    epilog=run.EXAMPLE,
    # Options after the script's name belong to the script.
    context_settings={"allow_interspersed_args": False},
)(run.run)
app.command(
    "bpslaunch",
    epilog=bpslaunch.EXAMPLE,
    context_settings={"allow_interspersed_args": False},
)(bpslaunch.bpslaunch)
plugins.add(app, "record")
plugins.add(app, "whatif")
plugins.add(app, "report")
app.command("serve", epilog=node.SERVE_EXAMPLE)(node.serve)
app.command("coordinator", epilog=node.COORDINATOR_EXAMPLE)(node.coordinator)
app.command("status", epilog=status.EXAMPLE)(status.status)
app.command("trace", epilog=trace.EXAMPLE)(trace.trace)
app.command("jobs", epilog=jobs.EXAMPLE)(jobs.jobs)
app.command("top", epilog=top.EXAMPLE)(top.top)
app.command("console", epilog=console.EXAMPLE)(console.console)
app.command("drain", epilog=drain.EXAMPLE)(drain.drain)
app.command("tune", epilog=tune.EXAMPLE)(tune.tune)
app.command("doctor", epilog=doctor.EXAMPLE)(doctor.doctor)
app.command("bug-report", epilog=bug_report.EXAMPLE)(bug_report.bug_report)
app.command("config", epilog=settings.EXAMPLE)(settings.config)
app.command("token", epilog=node.TOKEN_EXAMPLE)(node.token)
plugins.add(app, "bench")
plugins.add(app, "reproduce")
