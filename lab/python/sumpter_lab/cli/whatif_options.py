"""The options of `sumpter whatif`. Lists are text with commas; the command reads them."""

from __future__ import annotations

from typing import Annotated

import typer

WorkersOption = Annotated[
    str, typer.Option("--workers", "-n", metavar="N,..", help="GPU machines (not GPUs).")
]
BandwidthOption = Annotated[
    str,
    typer.Option("--bandwidth-gbps", metavar="G,..", help="Each machine's link, each way."),
]
ServersOption = Annotated[
    str, typer.Option("--servers", "-s", metavar="K,..", help="CPU machines that help.")
]
ArchitectureOption = Annotated[
    str | None,
    typer.Option(
        "--architecture",
        metavar="NAME,..",
        help="allreduce, ps or sumpter (default: sumpter with servers, else allreduce).",
    ),
]
CompressionOption = Annotated[
    str, typer.Option("--compression", metavar="C,..", help="Divides the bytes sent.")
]
FusionBytesOption = Annotated[
    str, typer.Option("--fusion-bytes", metavar="SIZE,..", help="All-reduce: buffer size.")
]
FusionTimeoutOption = Annotated[
    str, typer.Option("--fusion-timeout-ms", metavar="T,..", help="All-reduce: buffer age.")
]
PartitionOption = Annotated[
    str,
    typer.Option(
        "--partition-bytes", "--partition", metavar="SIZE,..", help="As in `sumpter config`."
    ),
]
CreditOption = Annotated[
    str, typer.Option("--credit-bytes", metavar="SIZE,..", help="As in `sumpter config`.")
]
EfficiencyOption = Annotated[
    str,
    typer.Option(
        "--transport-efficiency", metavar="E,..", help="Part of the bandwidth that is used."
    ),
]
OverlapOption = Annotated[
    bool,
    typer.Option(
        "--overlap-forward", help="Each layer of the next forward pass waits for itself only."
    ),
]
OrderOption = Annotated[
    str,
    typer.Option(
        "--order",
        metavar="O,..",
        help="Which partition goes first: of the gradient that was ready first (readiness), of the "
        "layer that the next forward pass needs first (forward), or as a job does by itself "
        "(auto: forward with --overlap-forward, else readiness).",
    ),
]
BatchTimeOption = Annotated[
    str | None,
    typer.Option(
        "--batch-time-s",
        metavar="T,..",
        help="An iteration without communication, instead of the profile's.",
    ),
]
FormatOption = Annotated[
    str, typer.Option("--format", metavar="FORMAT", help="sumpter, or netai for its logs.")
]
AdviseOption = Annotated[
    bool, typer.Option("--advise", help="Say in words what would help most (one case only).")
]
