"""Sizes change again and again amid rounds: every result stays exact, no rank waits in vain."""

from __future__ import annotations

import statistics
import sys
import threading
import time

import torch

import sumpter
import sumpter.torch as hvd
from common import RANK, WORLD_SIZE, leave_result, raises, same
from sumpter.tuning import settings

STEPS = 80
STILL = len(sys.argv) > 1
SIZES = (300_000, 17, 70_000, 1_000_000)
# By step: who asks for what.
CHANGES = {
    5: (1, {"partition": "64KiB", "chunk": "16KiB", "credit": "128KiB"}),
    20: (0, {"partition": "4MiB", "credit": "8MiB"}),
    35: (2, {"chunk": 65536}),
    50: (1, {"credit": "16MiB", "partition": 12288, "chunk": 4096}),
    65: (0, {"reset": True}),
}
MEANT = {"partition_bytes": 12288, "chunk_bytes": 4096, "credit_bytes": 16 << 20, "tuner": "fixed"}
took_ms: list[float] = []


def change(asked: dict[str, object]) -> None:
    began = time.perf_counter()
    got = sumpter.tune(**asked)  # type: ignore[arg-type]
    took_ms.append((time.perf_counter() - began) * 1e3)
    assert got == settings(), (got, settings())


def step_once(step: int) -> None:
    torch.manual_seed(1000 * step + RANK)
    # With `deterministic`, the bytes of rough values must not depend on partitions and chunks.
    rough = torch.randn(200_000)
    gradients = [torch.full((size,), float(RANK + step)) for size in SIZES]
    handles = [hvd.allreduce_async_(g, op=hvd.Sum, name=f"g{i}") for i, g in enumerate(gradients)]
    handles.append(hvd.allreduce_async_(rough, op=hvd.Sum, name="rough"))
    rank, asked = (None, {}) if STILL else CHANGES.get(step, (None, {}))
    caller = threading.Thread(target=change, args=(asked,))
    if rank == RANK:
        caller.start()
    for handle in handles:
        hvd.synchronize(handle)
    if rank == RANK:
        caller.join()
    total = float(sum(rank + step for rank in range(WORLD_SIZE)))
    for size, gradient in zip(SIZES, gradients, strict=True):
        same(gradient, torch.full((size,), total))
    roughs.append(rough)


roughs: list[torch.Tensor] = []
hvd.init()
began = settings()
for step in range(STEPS):
    step_once(step)
    if step in (49, 55):
        # Every rank sees the settings in force, whichever rank asked for them.
        sumpter.barrier()
        if step == 55 and not STILL:
            assert settings() == MEANT, settings()
assert settings() == began, settings()
if RANK == 2:
    for bad, *words in (
        ({"partition": 0}, "partition_bytes", "multiple of 4KiB"),
        ({"partition": "1MiB", "credit": "512KiB"}, "credit under a partition"),
        ({"chunk": "2MiB"}, "chunk over a partition"),
        ({"tuner": "magic"}, "tuner", "autobyte"),
        ({}, "nothing to change"),
    ):
        with raises(sumpter.ConfigError, *words):
            sumpter.tune(**bad)  # type: ignore[arg-type]
    assert settings() == began, settings()
sumpter.barrier()
leave_result(b"".join(rough.numpy().tobytes() for rough in roughs))
if took_ms:
    print(f"changes took {statistics.median(took_ms):.1f} ms: {took_ms}")
hvd.shutdown()
