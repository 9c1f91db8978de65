"""DDP on one GPU with the optimizer on the servers: streams wait for the parameters, no thread."""

from __future__ import annotations

import torch
import torch.distributed as dist
from cuda_weighted import Weighted, factors, on_host
from torch.nn.parallel import DistributedDataParallel

import sumpter.torch as hvd
from common import ALL, RANK, join_torch, raises, same

STEPS = 4


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def expected() -> list[torch.Tensor]:
    """What the same steps lead to on the CPU."""
    model = Weighted()
    optimizer = hvd.DistributedOptimizer(adamw(model), model.named_parameters(), on_servers=True)
    for step in range(STEPS):
        model(factors(step, "cpu")).backward()
        optimizer.step()
        optimizer.zero_grad()
    state = optimizer.state_dict()["state"]
    return on_host([*model.values, *(state[index]["exp_avg_sq"] for index in sorted(state))])


def check_that_the_host_goes_on() -> None:
    """Rank 1 takes the last step when rank 0 has taken it: no thread can have waited for it."""
    store = dist.distributed_c10d._get_default_store()
    model = DistributedDataParallel(Weighted().to("cuda"), bucket_cap_mb=1)
    optimizer = hvd.server_optimizer(model, adamw(model))
    for step in range(STEPS):
        given = factors(step, "cuda")
        if step == STEPS - 1:
            # Memory has been allocated in the steps before, which may wait for the device.
            torch.cuda.synchronize()
            if RANK == 1:
                store.get("step taken")
        model(given).backward()
        optimizer.step()
        optimizer.zero_grad()
    if RANK == 0:
        store.set("step taken", "")
    state = optimizer.state_dict()["state"]
    slots = [state[index]["exp_avg_sq"] for index in sorted(state)]
    for one, other in zip(on_host([*model.module.values, *slots]), expected(), strict=True):
        same(one, other)


def check_what_fails() -> None:
    """The next call raises it, and what is in the parameters is no number: unless the ranks were
    found to differ before the stream began to wait, which the backward pass raises."""
    store = dist.distributed_c10d._get_default_store()
    model = DistributedDataParallel(Weighted().to("cuda"))
    optimizer = hvd.server_optimizer(model, adamw(model))
    optimizer.param_groups[0]["lr"] = 0.1 + RANK
    loss, has_waited = model(factors(0, "cuda")), True
    try:
        loss.backward()
    except RuntimeError as error:
        # Torch puts it into one of its own.
        assert "MismatchError" in str(error) and "the update's shrink is" in str(error)
        has_waited = False
    if has_waited:
        assert all(parameter.isnan().all().item() for parameter in model.module.values)
    store.set(f"failed.{RANK}", "")
    for rank in ALL:
        store.get(f"failed.{rank}")
    if has_waited:
        with raises(hvd.MismatchError, "the update's shrink is"):
            optimizer.step()


if __name__ == "__main__":
    torch.cuda.set_device(0)
    join_torch()
    hvd.init()
    check_that_the_host_goes_on()
    check_what_fails()
    dist.destroy_process_group()
    hvd.shutdown()
