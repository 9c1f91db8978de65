"""Three and more ranks whose calls all differ, in every collective of both fronts and in subsets.

Every rank gets the error, the rank that comes late to the call too, and what follows matches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist

import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE, join_torch, raises, same
from sumpter._core.tensor import UNNAMED_SLOTS
from sumpter.torch import MismatchError

LATE = WORLD_SIZE - 1
# Each rank's own size, element type and reduction.
OWN = RANK + 1
DTYPE = (torch.float32, torch.float64, torch.int32, torch.int64)[RANK % 4]
HVD_OP = (hvd.Sum, hvd.Max, hvd.Min)[RANK % 3]
DIST_OP = (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN)[RANK % 3]
TOTAL = float(sum(rank + 1 for rank in ALL))

Case = Callable[[], object]


def own(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, RANK + 1, dtype=dtype)


def horovod(name: str | None) -> dict[str, Case]:
    """Calls that differ on each rank, under `name` or matched by their order."""
    rows = WORLD_SIZE * OWN
    return {
        "allreduce shape": lambda: hvd.allreduce(own(OWN), name=name),
        "allreduce dtype": lambda: hvd.allreduce(own(2, dtype=DTYPE), name=name, op=hvd.Sum),
        "allreduce op": lambda: hvd.allreduce(own(2), name=name, op=HVD_OP),
        "grouped": lambda: hvd.grouped_allreduce([own(2), own(OWN)], name=name),
        "broadcast shape": lambda: hvd.broadcast(own(OWN), 0, name=name),
        "broadcast root": lambda: hvd.broadcast(own(2), RANK, name=name),
        "allgather row": lambda: hvd.allgather(own(2, OWN), name=name),
        "allgather dtype": lambda: hvd.allgather(own(2, dtype=DTYPE), name=name),
        "alltoall row": lambda: hvd.alltoall(own(WORLD_SIZE, OWN), name=name),
        "reducescatter shape": lambda: hvd.reducescatter(own(rows), name=name),
        "reducescatter op": lambda: hvd.reducescatter(own(WORLD_SIZE), name=name, op=HVD_OP),
    }


def kinds() -> None:
    """Another collective on each rank."""
    calls: list[Case] = [
        lambda: hvd.allreduce(own(WORLD_SIZE)),
        lambda: hvd.broadcast(own(WORLD_SIZE), 0),
        lambda: hvd.allgather(own(WORLD_SIZE)),
        lambda: hvd.alltoall(own(WORLD_SIZE)),
        lambda: hvd.reducescatter(own(WORLD_SIZE)),
    ]
    calls[RANK % len(calls)]()


def empty(count: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.empty(count, dtype=dtype) for _ in ALL]


def numbered() -> dict[str, Case]:
    """Collectives of torch.distributed that differ on each rank."""
    whole = own(WORLD_SIZE * OWN)
    return {
        "all_reduce shape": lambda: dist.all_reduce(own(OWN)),
        "all_reduce dtype": lambda: dist.all_reduce(own(2, dtype=DTYPE)),
        "all_reduce op": lambda: dist.all_reduce(own(2), op=DIST_OP),
        "broadcast shape": lambda: dist.broadcast(own(OWN), 0),
        "broadcast root": lambda: dist.broadcast(own(2), RANK),
        "reduce root": lambda: dist.reduce(own(2), RANK),
        "all_gather shape": lambda: dist.all_gather(empty(OWN), own(OWN)),
        "all_gather dtype": lambda: dist.all_gather(empty(2, DTYPE), own(2, dtype=DTYPE)),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, own(OWN)),
        "reduce_scatter shape": lambda: dist.reduce_scatter_tensor(torch.empty(OWN), whole),
        "all_to_all shape": lambda: dist.all_to_all_single(torch.empty_like(whole), whole),
        "gather root": lambda: dist.gather(own(2), empty(2), dst=RANK),
        "kinds": lambda: (
            dist.barrier,
            lambda: dist.all_reduce(own(2)),
            lambda: dist.all_gather(empty(2), own(2)),
            lambda: dist.broadcast(own(2), 0),
        )[RANK % 4](),
    }


def check(what: str, call: Case) -> None:
    try:
        call()
    except MismatchError as error:
        assert "rank" in str(error), (what, error)
    else:
        raise AssertionError(f"{what}: expected MismatchError")


def check_later(name: str | None) -> None:
    """Operations of the same name, of none and of another match."""
    for again in (name, "another", None):
        same(hvd.allreduce(own(2), name=again, op=hvd.Sum), torch.full((2,), TOTAL))
        same(hvd.allgather(own(1), name=again), torch.tensor([rank + 1.0 for rank in ALL]))
    tensor = own(3)
    dist.all_reduce(tensor)
    same(tensor, torch.full((3,), TOTAL))


def futures() -> None:
    """A call of several rounds fails as a whole where the others' calls have one round."""
    if RANK == 0:
        work = dist.all_gather(empty(2), own(2), async_op=True)
    else:
        work = dist.all_reduce(own(2 + RANK), async_op=True)
    with raises(RuntimeError, "MismatchError", "called all_reduce"):
        work.get_future().wait()


def one_comes_late() -> None:
    """The others have their error already and have left word when the last rank calls."""
    for name in ("late", None):
        if RANK == LATE:
            dist.barrier()
        with raises(MismatchError, "rank "):
            hvd.allreduce(own(OWN), name=name)
        if RANK != LATE:
            dist.barrier()
        check_later(name)


def one_has_its_result() -> None:
    """Rank 1 has what the root sent when the others differ: the next call shows it to all."""

    def gate() -> None:
        hvd.allreduce(own(1), name="gate")

    for name in ("received", None, "c10d"):

        def broadcast(tensor: torch.Tensor, root: int, name: str | None = name) -> Case:
            if name == "c10d":
                return dist.broadcast(tensor, root, async_op=True).wait
            return hvd.broadcast_async(tensor, root, name=name).synchronize

        if RANK == 1:
            broadcast(torch.zeros(2), 0)()
            gate()
        else:
            begun = broadcast(torch.zeros(2), 0) if RANK == 0 else None
            gate()
            with raises(MismatchError, "rank "):
                (begun or broadcast(torch.zeros(3), 0))()
        with raises(MismatchError, "rank 1"):
            broadcast(own(2), 1)()
        check_later(None if name == "c10d" else name)


def subsets() -> None:
    """In a process set and a sub-group, their members get the error; the rest takes no part."""
    members = list(range(1, WORLD_SIZE))
    process_set = hvd.add_process_set(members)
    group = dist.new_group(members)
    if RANK in members:
        for name in ("subset", None):
            with raises(MismatchError, "rank "):
                hvd.allreduce(own(OWN), name=name, process_set=process_set)
            with raises(MismatchError, "rank "):
                hvd.allgather(own(2, OWN), name=name, process_set=process_set)
            total = hvd.allreduce(own(2), name=name, op=hvd.Sum, process_set=process_set)
            same(total, torch.full((2,), TOTAL - 1))
        with raises(MismatchError, "rank "):
            dist.all_reduce(own(OWN), group=group)
        with raises(MismatchError, "rank "):
            dist.broadcast(own(OWN), 1, group=group)
        tensor = own(2)
        dist.all_reduce(tensor, group=group)
        same(tensor, torch.full((2,), TOTAL - 1))
    check_later(None)


def far_apart() -> None:
    """Calls without a name that differ by more than the tensors that serve them in rotation.

    The first calls and the last ones differ, and may meet in a round of one tensor.
    """

    def usual() -> hvd.Handle:
        return hvd.allreduce_async(own(2), op=hvd.Sum)

    def odd() -> hvd.Handle:
        return hvd.allreduce_async(own(3), op=hvd.Sum)

    usuals = [usual] * UNNAMED_SLOTS
    for others in ([*usuals, usual], [*usuals, odd]):
        handles = [call() for call in ([odd, *usuals] if RANK == LATE else others)]
        failed = [index for index, handle in enumerate(handles) if is_refused(handle)]
        # What is called after a rank has seen an error differs on ranks that have not seen it yet.
        # Where all have seen it before their last call, those are the same of `usual` alone.
        differ = {0} if others[-1] is usual else {0, UNNAMED_SLOTS}
        assert differ <= set(failed), failed
        check_later(None)
        assert hvd.allgather_object(failed) == [failed] * WORLD_SIZE


def is_refused(handle: hvd.Handle) -> bool:
    """Whether an operation ends with a MismatchError that names a rank."""
    try:
        same(hvd.synchronize(handle), torch.full((2,), TOTAL))
    except MismatchError as error:
        assert "rank " in str(error), error
        return True
    return False


def groups_of_one_name() -> None:
    """What failed in a group says nothing about the next group of its name."""
    for _ in range(2):
        group = dist.new_group(list(ALL), use_local_synchronization=True)
        # Two ranks that differ are found before the others have called.
        with raises(MismatchError, "rank "):
            dist.all_reduce(own(OWN), group=group)
        dist.destroy_process_group(group)
    group = dist.new_group(list(ALL), use_local_synchronization=True)
    tensor = own(3)
    dist.all_reduce(tensor, group=group)
    same(tensor, torch.full((3,), TOTAL))


join_torch()
hvd.init()
part = sys.argv[1]
if part == "names":
    for name in ("some", None):
        for what, call in horovod(name).items():
            check(what, call)
            check_later(name)
    check("kinds", kinds)
    check_later(None)
elif part == "groups":
    for what, call in numbered().items():
        check(what, call)
        check_later(None)
    futures()
    check_later(None)
    groups_of_one_name()
else:
    far_apart()
    one_comes_late()
    one_has_its_result()
    subsets()
dist.destroy_process_group()
hvd.shutdown()
