"""`sumpter bench server`: one server under the load of workers that compute nothing, beside the
same event loop without summation, plain TCP, and plain TCP that sums (PHub's ZeroCompute test);
with rules, also beside rounds that update parameters."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sumpter_lab import _native
from sumpter_lab.local.kernels import LINK_GB_PER_S
from sumpter_lab.scaffold.results.figures import quartiles, ratio
from sumpter_lab.scaffold.results.table import Row

Sample = dict[str, Any]
# Names in the samples, and those in a row's fields.
VARIANTS = {
    "sum": "",
    "ordered": "deterministic_",
    "relay": "without_summation_",
    "raw": "raw_tcp_",
    "bare": "summing_tcp_",
}


@dataclass(frozen=True)
class Load:
    """What every worker sends in a round, and how."""

    tensors: Sequence[int]
    partition_bytes: int
    chunk_bytes: int
    credit_bytes: int
    rounds: int
    rules: Sequence[str] = ()


def measure(
    workers: Sequence[int],
    lanes: Sequence[int],
    load: Load,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """A row for each number of workers and of lanes. Raises if any sum was wrong."""
    rows = []
    for count in workers:
        for lane_count in lanes:
            progress(f"{count} workers, {lane_count} lanes")
            text = _native.bench_server(
                workers=count,
                lanes=lane_count,
                tensors=list(load.tensors),
                partition_bytes=load.partition_bytes,
                chunk_bytes=load.chunk_bytes,
                credit_bytes=load.credit_bytes,
                rounds=load.rounds,
                rules=list(load.rules),
            )
            rows.append(_row(count, lane_count, load, json.loads(text)))
    return rows


def _row(workers: int, lanes: int, load: Load, samples: list[Sample]) -> Row:
    # Bytes that the server receives in a round, and as many that it sends.
    gigabytes = workers * sum(load.tensors) / 1e9
    by_variant = {
        name: [sample for sample in samples if sample["variant"] == name]
        for name in (*VARIANTS, *load.rules)
    }

    def median(variant: str, value: Callable[[Sample], float]) -> float:
        return statistics.median(value(sample) for sample in by_variant[variant])

    seconds = {name: median(name, lambda s: s["seconds"]) for name in by_variant}
    cpu = {
        name: {who: median(name, lambda s, w=who: s[f"{w}_cpu_s"]) for who in ("server", "worker")}
        for name in by_variant
    }
    total = {name: sum(of.values()) for name, of in cpu.items()}
    low, _, high = quartiles(
        [
            r["seconds"] / s["seconds"]
            for s, r in zip(by_variant["sum"], by_variant["relay"], strict=True)
        ]
    )
    row: Row = {"workers": workers, "lanes": lanes, "bytes": sum(load.tensors)}
    for name, label in VARIANTS.items():
        row[f"{label}goodput_gb_per_s"] = gigabytes / seconds[name]
    row["goodput_ratio"] = seconds["relay"] / seconds["sum"]
    row["goodput_ratio_low"], row["goodput_ratio_high"] = low, high
    row["deterministic_goodput_ratio"] = statistics.median(
        s["seconds"] / o["seconds"]
        for s, o in zip(by_variant["sum"], by_variant["ordered"], strict=True)
    )
    row["deterministic_cpu_ratio"] = ratio(total["ordered"], total["sum"])
    row["goodput_ratio_to_raw_tcp"] = seconds["raw"] / seconds["sum"]
    row["goodput_ratio_to_summing_tcp"] = seconds["bare"] / seconds["sum"]
    for name, label in VARIANTS.items():
        row[f"{label}server_cpu_s_per_gb"] = cpu[name]["server"] / gigabytes
        row[f"{label}worker_cpu_s_per_gb"] = cpu[name]["worker"] / gigabytes
    # The cores that a server needs for a link of 100 Gb/s each way, and those without summation.
    for name, label in (("sum", ""), ("relay", "without_summation_")):
        cores = cpu[name]["server"] / gigabytes * LINK_GB_PER_S
        row[f"{label}server_cores_for_100_gb_per_s"] = cores
    row["cpu_s_per_gb"] = total["sum"] / gigabytes
    row["cpu_ratio_to_raw_tcp"] = ratio(total["sum"], total["raw"])
    row["cpu_ratio_to_summing_tcp"] = ratio(total["sum"], total["bare"])
    for who in ("server", "worker"):
        row[f"{who}_cpu_ratio_to_raw_tcp"] = ratio(cpu["sum"][who], cpu["raw"][who])
    for who in ("server", "worker"):
        calls = median("sum", lambda s, w=who: sum(s[f"{w}_calls"].values()))
        raw_calls = median("raw", lambda s, w=who: sum(s[f"{w}_calls"].values()))
        row[f"{who}_calls_per_gb"] = round(calls / gigabytes)
        row[f"raw_tcp_{who}_calls_per_gb"] = round(raw_calls / gigabytes)
    for rule in load.rules:
        row |= _rule(rule, by_variant, gigabytes)
    row["correct"] = True
    return row


def _rule(rule: str, by_variant: dict[str, list[Sample]], gigabytes: float) -> Row:
    """Rounds that update by a rule, beside sums in the order of arrival and in that of ranks, which
    variables always have: medians of the ratios by round."""
    updates = by_variant[rule]

    def ratios(variant: str, value: Callable[[Sample], float]) -> list[float]:
        pairs = zip(by_variant[variant], updates, strict=True)
        return [value(update) / value(plain) for plain, update in pairs if value(plain)]

    def cpu_s(sample: Sample) -> float:
        return float(sample["server_cpu_s"] + sample["worker_cpu_s"])

    row: Row = {f"{rule}_goodput_gb_per_s": gigabytes / _median(updates, "seconds")}
    for who in ("server", "worker"):
        row[f"{rule}_{who}_cpu_s_per_gb"] = _median(updates, f"{who}_cpu_s") / gigabytes
    row[f"{rule}_cpu_s_per_gb"] = statistics.median(map(cpu_s, updates)) / gigabytes
    for variant, over in (("sum", ""), ("ordered", "_to_deterministic")):
        goodput = [1 / slower for slower in ratios(variant, lambda s: s["seconds"])]
        low, median, high = quartiles(goodput)
        row[f"{rule}_goodput_ratio{over}"] = median
        row[f"{rule}_goodput_ratio{over}_low"] = low
        row[f"{rule}_goodput_ratio{over}_high"] = high
        row[f"{rule}_cpu_ratio{over}"] = statistics.median(ratios(variant, cpu_s))
    return row


def _median(samples: Sequence[Sample], name: str) -> float:
    return float(statistics.median(sample[name] for sample in samples))


# What a table shows of a row; JSON and CSV have all of it.
COLUMNS = {
    "workers": "workers",
    "lanes": "lanes",
    "goodput_gb_per_s": "GB/s",
    "goodput_ratio": "over no sums",
    "goodput_ratio_to_raw_tcp": "over TCP",
    "goodput_ratio_to_summing_tcp": "over TCP that sums",
    "deterministic_goodput_ratio": "in order of ranks",
    "cpu_s_per_gb": "CPU s/GB",
    "cpu_ratio_to_raw_tcp": "over TCP's",
    "cpu_ratio_to_summing_tcp": "over TCP's that sums",
    "server_cores_for_100_gb_per_s": "server's cores for 100 Gb/s",
    "without_summation_server_cores_for_100_gb_per_s": "without sums",
    "correct": "right",
}


RULE_COLUMNS = {
    "goodput_gb_per_s": "GB/s",
    "goodput_ratio": "over sums",
    "goodput_ratio_to_deterministic": "over sums in order of ranks",
    "cpu_s_per_gb": "CPU s/GB",
    "cpu_ratio": "over sums'",
    "cpu_ratio_to_deterministic": "over sums' in order of ranks",
}


def shown_rules(rows: Sequence[Row], rules: Sequence[str]) -> list[Row]:
    """A row for each cell and rule."""
    return [
        {"workers": row["workers"], "lanes": row["lanes"], "rule": rule}
        | {title: row[f"{rule}_{name}"] for name, title in RULE_COLUMNS.items()}
        for row in rows
        for rule in rules
    ]


def shown(rows: Sequence[Row]) -> list[Row]:
    return [{title: row[name] for name, title in COLUMNS.items()} for row in rows]
