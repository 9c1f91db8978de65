"""Every operation on tensors of the tests' device, whose copies take their time."""

from __future__ import annotations

import datetime
import sys

import torch
import torch.distributed as dist

import fake_device
import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE, join_torch, raises
from fake_device import on_fake, plain
from sumpter._core import staging

# More than a slice of the tests, and not a multiple of it.
LARGE = 10007


def of_rank(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, so that sums are exact."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 5 + rank + 1).reshape(shape).to(dtype)


def of_all(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.stack([of_rank(rank, *shape, dtype=dtype) for rank in ALL])


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Expects a tensor of the device with these elements."""
    assert isinstance(actual, fake_device.OnFake), type(actual)
    actual = actual.cpu()
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert torch.equal(actual, expected), (actual, expected)


def check_reductions() -> None:
    for dtype in (torch.float32, torch.float16, torch.int64, torch.uint8):
        for shape in ((), (0,), (7,), (LARGE,), (33, 65)):
            given, own = of_all(*shape, dtype=dtype), on_fake(of_rank(RANK, *shape, dtype=dtype))
            same(hvd.allreduce(own, op=hvd.Sum), given.sum(0, dtype=dtype))
            same(hvd.allreduce(own, op=hvd.Max), given.amax(0))
            same(own, given[RANK])
            assert hvd.allreduce_(own, op=hvd.Sum) is own
            same(own, given.sum(0, dtype=dtype))
    own = on_fake(of_rank(RANK, LARGE, dtype=torch.int32))
    mean = of_all(LARGE, dtype=torch.int32).sum(0, dtype=torch.int32) // WORLD_SIZE
    same(hvd.push_pull(own, name="mean"), mean)
    gaps = on_fake(of_rank(RANK, 65, 40)).t()
    hvd.allreduce_(gaps, op=hvd.Sum)
    same(gaps, of_all(65, 40).sum(0).t())
    half = on_fake(of_rank(RANK, LARGE))
    options = {"op": hvd.Sum, "compression": hvd.Compression.fp16, "postscale_factor": 0.5}
    same(hvd.allreduce(half, **options), of_all(LARGE).sum(0) / 2)


def check_that_operations_overlap() -> None:
    """Many are in flight, each of several slices, and are waited for in another order."""
    tensors = [on_fake(of_rank(RANK + index, LARGE)) for index in range(12)]
    begun = [hvd.allreduce_async_(t, op=hvd.Sum, name=f"t{i}") for i, t in enumerate(tensors)]
    for index in reversed(range(12)):
        expected = sum(of_rank(rank + index, LARGE) for rank in ALL)
        same(begun[index].synchronize(), expected)
    grouped = hvd.grouped_allreduce([on_fake(of_rank(RANK, LARGE)) for _ in range(3)], op=hvd.Sum)
    for tensor in grouped:
        same(tensor, of_all(LARGE).sum(0))


def check_copies() -> None:
    root = WORLD_SIZE - 1
    own = on_fake(of_rank(RANK, LARGE))
    same(hvd.broadcast(own, root), of_rank(root, LARGE))
    hvd.broadcast_(own, root)
    same(own, of_rank(root, LARGE))
    flags = on_fake(of_rank(RANK, 77) > 3)
    same(hvd.broadcast(flags, 0), of_rank(0, 77) > 3)
    parameters = {"a": on_fake(of_rank(RANK, 3)), "b": on_fake(of_rank(RANK, LARGE))}
    hvd.broadcast_parameters(parameters, 0)
    same(parameters["b"], of_rank(0, LARGE))
    rows = on_fake(of_rank(RANK, 900 * RANK + 1, 3))
    same(hvd.allgather(rows), torch.cat([of_rank(rank, 900 * rank + 1, 3) for rank in ALL]))
    parts = [of_rank(rank, 300 * WORLD_SIZE, 2).chunk(WORLD_SIZE)[RANK] for rank in ALL]
    same(hvd.alltoall(on_fake(of_rank(RANK, 300 * WORLD_SIZE, 2))), torch.cat(parts))
    whole = of_all(3000, 3).sum(0)
    shared = hvd.reducescatter(on_fake(of_rank(RANK, 3000, 3)), op=hvd.Sum)
    same(shared, whole.tensor_split(WORLD_SIZE)[RANK])


def check_adasum() -> None:
    expected = hvd.allreduce(of_rank(RANK, LARGE), op=hvd.Adasum)
    same(hvd.allreduce(on_fake(of_rank(RANK, LARGE)), op=hvd.Adasum), expected)


def check_gradients() -> None:
    leaf = on_fake(of_rank(RANK, 9)).requires_grad_()
    total = hvd.allreduce(leaf, op=hvd.Sum)
    same(total.detach(), of_all(9).sum(0))


def check_streams() -> None:
    """What is computed in another stream, before and after."""
    fake, side = fake_device.device(), fake_device.Stream(pause_s=0.01)
    own, seen = of_rank(RANK, LARGE), []
    with fake.using(side):
        tensor = on_fake(torch.zeros(LARGE))
        fake.launch(lambda: plain(tensor).copy_(own))
        hvd.allreduce_(tensor, op=hvd.Sum)
        fake.launch(lambda: seen.append(plain(tensor).clone()))
        side.mark().synchronize()
        assert torch.equal(seen[0], of_all(LARGE).sum(0))
        # An operation that goes on by itself, in another thread, before its input is there. As
        # large as its message, or the thread would have to wait to copy it into one.
        rows = on_fake(torch.zeros(128))
        with side.held():
            fake.launch(lambda: plain(rows).copy_(own[:128]))
            gathered = hvd.allgather_async(rows)
            for _ in range(5):
                hvd.barrier()
        same(gathered.synchronize(), torch.cat([of_rank(rank, 128) for rank in ALL]))


def check_that_ranks_on_other_devices_take_part() -> None:
    for name, length in (("small", 5), ("large", LARGE)):
        own = of_rank(RANK, length)
        own = on_fake(own) if RANK else own
        hvd.allreduce_(own, op=hvd.Sum, name=name)
        total = own.cpu() if RANK else own
        assert torch.equal(total, of_all(length).sum(0))
    if WORLD_SIZE > 1:
        shape = (LARGE, 1) if RANK else (1, LARGE)
        with raises(hvd.MismatchError, "shaped"):
            hvd.allreduce_(on_fake(of_rank(RANK, *shape)), op=hvd.Sum, name="shaped")


def check_torch_distributed() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        tensor = on_fake(of_rank(RANK, LARGE, dtype=dtype))
        dist.all_reduce(tensor)
        same(tensor, of_all(LARGE, dtype=dtype).sum(0, dtype=dtype))
    counts = on_fake(of_rank(RANK, 9, dtype=torch.int64))
    work = dist.all_reduce(counts, op=dist.ReduceOp.AVG, async_op=True)
    outcome = work.get_future()
    mean = of_all(9, dtype=torch.int64).sum(0) // WORLD_SIZE
    same(outcome.wait()[0], mean)
    work.wait(datetime.timedelta(seconds=60))
    same(counts, mean)
    gaps = on_fake(of_rank(RANK, 65, 40)).t()
    dist.all_reduce(gaps)
    same(gaps, of_all(65, 40).sum(0).t())
    dist.broadcast(gaps, src=0)
    pieces = [on_fake(torch.zeros(LARGE)) for _ in ALL]
    dist.all_gather(pieces, on_fake(of_rank(RANK, LARGE)))
    for rank in ALL:
        same(pieces[rank], of_rank(rank, LARGE))
    output = on_fake(torch.zeros(500))
    dist.reduce_scatter_tensor(output, on_fake(of_rank(RANK, 500 * WORLD_SIZE)))
    same(output, of_all(500 * WORLD_SIZE).sum(0).chunk(WORLD_SIZE)[RANK])
    reduced = on_fake(of_rank(RANK, LARGE))
    dist.reduce(reduced, dst=0)
    if RANK == 0:
        same(reduced, of_all(LARGE).sum(0))
    dist.barrier()


def check_what_gloo_carries() -> None:
    output, given = on_fake(torch.zeros(2 * WORLD_SIZE)), on_fake(of_rank(RANK, 2 * WORLD_SIZE))
    work = dist.all_to_all_single(output, given, async_op=True)
    expected = [of_rank(rank, 2 * WORLD_SIZE).chunk(WORLD_SIZE)[RANK] for rank in ALL]
    same(work.get_future().wait()[0], torch.cat(expected))
    pieces = [on_fake(torch.zeros(LARGE)) for _ in ALL] if RANK == 0 else None
    dist.gather(on_fake(of_rank(RANK, LARGE)), pieces)
    for rank, piece in enumerate(pieces or []):
        same(piece, of_rank(rank, LARGE))
    if WORLD_SIZE > 1 and RANK < 2:
        message = on_fake(of_rank(RANK, LARGE))
        if RANK == 0:
            dist.send(message, 1)
        else:
            dist.recv(message, 0)
        same(message, of_rank(0, LARGE))


if __name__ == "__main__":
    staging.SLICE_BYTES = 8192
    fake_device.install(pause_s=0.002, streams_wait="--blocking" not in sys.argv)
    fake_device.install_for_torch_distributed()
    join_torch()
    hvd.init()
    check_reductions()
    check_that_operations_overlap()
    check_copies()
    check_adasum()
    check_gradients()
    check_streams()
    check_torch_distributed()
    check_what_gloo_carries()
    check_that_ranks_on_other_devices_take_part()
    dist.destroy_process_group()
    hvd.shutdown()
