"""Operations on tensors of one GPU that all ranks share, against results computed on the CPU."""

from __future__ import annotations

import threading
import time

import torch
import torch.distributed as dist

import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE, join_torch
from sumpter.torch import devices

# Several slices, the last of them smaller.
LARGE = (9 << 20) + 5


def of_rank(rank: int, count: int = LARGE) -> torch.Tensor:
    """Small whole numbers, so that sums are exact."""
    return (torch.arange(count) % 5 + rank + 1).float()


def total(count: int = LARGE) -> torch.Tensor:
    return torch.stack([of_rank(rank, count) for rank in ALL]).sum(0)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.is_cuda
    assert torch.equal(actual.cpu(), expected)


def check_fronts() -> None:
    for count in (1, 1000, LARGE):
        given = of_rank(RANK, count).cuda()
        same(hvd.allreduce(given, op=hvd.Sum), total(count))
        same(given, of_rank(RANK, count))
        same(hvd.push_pull(given, average=False, name=f"pull.{count}"), total(count))
        same(hvd.broadcast(given, 1), of_rank(1, count))
    rows = hvd.allgather(of_rank(RANK, 3 + RANK).cuda())
    same(rows, torch.cat([of_rank(rank, 3 + rank) for rank in ALL]))
    same(hvd.reducescatter(of_rank(RANK, 10).cuda(), op=hvd.Sum), total(10).chunk(2)[RANK])
    expected = hvd.allreduce(of_rank(RANK, 999), op=hvd.Adasum)
    actual = hvd.allreduce(of_rank(RANK, 999).cuda(), op=hvd.Adasum)
    assert torch.allclose(actual.cpu(), expected)


def check_streams() -> None:
    """The input is computed behind a long kernel in a stream of its own; so is what follows."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            tensor = torch.zeros(LARGE, device="cuda")
            torch.cuda._sleep(50_000_000)
            tensor += of_rank(RANK).cuda()
            handle = hvd.allreduce_async_(tensor, op=hvd.Sum)
            handle.synchronize()
            tensor *= 2
            same(tensor, 2 * total())
            del tensor


def check_backend() -> None:
    tensor = of_rank(RANK).cuda()
    work = dist.all_reduce(tensor, async_op=True)
    doubled = work.get_future().then(lambda done: done.value()[0] * 2)
    same(doubled.wait(), 2 * total())
    work.wait()
    same(tensor, total())
    pieces = [torch.zeros(LARGE, device="cuda") for _ in ALL]
    dist.all_gather(pieces, of_rank(RANK).cuda())
    for rank in ALL:
        same(pieces[rank], of_rank(rank))
    output = torch.zeros(4, device="cuda")
    dist.all_to_all_single(output, of_rank(RANK, 4).cuda())
    same(output, torch.cat([of_rank(rank, 4).chunk(WORLD_SIZE)[RANK] for rank in ALL]))


def check_that_the_host_goes_on() -> None:
    """Rank 1 calls only after rank 0 has waited, and freed memory, which waits for all streams."""
    store = dist.distributed_c10d._get_default_store()
    for count in (1000, LARGE):
        tensor, unused = of_rank(RANK, count).cuda(), torch.empty(64 << 20, device="cuda")
        torch.cuda.synchronize()
        if RANK == 1:
            store.get(f"gone.on.{count}")
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        tensor *= 2
        frees = threading.Thread(target=torch.cuda.empty_cache)
        del unused
        if RANK == 0:
            assert not work.is_completed()
            frees.start()
            time.sleep(0.1)
            store.set(f"gone.on.{count}", "")
            frees.join()
        same(tensor, 2 * total(count))


def check_what_fails() -> None:
    """The next call raises it, and what is in the memory is no number."""
    tensor = torch.ones(3 + RANK, device="cuda")
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    assert tensor.isnan().all().item()
    dist.distributed_c10d._get_default_store().set(f"failed.{RANK}", "")
    for rank in ALL:
        dist.distributed_c10d._get_default_store().get(f"failed.{rank}")
    try:
        dist.all_reduce(torch.ones(2, device="cuda"))
    except hvd.MismatchError as error:
        assert "[3]" in str(error) and "[4]" in str(error)
    else:
        raise AssertionError("nothing was raised")


def report_copy_rates() -> None:
    """Shows how fast slices are copied, beside one plain copy of everything."""
    memory = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    device = devices.of(memory)
    host = device.host_memory(memory.numel())

    def copy_to_host(start: int, size: int) -> None:
        device.copy_to_host(host, memory, start, size, device.device_to_host)

    def copy_to_device(start: int, size: int) -> None:
        device.copy_to_device(memory, host, start, size, device.host_to_device)

    for size in (memory.numel(), 4 << 20):
        for copy, stream in (
            (copy_to_host, device.device_to_host),
            (copy_to_device, device.host_to_device),
        ):
            device.mark(stream).synchronize()
            began = time.perf_counter()
            for _ in range(8):
                for start in range(0, memory.numel(), size):
                    copy(start, size)
            device.mark(stream).synchronize()
            rate = 8 * memory.numel() / (time.perf_counter() - began)
            print(f"rank {RANK} {copy.__name__} of {size >> 20} MiB: {rate / 1e9:.1f} GB/s")


def report_timeline() -> None:
    """Shows when, within one operation, copies and the network were at work."""
    tensor = of_rank(RANK).cuda()
    for _ in range(3):
        start = time.perf_counter()
        handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="timeline")
        begun = time.perf_counter()
        handle.synchronize()
        waited = time.perf_counter()
        torch.cuda.synchronize()
        points = [begun, waited, time.perf_counter()]
        show("front", tensor, *((point - start) * 1e3 for point in points))
    for _ in range(3):
        start = time.perf_counter()
        work = dist.all_reduce(tensor, async_op=True)
        begun = time.perf_counter()
        work.wait()
        waited = time.perf_counter()
        torch.cuda.synchronize()
        points = [begun, waited, time.perf_counter()]
        show("backend", tensor, *((point - start) * 1e3 for point in points))


def show(what: str, tensor: torch.Tensor, called: float, ended: float, copied: float) -> None:
    print(
        f"rank {RANK} {what} {tensor.numel() >> 18} MiB: call {called:.2f} ms, "
        f"waited until {ended:.2f} ms, on the device at {copied:.2f} ms"
    )


if __name__ == "__main__":
    torch.cuda.set_device(0)
    join_torch()
    hvd.init()
    check_fronts()
    check_streams()
    check_backend()
    check_that_the_host_goes_on()
    report_copy_rates()
    report_timeline()
    check_what_fails()
    dist.destroy_process_group()
    hvd.shutdown()
