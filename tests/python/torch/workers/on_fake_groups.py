"""All-reduces of tensors on the tests' device, which ranks of a machine reduce among each other.

Arguments: the number of ranks in a group, and which of them hold shards.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import fake_device
import fake_group
import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE, join_torch, raises
from fake_device import OnFake, on_fake, plain
from sumpter._core import membership, staging
from sumpter.torch.tensors import DTYPE_NAMES

# Small enough for one rank to hold all of it; parts that are equal, and that are not.
SIZES = (1, 1000, 120_000, 100_003)
MEMBERS = int(sys.argv[1])
GROUP = range(RANK // MEMBERS * MEMBERS, (RANK // MEMBERS + 1) * MEMBERS)


def of_rank(rank: int, size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, of which sums are exact."""
    return (torch.arange(size) % 5 + rank % 3 + 1).to(dtype)


def of_all(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.stack([of_rank(rank, size, dtype) for rank in ALL])


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Expects a tensor of the device with the same bytes."""
    assert isinstance(actual, OnFake), type(actual)
    actual = actual.cpu()
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    differ = (actual.view(-1).view(torch.uint8) != expected.reshape(-1).view(torch.uint8)).nonzero()
    assert not len(differ), (len(differ), differ[:3], actual, expected)


def check_the_group() -> None:
    session = membership.current()
    holders = [bool(int(word)) for word in sys.argv[2].split(",")]
    assert session.device_group == list(zip(GROUP, holders, strict=True))
    assert session.device_link is not None
    assert session.device_link.leads == (GROUP[0] == RANK)


def check_reductions() -> None:
    """In every element type, and as they are without groups."""
    for dtype in DTYPE_NAMES:
        for op in (hvd.Sum, hvd.Min, hvd.Max, hvd.Product):
            for size in SIZES if dtype in (torch.float32, torch.int8) else (1000, 100_003):
                flat = hvd.allreduce(of_rank(RANK, size, dtype), op=op)
                own = on_fake(of_rank(RANK, size, dtype))
                same(hvd.allreduce(own, op=op), flat)
                same(own, of_rank(RANK, size, dtype))
                assert hvd.allreduce_(own, op=op) is own
                same(own, flat)
    for size in SIZES:
        own = on_fake(of_rank(RANK, size))
        same(hvd.allreduce(own), hvd.allreduce(of_rank(RANK, size)))
        counts = on_fake(of_rank(RANK, size, torch.int32))
        mean = of_all(size, torch.int32).sum(0, dtype=torch.int32) // WORLD_SIZE
        same(hvd.push_pull(counts, name=f"mean {size}"), mean)
        half = {"op": hvd.Sum, "compression": hvd.Compression.fp16, "postscale_factor": 0.5}
        same(hvd.allreduce(own, **half), of_all(size).sum(0) / 2)
    same(hvd.allreduce(on_fake(torch.zeros(0))), torch.zeros(0))
    gaps = on_fake(of_rank(RANK, 65 * 400).view(65, 400)).t()
    hvd.allreduce_(gaps, op=hvd.Sum)
    same(gaps.contiguous(), of_all(65 * 400).sum(0).view(65, 400).t().contiguous())


def check_what_is_not_reduced_in_the_group() -> None:
    own = on_fake(of_rank(RANK, 1000))
    same(hvd.broadcast(own, 1), of_rank(1, 1000))
    same(hvd.allgather(own), torch.cat([of_rank(rank, 1000) for rank in ALL]))
    some = hvd.add_process_set([0, WORLD_SIZE - 1])
    if some.included():
        total = hvd.allreduce(own, op=hvd.Sum, process_set=some)
        same(total, of_rank(0, 1000) + of_rank(WORLD_SIZE - 1, 1000))
    hvd.remove_process_set(some)
    with raises(hvd.UnsupportedError, "cannot run out of data"):
        hvd.join()


def check_that_ranks_begin_in_any_order() -> None:
    order = list(range(40))
    random.Random(RANK).shuffle(order)
    begun: dict[int, Any] = {}
    for index in order:
        tensor = on_fake(of_rank(RANK + index, SIZES[index % 4]))
        begun[index] = hvd.push_pull_async_inplace(
            tensor, average=False, name=f"t{index}", priority=index % 7
        )
    random.Random(-RANK).shuffle(order)
    for index in order:
        expected = sum(of_rank(rank + index, SIZES[index % 4]) for rank in ALL)
        same(begun[index].synchronize(), expected)


def check_streams() -> None:
    """What is computed before in another stream, and after."""
    fake, side = fake_device.device(), fake_device.Stream(pause_s=0.01)
    seen: list[torch.Tensor] = []
    for size in SIZES:
        with fake.using(side):
            tensor, own = on_fake(torch.zeros(size)), of_rank(RANK, size)
            fake.launch(lambda tensor=tensor, own=own: plain(tensor).copy_(own))
            hvd.allreduce_(tensor, op=hvd.Sum)
            fake.launch(lambda tensor=tensor: seen.append(plain(tensor).clone()))
            side.mark().synchronize()
            assert torch.equal(seen.pop(), of_all(size).sum(0))


def check_torch_distributed() -> None:
    for size in SIZES:
        tensor = on_fake(of_rank(RANK, size, torch.bfloat16))
        work = dist.all_reduce(tensor, async_op=True)
        assert work.wait()
        same(tensor, of_all(size, torch.bfloat16).sum(0, dtype=torch.bfloat16))
        work = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True)
        (value,) = work.get_future().wait()
        assert value.data_ptr() == tensor.data_ptr()


def check_data_parallel() -> None:
    """DDP, whose buckets are memory of the device; the sums of a group come first."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(300, 200), nn.Tanh(), nn.Linear(200, 10))
    alone = nn.Sequential(nn.Linear(300, 200), nn.Tanh(), nn.Linear(200, 10))
    alone.load_state_dict(model.state_dict())
    # Which makes more than one bucket at once.
    options = {"bucket_cap_mb": 0.05, "find_unused_parameters": True}
    parallel = nn.parallel.DistributedDataParallel(model, **options)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    buckets: list[int] = []

    def hook(_: None, bucket: dist.GradBucket) -> torch.futures.Future:
        with torch._C._EnableTorchFunction():
            gradients = bucket.buffer().as_subclass(OnFake)
        buckets.append(bucket.index())
        work = backend.average_bucket(gradients, bucket.index())

        def finish(done: Any) -> torch.Tensor:
            (average,) = done.value()
            fake_device.device().current().mark().synchronize()
            return plain(average)

        return work.get_future().then(finish)

    # Torch looks at a hook's annotations, which are texts here.
    parallel.register_comm_hook(None, lambda state, bucket: hook(state, bucket))
    optimizers = [torch.optim.SGD(each.parameters(), lr=1e-4) for each in (model, alone)]
    inputs = torch.stack([torch.randn(16, 300) for _ in ALL])
    for _ in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        parallel(inputs[RANK]).square().sum().backward()
        # Of two numbers there is one sum; a ring of more adds each part in another order.
        each = []
        for rank in ALL:
            alone.zero_grad()
            alone(inputs[rank]).square().sum().backward()
            each.append([parameter.grad.clone() for parameter in alone.parameters()])
        for index, parameter in enumerate(alone.parameters()):
            groups = [
                sum_of([each[rank][index] for rank in range(first, first + MEMBERS)])
                for first in range(0, WORLD_SIZE, MEMBERS)
            ]
            parameter.grad = sum_of(groups) / WORLD_SIZE
        for mine, expected in zip(model.parameters(), alone.parameters(), strict=True):
            if MEMBERS == 2:
                assert torch.equal(mine.grad, expected.grad)
            torch.testing.assert_close(mine.grad, expected.grad, rtol=1e-4, atol=1e-4)
        for optimizer in optimizers:
            optimizer.step()
    assert max(buckets) > 0


def sum_of(tensors: list[torch.Tensor]) -> torch.Tensor:
    total = tensors[0].clone()
    for each in tensors[1:]:
        total += each
    return total


def check_ranks_that_differ() -> None:
    """On all ranks of all groups, and the others' tensors go on."""
    last = WORLD_SIZE - 1
    for name, differing in (
        ("shape", on_fake(of_rank(RANK, 999))),
        ("type", on_fake(of_rank(RANK, 1000, torch.int32))),
        ("place", of_rank(RANK, 1000)),
    ):
        tensor = differing if RANK == last else on_fake(of_rank(RANK, 1000))
        with raises(hvd.MismatchError, name):
            hvd.allreduce_(tensor, op=hvd.Sum, name=name)
        for again in (name, None):
            total = hvd.allreduce(on_fake(of_rank(RANK, 1000)), op=hvd.Sum, name=again)
            same(total, of_all(1000).sum(0))
    with raises(hvd.MismatchError, "all_reduce"):
        dist.all_reduce(on_fake(of_rank(RANK, 1000 + (RANK == last))))
    tensor = on_fake(of_rank(RANK, 1000))
    dist.all_reduce(tensor)
    same(tensor, of_all(1000).sum(0))


def check_a_device_that_fails(stage: str) -> None:
    """One rank's copies fail: an error of all ranks of its group, which goes on."""
    fake = fake_device.device()
    broken = RANK == GROUP[-1] and GROUP[0] == 0
    with contextlib.ExitStack() as until:
        if broken:
            until.enter_context(failing(fake, "arrival" if stage == "out" else "copy_to_device"))
        tensor = on_fake(of_rank(RANK, 100_003))
        # Those of another group may have got the result.
        caught: type[BaseException] | tuple[type[BaseException], ...]
        caught = RuntimeError if broken else hvd.MismatchError
        if stage == "out" or GROUP[0] == 0:
            with raises(caught, "an illegal address"):
                hvd.allreduce_(tensor, op=hvd.Sum, name=f"failing {stage}")
        else:
            hvd.allreduce_(tensor, op=hvd.Sum, name=f"failing {stage}")
    same(hvd.allreduce(on_fake(of_rank(RANK, 100_003)), op=hvd.Sum), of_all(100_003).sum(0))


@contextlib.contextmanager
def failing(fake: fake_device.FakeDevice, method: str) -> Any:
    def fail(*_: Any) -> Any:
        raise RuntimeError("an illegal address")

    class Failed:
        passed = None
        synchronize = fail

    original = getattr(fake, method)

    def arrival(stream: fake_device.Stream, point: Any = None) -> Any:
        return Failed() if stream is fake.device_to_host else original(stream, point)

    setattr(fake, method, arrival if method == "arrival" else fail)
    try:
        yield
    finally:
        setattr(fake, method, original)


CHECKS: list[Callable[[], None]] = [
    check_the_group,
    check_reductions,
    check_what_is_not_reduced_in_the_group,
    check_that_ranks_begin_in_any_order,
    check_streams,
    check_torch_distributed,
    check_data_parallel,
    check_ranks_that_differ,
    lambda: check_a_device_that_fails("out"),
    lambda: check_a_device_that_fails("back"),
]

if __name__ == "__main__":
    staging.SLICE_BYTES = 8192
    fake_device.install(pause_s=0.001)
    fake_group.install()
    fake_device.install_for_torch_distributed()
    join_torch()
    hvd.init()
    for check in CHECKS:
        check()
        assert not fake_device.errors, fake_device.errors
        hvd.barrier()
    dist.destroy_process_group()
    hvd.shutdown()
    assert not fake_device.errors, fake_device.errors
