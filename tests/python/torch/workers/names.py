"""One name for many tensors, calls that differ across ranks, and going on after an error."""

from __future__ import annotations

import torch

import sumpter
import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE, raises, same

ODD = RANK == 1
TOTAL = float(sum(rank + 1 for rank in ALL))


def own(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, RANK + 1, dtype=dtype)


def check_one_name_for_many_tensors() -> None:
    for _ in range(2):
        for shape in ((2,), (3, 1), (), (2,)):
            for dtype in (torch.float32, torch.int64):
                given = own(*shape, dtype=dtype)
                total = torch.full(shape, TOTAL).to(dtype)
                same(hvd.allreduce(given, name="any", op=hvd.Sum), total)
                same(hvd.push_pull(given, average=False, name="any"), total)
                largest = torch.full(shape, WORLD_SIZE).to(dtype)
                same(hvd.allreduce(given, name="any", op=hvd.Max), largest)
                same(hvd.broadcast(given, WORLD_SIZE - 1, name="any"), largest)
        for rows in (WORLD_SIZE, 3 * WORLD_SIZE):
            scattered = hvd.reducescatter(own(rows, 2), name="any", op=hvd.Sum)
            same(scattered, torch.full((rows // WORLD_SIZE, 2), TOTAL))
        for width in (1, 2):
            rows = hvd.allgather(own(RANK + 1, width), name="any")
            same(rows, torch.cat([torch.full((r + 1, width), r + 1.0) for r in ALL]))
        half = hvd.allreduce(own(2), name="any", op=hvd.Sum, compression=hvd.Compression.fp16)
        same(half, torch.full((2,), TOTAL))
        for thing in ("short", "long" * 200):
            assert hvd.broadcast_object(thing if RANK == 0 else None, name="any") == thing


def check_a_name_in_flight_is_taken_whatever_the_tensor() -> None:
    if RANK == 0:
        handle = hvd.allreduce_async(own(3), name="busy", op=hvd.Sum)
        with raises(hvd.DuplicateNameError, "allreduce.busy"):
            hvd.allreduce_async(own(5), name="busy", op=hvd.Sum)
    hvd.broadcast(torch.ones(1), root_rank=0)
    if RANK != 0:
        handle = hvd.allreduce_async(own(3), name="busy", op=hvd.Sum)
    same(hvd.synchronize(handle), torch.full((3,), TOTAL))


def check_a_name_is_taken_until_it_was_waited_for() -> None:
    """Also when the operation is done, so that a script that forgot to wait fails every time."""
    calls = {
        "allreduce": lambda name: hvd.allreduce_async(own(3), name=name),
        "grouped": lambda name: hvd.grouped_allreduce_async([own(3)], name=name),
        "adasum": lambda name: hvd.allreduce_async(own(3), name=name, op=hvd.Adasum),
        "allgather": lambda name: hvd.allgather_async(own(3), name=name),
        "alltoall": lambda name: hvd.alltoall_async(own(WORLD_SIZE), name=name),
        "broadcast": lambda name: hvd.broadcast_async(own(3), 0, name=name),
        "reducescatter": lambda name: hvd.reducescatter_async(own(WORLD_SIZE), name=name),
        "push_pull": lambda name: hvd.push_pull_async(own(3), name=name),
        "numpy": lambda name: sumpter.push_pull_async(own(3).numpy(), name=name),
    }
    for kind, call in calls.items():
        handle = call(f"once {kind}")
        # When all have gone through this, all are done with what was begun before, or nearly.
        hvd.barrier()
        for _ in range(3):
            with raises(ValueError, f"once {kind}"):
                call(f"once {kind}")
        handle.synchronize()
        polled = call(f"once {kind}")
        while not polled.poll():
            pass
        hvd.synchronize(call(f"once {kind}"))
        # A handle that is waited for again does not free what came after it.
        unseen = call(f"once {kind}")
        handle.synchronize()
        with raises(ValueError, f"once {kind}"):
            call(f"once {kind}")
        unseen.synchronize()
    hvd.allreduce_async(own(3), name="forgotten")
    with raises(hvd.DuplicateNameError, "forgotten", "synchronize it"):
        hvd.allreduce_async(own(3), name="forgotten")


def check_that_calls_go_on_after_errors() -> None:
    # From the second time on each shape is known to some ranks under another name.
    for name in ("late", None):
        for _ in range(2):
            with raises(hvd.MismatchError, "rank 1", "[3]", "[4]"):
                hvd.allreduce(own(4 if ODD else 3), name=name, op=hvd.Sum)
            for size in (3, 4, 5) * 6:
                total = torch.full((size,), TOTAL)
                same(hvd.allreduce(own(size), name=name, op=hvd.Sum), total)
    with raises(hvd.MismatchError, "rank 1", "sum", "max"):
        hvd.allreduce(own(2), op=hvd.Max if ODD else hvd.Sum)
    same(hvd.allreduce(own(2), op=hvd.Max), torch.full((2,), float(WORLD_SIZE)))


def check_calls_that_differ() -> None:
    layer = torch.nn.Linear(2, 2)
    with raises(hvd.MismatchError, "rank 1", "root"):
        hvd.broadcast_object("thing", root_rank=int(ODD))
    assert hvd.broadcast_object("thing", root_rank=1) == "thing"
    for _ in range(2):
        with raises(hvd.MismatchError, "rank 1", "root 0", "root 1"):
            hvd.broadcast_parameters(layer.state_dict(), root_rank=int(ODD))
        hvd.broadcast_parameters(layer.state_dict(), root_rank=1)
    with raises(hvd.MismatchError, "rank 1", "reducescatter", "allreduce"):
        if ODD:
            hvd.allreduce(own(3))
        else:
            hvd.reducescatter(own(3))
    with raises(hvd.MismatchError, "rank 1", "1 tensors", "2 tensors"):
        hvd.broadcast_parameters(list(layer.named_parameters())[int(ODD) :])
    with raises(hvd.MismatchError, "rank 1", "adasum"):
        hvd.grouped_allreduce([own(2), own(2 + ODD)], op=hvd.Adasum)
    sgd = torch.optim.SGD(layer.parameters(), 0.1)
    named = [(f"{'odd' if ODD else 'even'}.{name}", p) for name, p in layer.named_parameters()]
    with raises(hvd.MismatchError, "rank 1", "step(2 parameters"):
        hvd.DistributedOptimizer(sgd, named, op=hvd.Adasum).step()
    with raises(hvd.MismatchError, "rank 1", "allgather", "alltoall"):
        if ODD:
            hvd.allgather(own(WORLD_SIZE))
        else:
            hvd.alltoall(own(WORLD_SIZE))
    same(hvd.alltoall(own(WORLD_SIZE)), torch.tensor([rank + 1.0 for rank in ALL]))


hvd.init()
check_one_name_for_many_tensors()
check_a_name_is_taken_until_it_was_waited_for()
if WORLD_SIZE > 1:
    check_a_name_in_flight_is_taken_whatever_the_tensor()
    check_that_calls_go_on_after_errors()
    check_calls_that_differ()
hvd.shutdown()
