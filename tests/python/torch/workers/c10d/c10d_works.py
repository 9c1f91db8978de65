"""Point-to-point transfers, objects, and what can be asked of a Work and its future."""

from __future__ import annotations

import datetime
import sys
import time
import types

import torch
import torch.distributed as dist
from c10d_common import BEFORE, LAST, NEXT, equal, join

from common import ALL, RANK, WORLD_SIZE, raises
from sumpter.torch.c10d.collective import SLOTS


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, RANK + 1, dtype=dtype)


def check_transfers() -> None:
    for dtype in (torch.float32, torch.bool, torch.int16, torch.bfloat16):
        received = torch.zeros(3, 4, dtype=dtype).t()
        own = ones(4, 3, dtype=dtype)
        if RANK == 0:
            dist.send(own, dst=NEXT, tag=5)
            assert dist.recv(received, src=BEFORE, tag=5) == BEFORE
        else:
            assert dist.recv(received, src=BEFORE, tag=5) == BEFORE
            dist.send(own, dst=NEXT, tag=5)
        equal(received, torch.full((4, 3), BEFORE + 1).to(dtype))
    work = dist.isend(ones(2), dst=NEXT)
    received = torch.zeros(2)
    receipt = dist.irecv(received, src=BEFORE)
    assert receipt.wait() and work.wait()
    assert receipt.is_completed() and work.is_completed()
    assert receipt._source_rank() == BEFORE
    equal(received, torch.full((2,), BEFORE + 1.0))


def check_any_source() -> None:
    if RANK == 0:
        seen = set()
        for _ in range(WORLD_SIZE - 1):
            received = torch.zeros(2)
            source = dist.recv(received)
            equal(received, torch.full((2,), source + 1.0))
            seen.add(source)
        assert seen == set(range(1, WORLD_SIZE))
    else:
        dist.send(ones(2), dst=0)
    # What follows must not be taken for what any source sends.
    dist.barrier()


def check_batch() -> None:
    received = [torch.zeros(3) for _ in range(2)]
    operations = [
        dist.P2POp(dist.isend, ones(3), NEXT),
        dist.P2POp(dist.irecv, received[0], BEFORE),
        dist.P2POp(dist.isend, 2 * ones(3), BEFORE),
        dist.P2POp(dist.irecv, received[1], NEXT),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    if WORLD_SIZE > 2:
        equal(received[0], torch.full((3,), BEFORE + 1.0))
        equal(received[1], torch.full((3,), 2 * (NEXT + 1.0)))


def check_objects() -> None:
    own = {"rank": RANK, "text": "a" * RANK}
    gathered: list[object] = [None] * WORLD_SIZE
    dist.all_gather_object(gathered, own)
    assert gathered == [{"rank": rank, "text": "a" * rank} for rank in ALL]
    listed = [None] * WORLD_SIZE if RANK == LAST else None
    dist.gather_object(own, listed, dst=LAST)
    assert listed is None or [item["rank"] for item in listed] == list(ALL)
    several: list[object] = [RANK, "one", own] if RANK == 0 else [None] * 3
    dist.broadcast_object_list(several, src=0)
    assert several == [0, "one", {"rank": 0, "text": ""}]
    output: list[object] = [None]
    dist.scatter_object_list(output, [f"for {rank}" for rank in ALL] if RANK == 0 else None)
    assert output == [f"for {RANK}"]
    if RANK == 0:
        dist.send_object_list([own, 1], dst=LAST)
    elif RANK == LAST:
        received: list[object] = [None, None]
        dist.recv_object_list(received, src=0)
        assert received == [{"rank": 0, "text": ""}, 1]


def poll(work: dist.Work) -> None:
    """Waits as a program does that has something else to do."""
    while not work.is_completed():
        time.sleep(0.001)


def check_works() -> None:
    sum_of_ranks = float(sum(rank + 1 for rank in ALL))
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.BXOR):
        dtype = torch.float32 if op == dist.ReduceOp.SUM else torch.int32
        own = ones(4, dtype=dtype)
        before = dist.all_reduce(own.clone(), op=op, async_op=True)
        work = dist.all_reduce(own, op=op, async_op=True)
        future = work.get_future().then(lambda future: future.value()[0] + 1)
        poll(work)
        assert work.exception() is None
        assert work.is_success()
        equal(work.result()[0], own)
        equal(future.wait(), own + 1)
        assert before.wait(datetime.timedelta(seconds=30))
        if op == dist.ReduceOp.SUM:
            equal(own, torch.full((4,), sum_of_ranks))
    works = [dist.all_reduce(ones(100 * n + 1), async_op=True) for n in range(20)]
    works += [dist.barrier(async_op=True)]
    for work in reversed(works):
        poll(work)
        work.wait()
    torch.futures.collect_all([work.get_future() for work in works]).wait()
    gathered = [torch.zeros(2, dtype=torch.int16) for _ in ALL] if RANK == 0 else None
    work = dist.gather(ones(2, dtype=torch.int16), gathered, async_op=True)
    poll(work)
    work.wait()
    if gathered is not None:
        equal(torch.cat(gathered), (torch.arange(2 * WORLD_SIZE) // 2 + 1).to(torch.int16))


def check_blocking_calls() -> None:
    """A caller that waits at once gets no Work: the collective is done when it returns."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    own = ones(4)
    opts = dist.AllreduceOptions()
    opts.asyncOp = False
    assert backend.allreduce([own], opts) is None
    equal(own, torch.full((4,), float(sum(rank + 1 for rank in ALL))))
    opts = dist.BroadcastOptions()
    opts.asyncOp, opts.rootRank = False, LAST
    assert backend.broadcast([own := ones(2)], opts) is None
    equal(own, torch.full((2,), LAST + 1.0))
    opts = dist.BarrierOptions()
    opts.asyncOp = False
    assert backend.barrier(opts) is None


def check_memory() -> None:
    """A result comes into the memory that the tensor had, as its elements look there."""
    sum_of_ranks = float(sum(rank + 1 for rank in ALL))
    own = ones(5)
    seen = own.detach()
    work = dist.all_reduce(own, async_op=True)
    own.data = torch.zeros(1)
    work.wait()
    equal(seen, torch.full((5,), sum_of_ranks))
    equal(own, torch.zeros(1))
    # By itself, torch would pass a copy, which it forgets.
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend.allreduce([torch._neg_view(own := ones(3))], dist.AllreduceOptions()).wait()
    equal(own, torch.full((3,), sum_of_ranks))


def check_repeated_calls() -> None:
    """Each Python function on the way of a small collective costs microseconds."""
    called = []

    def note(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_globals["__name__"].startswith("sumpter."):
            called.append(frame.f_code.co_name)

    own = ones(4)
    # The first of a kind are declared.
    for number in range(SLOTS + 1):
        sys.setprofile(note if number == SLOTS else None)
        work = dist.all_reduce(own, async_op=True)
        sys.setprofile(None)
        work.wait()
    assert called == ["allreduce", "reduce_in_place"], called


def check_other_backends_works() -> None:
    """A Gloo group beside ours answers as it always does."""
    gloo = dist.new_group(backend="gloo")
    own = ones(3)
    work = dist.all_reduce(own, group=gloo, async_op=True)
    poll(work)
    assert work.is_success()
    if RANK == 0:
        dist.send(own, 1, group=gloo)
    elif RANK == 1:
        assert dist.recv(own, group=gloo) == 0
    dist.destroy_process_group(gloo)


def check_unsupported() -> None:
    """What no kernel has is refused on all ranks with the call's name."""
    with raises(RuntimeError, "all_reduce(int32 [2], premul_sum)"):
        dist.all_reduce(ones(2, dtype=torch.int32), op=dist._make_nccl_premul_sum(2.0))
    with raises(RuntimeError, "all_reduce(int16 [2], sum)"):
        dist.all_reduce(ones(2, dtype=torch.int16))
    with raises(ValueError, "2 elements", "has 3"):
        dist.all_gather([torch.zeros(3) for _ in ALL], ones(2))
    with raises((ValueError, TypeError), "int32", "float32"):
        dist.all_gather_into_tensor(torch.zeros(2 * WORLD_SIZE, dtype=torch.int32), ones(2))


join()
check_transfers()
check_any_source()
check_batch()
check_objects()
check_works()
check_blocking_calls()
check_memory()
check_repeated_calls()
check_other_backends_works()
check_unsupported()
dist.monitored_barrier()
dist.monitored_barrier(timeout=datetime.timedelta(seconds=20), wait_all_ranks=True)
dist.barrier()
dist.destroy_process_group()
