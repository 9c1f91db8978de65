"""`sumpter bug-report`: one archive to send along with a description of a fault."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sumpter import _native
from sumpter._environment import own_variable
from sumpter._failure import Failure, UsageError
from sumpter.cli.errors import message_of
from sumpter.cli.options import (
    CoordinatorOption,
    JobOption,
    TokenFileOption,
    TokenOption,
    reached,
)
from sumpter.cli.printing import waiting

if TYPE_CHECKING:
    from sumpter.doctor import Probe
    from sumpter.doctor.archive import Entry

EXAMPLE = "Example: sumpter bug-report --job last --log-dir logs/"


def bug_report(
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The archive (default: sumpter-report-DATE.tar.gz here).",
        ),
    ] = None,
    log_dir: Annotated[
        list[Path] | None,
        typer.Option(
            "--log-dir",
            metavar="DIR",
            help="Also pack the ends of the logs in this folder, such as that of `sumpter run "
            "--log-dir`; may be repeated.",
        ),
    ] = None,
    coordinator: CoordinatorOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    job: JobOption = None,
    self_test: Annotated[
        bool,
        typer.Option("--self-test/--no-self-test", help="Sum with two ranks, as the doctor does."),
    ] = True,
) -> None:
    """Pack what a maintainer asks for first: versions, findings, settings, status and logs.

    Tokens, passwords and the like are taken out of every file; host names and addresses are not.
    Nothing is sent anywhere: look through the archive and attach it to your report.
    """
    from sumpter.doctor import Probe, archive

    path = output or Path(time.strftime("sumpter-report-%Y%m%d-%H%M%S.tar.gz"))
    if path.exists():
        raise UsageError(f"-o {path}: it is there already; choose another name")
    if not path.parent.is_dir():
        raise UsageError(f"-o {path}: there is no directory {path.parent}")
    settings, job = reached(coordinator, token, token_file, job)
    probe = Probe(None)
    environment = dict(probe.environment)
    secrets = [*archive.known_secrets(environment, token), *_token_in(settings)]
    logs = [entry for folder in log_dir or () for entry in archive.log_entries(folder)]
    entries = [
        *_findings(probe, self_test),
        archive.settings_entry(environment),
        archive.environment_entry(environment),
        *_status(settings, job),
        *logs,
    ]
    packed = archive.write(path, entries, archive.Redaction(secrets))
    typer.echo(f"{path}: {len(packed)} files, without secrets; host names and paths are in it")
    for entry in packed:
        typer.echo(f"  {entry.name}: {entry.about}")


def _token_in(settings: Mapping[str, str]) -> Iterator[str]:
    """The token of the job that is asked for."""
    file = settings.get("token_file")
    if file:
        try:
            yield Path(file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Failure(f"cannot read the token's file {file}: {error}") from error


def _findings(probe: Probe, self_test: bool) -> Iterator[Entry]:
    from sumpter.doctor import archive, examine

    found: dict[str, list[dict[str, str]]] = {}
    with waiting("examining this machine, which takes some seconds"):
        for title, part in examine(probe, self_test):
            found[title] = [finding.as_dict() for finding in part]
    yield archive.document("doctor.json", "versions, and what `sumpter doctor` finds", found)


def _status(settings: Mapping[str, str], job: str | None) -> Iterator[Entry]:
    """The status of the job that is asked for, or why there is none."""
    from sumpter.doctor.archive import Entry

    if not settings.get("coordinator") and not own_variable("coordinator"):
        return
    try:
        text, name, about = _native.status(dict(settings), job), "status.json", "the job's status"
    except Exception as error:
        text, name, about = message_of(error), "status.txt", "why the job's status is missing"
    yield Entry(name, about, f"{text}\n".encode())
