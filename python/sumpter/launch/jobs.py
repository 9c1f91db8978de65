"""The jobs of a coordinator as `sumpter jobs` lists them, from its status document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sumpter.launch.figures import format_bytes, format_rate
from sumpter.launch.status import load


@dataclass(frozen=True)
class Row:
    """One job."""

    name: str
    state: str  # "waiting", "starting", "running", "failed" or "ended"
    workers: int  # that are here
    world_size: int
    n: int  # machines with workers
    k: int  # machines that only sum
    epoch: int
    rounds_per_s: float
    bytes_per_s: float
    memory_bytes: float  # on all servers
    max_bytes: int | None  # on each server
    weight: int

    def as_dict(self) -> dict[str, Any]:
        """The row for JSON."""
        return asdict(self)


def read_jobs(text: str) -> list[Row]:
    """The jobs in a status document."""
    document = load(text)
    servers = [_counters(server) for server in document.get("servers") or []]
    return [_row(job, servers) for job in document.get("jobs") or []]


def _row(job: Mapping[str, Any], servers: list[Mapping[str, float]]) -> Row:
    workers = [_counters(worker) for worker in job.get("workers") or []]
    machines, quota = job.get("machines") or {}, job.get("quota") or {}
    return Row(
        name=str(job.get("name", "")),
        state=str(job.get("state", "")),
        workers=len(workers),
        world_size=int(job.get("world_size") or 0),
        n=int(machines.get("gpu") or 0),
        k=int(machines.get("cpu") or 0),
        epoch=int(job.get("epoch") or 0),
        rounds_per_s=_rate(workers, "rounds"),
        bytes_per_s=_rate(workers, "tensor_bytes"),
        memory_bytes=sum(s.get(f"run_memory_bytes/{job.get('run')}", 0.0) for s in servers),
        max_bytes=quota.get("max_bytes"),
        weight=int(quota.get("weight") or 1),
    )


def _counters(member: Mapping[str, Any]) -> Mapping[str, float]:
    return (member.get("stats") or {}).get("counters") or {}


def _rate(workers: list[Mapping[str, float]], name: str) -> float:
    """A counter per second, for a worker on average."""
    rates = [
        worker.get(name, 0.0) / worker["elapsed_s"] for worker in workers if worker.get("elapsed_s")
    ]
    return sum(rates) / len(rates) if rates else 0.0


def print_jobs(rows: list[Row]) -> None:
    """Prints the jobs as a table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("job", "state"):
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    for name in ("workers", "n", "k", "epoch", "rounds/s", "summed", "memory", "weight"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        memory = format_bytes(row.memory_bytes)
        if row.max_bytes is not None:
            memory += f" of {format_bytes(row.max_bytes)}"
        cells = (
            *(row.name, row.state, f"{row.workers}/{row.world_size}"),
            *(str(row.n), str(row.k), str(row.epoch)),
            *(f"{row.rounds_per_s:.1f}", format_rate(row.bytes_per_s), memory, str(row.weight)),
        )
        table.add_row(*map(Text, cells))
    Console(highlight=False).print(table)
