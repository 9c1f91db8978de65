"""`sumpter bench sum`, `server` and `ablate`: benchmarks of this machine alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from sumpter._failure import Failure, UsageError
from sumpter._sizes import parse_size
from sumpter.cli.options import JsonOption
from sumpter_lab.cli.options import CsvOption, RulesOption
from sumpter_lab.scaffold.results.output import write_csv
from sumpter_lab.scaffold.units import parse_counts, parse_names

if TYPE_CHECKING:
    pass

SUM_EXAMPLE = "Example: sumpter bench sum --dtypes float32,float16 --csv sum.csv"
SERVER_EXAMPLE = "Example: sumpter bench server --workers 1,2,4,8 --lanes 1,2 --rounds 15"
ABLATE_EXAMPLE = "Example: sumpter bench ablate aggregation --threads 2"


_FLOAT32_BYTES = 4

# Beyond this a machine of today's size would swap, and measure its disk.
_MOST_BYTES = 1 << 36


def sum_(
    bytes_cache: Annotated[
        str,
        typer.Option("--bytes-cache", metavar="SIZE", help="Accumulators that stay in cache."),
    ] = "96KiB",
    bytes_memory: Annotated[
        str,
        typer.Option("--bytes-memory", metavar="SIZE", help="Accumulators that do not."),
    ] = "64MiB",
    dtypes: Annotated[
        str | None, typer.Option("--dtypes", metavar="LIST", help="Element types (default: all).")
    ] = None,
    ops: Annotated[
        str | None, typer.Option("--ops", metavar="LIST", help="Operations (default: all).")
    ] = None,
    codec: Annotated[
        list[str] | None,
        typer.Option("--codec", metavar="CODEC", help="A codec, as int8 (default: each; repeat)."),
    ] = None,
    contributions: Annotated[
        str, typer.Option("--contributions", metavar="LIST", help="To each sum, in the cycle.")
    ] = "2,8",
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", help="Turns of which the median counts.")
    ] = 9,
    csv: CsvOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure every summation kernel beside NumPy, torch and a plain copy; checksums; codecs."""
    from sumpter_lab.local import codecs, kernels, report, rivals

    places = [
        kernels.Place("cache", _size("--bytes-cache", bytes_cache)),
        kernels.Place("memory", _size("--bytes-memory", bytes_memory)),
    ]
    if places[0].bytes >= places[1].bytes:
        raise UsageError("--bytes-cache must be smaller than --bytes-memory")
    _fits(4 * places[1].bytes, "a smaller --bytes-memory")
    chosen_types = parse_names(dtypes, "--dtypes", kernels.DTYPES) or kernels.DTYPES
    chosen_ops = parse_names(ops, "--ops", kernels.OPS) or kernels.OPS
    _at_least("--rounds", rounds, 1)
    counts = parse_counts(contributions, "--contributions", 1)
    _at_least("--contributions", min(counts), 2)
    notes = [report.machine(), report.busy_note()]
    if rivals.load_torch() is None:
        notes.append("torch is not installed: its columns are empty")
    with _failures():
        rows = kernels.measure(places, chosen_types, chosen_ops, rounds)
        cycle = kernels.measure_cycle(places, counts, rounds)
        checksum = kernels.measure_checksum(places, rounds)
        coded = codecs.measure(codec or list(codecs.CODECS), places[0].bytes, rounds)
    tables = {"kernel": rows, "cycle": cycle, "checksum": checksum, "codec": coded}
    named = [{"table": name, **row} for name, of in tables.items() for row in of]
    if as_json:
        report.print_json(named)
    else:
        report.print_table("kernels, one core", rows, [note for note in notes if note])
        report.print_table("all additions of a lane, one core", cycle)
        report.print_table("a checksum of every byte, one core", checksum)
        report.print_table("codecs in cache, bytes of float32 a second, one core", coded)
    if csv is not None:
        write_csv(csv, named)


def server(
    workers: Annotated[
        str, typer.Option("--workers", metavar="LIST", help="Numbers of workers.")
    ] = "1,2,4,8",
    lanes: Annotated[
        str, typer.Option("--lanes", metavar="LIST", help="Numbers of the server's lanes.")
    ] = "1,2",
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Tensors to sum (default: resnet18)."),
    ] = None,
    size: Annotated[
        str | None, typer.Option("--bytes", metavar="SIZE", help="One tensor instead of a model.")
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", help="Rounds of which the median counts.")
    ] = 11,
    partition_bytes: Annotated[
        str,
        typer.Option("--partition-bytes", metavar="SIZE", help="The largest slice of a tensor."),
    ] = "256KiB",
    chunk_bytes: Annotated[
        str, typer.Option("--chunk-bytes", metavar="SIZE", help="The unit of streaming.")
    ] = "256KiB",
    credit_bytes: Annotated[
        str, typer.Option("--credit-bytes", metavar="SIZE", help="How far ahead workers begin.")
    ] = "1MiB",
    rules: RulesOption = None,
    csv: CsvOption = None,
    as_json: JsonOption = False,
) -> None:
    """Load one server over loopback, beside the same loop without summation and raw TCP."""
    from sumpter import _native
    from sumpter_lab.local import report
    from sumpter_lab.local import server as bench

    known = _native.update_rules()
    load = bench.Load(
        tensors=_tensors(model, size),
        partition_bytes=_size("--partition-bytes", partition_bytes),
        chunk_bytes=_size("--chunk-bytes", chunk_bytes),
        credit_bytes=_size("--credit-bytes", credit_bytes),
        rounds=_at_least("--rounds", rounds, 1),
        rules=parse_names(rules, "--rules", sorted(known)),
    )
    counts, lane_counts = parse_counts(workers, "--workers", 1), parse_counts(lanes, "--lanes", 1)
    # A worker holds contribution and result; the lanes hold two rounds of sums. Of a variable the
    # lanes hold all parts, and the workers together as well.
    parts = sum(1 + len(known[rule]) for rule in load.rules)
    models = 2 * max(counts) + 2 + 2 * (parts + len(load.rules))
    _fits(models * sum(load.tensors), "fewer --workers or a smaller model")
    notes = [report.machine(), report.busy_note()]
    with _failures():
        rows = bench.measure(
            counts, lane_counts, load, lambda text: typer.echo(f"measuring {text}", err=True)
        )
    if as_json:
        report.print_json(rows)
    else:
        title = "one server under workers that compute nothing, loopback"
        report.print_table(title, bench.shown(rows), [note for note in notes if note])
        if load.rules:
            title = "rounds that update, beside rounds that only sum"
            report.print_table(title, bench.shown_rules(rows, load.rules))
    if csv is not None:
        write_csv(csv, rows)


def ablate(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="See --list.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the ablations.")] = False,
    threads: Annotated[
        str, typer.Option("--threads", metavar="LIST", help="Numbers of summing threads.")
    ] = "1,2",
    contributions: Annotated[
        int, typer.Option("--contributions", metavar="C", help="To each sum.")
    ] = 8,
    size: Annotated[
        str, typer.Option("--bytes", metavar="SIZE", help="The model's bytes.")
    ] = "64MiB",
    chunk_bytes: Annotated[
        str, typer.Option("--chunk-bytes", metavar="SIZE", help="The unit of streaming.")
    ] = "256KiB",
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", help="Rounds of which the median counts.")
    ] = 7,
    provider: Annotated[
        str, typer.Option("--provider", metavar="NAME", help="Of libfabric, for datapath.")
    ] = "tcp",
    csv: CsvOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what one choice of the design is worth, beside its alternative."""
    from sumpter_lab.local import report
    from sumpter_lab.local.ablations import ABLATIONS, Size

    if listed:
        for known, ablation in ABLATIONS.items():
            typer.echo(f"{known:12} {ablation.compares}")
        return
    if name not in ABLATIONS:
        what = "give the name of an ablation" if name is None else f"no ablation is called '{name}'"
        raise UsageError(f"{what}: one of {', '.join(ABLATIONS)}")
    wanted = Size(
        bytes=_size("--bytes", size),
        contributions=_at_least("--contributions", contributions, 2),
        threads=parse_counts(threads, "--threads", 1),
        rounds=_at_least("--rounds", rounds, 1),
        chunk_bytes=_size("--chunk-bytes", chunk_bytes),
        provider=provider,
    )
    if wanted.bytes < 64 * wanted.chunk_bytes:
        raise UsageError("--bytes must be at least 64 times --chunk-bytes")
    _fits((wanted.contributions + 2) * wanted.bytes, "a smaller --bytes or --contributions")
    notes = [report.machine(), report.busy_note()]
    with _failures():
        rows = [{"ablation": name, **row} for row in ABLATIONS[name].measure(wanted)]
    if as_json:
        report.print_json(rows)
    else:
        report.print_table(ABLATIONS[name].compares, rows, [note for note in notes if note])
    if csv is not None:
        write_csv(csv, rows)


@contextmanager
def _failures() -> Iterator[None]:
    """Turns what the benchmarks raise into one line."""
    from sumpter_lab.local.kernels import WrongResult
    from sumpter_lab.local.optimizers import TorchMissing

    try:
        yield
    except MemoryError as error:
        raise Failure("not enough memory: give smaller sizes or fewer workers") from error
    except (WrongResult, TorchMissing) as error:
        raise Failure(str(error)) from error


def _size(option: str, text: str) -> int:
    size = parse_size(text, option)
    if size % 64 or size > _MOST_BYTES:
        raise UsageError(f"{option} {text}: give a multiple of 64 bytes, at most 64GiB")
    return size


def _fits(needed_bytes: int, advice: str) -> None:
    """Refuses what this machine's free memory cannot hold, before anything is built."""
    from sumpter_lab.scaffold.network.counters import available_bytes

    free_bytes = available_bytes()
    if needed_bytes > free_bytes:
        needed, free = needed_bytes / 1e9, free_bytes / 1e9
        raise Failure(f"needs {needed:.1f} GB of memory, {free:.1f} GB are free: give {advice}")


def _at_least(option: str, value: int, least: int) -> int:
    if value < least:
        raise UsageError(f"{option} {value}: give at least {least}")
    return value


def _tensors(model: str | None, size: str | None) -> list[int]:
    from sumpter_lab.profiles.architectures import ARCHITECTURES, elements, shapes

    if model is not None and size is not None:
        raise UsageError("--model and --bytes exclude each other")
    if size is not None:
        return [_size("--bytes", size)]
    name = model or "resnet18"
    if name not in ARCHITECTURES:
        raise UsageError(f"--model {name}: known are {', '.join(ARCHITECTURES)}")
    return [_FLOAT32_BYTES * elements(shape) for _, shape in shapes(name)]
