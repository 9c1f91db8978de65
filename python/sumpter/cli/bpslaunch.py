"""`sumpter bpslaunch`: what BytePS' launcher of that name does, by the same variables."""

from __future__ import annotations

from typing import Annotated

import typer

from sumpter._failure import UsageError
from sumpter.cli.options import SetOption
from sumpter.cli.run import job_settings
from sumpter.cli.run_options import LogDir

EXAMPLE = (
    "Example: sumpter bpslaunch python train.py\n\n"
    "with DMLC_ROLE=worker, DMLC_NUM_WORKER=1, DMLC_WORKER_ID=0 and BYTEPS_LOCAL_SIZE=2 set"
)


def bpslaunch(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="The training script; only for the role worker."),
    ] = None,
    log_dir: LogDir = None,
    assignments: SetOption = None,
) -> None:
    """Run this machine's role of a BytePS job: scheduler, server or worker, by DMLC_ROLE.

    A worker runs COMMAND once for each device (BYTEPS_LOCAL_SIZE, else by NVIDIA_VISIBLE_DEVICES,
    else once). With more than one worker machine every role needs the same SUMPTER_TOKEN or
    SUMPTER_TOKEN_FILE.
    """
    from sumpter import _environment, _roles

    cluster = _environment.cluster()
    if cluster.role != "worker":
        if command:
            raise UsageError(f"DMLC_ROLE is {cluster.role}: it runs no command")
        _roles.run()
        return
    if not command:
        raise UsageError("a worker needs a COMMAND")
    if cluster.distributed:
        _roles.check_token()

    from sumpter.launch import JobSpec, launch
    from sumpter.launch.environment import job_variables
    from sumpter.launch.layout import part_of_job

    spec = JobSpec(
        command=tuple(command),
        layout=part_of_job(cluster.worker_id, cluster.workers, cluster.local_size, cluster.servers),
        settings={**_roles.start_timeout(), **job_settings(assignments)},
        log_dir=log_dir,
        extra=job_variables(("DMLC_", "MASTER_") if cluster.distributed else ("DMLC_",)),
        coordinator=cluster.root,
    )
    raise typer.Exit(launch(spec))
