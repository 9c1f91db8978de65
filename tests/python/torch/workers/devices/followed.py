"""Collectives of torch.distributed for which streams wait, and no thread, on the tests' device."""

from __future__ import annotations

import datetime
import threading
import time

import torch
import torch.distributed as dist

import fake_device
from common import ALL, RANK, join_torch, raises
from fake_device import on_fake, plain
from sumpter import ClosedError, DeadlineError, MismatchError
from sumpter._core import membership, staging

LARGE = 10007
HANG_S = 120.0


def store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()


def done(tensor: torch.Tensor) -> torch.Tensor:
    """What is in the tensor when the streams have come so far."""
    fake_device.device().main.mark().synchronize()
    return plain(tensor)


def check_that_the_host_goes_on() -> None:
    """Rank 1 calls only after rank 0 has waited: a thread that waited would do so for ever."""
    for case in ("wait", "future", "reduce"):
        if RANK == 1:
            store().get(f"{case}.gone.on")
        tensor = on_fake(torch.full((LARGE,), float(RANK + 1)))
        if case == "wait":
            work = dist.all_reduce(tensor, async_op=True)
            assert work.wait()
        elif case == "future":
            work = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True)
            outcome = work.get_future()
            assert outcome.done()
            (value,) = outcome.wait()
            assert value.data_ptr() == tensor.data_ptr()
        else:
            dist.reduce(tensor, dst=0)
        doubled = torch.zeros(LARGE)
        fake_device.device().launch(
            lambda tensor=tensor, doubled=doubled: doubled.copy_(2 * plain(tensor))
        )
        if RANK == 0:
            assert not doubled.any()
            if case != "reduce":
                assert not work.is_completed()
            store().set(f"{case}.gone.on", "")
        done(tensor)
        if case != "reduce" or RANK == 0:
            expected = 3.0 if case == "future" else 6.0
            assert doubled.tolist() == [expected] * LARGE


def check_that_a_stuck_callback_keeps_no_stream_waiting() -> None:
    """As one that frees an event of the driver's, behind a copy that waits for the sum."""
    stuck, entered = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        assert stuck.wait(HANG_S)

    barrier = membership.current().barrier("before it is stuck")
    barrier.wait(HANG_S)
    if RANK == 0:
        barrier.on_done(wait)
        assert entered.wait(HANG_S)
    else:
        # The stream of rank 0 waits before the sum can be there.
        store().get("stuck and waiting")
    tensor = on_fake(torch.full((LARGE,), float(RANK + 1)))
    dist.all_reduce(tensor)
    if RANK == 0:
        store().set("stuck and waiting", "")
    assert done(tensor).tolist() == [3.0] * LARGE
    stuck.set()


def check_many_steps() -> None:
    """A host far ahead: each sum is computed from the last one, in the stream."""
    tensor = on_fake(torch.full((LARGE,), float(RANK)))
    counts = on_fake(torch.full((9,), RANK + 1))
    for _ in range(30):
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        fake_device.device().launch(lambda: plain(tensor).add_(RANK))
        dist.all_reduce(counts, op=dist.ReduceOp.AVG)
    assert done(tensor).tolist() == [1.0 + 29 + RANK] * LARGE
    assert done(counts).tolist() == [1] * 9


def check_a_limit_that_is_given() -> None:
    """Who gives a limit wants to know."""
    if RANK == 0:
        work = dist.all_reduce(on_fake(torch.ones(5)), async_op=True)
        with raises(DeadlineError, "all_reduce(float32 [5]", "after 0.05 s"):
            work.wait(datetime.timedelta(seconds=0.05))
        store().set("limit", "")
        assert work.wait(datetime.timedelta(seconds=HANG_S))
    else:
        store().get("limit")
        dist.all_reduce(on_fake(torch.ones(5)))


def check_a_mismatch() -> None:
    """Both ranks have gone on when it is found; the next call raises it, and then they agree."""
    tensor = on_fake(torch.ones(3 + RANK))
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    assert done(tensor).isnan().all()
    store().set(f"mismatch.{RANK}", "")
    for rank in ALL:
        store().get(f"mismatch.{rank}")
    with raises(MismatchError, "[3]", "[4]"):
        dist.all_reduce(on_fake(torch.ones(2)))
    assert work.is_completed()
    with raises(MismatchError, "[3]", "[4]"):
        work.wait()
    tensor = on_fake(torch.ones(2))
    dist.all_reduce(tensor)
    assert done(tensor).tolist() == [2.0, 2.0]


def check_the_timeout() -> None:
    """One rank never calls: the other's stream goes on, and its membership is over."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    if RANK == 0:
        tensor = on_fake(torch.ones(5))
        dist.all_reduce(tensor, group=group)
        assert done(tensor).isnan().all()
        with raises(DeadlineError, "all_reduce(float32 [5]", "1 s, the timeout of the process"):
            dist.all_reduce(tensor, group=group)
        # An operation that began before the membership was over fails in the stream instead.
        with raises(ClosedError, "shut down"):
            for _ in range(1000):
                dist.all_reduce(tensor)
                time.sleep(0.01)
        store().set("over", "")
    else:
        store().get("over")
        time.sleep(0.1)


if __name__ == "__main__":
    staging.SLICE_BYTES = 8192
    fake_device.install(pause_s=0.002)
    fake_device.install_for_torch_distributed()
    join_torch()
    check_that_the_host_goes_on()
    check_many_steps()
    check_that_a_stuck_callback_keeps_no_stream_waiting()
    check_a_limit_that_is_given()
    check_a_mismatch()
    check_the_timeout()
    dist.destroy_process_group()
