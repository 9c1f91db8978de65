"""Groups of one rank, in every front: results are there at once, and no round is begun for them."""

from __future__ import annotations

import json

import numpy as np
import torch
import torch.distributed as dist

import sumpter
import sumpter.torch as hvd
from common import RANK, WORLD_SIZE, join_torch, raises, same
from sumpter._core import membership

TYPES = (torch.float32, torch.bfloat16, torch.int32, torch.uint8)


def operations() -> float:
    """How many the core has finished."""
    return json.loads(membership.current().worker.stats())["counters"]["rounds"]


def own(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(RANK)
    return torch.randint(1, 9, shape, generator=generator).to(dtype)


def check_horovod(mine: hvd.ProcessSet) -> None:
    for dtype in TYPES:
        given = own(4, 3, dtype=dtype)
        for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product):
            handle = hvd.allreduce_async(given, op=op, process_set=mine, name="out of place")
            assert handle.poll()
            result = handle.synchronize()
            same(result, given)
            assert result.data_ptr() != given.data_ptr()
            in_place = given.clone()
            assert hvd.allreduce_(in_place, op=op, process_set=mine) is in_place
            same(in_place, given)
        wide = given.t()
        same(hvd.allreduce_(wide.clone(), op=hvd.Sum, process_set=mine), wide)
        same(hvd.allgather(given, process_set=mine), given)
        same(hvd.alltoall(given, process_set=mine), given)
        same(hvd.reducescatter(given, op=hvd.Sum, process_set=mine), given)
        same(hvd.broadcast(given, RANK, process_set=mine), given)
    scaled = hvd.allreduce(
        own(5), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0, process_set=mine
    )
    same(scaled, 2 * own(5))
    whole = own(5, dtype=torch.int32)
    result = hvd.allreduce(whole, process_set=mine, prescale_factor=2.5)
    same(result, (whole.double() * 2.5).to(torch.int32))
    compressed = hvd.allreduce(own(5), process_set=mine, compression=hvd.Compression.fp16)
    same(compressed, own(5))
    same(hvd.allreduce(own(5), op=hvd.Adasum, process_set=mine), own(5))
    assert hvd.broadcast_object(RANK, RANK, process_set=mine) == RANK
    assert hvd.allgather_object("x", process_set=mine) == ["x"]
    hvd.barrier(mine)
    handle = hvd.allreduce_async(own(5), name="once", process_set=mine)
    with raises(hvd.DuplicateNameError, "once"):
        hvd.allreduce_async(own(5), name="once", process_set=mine)
    handle.synchronize()
    tracked = own(5).requires_grad_()
    (hvd.allreduce(tracked, process_set=mine) * 3).sum().backward()
    same(tracked.grad, torch.full((5,), 3.0))


def check_momentum(mine: hvd.ProcessSet) -> None:
    """A codec's momentum is the optimizer's, which must not depend on how many ranks there are."""
    given = torch.ones(64, 64)
    codec = hvd.Compression.int8(momentum=0.5)
    for factor in (1.5, 1.75, 1.875):
        options = {"op": hvd.Sum, "compression": codec, "process_set": mine}
        result = hvd.allreduce(given, name="with momentum", **options)
        torch.testing.assert_close(result, factor * given, rtol=0.02, atol=0.0)


def check_torch(group: dist.ProcessGroup) -> None:
    for dtype in TYPES:
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
            tensor = own(6, dtype=dtype)
            work = dist.all_reduce(tensor, op=op, group=group, async_op=True)
            assert work.is_completed()
            future = work.get_future()
            assert future.done()
            same(future.then(lambda done: done.value()[0] + 1).wait(), own(6, dtype=dtype) + 1)
            same(tensor, own(6, dtype=dtype))
        given, output = own(6, dtype=dtype), torch.zeros(6, dtype=dtype)
        dist.all_gather_into_tensor(output, given, group=group)
        same(output, given)
        pieces = [torch.zeros(6, dtype=dtype)]
        dist.all_gather(pieces, given, group=group)
        same(pieces[0], given)
        output.zero_()
        dist.reduce_scatter_tensor(output, given, group=group)
        same(output, given)
        dist.reduce(given, RANK, group=group)
        dist.broadcast(given, RANK, group=group)
        same(given, own(6, dtype=dtype))
    tensor = own(3)
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(2.0), group=group)
    same(tensor, 2 * own(3))
    dist.barrier(group)


def check_gloo(group: dist.ProcessGroup) -> None:
    """What is left to Gloo works as well."""
    tensor = own(3, dtype=torch.int32)
    work = dist.all_reduce(tensor, op=dist.ReduceOp.BOR, group=group, async_op=True)
    same(work.get_future().wait()[0], own(3, dtype=torch.int32))


def check_numpy() -> None:
    given = np.arange(6.0).reshape(2, 3).T
    for average in (False, True):
        np.testing.assert_array_equal(sumpter.push_pull(given, average=average), given)
    np.testing.assert_array_equal(sumpter.broadcast(given), given)
    handle = sumpter.push_pull_async(given, name="numpy")
    assert handle.poll()
    sumpter.barrier()


join_torch()
hvd.init()
sets = [hvd.add_process_set([rank]) for rank in range(WORLD_SIZE)] if WORLD_SIZE > 1 else []
groups = [dist.new_group([rank]) for rank in range(WORLD_SIZE)]
before = operations()
check_horovod(sets[RANK] if sets else hvd.global_process_set)
check_torch(groups[RANK])
if WORLD_SIZE == 1:
    check_numpy()
    check_torch(dist.group.WORLD)
check_gloo(groups[RANK])
assert operations() == before, "rounds were begun"
check_momentum(sets[RANK] if sets else hvd.global_process_set)
assert operations() == before + 3
dist.barrier()
dist.destroy_process_group()
