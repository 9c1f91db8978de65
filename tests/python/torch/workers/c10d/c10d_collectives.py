"""Every collective of torch.distributed against values computed on the spot.

Shapes, element types and memory layouts are drawn at random, the same on every rank.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import torch
import torch.distributed as dist
from c10d_common import (
    LAST,
    MOVED,
    SUMMED,
    equal,
    every_rank,
    join,
    some_layout,
    some_shape,
    total,
)

from common import ALL, RANK, WORLD_SIZE

FLOATING = [dtype for dtype in SUMMED if dtype.is_floating_point]
WHOLE = [dtype for dtype in SUMMED if not dtype.is_floating_point]
ROUNDS = 3

Combine = Callable[[list[torch.Tensor]], torch.Tensor]


def combined(function: Callable[..., torch.Tensor]) -> Combine:
    return lambda tensors: functools.reduce(function, tensors)


REDUCTIONS: list[tuple[dist.ReduceOp, Combine]] = [
    (dist.ReduceOp.SUM, total),
    (dist.ReduceOp.PRODUCT, combined(torch.mul)),
    (dist.ReduceOp.MIN, combined(torch.minimum)),
    (dist.ReduceOp.MAX, combined(torch.maximum)),
]
BITWISE: list[tuple[dist.ReduceOp, Combine]] = [
    (dist.ReduceOp.BAND, combined(operator.and_)),
    (dist.ReduceOp.BOR, combined(operator.or_)),
    (dist.ReduceOp.BXOR, combined(operator.xor)),
]


def cases() -> list[tuple[torch.dtype, dist.ReduceOp, Combine]]:
    plain = [(dtype, *reduction) for dtype in SUMMED for reduction in REDUCTIONS]
    return plain + [(dtype, *reduction) for dtype in WHOLE for reduction in BITWISE]


def check_all_reduce() -> None:
    for dtype, op, expected in cases():
        inputs = every_rank(some_shape(), dtype)
        own = some_layout(inputs[RANK])
        dist.all_reduce(own, op=op)
        equal(own, expected(inputs))
    for op, expected in ((dist.ReduceOp.SUM, any), (dist.ReduceOp.PRODUCT, all)):
        inputs = every_rank((9,), torch.bool, low=0)
        own = some_layout(inputs[RANK])
        dist.all_reduce(own, op=op)
        columns = zip(*(tensor.tolist() for tensor in inputs), strict=True)
        equal(own, torch.tensor([expected(column) for column in columns]))
    for dtype in (torch.complex64, torch.complex128):
        inputs = [t * (1 + 2j) for t in every_rank((3, 2), dtype)]
        own = inputs[RANK].clone().t()
        dist.all_reduce(own)
        equal(own, total(inputs).t())


def check_scaled() -> None:
    for dtype in FLOATING:
        inputs = every_rank(some_shape(), dtype)
        own = some_layout(inputs[RANK])
        dist.all_reduce(own, op=dist.ReduceOp.AVG)
        mean = torch.stack(inputs).double().mean(0)
        torch.testing.assert_close(own, mean.to(dtype))
        own = some_layout(inputs[RANK])
        dist.all_reduce(own, op=dist._make_nccl_premul_sum(0.5))
        torch.testing.assert_close(own, (torch.stack(inputs).double().sum(0) / 2).to(dtype))


def check_reduce() -> None:
    for dtype, op, expected in cases()[::3]:
        for root in {0, LAST}:
            inputs = every_rank(some_shape(), dtype)
            own = some_layout(inputs[RANK])
            dist.reduce(own, dst=root, op=op)
            if root == RANK:
                equal(own, expected(inputs))


def check_broadcast() -> None:
    for dtype in MOVED:
        for root in ALL:
            inputs = every_rank(some_shape(), dtype, low=0)
            own = some_layout(inputs[RANK])
            dist.broadcast(own, src=root)
            equal(own, inputs[root])


def check_all_gather() -> None:
    for dtype in MOVED:
        inputs = every_rank(some_shape(), dtype, low=0)
        outputs = [some_layout(torch.zeros_like(tensor)) for tensor in inputs]
        dist.all_gather(outputs, some_layout(inputs[RANK]))
        for output, expected in zip(outputs, inputs, strict=True):
            equal(output, expected)
        whole = torch.zeros(WORLD_SIZE, *inputs[0].shape, dtype=dtype)
        dist.all_gather_into_tensor(whole, some_layout(inputs[RANK]))
        equal(whole, torch.stack(inputs))
        if inputs[0].dim() > 0:
            whole = torch.cat([torch.zeros_like(tensor) for tensor in inputs])
            dist.all_gather_into_tensor(whole, inputs[RANK])
            equal(whole, torch.cat(inputs))


def check_uneven_all_gather() -> None:
    """Every rank passes outputs of the sizes of the others' inputs."""
    inputs = [torch.arange(float(rank)) + rank for rank in ALL]
    outputs = [torch.empty(rank) for rank in ALL]
    dist.all_gather(outputs, inputs[RANK])
    for output, expected in zip(outputs, inputs, strict=True):
        equal(output, expected)


def check_coalesced() -> None:
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        reduced = [(some_layout(inputs[RANK]), total(inputs)) for inputs in batches()]
        for own, _ in reduced:
            dist.all_reduce(own)
    manager.wait()
    for own, expected in reduced:
        equal(own, expected)
    gathered = []
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for inputs in batches():
            whole = torch.zeros(WORLD_SIZE, *inputs[0].shape, dtype=inputs[0].dtype)
            dist.all_gather_into_tensor(whole, inputs[RANK])
            gathered.append((whole, torch.stack(inputs)))
    manager.wait()
    for whole, expected in gathered:
        equal(whole, expected)
    scattered = []
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for inputs in batches():
            parts = [torch.cat([t.flatten() + k for k in ALL]) for t in inputs]
            part = torch.zeros(inputs[0].numel(), dtype=inputs[0].dtype)
            dist.reduce_scatter_tensor(part, parts[RANK])
            scattered.append((part, total(parts).view(WORLD_SIZE, -1)[RANK]))
    manager.wait()
    for part, expected in scattered:
        equal(part, expected)
    tensors = [inputs[RANK].clone() for inputs in batches()]
    expected = [WORLD_SIZE * t for t in tensors]
    for own in tensors:
        dist.broadcast(own, src=0)
    dist.all_reduce_coalesced(tensors)
    for own, alike in zip(tensors, expected, strict=True):
        assert own.shape == alike.shape
    rows = [[torch.zeros(2), torch.zeros(3)] for _ in ALL]
    dist.all_gather_coalesced(rows, [torch.full((2,), float(RANK)), torch.full((3,), RANK + 0.5)])
    for rank, (two, three) in enumerate(rows):
        equal(two, torch.full((2,), float(rank)))
        equal(three, torch.full((3,), rank + 0.5))


def batches() -> list[list[torch.Tensor]]:
    shapes = ((3,), (2, 2), (257,))
    return [every_rank(shape, torch.float32) for shape in shapes]


def check_gather_and_scatter() -> None:
    for dtype in MOVED[:-1]:
        for root in {0, LAST}:
            shape = some_shape()
            inputs = every_rank(shape, dtype, low=0)
            outputs = [torch.zeros_like(t) for t in inputs] if root == RANK else None
            dist.gather(some_layout(inputs[RANK]).contiguous(), outputs, dst=root)
            for output, expected in zip(outputs or [], inputs, strict=root == RANK):
                equal(output, expected)
            output = torch.zeros(shape, dtype=dtype)
            dist.scatter(output, inputs if root == RANK else None, src=root)
            equal(output, inputs[RANK])


def check_reduce_scatter() -> None:
    for dtype, op, expected in cases()[::2]:
        if op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
            continue
        shape = some_shape()
        pieces = [every_rank(shape, dtype) for _ in ALL]
        output = some_layout(torch.zeros(shape, dtype=dtype))
        own = [some_layout(piece[RANK]) for piece in pieces]
        dist.reduce_scatter(output, own, op=op)
        equal(output, expected(pieces[RANK]))
        flat = torch.zeros(shape, dtype=dtype)
        dist.reduce_scatter_tensor(flat, torch.stack([p[RANK] for p in pieces]), op=op)
        equal(flat, expected(pieces[RANK]))
    # Without a kernel it takes its turn after what Gloo has not begun, also on a rank that is late.
    gathered = [torch.zeros(2) for _ in ALL] if RANK == 0 else None
    gathering = dist.gather(torch.full((2,), float(RANK)), gathered, async_op=True)
    if RANK == LAST:
        gathering.wait()
    output = torch.zeros(3, dtype=torch.complex64)
    own = [torch.full((3,), (RANK + 1) * 1j + root, dtype=torch.complex64) for root in ALL]
    dist.reduce_scatter(output, own)
    gathering.wait()
    equal(output, torch.full((3,), sum(r + 1 for r in ALL) * 1j + RANK * WORLD_SIZE))
    for root, part in enumerate(gathered or ()):
        equal(part, torch.full((2,), float(root)))


def check_all_to_all() -> None:
    for dtype in (torch.float32, torch.int64, torch.uint8, torch.bfloat16):
        rows = [every_rank((3,), dtype) for _ in ALL]  # rows[to][from]
        outputs = [torch.zeros(3, dtype=dtype) for _ in ALL]
        dist.all_to_all(outputs, [rows[to][RANK].clone() for to in ALL])
        for source, output in enumerate(outputs):
            equal(output, rows[RANK][source])
        whole = torch.zeros(3 * WORLD_SIZE, dtype=dtype)
        dist.all_to_all_single(whole, torch.cat([rows[to][RANK] for to in ALL]))
        equal(whole, torch.cat(rows[RANK]))
    # Rank r sends r + t elements to rank t.
    sizes = [[source + to for to in ALL] for source in ALL]
    sent = [torch.full((sizes[RANK][to],), 10.0 * RANK + to) for to in ALL]
    received = [sizes[source][RANK] for source in ALL]
    output = torch.empty(sum(received))
    dist.all_to_all_single(output, torch.cat(sent), received, sizes[RANK])
    expected = [torch.full((sizes[s][RANK],), 10.0 * s + RANK) for s in ALL]
    equal(output, torch.cat(expected))
    uneven = [torch.empty(size) for size in received]
    dist.all_to_all(uneven, sent)
    equal(torch.cat(uneven), torch.cat(expected))


def check_sparse() -> None:
    indices = torch.tensor([[0, RANK + 1]])
    sparse = torch.sparse_coo_tensor(indices, torch.ones(2, 3), (WORLD_SIZE + 1, 3))
    dist.all_reduce(sparse)
    expected = torch.ones(WORLD_SIZE + 1, 3)
    expected[0] = WORLD_SIZE
    equal(sparse.to_dense(), expected)


join()
for _ in range(ROUNDS):
    check_all_reduce()
    check_scaled()
    check_reduce()
    check_broadcast()
    check_all_gather()
    check_reduce_scatter()
    check_gather_and_scatter()
    check_all_to_all()
check_uneven_all_gather()
check_coalesced()
check_sparse()
dist.barrier()
dist.destroy_process_group()
