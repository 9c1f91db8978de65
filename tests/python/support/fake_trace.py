"""A trace of two workers and a server, made here: what a report gets from `sumpter.trace`."""

from __future__ import annotations

import types
from dataclasses import dataclass
from pathlib import Path

HEAD = b"\x0a\x10\x08\x01"  # a Perfetto file begins with a packet


@dataclass(frozen=True)
class Slice:
    process: str
    track: str
    activity: str
    begin_s: float
    end_s: float
    tensor: str | None
    round: int | None
    bytes: int | None
    peer: str | None


@dataclass(frozen=True)
class Trace:
    run: str
    slices: tuple[Slice, ...]
    clock_error_s: dict[str, float]


@dataclass(frozen=True)
class Explanation:
    step: int
    rank: int
    duration_s: float
    shares: dict[str, float]
    sentences: tuple[str, ...]


MS = 1e-3
STEP_MS = 40.0
BYTES = 1 << 20
SHARES = {"computing": 0.5, "sending": 0.3, "waiting for rank 1": 0.2}


def trace(steps: int = 2, tensors: int = 12, tensor: str = "layer") -> Trace:
    """Steps of 40 ms; in each, tensors go one after another from both workers to the server."""
    slices = []
    for step in range(steps):
        start = step * STEP_MS
        for rank in range(2):
            worker = f"worker-{rank}"
            slices.append(_slice(worker, "steps", "step", start, STEP_MS, None, step))
            for index in range(tensors):
                at = start + 12 + 2 * index + 0.3 * rank
                name, lane, size = f"{tensor}.{index}", "to server-0 lane 0", BYTES
                slices += [
                    _slice(worker, lane, "queued", at - 1, 1, name, step, size, "server-0"),
                    _slice(worker, lane, "sending", at, 0.9, name, step, size, "server-0"),
                    _slice(worker, lane, "waiting", at + 0.9, 0.7, name, step, None, "server-0"),
                    _slice(worker, lane, "receiving", at + 1.6, 0.4, name, step, size, "server-0"),
                ]
        for index in range(tensors):
            at = start + 13.2 + 2 * index
            slices.append(_slice("server-0", "lane 0", "summing", at, 0.4, f"t{index}", step))
    return Trace("a-run", tuple(slices), {"worker-0": 0.0, "worker-1": 35e-6, "server-0": 50e-6})


def _slice(process, track, activity, begin_ms, ms, tensor, step, size=None, peer=None) -> Slice:
    end_s = (begin_ms + ms) * MS
    return Slice(process, track, activity, begin_ms * MS, end_s, tensor, step, size, peer)


def module(made: Trace) -> types.ModuleType:
    """`sumpter.trace` as it would be, for sys.modules: its file is `made`, whatever is in it."""
    fake = types.ModuleType("sumpter.trace")

    def read(path: str | Path) -> Trace:
        assert Path(path).read_bytes().startswith(HEAD)
        return made

    def explain(of: Trace, step: int | None = None) -> tuple[Explanation, ...]:
        steps = sorted({one.round for one in of.slices if one.activity == "step"})
        return tuple(
            Explanation(number, rank, STEP_MS * MS, SHARES, (f"Rank {rank} sent for 12 ms.",))
            for number in steps
            if step is None or number == step
            for rank in range(2)
        )

    fake.read, fake.explain = read, explain
    return fake
