"""The options of `sumpter whatif`. Lists are text with commas; the command reads them."""

from __future__ import annotations

from typing import Annotated

import typer

WorkersOption = Annotated[
    str | None,
    typer.Option(
        "--workers", "-n", metavar="N,..", help="GPU machines (not GPUs); not with --machines."
    ),
]
BandwidthOption = Annotated[
    str | None,
    typer.Option(
        "--bandwidth-gbps",
        metavar="G,..",
        help="Each machine's link, each way. With --machines (default: as listed) that of the "
        "slowest GPU machine; all links between machines change in proportion.",
    ),
]
ServersOption = Annotated[
    str | None,
    typer.Option(
        "--servers",
        "-s",
        metavar="K,..",
        help="CPU machines that help (default: 0); not with --machines.",
    ),
]
MachinesOption = Annotated[
    str | None,
    typer.Option(
        "--machines",
        metavar="FILE,..",
        help="Lists of machines as in `sumpter plan --machines`: racks with trunks, links that "
        "differ, GPUs with PCIe switches and NVLink.",
    ),
]
LocalReductionOption = Annotated[
    str,
    typer.Option(
        "--local-reduction",
        metavar="NAME,..",
        help="How GPUs of one machine add: rule (that of `sumpter plan --machines`), direct, "
        "cpu-assisted, reduce-scatter, or roots=GPU+GPU. Needs --machines with devices.",
    ),
]
HopLatencyOption = Annotated[
    str,
    typer.Option(
        "--hop-latency-us",
        metavar="T,..",
        help="All-reduce: latency of each of the 2(N-1) steps of a ring.",
    ),
]
UpdateOption = Annotated[
    str | None,
    typer.Option(
        "--update-gb-per-s",
        metavar="R,..",
        help="Gradients that a server's optimizer handles in a second, in 10^9 bytes (default: "
        "workers update).",
    ),
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
    str,
    typer.Option(
        "--compression",
        metavar="C,..",
        help="A ratio that divides the bytes sent and takes no time, as in NetAI'20, or a codec "
        "with its arguments: int8, topk:k=0.01,two_way=false.",
    ),
]
CodecRateOption = Annotated[
    str | None,
    typer.Option(
        "--codec-rate",
        metavar="R,..",
        help="float32 that one core encodes, decodes, and decodes and adds in a second, in 10^9 "
        "bytes: one number for all, or three as in 4/8/6 (default: measured on this machine).",
    ),
]
CodecCoresOption = Annotated[
    str,
    typer.Option("--codec-cores", metavar="N,..", help="Cores of each machine that a codec has."),
]
CodecMinBytesOption = Annotated[
    str,
    typer.Option(
        "--codec-min-bytes", metavar="SIZE,..", help="A codec leaves smaller tensors alone."
    ),
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
