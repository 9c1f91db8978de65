"""Callbacks of futures that begin collectives and wait for them; DDP hooks made of such callbacks.

The hooks are torch's with their default settings. Their gradients must be Gloo's.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from c10d_common import BACKEND, agree, equal, join
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks as quantization
from torch.nn.parallel import DistributedDataParallel

from common import ALL, RANK, WORLD_SIZE, raises

TOTAL = float(sum(rank + 1 for rank in ALL))
DEPTH = 6


def future_of_sum(count: int, op: dist.ReduceOp = dist.ReduceOp.SUM) -> torch.futures.Future:
    given = torch.full((count,), RANK + 1, dtype=torch.int32)
    return dist.all_reduce(given, op=op, async_op=True).get_future()


def expected(count: int) -> torch.Tensor:
    return torch.full((count,), int(TOTAL), dtype=torch.int32)


def nest(depth: int) -> torch.Tensor:
    """Sums in a callback of a sum in a callback, each of which waits for the inner one."""
    future = future_of_sum(10 + depth)
    if depth:
        future = future.then(lambda outer: (outer.wait(), nest(depth - 1))[1])
        return future.wait()
    return future.wait()[0]


def check_nesting() -> None:
    equal(nest(DEPTH), expected(10))


def check_many_at_once() -> None:
    """Each callback begins and waits for more, also for one that Gloo carries out."""

    def more(done: torch.futures.Future) -> torch.Tensor:
        count = len(done.value()[0])
        first, second = future_of_sum(100 + count), future_of_sum(count, dist.ReduceOp.BOR)
        equal(first.wait()[0], expected(100 + count))
        bits = 0
        for rank in ALL:
            bits |= rank + 1
        equal(second.wait()[0], torch.full((count,), bits, dtype=torch.int32))
        dist.barrier()
        return done.value()[0]

    futures = [future_of_sum(20 + index).then(more) for index in range(10)]
    for index, future in enumerate(futures):
        equal(future.wait(), expected(20 + index))


def check_order() -> None:
    """Callbacks run in the order of the calls: what they begin meets the right one elsewhere."""
    order: list[int] = []

    def second(index: int) -> torch.Tensor:
        order.append(index)
        given = torch.full((7,), index * (RANK + 1), dtype=torch.int32)
        return dist.all_reduce(given, async_op=True).get_future().wait()[0]

    # The first is the largest, so that others are done before it.
    futures = [
        future_of_sum(200_000 // (index + 1)).then(lambda _, index=index: second(index))
        for index in range(8)
    ]
    for index, future in enumerate(futures):
        equal(future.wait(), torch.full((7,), index * int(TOTAL), dtype=torch.int32))
    assert order == list(range(8)), order


def check_errors() -> None:
    def fails(done: torch.futures.Future) -> None:
        future_of_sum(2).wait()
        raise ValueError("of a callback")

    with raises(RuntimeError, "of a callback"):
        future_of_sum(3).then(fails).wait()
    equal(future_of_sum(3).wait()[0], expected(3))


def check_transfers_have_none() -> None:
    if RANK < 2:
        work = dist.isend(torch.ones(2), 1) if RANK == 0 else dist.irecv(torch.ones(2), 0)
        with raises(RuntimeError, "send" if RANK == 0 else "recv"):
            work.get_future()
        work.wait()
    dist.barrier()


def model() -> nn.Module:
    torch.manual_seed(3)
    # Matrices of different sizes, and biases that PowerSGD leaves as they are.
    return nn.Sequential(nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 112), nn.Linear(112, 20))


def power() -> tuple[object, object]:
    return power_sgd.PowerSGDState(None, start_powerSGD_iter=2), power_sgd.powerSGD_hook


def per_tensor() -> tuple[object, object]:
    return None, quantization.quantization_pertensor_hook


def per_channel() -> tuple[object, object]:
    return None, quantization.quantization_perchannel_hook


def train(state: object, hook: object, bucket_mb: float) -> torch.Tensor:
    wrapped = DistributedDataParallel(model(), bucket_cap_mb=bucket_mb)
    wrapped.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(40 + RANK)
    for _ in range(6):
        optimizer.zero_grad()
        wrapped(torch.randn(8, 96, generator=generator)).square().mean().backward()
        optimizer.step()
    if isinstance(state, power_sgd.PowerSGDState):
        rate, _, after = state.compression_stats()
        assert after and rate > 2, "the hook has compressed nothing"
    return torch.cat([parameter.detach().flatten() for parameter in wrapped.parameters()])


def one_at_a_time(hook):
    """Gloo has two threads for callbacks: more hooks that wait would stand still."""

    def waits(state, bucket):
        future = hook(state, bucket)
        future.wait()
        return future

    return waits


def trained(backend: str) -> list[torch.Tensor]:
    found = []
    for make in (power, per_tensor, per_channel):
        for bucket_mb in (25, 0.03):
            print("->", backend, make.__name__, bucket_mb, flush=True)
            state, hook = make()
            hook = hook if backend == BACKEND else one_at_a_time(hook)
            found.append(train(state, hook, bucket_mb))
            agree(found[-1])
    return found


join()
if WORLD_SIZE > 1:
    check_transfers_have_none()
check_nesting()
check_many_at_once()
check_order()
check_errors()
ours = trained(BACKEND)
dist.barrier()
dist.destroy_process_group()
join("gloo")
# Gloo's threads let go of a callback after its future is done. The last reference to the group must
# not be theirs: the group would join the thread that destroys it, and the process would abort.
group = dist.group.WORLD
for actual, theirs in zip(ours, trained("gloo"), strict=True):
    torch.testing.assert_close(actual, theirs, rtol=1e-4, atol=1e-5)
dist.destroy_process_group()
