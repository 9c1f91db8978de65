"""What memory does an optimizer take, in the workers or on the servers?

    sudo sumpter bench memory

Emulates n GPU machines with a worker each and k CPU machines with a server each, trains a model of
`--megabytes` of float32 parameters with AdamW, whose state is in every worker or on the servers,
and reads what each process has to itself (Private_Clean and Private_Dirty of smaps_rollup: pages
that it shares with the others, such as PyTorch's code, do not count), above what it had with a tiny
model. Of a worker first as it is, which has memory that was freed and that the allocator keeps
("untrimmed"), then after malloc_trim(). The difference between both places is set beside the
formula of `sumpter plan --optimizer`. The parameters are checked.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sumpter import _native
from sumpter_lab.scaffold import units
from sumpter_lab.scaffold.jobs import remote
from sumpter_lab.scaffold.jobs.emulated import EmulatedJob, emulated_job
from sumpter_lab.scaffold.jobs.remote import call_all
from sumpter_lab.scaffold.network import cluster, counters, namespaces
from sumpter_lab.scaffold.results import record
from sumpter_lab.scaffold.results.output import check_writable
from sumpter_lab.scaffold.results.table import Column, Row, figure, head_line, row_line
from sumpter_lab.scaffold.signals import orderly

PATIENCE_S = 600.0
# Tensors of a size that models have; cut into partitions as theirs.
TENSOR_BYTES = 4 << 20
TINY = [(1024,)]
PLACES = ("workers", "servers")
RULE = "adam"


def _megabytes(name: str) -> Any:
    return lambda row: "-" if row[name] is None else f"{row[name] / 1e6:.1f}"


COLUMNS = (
    Column("n", 3, figure("workers", "{}")),
    Column("k", 3, figure("servers", "{}")),
    Column("own state", 9, _megabytes("worker_bytes_workers")),
    Column("on servers", 10, _megabytes("worker_bytes_servers")),
    Column("difference", 10, _megabytes("worker_difference_bytes")),
    Column("formula", 8, _megabytes("worker_difference_planned_bytes")),
    Column("untrimmed", 9, _megabytes("worker_untrimmed_bytes_workers")),
    Column("on servers", 10, _megabytes("worker_untrimmed_bytes_servers")),
    Column("server, sums", 12, _megabytes("server_bytes_workers")),
    Column("state", 8, _megabytes("server_bytes_servers")),
    Column("difference", 10, _megabytes("server_difference_bytes")),
    Column("formula", 8, _megabytes("server_planned_bytes")),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures every number of machines and prints a row for each."""
    parser = argparse.ArgumentParser(
        "sumpter bench memory", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("-n", "--workers", default="2,4,8", help="numbers of GPU machines")
    parser.add_argument(
        "-s", "--servers", default="0,n", help="numbers of CPU machines; n is as many as workers"
    )
    parser.add_argument("--megabytes", type=float, default=100.0, help="of parameters, in float32")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rate-mbit", type=float, default=2000.0)
    parser.add_argument("-o", "--output", type=Path, help="also write all figures, as JSON")
    asked = parser.parse_args(arguments)
    cells = units.parse_cells(asked.workers, asked.servers, 0)
    check_writable(asked.output, "--output")
    namespaces.check_tools()
    # torch's optimizers import it with their first step, in each process anew.
    remote.preload("sumpter_lab.memory_rank", "torch._dynamo")
    about = record.environment()
    most = max(n for n, _ in cells), max(k for _, k in cells)
    rates = [[asked.rate_mbit] * count for count in most]
    found = []
    print(head_line(COLUMNS))
    with orderly(), cluster.emulated(*rates) as machines:
        for n, k in cells:
            gpu, cpu = machines.gpu[:n], machines.cpu[:k]
            by_place = {place: _measure(gpu, cpu, place, asked) for place in PLACES}
            found.append(row_of(n, k, round(asked.megabytes * 1e6), by_place))
            print(row_line(COLUMNS, found[-1]), flush=True)
    if asked.output:
        document = {"about": about, "asked": vars(asked) | {"output": None}, "rows": found}
        asked.output.write_text(json.dumps(document, indent=1) + "\n")


def _shapes(megabytes: float) -> list[tuple[int, ...]]:
    """Equal tensors of float32, and one of what is left."""
    elements, whole = round(megabytes * 1e6 / 4), TENSOR_BYTES // 4
    shapes: list[tuple[int, ...]] = [(whole,)] * (elements // whole)
    return shapes + ([(elements % whole,)] if elements % whole else [])


def _measure(
    gpu: Sequence[cluster.Machine],
    cpu: Sequence[cluster.Machine],
    place: str,
    asked: argparse.Namespace,
) -> dict[str, list[int]]:
    """What each process has to itself: after steps of a tiny model, and after those of the model,
    as it is and with what was freed given back."""
    shapes = _shapes(asked.megabytes)
    with emulated_job(gpu, cpu, {"lanes": "1"}, {}, shapes, [], "Trainer") as job:
        # What the first steps of any model make, such as modules that are imported.
        call_all(job.workers, PATIENCE_S, "build", place, TINY)
        call_all(job.workers, PATIENCE_S, "step", asked.steps)
        call_all(job.workers, PATIENCE_S, "trim")
        before = _private(job)
        call_all(job.workers, PATIENCE_S, "build", place, shapes)
        call_all(job.workers, PATIENCE_S, "step", asked.steps)
        untrimmed = _private(job)
        call_all(job.workers, PATIENCE_S, "trim")
        after = _private(job)
        call_all(job.workers, PATIENCE_S, "check")
    found = {f"{role}_before": values for role, values in before.items()}
    return found | after | {"workers_untrimmed": untrimmed["workers"]}


def _private(job: EmulatedJob) -> dict[str, list[int]]:
    return {
        "workers": [counters.process_memory(one.pid).private_bytes for one in job.workers],
        "servers": [counters.process_memory(one.pid).private_bytes for one in job.servers],
    }


def row_of(n: int, k: int, model_bytes: int, by_place: dict[str, dict[str, list[int]]]) -> Row:
    """Medians over the processes of a role, above those with a tiny model, and the plan's."""
    request = {"workers": n, "servers": k, "bytes": model_bytes, "rule": RULE}
    planned = json.loads(_native.plan(json.dumps(request)))["optimizer"]
    row: Row = {"workers": n, "servers": k, "bytes": model_bytes, "by_place": by_place}
    for place, of in by_place.items():
        for name, role, when in (
            ("worker", "workers", "workers"),
            ("worker_untrimmed", "workers", "workers_untrimmed"),
            ("server", "servers", "servers"),
        ):
            more = [b - a for a, b in zip(of[f"{role}_before"], of[when], strict=True)]
            row[f"{name}_bytes_{place}"] = statistics.median(more) if more else None
    row["worker_difference_bytes"] = row["worker_bytes_servers"] - row["worker_bytes_workers"]
    row["worker_difference_planned_bytes"] = (
        planned["mirror_bytes"] + planned["lane_bytes_gpu"] - planned["worker_bytes"]
    )
    row["server_difference_bytes"] = row["server_planned_bytes"] = None
    if k:
        row["server_difference_bytes"] = row["server_bytes_servers"] - row["server_bytes_workers"]
        row["server_planned_bytes"] = planned["lane_bytes_cpu"]
    return row
