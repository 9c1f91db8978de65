"""Every collective of the torch.distributed backend, carried or delegated; DDP and FSDP2 on top."""

from __future__ import annotations

import functools
import operator

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from common import ALL, RANK, WORLD_SIZE, join_torch, same

LAST = WORLD_SIZE - 1
NEXT, BEFORE = (RANK + 1) % WORLD_SIZE, (RANK - 1) % WORLD_SIZE
TOTAL = float(sum(rank + 1 for rank in ALL))


def own(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, RANK + 1, dtype=dtype)


def filled(value: float, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, value, dtype=dtype)


def check_reductions() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64):
        for op, expected in (
            (dist.ReduceOp.SUM, TOTAL),
            (dist.ReduceOp.MIN, 1),
            (dist.ReduceOp.MAX, WORLD_SIZE),
            (dist.ReduceOp.PRODUCT, torch.tensor([r + 1 for r in ALL]).prod().item()),
        ):
            tensor = own(5, dtype=dtype)
            dist.all_reduce(tensor, op=op)
            same(tensor, filled(expected, 5, dtype=dtype))
    tensor = own(7)
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    torch.testing.assert_close(tensor, filled(TOTAL / WORLD_SIZE, 7))
    matrix = torch.zeros(4, 6)
    matrix[:, ::2] = RANK + 1
    dist.all_reduce(matrix[:, ::2])
    same(matrix[0], torch.tensor([TOTAL, 0, TOTAL, 0, TOTAL, 0]))
    for shape in ((), (0,), (3, 0)):
        tensor = own(*shape)
        dist.all_reduce(tensor)
        same(tensor, filled(TOTAL, *shape))
    tensor = own(3)
    dist.reduce(tensor, dst=LAST)
    if RANK == LAST:
        same(tensor, filled(TOTAL, 3))
    pieces = [torch.full((2,), float(10 * rank + RANK)) for rank in ALL]
    output = torch.empty(2)
    dist.reduce_scatter(output, pieces)
    same(output, filled(10 * RANK * WORLD_SIZE + sum(ALL), 2))
    dist.reduce_scatter_tensor(output, torch.cat(pieces), op=dist.ReduceOp.AVG)
    torch.testing.assert_close(output, filled(10 * RANK + sum(ALL) / WORLD_SIZE, 2))


def check_copies() -> None:
    for root in ALL:
        for dtype in (torch.float32, torch.bool, torch.complex64, torch.int16):
            tensor = own(2, 3).to(dtype).t()
            dist.broadcast(tensor, src=root)
            same(tensor, filled(root + 1, 3, 2).to(dtype))
    gathered = [torch.empty(2, 3) for _ in ALL]
    dist.all_gather(gathered, own(3, 2).t())
    for rank, tensor in enumerate(gathered):
        same(tensor, filled(rank + 1, 2, 3))
    output = torch.empty(2 * WORLD_SIZE)
    dist.all_gather_into_tensor(output, own(2))
    same(output, torch.arange(1.0, WORLD_SIZE + 1).repeat_interleave(2))
    objects: list[object] = [None] * WORLD_SIZE
    dist.all_gather_object(objects, {"rank": RANK})
    assert objects == [{"rank": rank} for rank in ALL]
    objects = [RANK, "one"]
    dist.broadcast_object_list(objects, src=LAST)
    assert objects == [LAST, "one"]
    dist.barrier()


def check_asynchrony() -> None:
    works = [dist.all_reduce(own(1000), async_op=True) for _ in range(10)]
    for work in works:
        assert work.wait()
    tensor = own(4)
    future = dist.all_reduce(tensor, async_op=True).get_future().then(lambda f: f.value()[0] + 1)
    same(future.wait(), filled(TOTAL + 1, 4))
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        first, second = own(2), own(3)
        dist.all_reduce(first)
        dist.all_reduce(second)
    manager.wait()
    same(torch.cat([first, second]), filled(TOTAL, 5))


def check_delegated() -> None:
    tensor = own(3, dtype=torch.int32)
    dist.all_reduce(tensor, op=dist.ReduceOp.BOR)
    assert tensor[0] == functools.reduce(operator.or_, (rank + 1 for rank in ALL))
    gathered = [torch.empty(1) for _ in ALL] if RANK == 0 else None
    dist.gather(own(1), gathered)
    if gathered is not None:
        same(torch.cat(gathered), torch.arange(1.0, WORLD_SIZE + 1))
    output = torch.empty(1)
    dist.scatter(output, [torch.tensor([10.0 * rank]) for rank in ALL] if RANK == 0 else None)
    same(output, filled(10 * RANK, 1))
    output = torch.empty(WORLD_SIZE)
    dist.all_to_all_single(output, torch.arange(float(WORLD_SIZE)) + 10 * RANK)
    same(output, torch.arange(float(WORLD_SIZE)) * 10 + RANK)
    if WORLD_SIZE > 1:
        check_transfers()


def check_transfers() -> None:
    if RANK == 0:
        dist.send(own(2), dst=LAST)
    elif RANK == LAST:
        received = torch.empty(2)
        dist.recv(received, src=0)
        same(received, filled(1, 2))
    received = torch.empty(1)
    ring = [dist.P2POp(dist.isend, own(1), NEXT), dist.P2POp(dist.irecv, received, BEFORE)]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    same(received, filled(BEFORE + 1, 1))


def check_groups() -> None:
    pair = dist.new_group(sorted({0, LAST}))
    everyone = dist.new_group(list(ALL))
    if RANK in (0, LAST):
        tensor = own(2)
        dist.all_reduce(tensor, group=pair)
        same(tensor, filled(sum({1, WORLD_SIZE}), 2))
        tensor = own(2)
        dist.broadcast(tensor, src=LAST, group=pair)
        same(tensor, filled(WORLD_SIZE, 2))
        tensor = own(4)
        dist.reduce(tensor, dst=LAST, group=pair)
        dist.barrier(group=pair)
    tensor = own(2)
    dist.all_reduce(tensor, group=everyone)
    same(tensor, filled(TOTAL, 2))
    if RANK in (0, LAST):
        dist.destroy_process_group(pair)
    same(functional.all_reduce(own(2), "sum", everyone).clone(), filled(TOTAL, 2))
    gathered = functional.all_gather_single(own(1), 0, everyone)
    same(gathered.clone(), torch.arange(1.0, WORLD_SIZE + 1))


def check_same_on_all_ranks(model: nn.Module) -> None:
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    gathered = [torch.empty_like(flat) for _ in ALL]
    dist.all_gather(gathered, flat)
    for other in gathered:
        same(other, flat)


def check_ddp() -> None:
    torch.manual_seed(RANK)
    model = nn.Sequential(nn.Linear(10, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 2))
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.0001)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        if step == 2:
            with wrapped.no_sync():
                wrapped(torch.randn(8, 10)).sum().backward()
        wrapped(torch.randn(8, 10)).sum().backward()
        optimizer.step()
    check_same_on_all_ranks(model)
    hooked = DistributedDataParallel(nn.Linear(4, 4))
    hooked.register_comm_hook(None, default_hooks.fp16_compress_hook)
    hooked(torch.randn(2, 4)).sum().backward()
    unused = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    unused.forward = lambda x: unused["used"](x)
    found = DistributedDataParallel(unused, find_unused_parameters=True)
    found(torch.ones(1, 2)).sum().backward()
    found(torch.ones(1, 2)).sum().backward()


def check_fsdp() -> None:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    plain = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    plain.load_state_dict(model.state_dict())
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for trained in (model, plain):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        for step in range(3):
            trained(torch.ones(3, 8) * (step + 1)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    for sharded, whole in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(sharded.full_tensor(), whole.data)


join_torch()
assert dist.get_backend() == "sumpter"
check_reductions()
check_copies()
check_asynchrony()
check_delegated()
check_groups()
check_ddp()
check_fsdp()
dist.destroy_process_group()
