"""The options of `sumpter run`: their names and what their help says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Command = Annotated[
    list[str], typer.Argument(metavar="COMMAND", help="The training script and its arguments.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        "-n",
        metavar="N",
        min=1,
        help="Training processes (default with -H: as many as there are slots).",
    ),
]
Servers = Annotated[
    int | None,
    typer.Option("--servers", "-s", metavar="K", min=0, help="Summation servers on this machine."),
]
Machines = Annotated[
    int | None,
    typer.Option(
        "--machines",
        metavar="M",
        min=1,
        help="Pretend that the workers run on M machines (default: one each). "
        "LOCAL_RANK follows: with one machine, rank r uses device r.",
    ),
]
Hosts = Annotated[
    str | None,
    typer.Option(
        "--hosts",
        "-H",
        metavar="HOST:SLOTS,...",
        help="Run the workers on these machines, over ssh; ranks fill the slots in order.",
    ),
]
Hostfile = Annotated[
    Path | None,
    typer.Option(
        "--hostfile",
        metavar="FILE",
        help="Hosts from a file, one `HOST slots=N` a line; after it may stand settings of the "
        "machine, such as rack=NAME.",
    ),
]
ServerHosts = Annotated[
    str | None,
    typer.Option(
        "--server-hosts",
        metavar="HOST,...",
        help="Run summation servers on these machines, over ssh.",
    ),
]
PassOn = Annotated[
    list[str] | None,
    typer.Option(
        "-x",
        metavar="NAME[=VALUE]",
        help="Pass another variable to all processes; may be repeated.",
    ),
]
Ssh = Annotated[
    str | None,
    typer.Option(
        "--ssh",
        metavar="COMMAND",
        help="The remote shell (default: ssh -o BatchMode=yes, with keep-alives).",
    ),
]
SshPort = Annotated[
    int | None,
    typer.Option("--ssh-port", metavar="PORT", min=1, max=65535, help="Port of the sshds."),
]
SshIdentity = Annotated[
    Path | None,
    typer.Option("--ssh-identity", metavar="FILE", help="Private key to log in with."),
]
StartTimeout = Annotated[
    float,
    typer.Option(
        "--start-timeout",
        metavar="SECONDS",
        min=0.1,
        help="How long to wait until every machine answers.",
    ),
]
Python = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="PATH",
        help="Python with sumpter on every machine (default: the same path as here).",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option("--chdir", metavar="DIR", help="Working directory everywhere (default: as here)."),
]
Address = Annotated[
    str,
    typer.Option(
        "--address",
        metavar="ADDRESS",
        help="This machine's address for the others (default: the one ssh comes from).",
    ),
]
Listen = Annotated[
    str,
    typer.Option(
        "--listen",
        metavar="HOST:PORT",
        help="Where the coordinator listens (default: a free port, of loopback if no other "
        "machine takes part); with 0.0.0.0:PORT the job can be observed from elsewhere.",
    ),
]
JobToken = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File that holds the job's token (default: SUMPTER_TOKEN, SUMPTER_TOKEN_FILE, or a "
        "fresh one).",
    ),
]
MinWorkers = Annotated[
    int | None,
    typer.Option(
        "--min-workers",
        metavar="M",
        min=1,
        help="Elastic: go on with at least M workers when others die, and start those again. "
        "For scripts with sumpter.torch.elastic.",
    ),
]
MaxWorkers = Annotated[
    int | None,
    typer.Option(
        "--max-workers",
        metavar="X",
        min=1,
        help="Elastic: take in no more than X workers, however many join (default: no limit).",
    ),
]
Restarts = Annotated[
    int | None,
    typer.Option(
        "--restarts",
        metavar="R",
        min=0,
        help="Elastic: how often each worker that fails is started again (default: 3); one that "
        "ends soon after its start again and again waits up to 30 s before.",
    ),
]
Deterministic = Annotated[
    bool,
    typer.Option("--deterministic", help="Add in rank order: the same bytes in every run."),
]
RecordOrder = Annotated[
    Path | None,
    typer.Option(
        "--record-order",
        metavar="DIR",
        help="Asynchronous training: write an order log here, a file for each rank.",
    ),
]
ReplayOrder = Annotated[
    Path | None,
    typer.Option(
        "--replay-order",
        metavar="DIR",
        help="Asynchronous training: follow the order log in DIR, to the same bytes.",
    ),
]
BandwidthGbps = Annotated[
    float | None,
    typer.Option(
        "--bandwidth-gbps",
        metavar="G",
        help="Bandwidth of a machine's link each way; the share of the optimum and the best "
        "credit need it (default: SUMPTER_BANDWIDTH_GBPS).",
    ),
]
LogDir = Annotated[
    Path | None,
    typer.Option("--log-dir", metavar="DIR", help="Also keep each process' output here."),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Check the options and print each process, its machine, command and variables; start "
        "nothing and connect to no machine.",
    ),
]
