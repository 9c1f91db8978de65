"""Operations on tensors of one GPU that all ranks share, against results computed on the CPU."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from common import ALL, RANK, WORLD_SIZE, join_torch

import sumpter.torch as hvd
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


def report_copy_rates() -> None:
    """Shows how fast slices are copied, beside one plain copy of everything."""
    tensor = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    device = devices.of(tensor)
    whole = device.host_memory(tensor.numel())
    for size in (tensor.numel(), 4 << 20):
        pairs = list(zip(tensor.split(size), whole.split(size), strict=True))
        for name, stream, direction in (("out", device.out, 1), ("back", device.back, -1)):
            device.mark(stream).synchronize()
            start = time.perf_counter()
            for _ in range(8):
                for pair in pairs:
                    target, source = pair[::-direction]
                    device.copy(target, source, stream)
            device.mark(stream).synchronize()
            rate = 8 * tensor.numel() / (time.perf_counter() - start)
            print(f"rank {RANK} {name} in copies of {size >> 20} MiB: {rate / 1e9:.1f} GB/s")


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
        called, ended, copied = ((point - start) * 1e3 for point in points)
        print(
            f"rank {RANK} {tensor.numel() >> 18} MiB: call {called:.2f} ms, "
            f"waited until {ended:.2f} ms, on the device at {copied:.2f} ms"
        )


if __name__ == "__main__":
    torch.cuda.set_device(0)
    join_torch()
    hvd.init()
    check_fronts()
    check_streams()
    check_backend()
    report_copy_rates()
    report_timeline()
    dist.destroy_process_group()
    hvd.shutdown()
