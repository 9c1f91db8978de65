"""What `sumpter run --dry-run` prints: each process that would be started, and with what."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace

from rich.console import Console

from sumpter import _native
from sumpter._failure import Failure
from sumpter._words import counted
from sumpter.launch.environment import Environment, inherited
from sumpter.launch.job import JobSpec, meet, roles
from sumpter.launch.place import HERE, NOT_FOUND, Facts, Role

# In place of what is only known once a machine has answered.
_FREE_PORT = "<a free port>"
_OWN_ADDRESS = "<this machine's address>"
_SECRET = "<secret>"
_CORES = "<its share of the cores>"
# Defaults that are shares of the cores.
_SHARES = ("OMP_NUM_THREADS", "SUMPTER_LANES")


def preview(spec: JobSpec) -> None:
    """Prints what launch() would start; starts nothing, and connects to no machine.

    Raises what launch() raises for settings, ports or files that it refuses, and Failure for a
    script's interpreter that this machine lacks.
    """
    meeting = meet(spec)
    if meeting.own is not None:
        # It was made to find out whether it can be: its port and its settings are checked.
        meeting.own.stop()
    _check_command(spec)
    facts = {host: _facts(host) for host in spec.layout.hosts}
    port = meeting.settings["coordinator"].rpartition(":")[2]
    chosen = bool(spec.coordinator) or spec.listen.rpartition(":")[2].strip("0") != ""
    at = spec.coordinator or f"{_host(spec, meeting.host)}:{port if chosen else _FREE_PORT}"
    names = {row["name"]: row["env"] for row in _native.settings()}
    environment = Environment(
        layout=spec.layout,
        coordinators=dict.fromkeys([*spec.layout.hosts, HERE], at),
        token=None if meeting.token is None else _SECRET,
        master=None if spec.layout.first_rank else (_master(spec), 0),
        variables={**{names[name]: text for name, text in spec.settings.items()}, **spec.extra},
    )
    console = Console(highlight=False, soft_wrap=True, markup=False)
    started = [_told(role) for role in roles(spec, environment, facts)]
    for line in _lines(spec, at, started):
        console.print(line)


def _check_command(spec: JobSpec) -> None:
    if any(seat.host == HERE for seat in spec.layout.workers):
        program = spec.command[0]
        path = spec.folder / program if os.sep in program else program
        if shutil.which(path) is None:
            error = Failure(f"cannot run '{program}': no such command")
            error.exit_code = NOT_FOUND
            raise error


def _facts(host: str) -> Facts:
    """Of this machine its own; of others what does not show."""
    if host == HERE:
        return Facts(len(os.sched_getaffinity(0)), socket.gethostname(), 0, "", "")
    return Facts(0, host.rpartition("@")[2], 0, "", "")


def _host(spec: JobSpec, listening: str) -> str:
    if listening:
        return listening
    return spec.address or (_OWN_ADDRESS if spec.is_remote else "127.0.0.1")


def _master(spec: JobSpec) -> str:
    host = spec.layout.workers[0].host
    return _host(spec, "") if host == HERE else host.rpartition("@")[2]


def _told(role: Role) -> Role:
    """The role with words for the values that are not known yet."""
    defaults = dict(role.defaults)
    if role.host != HERE:
        defaults |= {name: _CORES for name in _SHARES if name in defaults}
    variables = dict(role.variables)
    if "MASTER_PORT" in variables:
        variables["MASTER_PORT"] = _FREE_PORT
    return replace(role, defaults=defaults, variables=variables)


def _lines(spec: JobSpec, at: str, started: list[Role]) -> Iterator[str]:
    hosts = spec.layout.hosts
    yield (
        f"Nothing is started (--dry-run). The job would have "
        f"{counted(len(started), 'process', 'processes')} on {counted(len(hosts), 'machine')}:"
    )
    yield ""
    whose = "that is there already" if spec.coordinator else "in this process"
    rows = [("coordinator", "this machine" if not spec.coordinator else at, f"{whose}, at {at}")]
    rows += [(str(role.label), _machine(role), shlex.join(role.command)) for role in started]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for first, second, third in rows:
        yield f"  {first:<{widths[0]}}  {second:<{widths[1]}}  {third}"
    for host in hosts:
        if host != HERE:
            shell = shlex.join(spec.shell.arguments(host, spec.python)[:-1])
            yield f"  reached by: {shell} ..."
    yield from spec.notes
    yield ""
    yield f"folder: {spec.folder}"
    if spec.settings:
        given = ", ".join(f"{name}={text}" for name, text in sorted(spec.settings.items()))
        yield f"settings: {given}"
    for kind in ("worker", "server"):
        first = next((role for role in started if role.label.role == kind), None)
        if first is not None:
            yield ""
            yield f"variables of {first.label}:"
            yield from _variables(first.variables, first.defaults)


def _machine(role: Role) -> str:
    pretended = role.variables.get("SUMPTER_MACHINE")
    where = role.host or "this machine"
    return f"{where} (as {pretended})" if pretended else where


def _variables(variables: Mapping[str, str | None], defaults: Mapping[str, str]) -> Iterator[str]:
    found = inherited(defaults)
    for name, text in sorted(variables.items()):
        if text is not None:
            yield f"  {name}={text}"
    for name, text in sorted(defaults.items()):
        if name in found:
            yield f"  {name}={found[name]}, from this environment"
        else:
            yield f"  {name}={text}, unless the environment has it"
    gone = inherited(name for name, text in variables.items() if text is None)
    if gone:
        yield f"  without {', '.join(sorted(gone))} of this environment"
