"""`sumpter run`: its options, turned into a job for the launcher."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sumpter import _native
from sumpter._assignments import parse_assignments
from sumpter._failure import Failure, UsageError
from sumpter._words import counted
from sumpter.cli import run_options as opt
from sumpter.cli.options import InterfacesOption, MetricsPortOption, SetOption, given

if TYPE_CHECKING:
    from sumpter.launch import Elastic
    from sumpter.launch.layout import Host, Layout

# Of each worker of an elastic job: enough for a machine's bad day, not for a script that always
# fails.
DEFAULT_RESTARTS = 3

EXAMPLE = (
    "Example: sumpter run -n 2 -s 1 -- python examples/digits.py\n\n"
    "On several machines: sumpter run -H host1:2,host2:2 --server-hosts host3 -- python train.py"
)

# These follow from the other options; a second source would contradict them.
_DECIDED_HERE = frozenset(
    {
        "coordinator",
        "local_rank",
        "local_size",
        "machine",
        "max_workers",
        "metrics_port",
        "min_workers",
        "rank",
        "servers",
        "token",
        "token_file",
        "world_size",
    }
)


def run(
    command: opt.Command,
    workers: opt.Workers = None,
    servers: opt.Servers = None,
    machines: opt.Machines = None,
    hosts: opt.Hosts = None,
    hostfile: opt.Hostfile = None,
    server_hosts: opt.ServerHosts = None,
    pass_on: opt.PassOn = None,
    ssh: opt.Ssh = None,
    ssh_port: opt.SshPort = None,
    ssh_identity: opt.SshIdentity = None,
    start_timeout: opt.StartTimeout = 30.0,
    python: opt.Python = None,
    folder: opt.Folder = None,
    address: opt.Address = "",
    listen: opt.Listen = "",
    token_file: opt.JobToken = None,
    min_workers: opt.MinWorkers = None,
    max_workers: opt.MaxWorkers = None,
    restarts: opt.Restarts = None,
    deterministic: opt.Deterministic = False,
    record_order: opt.RecordOrder = None,
    replay_order: opt.ReplayOrder = None,
    bandwidth_gbps: opt.BandwidthGbps = None,
    interfaces: InterfacesOption = None,
    log_dir: opt.LogDir = None,
    metrics_port: MetricsPortOption = None,
    assignments: SetOption = None,
    dry_run: opt.DryRun = False,
) -> None:
    """Start a whole job: coordinator here, servers and workers here or on other machines.

    Each line of output says who wrote it. When anything fails, everything ends, the exit code is
    that of the first worker that failed, and the last line is the root cause. After success a
    summary shows the plan, the bytes and the stragglers. While the job runs, `sumpter top --job
    last` and its relatives on this machine reach it.
    """
    settings = job_settings(assignments)
    settings |= given(bandwidth_gbps=bandwidth_gbps, interfaces=interfaces)
    if deterministic:
        settings["deterministic"] = "true"

    settings |= given(min_workers=min_workers, max_workers=max_workers)
    settings |= given(record_order=record_order, replay_order=replay_order)

    from sumpter.launch import JobSpec, RemoteShell, launch
    from sumpter.launch.remote import DEFAULT_SHELL

    layout = _layout(workers, servers, machines, hosts, hostfile, server_hosts)
    pretends = machines is None and layout.workers[0].machine is not None

    spec = JobSpec(
        command=tuple(command),
        layout=layout,
        settings=settings,
        log_dir=log_dir,
        metrics_port=metrics_port,
        shell=RemoteShell(ssh or DEFAULT_SHELL, ssh_port, ssh_identity),
        python=python or sys.executable,
        folder=folder or Path.cwd(),
        pass_on=tuple(pass_on or ()),
        start_timeout_s=start_timeout,
        address=address,
        listen=listen,
        token_file=token_file,
        elastic=_elastic(len(layout.workers), min_workers, max_workers, restarts),
        notes=_notes(len(layout.workers)) if pretends else (),
    )
    if dry_run:
        from sumpter.launch.preview import preview

        return preview(spec)
    raise typer.Exit(launch(spec))


def _notes(workers: int) -> tuple[str, ...]:
    """What to say of workers each of which counts as a machine of its own, by default."""
    from sumpter.topology.gpus import count_gpus

    if workers < 2 or (gpus := count_gpus()) < 2:
        return ()
    return (
        f"warning: each worker counts as a machine of its own, so LOCAL_RANK is 0 in all of them, "
        f"and this machine has {gpus} GPUs: give --machines 1, and rank r uses device r",
    )


def _elastic(
    workers: int, min_workers: int | None, max_workers: int | None, restarts: int | None
) -> Elastic | None:
    from sumpter.launch import Elastic

    if min_workers is None:
        for name, value in (("--max-workers", max_workers), ("--restarts", restarts)):
            if value is not None:
                raise UsageError(f"{name} is for elastic jobs: give --min-workers, too")
        return None
    if min_workers > workers:
        raise UsageError(
            f"--min-workers {min_workers}: only {counted(workers, 'worker')} would be started"
        )
    return Elastic(min_workers, DEFAULT_RESTARTS if restarts is None else restarts)


def job_settings(assignments: list[str] | None) -> dict[str, str]:
    """Settings from `--set`, without those that a launcher decides."""
    settings = parse_assignments(assignments)
    for name in settings:
        if name in _DECIDED_HERE:
            raise UsageError(f"--set {name}: the launcher decides this by its own options")
    return settings


def _layout(
    workers: int | None,
    servers: int | None,
    machines: int | None,
    hosts: str | None,
    hostfile: Path | None,
    server_hosts: str | None,
) -> Layout:
    from sumpter.launch.environment import own_names
    from sumpter.launch.layout import HERE, Host, on_hosts, on_one_machine, parse_hosts

    if hosts is None and hostfile is None:
        if workers is None:
            raise UsageError("--workers (-n) is missing: give it, or hosts by -H or --hostfile")
        if server_hosts is None:
            machines = workers if machines is None else machines
            if machines > workers:
                raise UsageError(
                    f"--machines {machines}: there are only {counted(workers, 'worker')} to spread"
                )
            return on_one_machine(workers, servers or 0, machines)
    if machines is not None:
        raise UsageError("--machines pretends: it does not go with other hosts")
    if servers is not None and server_hosts is not None:
        raise UsageError("--servers and --server-hosts exclude each other")
    here = own_names()
    if server_hosts is not None:
        helpers = parse_hosts(server_hosts, "--server-hosts", here)
    else:
        helpers = [Host(HERE, servers)] if servers else []
    return on_hosts(_worker_hosts(workers, hosts, hostfile, here), workers, helpers)


def _check_settings(hosts: list[Host], hostfile: Path) -> None:
    """Refuses what a machine's processes would refuse, before any of them starts."""
    variables = {row["name"]: row["env"] for row in _native.settings()}
    for host in hosts:
        try:
            _native.check_environment({variables[name]: text for name, text in host.settings})
        except _native.ConfigError as error:
            raise UsageError(f"{hostfile}, {host.name or 'this machine'}: {error}") from None


def _worker_hosts(
    workers: int | None, hosts: str | None, hostfile: Path | None, here: tuple[str, ...]
) -> list[Host]:
    from sumpter.launch.layout import HERE, Host

    if hosts is None and hostfile is None:
        assert workers is not None
        return [Host(HERE, workers)]
    return given_hosts(hosts, hostfile, here)


def given_hosts(hosts: str | None, hostfile: Path | None, here: tuple[str, ...]) -> list[Host]:
    """The machines of `--hosts` or of `--hostfile`, of which one is given."""
    from sumpter.launch.layout import parse_hostfile, parse_hosts

    if hosts is not None and hostfile is not None:
        raise UsageError("--hosts and --hostfile exclude each other")
    if hosts is not None:
        return parse_hosts(hosts, "--hosts", here)
    assert hostfile is not None
    try:
        text = hostfile.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise Failure(f"cannot read {hostfile}: {reason}") from error
    found = parse_hostfile(text, str(hostfile), here)
    _check_settings(found, hostfile)
    return found
