"""`sumpter whatif`: what an iteration would take elsewhere. Lists in, a table or JSON out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sumpter._failure import UsageError
from sumpter.cli.options import JsonOption
from sumpter.cli.printing import print_parts
from sumpter_lab.cli import single
from sumpter_lab.cli import whatif_lists as texts
from sumpter_lab.cli.options import AddEstimateOption
from sumpter_lab.cli.profile import ProfileOption, published
from sumpter_lab.cli.whatif_options import (
    AdviseOption,
    ArchitectureOption,
    BandwidthOption,
    BatchTimeOption,
    CodecCoresOption,
    CodecMinBytesOption,
    CodecRateOption,
    CompressionOption,
    CreditOption,
    EfficiencyOption,
    FormatOption,
    FusionBytesOption,
    FusionTimeoutOption,
    HopLatencyOption,
    LocalReductionOption,
    MachinesOption,
    OrderOption,
    OverlapOption,
    PartitionOption,
    ServersOption,
    UpdateOption,
    WorkersOption,
)

if TYPE_CHECKING:
    from sumpter.profiles import Profile
    from sumpter_lab.whatif import Case, CodecRate, Outcome

EXAMPLE = (
    "Example: sumpter whatif --profile run.profile.json --workers 16,64 --bandwidth-gbps 10,25 "
    "--servers 0,16"
)
_MOST_CASES = 100_000

# Columns of text.
_IN_WORDS = ("machines", "inside", "architecture")

Row = tuple["Case", float | None, "Outcome"]


def whatif(
    profile: ProfileOption,
    workers: WorkersOption = None,
    bandwidth_gbps: BandwidthOption = None,
    servers: ServersOption = None,
    machines: MachinesOption = None,
    local_reduction: LocalReductionOption = "rule",
    architecture: ArchitectureOption = None,
    compression: CompressionOption = "1",
    codec_rate: CodecRateOption = None,
    codec_cores: CodecCoresOption = "1",
    codec_min_bytes: CodecMinBytesOption = "64KiB",
    fusion_bytes: FusionBytesOption = "64MiB",
    fusion_timeout_ms: FusionTimeoutOption = "5",
    hop_latency_us: HopLatencyOption = "0",
    partition_bytes: PartitionOption = "256KiB",
    credit_bytes: CreditOption = "auto",
    update_gb_per_s: UpdateOption = None,
    transport_efficiency: EfficiencyOption = "1",
    overlap_forward: OverlapOption = False,
    order: OrderOption = "auto",
    add_estimate: AddEstimateOption = None,
    batch_time_s: BatchTimeOption = None,
    format: FormatOption = "sumpter",
    advise: AdviseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Predict an iteration on other machines, links or helpers, from a profile.

    Any list with commas makes a grid. `docs/user/whatif.md` says what is modelled.
    """
    lists = _lists(machines)
    values = {
        **_machines(lists, workers, servers, bandwidth_gbps),
        "compression": texts.compressions(compression),
        "codec_rate": texts.codec_rates(codec_rate),
        "codec_cores": texts.numbers(codec_cores, "--codec-cores"),
        "codec_min_bytes": texts.sizes(codec_min_bytes, "--codec-min-bytes"),
        "transport_efficiency": texts.numbers(transport_efficiency, "--transport-efficiency"),
        "fusion_bytes": texts.sizes(fusion_bytes, "--fusion-bytes"),
        "fusion_timeout_s": [
            1e-3 * time_ms for time_ms in texts.numbers(fusion_timeout_ms, "--fusion-timeout-ms")
        ],
        "partition_bytes": texts.sizes(partition_bytes, "--partition-bytes"),
        "credit_bytes": texts.credits(credit_bytes),
        "overlap_forward": [overlap_forward],
        "order": texts.orders(order),
        "hop_latency_s": [1e-6 * us for us in texts.numbers(hop_latency_us, "--hop-latency-us")],
        "update_bytes_per_s": texts.rates(update_gb_per_s),
        "local_reduction": texts.local_reductions(local_reduction, lists),
    }
    architectures = texts.words(architecture, "--architecture")
    times_s = [None] if batch_time_s is None else texts.numbers(batch_time_s, "--batch-time-s")
    _check_count({"machines": lists or [None], **values}, architectures, times_s, advise)
    profiles = [_load(profile, format, time_s, add_estimate) for time_s in times_s]
    cases = _cases(lists, values, architectures)
    _check_used(values, {case.architecture for case in cases})
    if codec_rate is not None and not advise and not any(map(_is_coded, cases)):
        raise UsageError("--codec-rate is for codecs: name one in --compression, as int8")
    names = {text: name for name, text in lists.items()}
    if advise:
        _advise(profiles[0], cases[0], names, as_json)
        return
    rows = _simulate(profiles, times_s, cases)
    if as_json:
        objects = [_described(case, outcome, names) for case, _, outcome in rows]
        typer.echo(json.dumps(objects, indent=2))
    else:
        _print(profiles[0], rows, names)


def _lists(files: str | None) -> dict[str, str]:
    """The texts of machine lists by the names of their files."""
    lists = {}
    for name in [] if files is None else texts.entries(files, "--machines"):
        try:
            lists[name] = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--machines {name}: cannot be read: {error}") from error
    return lists


def _machines(
    lists: dict[str, str], workers: str | None, servers: str | None, gbps: str | None
) -> dict[str, list[Any]]:
    """Numbers of machines and bandwidths, as far as they are not those of lists."""
    bandwidths = None if gbps is None else texts.numbers(gbps, "--bandwidth-gbps")
    if lists:
        for option, given in (("--workers", workers), ("--servers", servers)):
            if given is not None:
                raise UsageError(f"{option} {given}: leave it out beside --machines, which has it")
        return {} if bandwidths is None else {"bandwidth_gbps": bandwidths}
    if workers is None or bandwidths is None:
        option = "--workers" if workers is None else "--bandwidth-gbps"
        raise UsageError(f"{option} is missing; give it, or --machines FILE")
    return {
        "workers": texts.counts(workers, "--workers", 1),
        "servers": texts.counts("0" if servers is None else servers, "--servers", 0),
        "bandwidth_gbps": bandwidths,
    }


def _cases(
    lists: dict[str, str], values: dict[str, list[Any]], architectures: list[str]
) -> list[Case]:
    from sumpter_lab.whatif.grid import cases, of_lists

    found = of_lists(lists, values, architectures) if lists else cases(values, architectures)
    return list(found)


def _described(case: Case, outcome: Outcome, names: dict[str, str]) -> dict[str, Any]:
    """The object of a case, with the file of its machine list if it has one."""
    from sumpter_lab.whatif.cases import described

    listed = {} if case.machines is None else {"machines": names[case.machines]}
    return listed | described(case, outcome)


def _check_count(
    values: dict[str, list[Any]],
    architectures: list[str],
    times_s: list[float | None],
    advise: bool,
) -> None:
    lists = [*values.values(), architectures or [""], times_s]
    count = math.prod(map(len, lists))
    if count > _MOST_CASES:
        raise UsageError(f"the lists make {count} cases; expected at most {_MOST_CASES}")
    if advise and count > 1:
        raise UsageError(f"--advise is about one case, but the lists make {count}")


def _check_used(values: dict[str, list[Any]], architectures: set[str]) -> None:
    """Refuses what would change nothing, as no case has what it is about."""
    if "allreduce" not in architectures and any(time_s > 0 for time_s in values["hop_latency_s"]):
        raise UsageError("--hop-latency-us is for all-reduce: add it to --architecture")
    if architectures == {"allreduce"} and values["update_bytes_per_s"] != [None]:
        raise UsageError("--update-gb-per-s is for servers: give --architecture ps or sumpter")


def _load(file: str, format: str, time_s: float | None, additions: Path | None) -> Profile:
    from sumpter.profiles import ProfileError
    from sumpter_lab import profiles

    if format not in profiles.FORMATS:
        raise UsageError(f"--format {format}: expected {' or '.join(profiles.FORMATS)}")
    if time_s is not None and time_s <= 0:
        raise UsageError(f"--batch-time-s {time_s:g}: expected seconds, more than 0")
    if format == "netai":
        if time_s is None:
            raise UsageError("--format netai needs --batch-time-s T: its logs do not say it")
        loaded = profiles.load(file, format, iteration_s=time_s)
    else:
        loaded = published(file) or profiles.load(file, format)
        if time_s is not None:
            try:
                loaded = replace(loaded, iteration_s=time_s)
            except ProfileError as error:
                raise UsageError(f"--batch-time-s {time_s:g}: {error}") from error
    if additions is None:
        return loaded
    return replace(loaded, add=profiles.additions(additions))


def _simulate(profiles: list[Profile], times_s: list[float | None], cases: list[Case]) -> list[Row]:
    from sumpter_lab.whatif import simulate

    rows: list[Row] = []
    for loaded, time_s in zip(profiles, times_s, strict=True):
        outcomes = simulate(loaded, cases)
        rows += [(case, time_s, one) for case, one in zip(cases, outcomes, strict=True)]
    return rows


def _advise(profile: Profile, case: Case, names: dict[str, str], as_json: bool) -> None:
    from sumpter_lab.whatif import advise
    from sumpter_lab.whatif.advice import in_words

    outcome, advice = advise(profile, case)
    if as_json:
        found = [
            {
                "change": one.change,
                "gain": one.gain,
                "case": _described(one.case, one.outcome, names),
            }
            for one in advice
        ]
        now = _described(case, outcome, names)
        typer.echo(json.dumps({"case": now, "advice": found}, indent=2))
        return
    _print(profile, [(case, None, outcome)], names)
    typer.echo()
    for sentence in in_words(outcome, advice):
        typer.echo(sentence)


def _print(profile: Profile, rows: list[Row], names: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from sumpter.launch.figures import format_bytes, format_seconds

    table = Table(box=None, header_style="bold", pad_edge=False)
    columns = [column for column in _columns(names) if column[2] or _varies(rows, column[1])]
    for title, _, _ in columns:
        table.add_column(title, justify="left" if title in _IN_WORDS else "right")
    for title in ("scaling", "iteration", "overhead"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("bottleneck", no_wrap=True)
    for row in rows:
        outcome = row[2]
        table.add_row(
            *(text(row) for _, text, _ in columns),
            f"{outcome.scaling_factor:.4f}",
            format_seconds(outcome.iteration_time_s),
            format_seconds(outcome.overhead_s) if outcome.overhead_s else "none",
            outcome.bottleneck,
        )
    head = f"{profile.name}: {format_bytes(profile.bytes)} of gradients"
    if len({time_s for _, time_s, _ in rows}) == 1:
        head += f", {format_seconds(profile.iteration_s)} an iteration without communication"
    Console(highlight=False).print(Text(head, style="bold"))
    for line in (*_listed(rows, names), *_rates_of(rows)):
        typer.echo(line)
    print_parts(["", table], wraps=True)


def _listed(rows: list[Row], names: dict[str, str]) -> Iterator[str]:
    """What each machine list has, once."""
    from sumpter_lab.whatif import described_list

    shown = dict.fromkeys((case.machines, case.local_reduction) for case, _, _ in rows)
    for text, local in shown:
        if text is not None:
            found = described_list(text, local)
            line = f"{names[text]}: {found.workers} GPU machines"
            if found.gpus > found.workers:
                line += f" with {found.gpus} GPUs"
            line += f", {found.servers} CPU machines"
            line += f", {found.racks} racks" if found.racks else ""
            for machine, reduction in found.local_reductions:
                line += f"; inside {machine}: {reduction}"
            yield line


def _rates_of(rows: list[Row]) -> Iterator[str]:
    """How fast each codec is taken to be, once."""
    from sumpter_lab.whatif.cases import rate_of

    shown = dict.fromkeys(
        (case.compression, rate_of(case), case.codec_rate is None)
        for case, _, _ in rows
        if _is_coded(case)
    )
    for codec, rate, measured in shown:
        encode, decode, add = (1e-9 * each for each in rate)
        source = "measured here" if measured else "as given"
        yield (
            f"{codec}: a core encodes {encode:.3g}, decodes {decode:.3g}, decodes and adds "
            f"{add:.3g} GB/s of float32 ({source})"
        )


def _is_coded(case: Case) -> bool:
    return isinstance(case.compression, str)


def _columns(names: dict[str, str]) -> list[tuple[str, Callable[[Row], str], bool]]:
    """Title, text of a row, and whether it is shown although all rows have the same."""
    from sumpter.launch.figures import format_bytes, format_seconds

    def size(count: int | None) -> str:
        return "auto" if count is None else format_bytes(count)

    def rate(count: float | None) -> str:
        return "workers" if count is None else f"{1e-9 * count:g} GB/s"

    return [
        ("machines", lambda row: _name(row, names), False),
        ("inside", lambda row: row[0].local_reduction, False),
        ("workers", lambda row: str(row[0].workers), True),
        ("servers", lambda row: str(row[0].servers), True),
        ("architecture", lambda row: row[0].architecture, True),
        ("Gb/s", lambda row: f"{row[0].bandwidth_gbps:g}", True),
        ("compression", lambda row: _compression(row[0].compression), False),
        ("codec rate", lambda row: _rate(row[0].codec_rate), False),
        ("codec cores", lambda row: f"{row[0].codec_cores:g}", False),
        ("codec from", lambda row: format_bytes(row[0].codec_min_bytes), False),
        ("efficiency", lambda row: f"{row[0].transport_efficiency:g}", False),
        ("fusion", lambda row: format_bytes(row[0].fusion_bytes), False),
        ("timeout", lambda row: f"{1e3 * row[0].fusion_timeout_s:g} ms", False),
        ("hop latency", lambda row: f"{1e6 * row[0].hop_latency_s:g} us", False),
        ("update", lambda row: rate(row[0].update_bytes_per_s), False),
        ("partition", lambda row: format_bytes(row[0].partition_bytes), False),
        ("credit", lambda row: size(row[0].credit_bytes), False),
        ("order", lambda row: row[0].order or "auto", False),
        ("batch", lambda row: "" if row[1] is None else format_seconds(row[1]), False),
    ]


def _compression(compression: float | str) -> str:
    return compression if isinstance(compression, str) else f"{compression:g}"


def _rate(rate: CodecRate | None) -> str:
    return "measured" if rate is None else "/".join(f"{1e-9 * each:g}" for each in rate)


def _name(row: Row, names: dict[str, str]) -> str:
    text = row[0].machines
    return "" if text is None else Path(names[text]).stem


def _varies(rows: list[Row], text: Callable[[Row], str]) -> bool:
    return len({text(row) for row in rows}) > 1


app = single(whatif, EXAMPLE)
