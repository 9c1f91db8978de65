"""Sums a large tensor until the links' rate is measured, which comes with a change of plan."""

import json
import time

import torch

import sumpter.torch as hvd
from sumpter._core import membership

LIMIT_S = 60

hvd.init()
gradient = torch.ones(4 << 20)
end = time.monotonic() + LIMIT_S
is_known = torch.zeros(1)
while not is_known:
    assert time.monotonic() < end, "the links are not measured"
    for _ in range(4):
        hvd.allreduce(gradient, op=hvd.Sum, name="gradient")
    pauses = json.loads(membership.current().worker.stats())["counters"]["pauses"]
    # All ranks go on, or none.
    is_known = hvd.allreduce(torch.tensor([float(pauses > 0)]), op=hvd.Min, name="known")
total = hvd.allreduce(gradient, op=hvd.Sum, name="gradient")
assert torch.allclose(total, torch.full_like(total, hvd.size()), rtol=0.02), total
hvd.shutdown()
