"""Every operation of the Horovod, BytePS and NumPy fronts, against results computed locally."""

from __future__ import annotations

import queue

import numpy as np
import torch

import sumpter
import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE, leave_result, raises, same

# Only so that a hang fails instead of blocking.
HANG_S = 120.0
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
# Nothing, one element, an odd few, and more than a partition.
SHAPES = ((), (0,), (1,), (3, 5), (2, 0, 4), (10007,))


def of_rank(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers, so that sums and products of every type are exact."""
    generator = torch.Generator().manual_seed(rank)
    low = 0 if dtype == torch.uint8 else -3
    return torch.randint(low, 4, shape, generator=generator).to(dtype)


def check_reductions() -> None:
    for dtype in FLOATS + INTEGERS:
        for shape in SHAPES:
            given = torch.stack([of_rank(rank, shape, dtype) for rank in ALL])
            own = given[RANK].clone()
            same(hvd.allreduce(own, op=hvd.Sum), given.sum(0, dtype=dtype))
            same(hvd.allreduce(own, op=hvd.Min), given.amin(0))
            same(hvd.allreduce(own, op=hvd.Max), given.amax(0))
            same(hvd.allreduce(own, op=hvd.Product), given.prod(0, dtype=dtype))
            same(own, given[RANK])


def check_averages() -> None:
    given = torch.stack([of_rank(rank, (33,), torch.float64) for rank in ALL])
    average = hvd.allreduce(given[RANK])
    assert torch.allclose(average, given.mean(0), rtol=1e-15, atol=0)
    for dtype in INTEGERS:
        given = torch.stack([of_rank(rank, (33,), dtype) for rank in ALL])
        total = given.sum(0, dtype=dtype)
        truncated = torch.div(total, WORLD_SIZE, rounding_mode="trunc")
        same(hvd.allreduce(given[RANK]), truncated)
        same(hvd.allreduce(given[RANK], average=True), truncated)
        floored = torch.div(total, WORLD_SIZE, rounding_mode="floor")
        same(hvd.push_pull(given[RANK], name="floored"), floored)
        result = sumpter.push_pull(given[RANK].numpy())
        same(torch.from_numpy(result), floored)


def check_scaling_and_compression() -> None:
    own = torch.full((5,), float(RANK + 1))
    total = torch.full((5,), sum(rank + 1.0 for rank in ALL))
    same(hvd.allreduce(own, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25), total / 2)
    whole = own.to(torch.int32)
    same(hvd.allreduce(whole, op=hvd.Sum, prescale_factor=2.5), sum_of_scaled(2.5))
    same(hvd.allreduce(own, op=hvd.Sum, compression=hvd.Compression.fp16), total)
    same(hvd.push_pull(own, average=False, name="half", compression=hvd.Compression.fp16), total)


def sum_of_scaled(factor: float) -> torch.Tensor:
    return torch.full((5,), sum(int(factor * (rank + 1)) for rank in ALL), dtype=torch.int32)


def check_memory_layouts() -> None:
    total = float(sum(rank + 1 for rank in ALL))
    matrix = torch.zeros(6, 4)
    matrix[::2, 1::2] = RANK + 1.0
    expected = torch.zeros(6, 4)
    expected[::2, 1::2] = total
    same(hvd.allreduce_(matrix[::2, 1::2].t(), op=hvd.Sum), expected[::2, 1::2].t())
    same(matrix, expected)
    image = torch.full((2, 3, 4, 4), RANK + 1.0).to(memory_format=torch.channels_last)
    same(hvd.push_pull_inplace(image, average=False), torch.full((2, 3, 4, 4), total))
    expanded = torch.tensor(RANK + 1.0).expand(7)
    same(hvd.allreduce(expanded, op=hvd.Sum), torch.full((7,), total))
    column = torch.arange(6.0).reshape(2, 3)[:, 1] + RANK
    same(hvd.broadcast_(column, root_rank=WORLD_SIZE - 1), torch.tensor([1.0, 4.0]) + ALL[-1])
    # Views whose memory has other numbers than they show.
    memory = torch.tensor([1.0 + 2j, 3.0 - 4j]) * (RANK + 1)
    sent = torch.tensor([1.0 - 2j, 3.0 + 4j]) * WORLD_SIZE
    conjugate = memory.conj()
    assert conjugate.is_conj()
    same(hvd.broadcast_(conjugate, root_rank=WORLD_SIZE - 1).resolve_conj(), sent)
    same(memory, sent.conj().resolve_conj())
    for tensor in (memory.conj().imag, torch._neg_view(torch.full((2,), -1.0 - RANK))):
        assert tensor.is_neg()
        tensor.fill_(RANK)
        result = hvd.broadcast_(tensor, root_rank=WORLD_SIZE - 1)
        assert result is tensor
        same(result.resolve_neg(), torch.full((2,), float(ALL[-1])))


def check_handles() -> None:
    own = torch.ones(100) * RANK
    handles = [hvd.allreduce_async_(own.clone(), op=hvd.Sum) for _ in range(20)]
    for handle in handles:
        result = hvd.synchronize(handle)
        same(result, torch.full((100,), float(sum(ALL))))
        assert hvd.poll(handle)
        assert hvd.synchronize(handle) is result
    assert hvd.synchronize(12345) is None
    with raises(ValueError, "12345"):
        hvd.poll(12345)
    first = hvd.byteps_push_pull(own.clone(), average=False, name="pushed")
    same(hvd.synchronize(first), torch.full((100,), float(sum(ALL))))
    assert hvd.declare("pushed") == 0


def check_callbacks() -> None:
    """They begin operations of several rounds, and wait for them, within each other too."""
    found: queue.Queue[torch.Tensor] = queue.Queue()

    def gather(depth: int) -> None:
        rows = hvd.allgather(torch.tensor([RANK]), name=f"of a callback {depth}")
        if depth:
            handle = hvd.push_pull_async(rows, average=False, name=f"in a callback {depth}")
            handle.on_done(lambda: gather(depth - 1))
            handle.synchronize()
        found.put(rows)

    hvd.allreduce_async(torch.ones(3), name="called back").on_done(lambda: gather(3))
    for _ in range(4):
        same(found.get(timeout=HANG_S), torch.arange(WORLD_SIZE))


def check_names_in_flight() -> None:
    """Rank 0 uses a name again while it waits for the others, who wait until it has done so."""
    if RANK == 0:
        handle = hvd.allreduce_async(torch.ones(3), name="twice", op=hvd.Sum)
        with raises(hvd.DuplicateNameError, "allreduce.twice", "rank 0"):
            hvd.allreduce_async(torch.ones(3), name="twice", op=hvd.Sum)
    hvd.broadcast(torch.ones(1), root_rank=0, name="rank 0 is done")
    if RANK != 0:
        handle = hvd.allreduce_async(torch.ones(3), name="twice", op=hvd.Sum)
    same(hvd.synchronize(handle), torch.full((3,), float(WORLD_SIZE)))
    same(hvd.allreduce(torch.ones(3), name="twice", op=hvd.Sum), torch.full((3,), WORLD_SIZE * 1.0))


def check_copies() -> None:
    for dtype in (torch.float32, torch.bool, torch.complex64, torch.int16, torch.float8_e4m3fn):
        for root in ALL:
            own = of_rank(RANK, (4, 3), torch.int32).to(dtype)
            expected = of_rank(root, (4, 3), torch.int32).to(dtype)
            received = hvd.broadcast(own, root)
            assert received.dtype == dtype
            assert torch.equal(received.view(torch.uint8), expected.view(torch.uint8))
    own = torch.arange(RANK * 2.0).reshape(RANK, 2)
    expected = torch.cat([torch.arange(rank * 2.0).reshape(rank, 2) for rank in ALL])
    for name in (None, "uneven", "uneven"):
        same(hvd.allgather(own, name=name), expected)
    same(hvd.allgather(torch.tensor(RANK)), torch.arange(WORLD_SIZE))
    thing = {"rank": RANK, "long": "x" * 1000 * RANK}
    assert hvd.allgather_object(thing) == [{"rank": r, "long": "x" * 1000 * r} for r in ALL]
    last = WORLD_SIZE - 1
    assert hvd.broadcast_object(thing, last) == {"rank": last, "long": "x" * 1000 * last}


def check_gradients() -> None:
    weights = torch.arange(3.0) * (RANK + 1)
    total = torch.arange(3.0) * sum(rank + 1 for rank in ALL)
    own = torch.ones(3, requires_grad=True)
    (hvd.allreduce(own, op=hvd.Sum) * weights).sum().backward()
    same(own.grad, total)
    own = torch.ones(3, requires_grad=True)
    (hvd.push_pull(own, average=False, name="summed") * weights).sum().backward()
    same(own.grad, total)
    own = torch.ones(3, requires_grad=True)
    (hvd.broadcast(own, 0) * WORLD_SIZE).sum().backward()
    same(own.grad, torch.full((3,), WORLD_SIZE * 1.0) if RANK == 0 else torch.zeros(3))
    own = torch.ones(RANK + 1, 2, requires_grad=True)
    (hvd.allgather(own) * 3).sum().backward()
    same(own.grad, torch.full((RANK + 1, 2), 3.0))


def check_numpy() -> None:
    for dtype in (np.float32, np.float64, np.float16, np.int8, np.uint8, np.int32, np.int64):
        own = np.arange(12, dtype=dtype).reshape(3, 4) + dtype(RANK)
        total = np.arange(12, dtype=dtype).reshape(3, 4) * dtype(WORLD_SIZE) + dtype(sum(ALL))
        result = sumpter.push_pull(own[:, ::2].T, average=False)
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, total[:, ::2].T)
    handle = sumpter.push_pull_async(np.float64(RANK), average=True, name="scalar")
    assert sumpter.synchronize(handle) == sum(ALL) / WORLD_SIZE
    assert sumpter.poll(handle)
    same(sumpter.push_pull(torch.ones(3), average=False), torch.full((3,), WORLD_SIZE * 1.0))
    np.testing.assert_array_equal(
        sumpter.broadcast(np.array(["yes", "no"]) if RANK == 0 else np.array(["???", "??"])),
        ["yes", "no"],
    )
    sumpter.barrier()


def check_state() -> None:
    """Ranks that start differently end alike, and a rank's extra state does no harm."""
    torch.manual_seed(RANK)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (RANK + 1))
    if RANK == 0:
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
    hvd.broadcast_parameters(list(model.parameters()), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    state = [optimizer.state_dict(), model.state_dict()]
    assert all(str(other) == str(state) for other in hvd.allgather_object(state))
    # Another model may use the same names for other shapes.
    hvd.broadcast_parameters({"0.weight": torch.ones(2)}, root_rank=0)
    with raises(ValueError, "LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), root_rank=0)


def main() -> None:
    hvd.init()
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (RANK, WORLD_SIZE)
    assert (hvd.local_rank(), hvd.local_size()) == (RANK, WORLD_SIZE)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    check_reductions()
    check_averages()
    check_scaling_and_compression()
    check_memory_layouts()
    check_handles()
    check_callbacks()
    if WORLD_SIZE > 1:
        check_names_in_flight()
    check_copies()
    check_gradients()
    check_numpy()
    check_state()
    hvd.record_samples(3)
    random = torch.rand(50_000, generator=torch.Generator().manual_seed(RANK))
    leave_result(hvd.allreduce(random, name="random").numpy().tobytes())
    hvd.shutdown()
    assert not hvd.is_initialized()
    with raises(ValueError, "init()"):
        hvd.rank()


main()
