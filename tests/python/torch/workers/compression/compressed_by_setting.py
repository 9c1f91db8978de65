"""The setting `compression`: large floats travel by it, everything else as it is."""

from __future__ import annotations

import numpy as np
import torch

import sumpter
import sumpter.torch as hvd
from common import ALL, RANK


def given(rank: int, count: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(rank))


def error(result: torch.Tensor, count: int) -> float:
    total = sum(given(rank, count) for rank in ALL)
    return float((result - total).abs().max())


hvd.init()
for count, exact in ((5000, False), (1000, True)):
    own = given(RANK, count)
    summed = [
        hvd.allreduce(own, op=hvd.Sum),
        hvd.push_pull(own, average=False, name=f"named {count}"),
        hvd.allreduce_async_(own.clone(), op=hvd.Sum).synchronize(),
        torch.from_numpy(sumpter.push_pull(own.numpy(), average=False)),
    ]
    errors = [error(result, count) for result in summed]
    assert all((e < 1e-5) == exact and e < 0.1 for e in errors), (count, errors)
own = given(RANK, 5000)
assert error(hvd.allreduce(own, op=hvd.Sum, compression="off"), 5000) < 1e-5
whole = np.arange(5000, dtype=np.int64)
assert (sumpter.push_pull(whole, average=False) == 2 * whole).all()
most = hvd.allreduce(own, op=hvd.Max)
assert torch.equal(most, torch.stack([given(rank, 5000) for rank in ALL]).amax(0))
# Gradients of matrices only.
layer = torch.nn.Linear(64, 64)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), 1.0))
exchange = optimizer._exchange
assert [exchange._reductions[p].codec for p in layer.parameters()] == ["int8", ""]
hvd.shutdown()
