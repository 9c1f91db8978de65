"""All-reduces that come again, as in each training step: they differ from the first in speed only.

Each kind is called several times, so that later ones are begun as repetitions, on some ranks or on
all.
"""

from __future__ import annotations

import datetime
import gc
import weakref

import torch
import torch.distributed as dist
from c10d_common import LAST, equal, join

from common import ALL, RANK, WORLD_SIZE, raises
from sumpter.torch import MismatchError
from sumpter.torch.c10d import collective
from sumpter.torch.c10d.collective import SLOTS, Group

TIMES = 2 * SLOTS + 1
OPS = dist.ReduceOp
TOTAL = sum(rank + 1 for rank in ALL)


def group_of_all() -> Group:
    return dist.group.WORLD._get_backend(torch.device("cpu"))._group


def is_known(like: torch.Tensor, op: dist.ReduceOp.RedOpType = OPS.SUM) -> bool:
    """Whether a call such as this is begun as a repetition; it is made, by all ranks."""
    begun = group_of_all().calls.reduce(like, collective.op_number(dist.ReduceOp(op)), 0)
    if begun is not None and begun[0] is not None:
        begun[0].wait()
    return begun is not None


def check_kinds() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        for op in (OPS.SUM, OPS.MIN, OPS.MAX, OPS.PRODUCT, OPS.AVG):
            for shape in ((), (3,), (2, 3), (1, 5, 1), (1025,)):
                expected = torch.stack([torch.full(shape, rank + 1.0) for rank in ALL])
                if op == OPS.AVG:
                    result = expected.sum(0) / WORLD_SIZE
                else:
                    name = {OPS.SUM: "sum", OPS.MIN: "amin", OPS.MAX: "amax", OPS.PRODUCT: "prod"}
                    result = getattr(expected, name[op])(0)
                for _ in range(3):
                    own = torch.full(shape, RANK + 1).to(dtype)
                    dist.all_reduce(own, op)
                    equal(own, result.to(dtype))
                # Averages of integers are divided here.
                known = op != OPS.AVG or dtype.is_floating_point
                assert is_known(torch.ones(shape, dtype=dtype), op) == known, (dtype, op, shape)


def check_layouts() -> None:
    """What lies elsewhere than in order is begun as before, beside ranks that repeat."""
    for number in range(TIMES):
        whole = torch.full((6, 4), RANK + 1.0)
        forms = (
            whole[1:3, :].view(8),  # not at the beginning of its memory
            whole[:, ::2][:4].reshape(8),
            whole.t()[:2, :4],
            torch.empty(8, 3)[:, 0].fill_(RANK + 1.0),
            torch._neg_view(torch.full((8,), -RANK - 1.0)),
            torch.nn.Parameter(torch.full((8,), RANK + 1.0), requires_grad=False),
        )
        own = forms[(number + RANK) % len(forms)]
        work = dist.group.WORLD._get_backend(own.device).allreduce([own], dist.AllreduceOptions())
        work.wait()
        equal(own.reshape(8), torch.full((8,), float(TOTAL)))
        if own.is_neg():
            equal(torch._neg_view(own), torch.full((8,), -float(TOTAL)))
    assert not is_known(torch.ones(2, 4).t())
    assert not is_known(torch.ones(8, dtype=torch.int16))
    assert not is_known(torch.ones(8).to_sparse())
    assert not is_known(torch.ones(0))
    assert not is_known(torch.ones(1).expand(1 << 40))
    assert group_of_all().calls.reduce([1.0], 0, 0) is None


def check_memory_outlives_the_tensor() -> None:
    own = torch.full((3,), RANK + 1.0)
    seen = own.detach()
    work = dist.all_reduce(own, async_op=True)
    own.data = torch.zeros(1)
    work.wait()
    equal(seen, torch.full((3,), float(TOTAL)))
    kept = weakref.ref(seen.untyped_storage())
    del own, seen, work
    for _ in range(SLOTS):
        dist.all_reduce(torch.ones(3))
    gc.collect()
    assert kept() is None, "a collective that is over still holds its memory"


def check_works() -> None:
    """Each call has a Work of its own, made ahead or not."""
    for _ in range(TIMES):
        given = [torch.full((3,), float(index + RANK)) for index in range(SLOTS + 2)]
        works = [dist.all_reduce(own, async_op=True) for own in given]
        futures = [work.get_future() for work in works]
        for index, (work, future) in enumerate(zip(works, futures, strict=True)):
            assert work.wait(datetime.timedelta(seconds=60))
            assert work.is_completed() and work.is_success() and work.exception() is None
            expected = torch.full((3,), float(sum(index + rank for rank in ALL)))
            equal(work.result()[0], expected)
            equal(future.wait()[0], expected)
            equal(given[index], expected)
            assert work.result()[0].data_ptr() == given[index].data_ptr()


def check_futures() -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    for _ in range(2):
        work = backend.allreduce([torch.ones(3)], dist.AllreduceOptions())
        assert work._future is None, "made when it is asked for"
        assert work.get_future() is work.get_future()
        work.wait()
        work.get_future().wait()
        assert work.get_future().done()
        # Of one that is done already.
        later = work.get_future().then(lambda done: done.value()[0] + 1)
        equal(later.wait(), torch.full((3,), WORLD_SIZE + 1.0))
        nested = work.get_future().then(
            lambda _: dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()[0]
        )
        equal(nested.wait(), torch.full((3,), float(WORLD_SIZE)))


def check_numbers() -> None:
    """Calls are counted alike, however they begin: ranks that differ are found by the number."""
    group = group_of_all()
    before = group.calls.count
    for _ in range(3):
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(4)[::2])
        dist.barrier()
    assert group.calls.count == before + 9
    assert dist.group.WORLD._get_sequence_number_for_group() == before + 9


def check_differences() -> None:
    """Of two calls that both have come before."""
    for era in range(2):
        for _ in range(2):
            for count in (3, 4):
                dist.all_reduce(torch.ones(count))
        own = torch.ones(4 if RANK == LAST else 3)
        work = dist.all_reduce(own, async_op=True)
        with raises(MismatchError, f"rank {LAST} called", "[3]", "[4]"):
            work.wait()
        assert isinstance(work.exception(), MismatchError)
        with raises(RuntimeError, f"rank {LAST} called"):
            work.get_future().wait()
        assert not group_of_all().kept, era
        own = torch.ones(3)
        dist.all_reduce(own)
        equal(own, torch.full((3,), float(WORLD_SIZE)))


def check_more_kinds_than_are_kept() -> None:
    known, collective.KEPT_ROUNDS = collective.KEPT_ROUNDS, 2
    group_of_all().kept.clear()
    for _ in range(2):
        for count in (11, 12, 13, 14):
            for _ in range(2):
                own = torch.ones(count)
                dist.all_reduce(own)
                equal(own, torch.full((count,), float(WORLD_SIZE)))
            assert len(group_of_all().kept) <= 2
    collective.KEPT_ROUNDS = known


def check_errors_of_other_calls() -> None:
    """A call raises what went wrong with one that was not waited for, repeated or not."""
    session = group_of_all().session
    dist.all_reduce(torch.ones(3))
    session.late = ValueError("of an earlier one")
    with raises(ValueError, "of an earlier one"):
        dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(3))


def check_counts() -> None:
    """A tuner sees repeated rounds, with their priority, and when they begin."""
    session = group_of_all().session
    dist.all_reduce(torch.ones(17))
    before, session.begun = session.rounds(), []
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    for _ in range(SLOTS):
        backend.allreduce([torch.ones(17)], dist.AllreduceOptions(), 5).wait()
    begun, session.begun = session.begun, None
    backend.allreduce([torch.ones(17)], dist.AllreduceOptions(), 6).wait()
    uses = [use for use in session.uses_since(before) if use.shape == (17,)]
    rounds = 0 if WORLD_SIZE == 1 else SLOTS + 1
    assert len(begun) == (0 if WORLD_SIZE == 1 else SLOTS)
    assert sum(use.rounds for use in uses) == rounds
    assert {use.priority for use in uses} <= {5, 6}


join()
check_kinds()
check_layouts()
check_memory_outlives_the_tensor()
check_works()
check_futures()
check_counts()
check_errors_of_other_calls()
check_more_kinds_than_are_kept()
if WORLD_SIZE > 1:
    check_numbers()
    check_differences()
check_numbers()
dist.barrier()
dist.destroy_process_group()
