"""A job on one or several machines, from a command to an exit code."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.live import Live

from sumpter import _native
from sumpter._core.rendezvous import is_own_address, own_address
from sumpter._environment import own_variable
from sumpter._failure import Failure, UsageError
from sumpter.launch.causes import End
from sumpter.launch.environment import Environment, bandwidth_gbps, passed_on, requested_variables
from sumpter.launch.layout import Layout
from sumpter.launch.output import Label, Output, forgiving
from sumpter.launch.place import HERE, Access, Facts, Place, Role, open_places
from sumpter.launch.progress import Progress
from sumpter.launch.remote import RemoteShell
from sumpter.launch.running import announced
from sumpter.launch.summary import print_summary
from sumpter.launch.supervise import SETTLE_S, Elastic, Interruption, supervise

# The live line follows the status, which is polled each second.
_REFRESH_PER_SECOND = 2

# A traceback through torch, and the end of a process that has imported it, on a busy machine.
_TRACEBACK_S = 5.0

_LOOPBACK = "127.0.0.1"
# Hosts of `--listen` that only this machine reaches, and those that mean all of its addresses.
_LOCAL = (_LOOPBACK, "localhost", "[::1]")
_EVERYWHERE = ("0.0.0.0", "[::]", "")


@dataclass(frozen=True)
class JobSpec:
    """What the user asked for."""

    command: tuple[str, ...]
    layout: Layout
    settings: Mapping[str, str] = field(default_factory=dict)
    log_dir: Path | None = None
    shell: RemoteShell = field(default_factory=RemoteShell)
    python: str = sys.executable
    folder: Path = field(default_factory=Path.cwd)
    pass_on: Sequence[str] = ()  # options of `-x`
    extra: Mapping[str, str] = field(default_factory=dict)  # variables of this launcher's kind
    start_timeout_s: float = 30.0
    # HOST:PORT of a coordinator that is there already, with a token that everyone has.
    coordinator: str = ""
    elastic: Elastic | None = None
    address: str = ""  # of this machine for the others, if not to be found out
    listen: str = ""  # HOST:PORT of the coordinator that is made for the job
    token_file: Path | None = None  # instead of the environment's token, or a fresh one
    metrics_port: int | None = None  # of the coordinator that is made for the job
    notes: Sequence[str] = ()  # to be said before anything starts

    @property
    def is_remote(self) -> bool:
        return any(host != HERE for host in self.layout.hosts)


@dataclass
class Meeting:
    """The job's coordinator: one made for it, or one that was there."""

    settings: dict[str, str]
    token: str | None
    own: _native.Coordinator | None
    host: str = ""  # by which everyone reaches the coordinator, if it listens there only


def launch(spec: JobSpec) -> int:
    """Runs the whole job; its exit code is that of the first worker that failed."""
    console = Console(highlight=False, file=forgiving(sys.stdout))
    # Refuses a setting that is not in the table or out of its range before anything starts.
    meeting = meet(spec)
    try:
        bandwidth = bandwidth_gbps(spec.settings)
        progress = Progress(lambda: _native.status(meeting.settings), bandwidth)
        with Output(console, spec.log_dir) as output, _announced(spec, meeting) as invitation:
            for note in spec.notes:
                output.say(note)
            progress.start()
            with _live_line(console, progress):
                end = asyncio.run(_run(spec, meeting, output, invitation, progress))
            job = progress.stop()
            if end.failures:
                # Figures of a job that failed would read as a success.
                output.say(end.root_cause)
            else:
                print_summary(console, job, bandwidth, interrupted=end.interrupted)
        return end.code
    finally:
        if meeting.own is not None:
            meeting.own.stop()


@contextmanager
def _announced(spec: JobSpec, meeting: Meeting) -> Iterator[str]:
    """Lets other commands find the job while it runs; gives the line that says how."""
    with ExitStack() as stack:
        invitation = ""
        if meeting.token is not None:
            coordinator = meeting.settings["coordinator"]
            try:
                own = stack.enter_context(announced(coordinator, meeting.token, spec.command))
                token_file = spec.token_file or own
                invitation = (
                    f"to observe this job: sumpter top --coordinator {coordinator} "
                    f"--token-file {shlex.quote(str(token_file))}"
                )
            except (Failure, OSError) as error:
                invitation = f"--job last will not find this job: {error}"
        yield invitation


def meet(spec: JobSpec) -> Meeting:
    """The job's coordinator: the one that is given, else one that is made.

    Raises ConfigError for a setting that is not in the table or out of its range, UsageError or
    Failure for options that contradict each other, a token's file that cannot be read, or an
    address that cannot be listened on.
    """
    servers = str(spec.layout.all_servers)
    if spec.coordinator:
        settings = {**spec.settings, "coordinator": spec.coordinator, "servers": servers}
        return Meeting(settings, None, None)
    token = _token(spec)
    # The coordinator exports metrics of all members: the other processes need no port.
    settings = {**spec.settings, "token": token, "servers": servers, "metrics_port": "0"}
    listen = spec.listen
    if not listen:
        listen = f"{_LOOPBACK}:0"
        if spec.is_remote:
            listen = "[::]:0" if _is_reached_by_ipv6(spec) else "0.0.0.0:0"
    of_coordinator = dict(settings)
    del of_coordinator["metrics_port"]  # the environment's counts, unless one is given
    if spec.metrics_port is not None:
        of_coordinator["metrics_port"] = str(spec.metrics_port)
    host = listen.rpartition(":")[0]
    if spec.is_remote and host in _LOCAL:
        raise UsageError(f"--listen {listen}: the job's other machines cannot reach {host}")
    own = _native.Coordinator(listen, of_coordinator, repeated=True, metrics=True)
    host = "" if host in _EVERYWHERE else host
    settings["coordinator"] = f"{host or _LOOPBACK}:{own.address.rpartition(':')[2]}"
    return Meeting(settings, token, own, "" if host == _LOOPBACK else host)


def _is_reached_by_ipv6(spec: JobSpec) -> bool:
    """Whether any of the job's machines reaches this one by IPv6; a socket for it takes IPv4 too.

    A name that only ssh knows is no address: what ssh says of it is an IPv4 address, or the user
    gives one.
    """
    if spec.address:
        return ":" in spec.address
    for host in spec.layout.hosts:
        with suppress(OSError):
            if host != HERE and ":" in own_address(_host_name(host)):
                return True
    return False


def _host_name(host: str) -> str:
    return host.rpartition("@")[2]


def _token(spec: JobSpec) -> str:
    """The token that the user has chosen, else a fresh one."""
    file = spec.token_file
    if file is None:
        if token := own_variable("token"):
            if own_variable("token_file"):
                raise UsageError("SUMPTER_TOKEN and SUMPTER_TOKEN_FILE exclude each other")
            return token
        if not (named := own_variable("token_file")):
            return _native.generate_token()
        file = Path(named)
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise Failure(f"cannot read the token's file {file}: {reason}") from error


async def _run(
    spec: JobSpec, meeting: Meeting, output: Output, invitation: str, progress: Progress
) -> End:
    with Interruption() as interruption:
        opening = asyncio.create_task(_open(spec, output))
        await asyncio.wait({opening, interruption.first}, return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            opening.cancel()
            await asyncio.wait({opening})
            return End(interruption.code, interrupted=True)
        places = opening.result()
        try:
            facts = {host: place.facts.result() for host, place in places.items()}
            environment = _environment(spec, meeting, facts)
            starts = [
                partial(places[role.host].start, role) for role in roles(spec, environment, facts)
            ]

            def settle_s() -> float:
                return SETTLE_S + (_discovery_s(spec) if progress.has_workers() else 0.0)

            return await supervise(starts, output, interruption, spec.elastic, invitation, settle_s)
        finally:
            await asyncio.gather(*(place.close() for place in places.values()))


def _discovery_s(spec: JobSpec) -> float:
    """How long a rank may take to find out that a peer is lost, and to print it."""
    row = next(row for row in _native.settings() if row["name"] == "peer_timeout_s")
    known = spec.settings.get(row["name"]) or own_variable(row["name"])
    return float(known or row["default"]) + _TRACEBACK_S


async def _open(spec: JobSpec, output: Output) -> dict[str, Place]:
    access = Access(
        shell=spec.shell,
        python=spec.python,
        folder=str(spec.folder),
        requested=requested_variables(spec.pass_on),
        passed=passed_on(spec.pass_on),
        start_timeout_s=spec.start_timeout_s,
    )
    return await open_places(spec.layout.hosts, access, output)


def _environment(spec: JobSpec, meeting: Meeting, facts: Mapping[str, Facts]) -> Environment:
    names = {row["name"]: row["env"] for row in _native.settings()}
    own = {host: _own_address(spec, host, fact) for host, fact in facts.items() if host != HERE}
    # The address that a worker announces follows from its way to the coordinator: here, too,
    # this is not loopback if anybody is elsewhere.
    own[HERE] = next(iter(own.values()), _LOOPBACK)
    port = meeting.settings["coordinator"].rpartition(":")[2]
    return Environment(
        layout=spec.layout,
        coordinators={
            host: spec.coordinator or f"{meeting.host or _bracketed(address)}:{port}"
            for host, address in own.items()
        },
        token=meeting.token,
        master=_master(spec.layout, own[HERE], facts),
        variables={**{names[name]: text for name, text in spec.settings.items()}, **spec.extra},
    )


def _own_address(spec: JobSpec, host: str, facts: Facts) -> str:
    """This machine's address as a host reaches it."""
    if spec.address:
        return spec.address.removeprefix("[").removesuffix("]")
    # Through a jump host or address translation, ssh comes from another host's address.
    if ":" not in facts.client and is_own_address(facts.client):
        return facts.client
    try:
        return own_address(_host_name(host))
    except OSError as error:
        raise Failure(
            f"cannot tell by which address {host} reaches this machine ({error.strerror}): "
            "give it with --address"
        ) from error


def _master(layout: Layout, here: str, facts: Mapping[str, Facts]) -> tuple[str, int] | None:
    """Where rank 0 serves torch's store; not yet known if rank 0 is launched elsewhere."""
    if layout.first_rank or layout.world_size > len(layout.workers):
        return None
    host = layout.workers[0].host
    address = here if host == HERE else facts[host].server or _host_name(host)
    return address, facts[host].port


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address and not address.startswith("[") else address


def roles(spec: JobSpec, environment: Environment, facts: Mapping[str, Facts]) -> list[Role]:
    """The job's processes: servers, then workers."""
    # -P: a folder named sumpter in the user's directory must not shadow the package.
    serve = (spec.python, "-P", "-m", "sumpter", "serve")
    servers = [
        Role(
            Label("server", index),
            seat.host,
            serve,
            environment.server_defaults(index, facts[seat.host]),
            environment.server(index),
        )
        for index, seat in enumerate(spec.layout.servers)
    ]
    workers = [
        Role(
            Label("worker", spec.layout.first_rank + index),
            seat.host,
            spec.command,
            environment.worker_defaults(index, facts[seat.host]),
            environment.worker(index, facts[seat.host]),
        )
        for index, seat in enumerate(spec.layout.workers)
    ]
    return servers + workers


@contextmanager
def _live_line(console: Console, progress: Progress) -> Iterator[None]:
    if not sys.stdout.isatty():
        yield
        return
    with Live(
        console=console,
        get_renderable=progress.line,
        refresh_per_second=_REFRESH_PER_SECOND,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        yield
