"""Sub-groups in all the ways torch makes them, device meshes and functional collectives."""

from __future__ import annotations

import datetime

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from c10d_common import LAST, equal, join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from common import ALL, RANK, WORLD_SIZE


def check_group(group: dist.ProcessGroup, ranks: list[int]) -> None:
    """Carried and delegated collectives of a group whose ranks are `ranks`, in this order."""
    assert dist.get_process_group_ranks(group) == ranks
    assert dist.get_rank(group) == ranks.index(RANK)
    own = torch.full((5,), RANK + 1.0)
    dist.all_reduce(own, group=group)
    equal(own, torch.full((5,), sum(rank + 1.0 for rank in ranks)))
    own = torch.full((2,), RANK + 1.0)
    dist.broadcast(own, src=ranks[-1], group=group)
    equal(own, torch.full((2,), ranks[-1] + 1.0))
    own = torch.full((2,), 1 << RANK)
    dist.all_reduce(own, op=dist.ReduceOp.BOR, group=group)
    equal(own, torch.full((2,), sum(1 << rank for rank in ranks)))
    gathered: list[object] = [None] * len(ranks)
    dist.all_gather_object(gathered, RANK, group=group)
    assert gathered == ranks
    dist.barrier(group=group)


def check_new_groups() -> None:
    pair = sorted({0, LAST})
    first, second = dist.new_group(pair), dist.new_group(pair)
    everyone = dist.new_group()
    backwards = dist.new_group(list(reversed(ALL)), sort_ranks=False)
    alone = dist.new_group([RANK], use_local_synchronization=True)
    # Torch numbers groups, so every rank has to make one.
    local_ranks = pair if RANK in pair else [RANK]
    local = dist.new_group(local_ranks, use_local_synchronization=True)
    check_group(local, local_ranks)
    if RANK in pair:
        # In turns, since they are different groups.
        work = dist.all_reduce(torch.ones(3), group=first, async_op=True)
        check_group(second, pair)
        work.wait()
        check_group(first, pair)
        dist.destroy_process_group(first)
        check_group(second, pair)
    check_group(everyone, list(ALL))
    assert dist.get_rank(backwards) == LAST - RANK
    check_group(alone, [RANK])
    again = dist.new_group(pair)
    if RANK in pair:
        check_group(again, pair)


def check_subgroups() -> None:
    if WORLD_SIZE % 2 == 0:
        own, groups = dist.new_subgroups(group_size=2)
        assert len(groups) == WORLD_SIZE // 2
        check_group(own, [RANK // 2 * 2, RANK // 2 * 2 + 1])
    halves = [list(ALL)[::2], list(ALL)[1::2]]
    own, _ = dist.new_subgroups_by_enumeration(halves)
    check_group(own, halves[RANK % 2])


def check_split() -> None:
    halves = [list(ALL)[::2], list(ALL)[1::2]]
    part = dist.split_group(split_ranks=halves)
    check_group(part, halves[RANK % 2])
    if len(halves[RANK % 2]) == 2:
        single = dist.split_group(part, split_ranks=[[0], [1]])
        check_group(single, [RANK])


def check_mesh() -> None:
    flat = init_device_mesh("cpu", (WORLD_SIZE,), mesh_dim_names=("dp",))
    check_group(flat.get_group("dp"), list(ALL))
    if WORLD_SIZE == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        check_group(mesh["dp"].get_group(), [RANK % 2, RANK % 2 + 2])
        check_group(mesh["tp"].get_group(), [RANK // 2 * 2, RANK // 2 * 2 + 1])
        check_group(mesh["dp", "tp"]._flatten("all").get_group(), list(ALL))
    whole = torch.arange(4.0 * WORLD_SIZE * WORLD_SIZE).view(2 * WORLD_SIZE, -1)
    rows = distribute_tensor(whole, flat, [Shard(0)])
    for placement in (Shard(1), Replicate(), Shard(0)):
        rows = rows.redistribute(flat, [placement])
        equal(rows.full_tensor(), whole)
    part = DTensor.from_local(whole * (RANK + 1), flat, [Partial()])
    equal(part.full_tensor(), whole * sum(rank + 1 for rank in ALL))
    pieces = part.redistribute(flat, [Shard(0)])
    equal(pieces.full_tensor(), part.full_tensor())


def check_functional() -> None:
    group = dist.group.WORLD
    own = torch.full((2 * WORLD_SIZE, 3), RANK + 1.0)
    all_ranks = float(sum(rank + 1 for rank in ALL))
    equal(functional.all_reduce(own, "sum", group).clone(), torch.full_like(own, all_ranks))
    mean = functional.all_reduce(own, "avg", group).clone()
    torch.testing.assert_close(mean, torch.full_like(own, all_ranks / WORLD_SIZE))
    gathered = functional.all_gather_single(own, 1, group).clone()
    equal(gathered, torch.cat([torch.full_like(own, rank + 1.0) for rank in ALL], 1))
    part = functional.reduce_scatter_single(own, "sum", 0, group).clone()
    equal(part, torch.full((2, 3), all_ranks))
    several = functional.all_reduce_coalesced([own, own[0] * 2], "max", group)
    equal(several[1].clone(), torch.full((3,), 2.0 * WORLD_SIZE))
    parts = functional.all_gather_single_coalesced([own[0], own[1]], group)
    assert [part.clone().numel() for part in parts] == [3 * WORLD_SIZE] * 2
    exchanged = functional.all_to_all_single(own, None, None, group).clone()
    expected = torch.arange(WORLD_SIZE).repeat_interleave(2) + 1.0
    equal(exchanged, expected[:, None].expand(-1, 3))
    sent = functional.broadcast(own, LAST, group).clone()
    equal(sent, torch.full_like(own, WORLD_SIZE))


join()
check_new_groups()
check_subgroups()
check_split()
check_mesh()
check_functional()
dist.set_timeout(datetime.timedelta(seconds=50), dist.group.WORLD)
check_group(dist.group.WORLD, list(ALL))
dist.barrier()
dist.destroy_process_group()
