"""`sumpter bench`: options of the instruments; the packages of the experiments measure."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sumpter._assignments import parse_assignments
from sumpter._failure import UsageError
from sumpter.cli.options import JsonOption, SetOption
from sumpter_lab.cli import chaos as bench_chaos
from sumpter_lab.cli import convergence as bench_convergence
from sumpter_lab.cli import group, scripted
from sumpter_lab.cli import local as bench_local
from sumpter_lab.cli import regret as bench_regret
from sumpter_lab.cli import replay as bench_replay
from sumpter_lab.cli import scale as bench_scale
from sumpter_lab.cli import tenants as bench_tenants
from sumpter_lab.cli import tune as bench_tune
from sumpter_lab.cli.options import (
    CsvOption,
    RateOption,
    RulesOption,
    WorkersOption,
)
from sumpter_lab.scaffold.network import namespaces
from sumpter_lab.scaffold.results.output import check_plot, check_writable, write_csv
from sumpter_lab.scaffold.results.table import head_line, row_line

if TYPE_CHECKING:
    from sumpter_lab import allreduce as sums
    from sumpter_lab.scaffold.network.cluster import Racks
    from sumpter_lab.scaffold.spec import Load, Spec

EMULATE_EXAMPLE = (
    "Example: sumpter bench emulate --workers 4 --servers 0,1,2,4 --rate-mbit 200 --bytes 64MiB"
)
ALLREDUCE_EXAMPLE = "Example: sumpter run -n 2 -- sumpter bench allreduce --max-bytes 64MiB"
DEFAULT_BYTES = "64MiB"
DEFAULT_SERVERS = (0, 1, 2, 4)
# Each size is this many times the one before.
SIZE_STEP = 4

app = group("Measure how far Sumpter is from the limit of a network, and what it survives.")

WorkerRatesOption = Annotated[
    str | None,
    typer.Option("--worker-rates", metavar="B,..", help="The rate of each GPU machine instead."),
]
ServerRatesOption = Annotated[
    str | None,
    typer.Option("--server-rates", metavar="B,..", help="The rate of each CPU machine instead."),
]
BytesOption = Annotated[
    str | None,
    typer.Option("--bytes", metavar="SIZE,..", help="Tensor sizes (default: 64MiB)."),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="Sum all gradients of alexnet, bert-large, gpt2, resnet18, resnet50, resnet101 or "
        "vgg16 instead of one tensor; the peer is then DDP over Gloo.",
    ),
]
ScaleOption = Annotated[
    float | None,
    typer.Option(
        "--scale",
        metavar="S",
        min=1,
        help="Divide the sizes of a --model by this, and with them partitions, chunks and credit.",
    ),
]
RoundsOption = Annotated[
    int, typer.Option("--rounds", metavar="N", min=1, help="Timed rounds of each system.")
]
WarmupOption = Annotated[
    int, typer.Option("--warmup", metavar="N", min=1, help="Rounds before the timed ones.")
]
PeersOption = Annotated[
    str,
    typer.Option(
        "--peers",
        metavar="NAME,..",
        help="What to measure beside Sumpter: gloo, ps (Sumpter with CPU machines only), plain "
        "(sockets that move the same bytes and sum nothing), flat (Sumpter without rack "
        "settings), NAME=VALUE (Sumpter with another setting, such as deterministic=true), none.",
    ),
]
LanesOption = Annotated[
    int, typer.Option("--lanes", metavar="N", min=1, help="Lanes of each server.")
]
IdleRestartOption = Annotated[
    bool,
    typer.Option(
        "--idle-restart/--no-idle-restart",
        help="Whether connections start slowly again after a pause, as Linux has it by default "
        "(tcp_slow_start_after_idle).",
    ),
]
RacksOption = Annotated[
    int | None,
    typer.Option(
        "--racks",
        metavar="R",
        min=2,
        help="Spread machines evenly over R racks, each behind a trunk; shows the bytes over it.",
    ),
]
TrunkOption = Annotated[
    float | None,
    typer.Option(
        "--trunk-mbit",
        metavar="X",
        help="Rate of each rack's trunk, each way, in Mb/s; with --racks.",
    ),
]
CpuMachinesOption = Annotated[
    str | None,
    typer.Option(
        "--servers",
        "-s",
        metavar="K,..",
        help="Numbers of CPU machines (default: 0,1,2,4, with --racks the multiples of R).",
    ),
]
PlotOption = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="FILE", help="Draw goodput by servers; .png, .svg or .pdf decides how."
    ),
]
CleanOption = Annotated[
    bool,
    typer.Option("--clean", help="Only remove what a run that was killed has left behind."),
]
SizesOption = Annotated[
    str | None,
    typer.Option("--sizes", metavar="SIZE,..", help="Exactly these sizes instead of a range."),
]
ModelsOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME,..",
        help="Instead of single tensors, all gradients of alexnet, bert-large, gpt2, resnet18, "
        "resnet50, resnet101 or vgg16, by push_pull and by DDP; the peer is then DDP over Gloo.",
    ),
]
MinBytesOption = Annotated[
    str, typer.Option("--min-bytes", metavar="SIZE", help="The smallest size.")
]
MaxBytesOption = Annotated[
    str, typer.Option("--max-bytes", metavar="SIZE", help="The largest size; steps are of 4 x.")
]
DeviceOption = Annotated[
    str, typer.Option("--device", metavar="NAME", help="Where the tensors are: cpu or cuda.")
]
JaxOption = Annotated[
    bool,
    typer.Option(
        "--jax",
        help="By compiled programs of JAX as well: sumpter.jax, an io_callback, and with --peers "
        "gloo JAX's own collectives.",
    ),
]
RepeatOption = Annotated[
    int | None,
    typer.Option(
        "--rounds", metavar="N", min=1, help="Timed rounds of each size (default: 5 to 200)."
    ),
]


@app.command("emulate", epilog=EMULATE_EXAMPLE)
def emulate(
    workers: WorkersOption = "4",
    servers: CpuMachinesOption = None,
    rate_mbit: RateOption = 200.0,
    worker_rates: WorkerRatesOption = None,
    server_rates: ServerRatesOption = None,
    size: BytesOption = None,
    model: ModelOption = None,
    scale: ScaleOption = None,
    rounds: RoundsOption = 5,
    warmup: WarmupOption = 1,
    peers: PeersOption = "gloo",
    rules: RulesOption = None,
    lanes: LanesOption = 1,
    idle_restart: IdleRestartOption = True,
    racks: RacksOption = None,
    trunk_mbit: TrunkOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
    csv: CsvOption = None,
    plot: PlotOption = None,
    clean: CleanOption = False,
) -> None:
    """Measure rounds on an emulated cluster against the optimum (root, Linux).

    Each machine is a network namespace with a shaped link. What the links carry is measured
    first; each cell then interleaves Sumpter and its peers and checks every result.
    """
    from sumpter_lab.scaffold import scaled, spec, units

    if clean:
        return _clean()
    namespaces.check_tools()
    if servers is None:
        counts = [count for count in DEFAULT_SERVERS if racks is None or count % racks == 0]
        servers = ",".join(map(str, counts))
    gpu, cpu = _machines(workers, servers, rate_mbit, worker_rates, server_rates)
    settings = parse_assignments(assignments)
    asked = spec.Spec(
        *(gpu[0], cpu[0], gpu[1], cpu[1]),
        loads=_loads(size, model, scale),
        rounds=rounds,
        warmup=warmup,
        peers=_peers(peers),
        lanes=lanes,
        idle_restart=idle_restart,
        settings=scaled.scaled_settings(scale, settings) if scale else settings,
        rules=units.parse_names(rules, "--rules", spec.RULES),
        racks=_racks(racks, trunk_mbit),
    )
    check_writable(csv, "--csv")
    check_plot(plot)
    rows = _emulate(asked, as_json, csv)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    if plot is not None:
        from sumpter_lab.emulate.plot import draw

        draw(rows, plot)


def _emulate(asked: Spec, as_json: bool, csv: Path | None) -> list[dict[str, Any]]:
    """Runs all cells; rows are shown as they come, unless one document is wanted at the end.

    The file has each row as soon as it is there: a run of an hour may be cut off.
    """
    from sumpter_lab.emulate import report
    from sumpter_lab.emulate.run import run
    from sumpter_lab.scaffold import spec
    from sumpter_lab.scaffold.progress import Bar

    rows: list[dict[str, Any]] = []
    # Closed here whatever happens, since closing it removes the cluster.
    with Bar() as bar, contextlib.closing(run(asked, bar)) as cells:
        for note in spec.warnings(asked):
            bar.note(note, "yellow")
        for row in cells:
            if not as_json:
                columns = report.columns_of(row)
                if not rows:
                    typer.echo(head_line(columns))
                typer.echo(row_line(columns, row))
            for warning in report.warnings_of(row):
                bar.note(warning, "yellow")
            rows.append(row)
            if csv is not None:
                write_csv(csv, rows)
    if not as_json:
        for line in report.summary(rows):
            typer.echo(line)
    return rows


def _clean() -> None:
    namespaces.check_tools()
    left = namespaces.remove_leftovers()
    typer.echo(f"removed {left} network namespace(s)" if left else "nothing was left over")


def _machines(
    workers: str,
    servers: str,
    rate_mbit: float,
    worker_rates: str | None,
    server_rates: str | None,
) -> tuple[tuple[list[int], list[float]], tuple[list[int], list[float]]]:
    """Counts of machines by cell, and the rate of each machine, for both roles."""
    from sumpter_lab.scaffold import units

    common = units.check_rate(rate_mbit, "--rate-mbit")
    roles = []
    for option, text, least, rates in (
        ("worker", workers, 1, worker_rates),
        ("server", servers, 0, server_rates),
    ):
        counts = units.parse_counts(text, f"--{option}s", least)
        listed = None if rates is None else units.parse_rates(rates, f"--{option}-rates")
        each = units.rates_of(max(counts), listed, common, f"--{option}-rates")
        roles.append((counts, each))
    return roles[0], roles[1]


def _racks(count: int | None, trunk_mbit: float | None) -> Racks | None:
    from sumpter_lab.scaffold import units
    from sumpter_lab.scaffold.network.cluster import Racks

    if count is None and trunk_mbit is None:
        return None
    if count is None or trunk_mbit is None:
        raise UsageError(
            "--racks and --trunk-mbit go together: how many racks, and what each one's trunk "
            "carries"
        )
    return Racks(count, units.check_rate(trunk_mbit, "--trunk-mbit"))


def _loads(size: str | None, model: str | None, scale: float | None) -> list[Load]:
    from sumpter_lab.scaffold import spec, units

    if size is not None and model is not None:
        raise UsageError("--bytes and --model exclude each other: a model has its own sizes")
    if scale is not None and model is None:
        raise UsageError("--scale divides the sizes of a --model: give --bytes as they are to be")
    if model is not None:
        return [spec.model(model, scale or 1.0)]
    return [spec.tensor(count) for count in units.parse_sizes(size or DEFAULT_BYTES, "--bytes")]


def _peers(text: str) -> tuple[str, ...]:
    from sumpter_lab.scaffold.spec import PEERS

    names = [part.strip() for part in text.split(",") if part.strip() not in ("", "none")]
    unknown = [name for name in names if name not in PEERS and "=" not in name]
    if unknown:
        raise UsageError(
            f"--peers: '{unknown[0]}' is unknown; choose {', '.join(PEERS)}, NAME=VALUE (Sumpter "
            "with another setting) or none"
        )
    return tuple(dict.fromkeys(names))


@app.command("allreduce", epilog=ALLREDUCE_EXAMPLE)
def allreduce(
    min_bytes: MinBytesOption = "4",
    max_bytes: MaxBytesOption = "1GiB",
    sizes: SizesOption = None,
    model: ModelsOption = None,
    rounds: RepeatOption = None,
    peers: PeersOption = "gloo",
    device: DeviceOption = "cpu",
    jax: JaxOption = False,
    as_json: JsonOption = False,
    csv: CsvOption = None,
) -> None:
    """Measure latency and goodput on the cluster this is launched on (run, torchrun).

    Every rank runs this command; rank 0 prints. Each size goes through push_pull on a tensor and
    on a NumPy array, through torch.distributed's "sumpter" backend, and through Gloo. On a device
    only tensors are summed, and ranks of one machine share its devices in turn.
    """

    check_writable(csv, "--csv")
    from sumpter_lab.scaffold import spec

    if sizes is not None and model is not None:
        raise UsageError("--sizes and --model exclude each other: a model has its own sizes")
    if model is not None:
        wanted = [spec.model(name.strip()) for name in model.split(",")]
    else:
        asked = _range(min_bytes, max_bytes) if sizes is None else _sizes(sizes)
        wanted = [spec.tensor(size) for size in asked]
    if set(_peers(peers)) - {"gloo"}:
        raise UsageError("--peers: bench allreduce measures beside gloo or none")
    if device not in ("cpu", "cuda"):
        raise UsageError(f"--device {device}: cpu or cuda")
    if jax and (model is not None or device != "cpu"):
        raise UsageError("--jax: programs of JAX sum one tensor on the CPU; leave out the other")
    from sumpter_lab.allreduce import Spec

    measured = Spec(tuple(wanted), rounds, "gloo" in _peers(peers), device, jax)
    rows = _allreduce(measured, as_json, csv)
    if rows and as_json:
        typer.echo(json.dumps(rows))


def _allreduce(asked: sums.Spec, as_json: bool, csv: Path | None) -> list[dict[str, Any]]:
    """Runs all sizes; the rows on rank 0, nothing elsewhere. The file has each as it comes."""
    from sumpter_lab.allreduce import COLUMNS, Ranks, run
    from sumpter_lab.scaffold.results import record

    rows: list[dict[str, Any]] = []
    about = record.environment()
    with Ranks(asked) as ranks:
        for row in run(ranks, asked):
            if ranks.rank != 0:
                continue
            if not as_json:
                if not rows:
                    typer.echo(head_line(COLUMNS))
                typer.echo(row_line(COLUMNS, row))
            rows.append({**row, **about})
            if csv is not None:
                write_csv(csv, rows)
    return rows


def _sizes(text: str) -> list[int]:
    from sumpter_lab.scaffold import units

    return units.parse_sizes(text, "--sizes")


def _range(least: str, most: str) -> list[int]:
    """Sizes from the smallest to the largest in steps."""
    from sumpter_lab.scaffold import units

    (low,) = units.parse_sizes(least, "--min-bytes")
    (high,) = units.parse_sizes(most, "--max-bytes")
    if low > high:
        raise UsageError(f"--min-bytes {least} is larger than --max-bytes {most}")
    sizes = []
    while low <= high:
        sizes.append(low)
        low *= SIZE_STEP
    return sizes


app.command("chaos", epilog=bench_chaos.EXAMPLE)(bench_chaos.chaos)
app.command("convergence", epilog=bench_convergence.EXAMPLE)(bench_convergence.convergence)
app.command("replay", epilog=bench_replay.EXAMPLE)(bench_replay.replay)
app.command("tune", epilog=bench_tune.EXAMPLE)(bench_tune.tune)
app.command("regret", epilog=bench_regret.EXAMPLE)(bench_regret.regret)
app.command("sum", epilog=bench_local.SUM_EXAMPLE)(bench_local.sum_)
app.command("server", epilog=bench_local.SERVER_EXAMPLE)(bench_local.server)
app.command("ablate", epilog=bench_local.ABLATE_EXAMPLE)(bench_local.ablate)
app.command("scale", epilog=bench_scale.EXAMPLE)(bench_scale.scale)
app.command("tenants", epilog=bench_tenants.EXAMPLE)(bench_tenants.tenants)
scripted(app, "overhead", "Measure what tracing, the metrics endpoint and recording cost a job.")
scripted(app, "costs", "Measure what encryption, checksums and retained results cost a round.")
scripted(app, "asynchronous", "Measure training with a slow worker, by staleness (root, Linux).")
scripted(app, "memory", "Measure the memory of an optimizer, by place (root, Linux).")
scripted(app, "refill", "Measure filling the lanes after a server died (root, Linux).")
scripted(app, "interfaces", "Measure a server with several network interfaces (root, Linux).")
scripted(app, "diloco", "Measure training over a wide-area link (root, Linux).")
scripted(app, "stragglers", "Measure rounds with late ranks, beside Gloo's ring (root, Linux).")
