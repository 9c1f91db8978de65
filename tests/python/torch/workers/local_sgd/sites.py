"""Four ranks in two sites: synchronous training within each, DiLoCo or LocalSGD between them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from local_training import adam, near, nesterov, new_model, train, values
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sumpter.torch as hvd
from common import FOLDER, RANK, raises, same

STEPS = 12


def same_on(value: torch.Tensor, process_set: hvd.ProcessSet) -> None:
    for one in hvd.allgather(value.flatten().unsqueeze(0), process_set=process_set):
        same(one, value.flatten())


def run(site: Any, ranks: hvd.ProcessSet, ddp: dist.ProcessGroup | None) -> list[torch.Tensor]:
    """Trains in sites, by DDP or by a DistributedOptimizer; returns what all end with."""
    plain = new_model()
    if RANK != 0:
        nn.init.zeros_(plain[0].weight)
    model = plain if ddp is None else DistributedDataParallel(plain, process_group=ddp)
    inner = adam(model)
    if ddp is None:
        inner = hvd.DistributedOptimizer(inner, model.named_parameters(), process_set=own)
    with hvd.DiLoCo(
        model, inner, nesterov(model), 4, 2, 1, 0.5, process_set=ranks, site=site
    ) as diloco:
        for step in range(STEPS):
            train(model, inner, step)
            for value in values(model):
                same_on(value, own)
            if step == 6:
                saved, before = diloco.state_dict(), values(model)
    ended = list(diloco.global_parameters().values())
    for value in ended:
        same_on(value, hvd.global_process_set)
    assert (saved["outer"] is None) == (not ranks.included())
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), before, strict=True):
            parameter.copy_(value)
    diloco.load_state_dict(saved)
    assert diloco.rounds == 1
    if ranks.included():
        with raises(ValueError, "took no part"):
            diloco.load_state_dict({**saved, "outer": None})
    return ended


hvd.init()
dist.init_process_group("gloo", init_method=f"file://{FOLDER}/gloo", rank=RANK, world_size=4)
sites = [hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])]
own = sites[RANK // 2]
leaders = hvd.add_process_set([0, 2])
groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
group = groups[RANK // 2]

# With all ranks in the outer rounds the average over ranks is that over sites.
everyone = run(None, hvd.global_process_set, None)
near(run(own, leaders, None), everyone, atol=1e-5)
near(run(group, leaders, group), everyone, atol=1e-5)

model = new_model()
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
inner = hvd.DistributedOptimizer(sgd, model.named_parameters(), process_set=own)
with hvd.LocalSGD(model, inner, 3, process_set=leaders, site=group):
    for step in range(6):
        train(model, inner, step)
for value in values(model):
    same_on(value, hvd.global_process_set)

with raises(ValueError, "has 2 of the ranks"):
    hvd.LocalSGD(model, inner, 3, site=own)
with raises(ValueError, "not in its site"):
    hvd.LocalSGD(model, inner, 3, process_set=leaders, site=sites[1 - RANK // 2])
dist.destroy_process_group()
hvd.shutdown()
