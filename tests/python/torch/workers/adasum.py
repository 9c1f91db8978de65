"""Adasum on every rank, against the formula of the paper computed element by element."""

from __future__ import annotations

import torch
from torch import nn

import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE, raises, same

# How far the result of a type may be from exact arithmetic: a few roundings of its own.
TOLERANCES = {
    torch.float64: 1e-13,
    torch.float32: 1e-6,
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
}


def vector_of(rank: int, size: int, seed: int = 0) -> list[float]:
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randn(size, generator=generator).tolist()


def pair(a: list[float], b: list[float]) -> list[float]:
    def dot(x: list[float], y: list[float]) -> float:
        return sum(u * v for u, v in zip(x, y, strict=True))

    from_a = 1 - dot(a, b) / (2 * dot(a, a)) if dot(a, a) else 1.0
    from_b = 1 - dot(a, b) / (2 * dot(b, b)) if dot(b, b) else 1.0
    return [from_a * u + from_b * v for u, v in zip(a, b, strict=True)]


def model(vectors: list[list[float]]) -> list[float]:
    """Neighbours combine, and what they made combines again; the last of an odd number waits."""
    while len(vectors) > 1:
        rest = vectors[len(vectors) // 2 * 2 :]
        vectors = [pair(*vectors[i : i + 2]) for i in range(0, len(vectors) - 1, 2)] + rest
    return vectors[0]


def near(actual: torch.Tensor, expected: list[float]) -> None:
    wanted = torch.tensor(expected, dtype=torch.float64).view(actual.shape)
    tolerance = TOLERANCES[actual.dtype]
    torch.testing.assert_close(actual.double(), wanted, rtol=tolerance, atol=tolerance)


def check_vectors() -> None:
    for dtype in TOLERANCES:
        for size in (1, 2, 7, 5003):
            # What the element type makes of the numbers is what the model gets.
            given = [torch.tensor(vector_of(rank, size), dtype=dtype) for rank in ALL]
            expected = model([tensor.double().tolist() for tensor in given])
            own = given[RANK].clone()
            result = hvd.allreduce(own, op=hvd.Adasum)
            near(result, expected)
            same(own, given[RANK])
            # All ranks have the same bytes.
            for other in hvd.allgather(result.unsqueeze(0)):
                same(other, result)
            hvd.synchronize(hvd.allreduce_async_(own, name=f"{dtype}.{size}", op=hvd.Adasum))
            same(own, result)


def check_special_vectors() -> None:
    zeros = torch.zeros(5)
    same(hvd.allreduce(zeros, op=hvd.Adasum), zeros)
    lonely = torch.arange(5.0) if RANK == WORLD_SIZE - 1 else zeros
    same(hvd.allreduce(lonely, op=hvd.Adasum), torch.arange(5.0))
    alike = torch.tensor([0.5, -2.0, 4.0])
    same(hvd.allreduce(alike, op=hvd.Adasum), alike)
    apart = torch.zeros(WORLD_SIZE)
    apart[RANK] = RANK + 1.0
    same(hvd.allreduce(apart, op=hvd.Adasum), torch.arange(1.0, WORLD_SIZE + 1))
    same(hvd.allreduce(torch.zeros(0, 3), op=hvd.Adasum), torch.zeros(0, 3))
    column = torch.tensor([vector_of(RANK, 6)]).view(2, 3).t()
    expected = model([torch.tensor(vector_of(r, 6)).view(2, 3).t().flatten().tolist() for r in ALL])
    near(hvd.allreduce(column, op=hvd.Adasum), expected)
    scaled = hvd.allreduce(alike, op=hvd.Adasum, prescale_factor=2.0, postscale_factor=3.0)
    same(scaled, alike * 6)
    half = hvd.allreduce(alike, op=hvd.Adasum, compression=hvd.Compression.fp16)
    same(half, alike)
    with raises(hvd.UnsupportedError, "int64", "op=Sum"):
        hvd.allreduce(torch.tensor([1, 2]), op=hvd.Adasum)
    with raises(RuntimeError, "no Adasum"):
        hvd.reducescatter(torch.ones(WORLD_SIZE), op=hvd.Adasum)


def check_groups() -> None:
    """Each tensor has coefficients of its own, whatever it travels with."""
    kinds = ((3, torch.float32), (0, torch.float32), (1, torch.float64), (500, torch.float32))
    own = [torch.tensor(vector_of(RANK, n, i), dtype=d) for i, (n, d) in enumerate(kinds)]
    expected = [
        model([torch.tensor(vector_of(rank, n, i), dtype=d).tolist() for rank in ALL])
        for i, (n, d) in enumerate(kinds)
    ]
    for results in (
        hvd.grouped_allreduce(own, op=hvd.Adasum),
        hvd.synchronize(hvd.grouped_allreduce_async(own, name="group", op=hvd.Adasum)),
        hvd.grouped_allreduce_(own, name="group", op=hvd.Adasum),
    ):
        for actual, wanted in zip(results, expected, strict=True):
            near(actual, wanted)
    for actual, wanted in zip(own, expected, strict=True):
        near(actual, wanted)


def check_gradient() -> None:
    """As Horovod defines it: the same operation on the gradients."""
    own = torch.ones(4, requires_grad=True)
    weights = torch.tensor(vector_of(RANK, 4, 7))
    (hvd.allreduce(own, op=hvd.Adasum) * weights).sum().backward()
    near(own.grad, model([torch.tensor(vector_of(rank, 4, 7)).tolist() for rank in ALL]))


def check_among_some() -> None:
    if WORLD_SIZE < 3:
        return
    some = hvd.add_process_set([0, 2])
    if some.included():
        result = hvd.allreduce(torch.tensor(vector_of(RANK, 9)), op=hvd.Adasum, process_set=some)
        near(result, model([torch.tensor(vector_of(rank, 9)).tolist() for rank in (0, 2)]))
    hvd.barrier()


def local_step(model: nn.Module, rank: int, passes: int) -> list[torch.Tensor]:
    """What one rank's optimizer changes, computed here for any rank."""
    copy = nn.Linear(3, 2)
    copy.load_state_dict(model.state_dict())
    before = [parameter.detach().clone() for parameter in copy.parameters()]
    for _ in range(passes):
        copy(torch.full((1, 3), rank + 1.0)).sin().sum().backward()
    torch.optim.AdamW(copy.parameters(), lr=0.1).step()
    return [now.detach() - then for now, then in zip(copy.parameters(), before, strict=True)]


def check_optimizer() -> None:
    torch.manual_seed(5)
    layer = nn.Linear(3, 2)
    unused = nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.AdamW([*layer.parameters(), unused], lr=0.1),
        [*layer.named_parameters(), ("unused", unused)],
        backward_passes_per_step=2,
        op=hvd.Adasum,
    )
    before = [parameter.detach().clone() for parameter in layer.parameters()]
    steps = [local_step(layer, rank, passes=2) for rank in ALL]
    for _ in range(2):
        layer(torch.full((1, 3), RANK + 1.0)).sin().sum().backward()
    with raises(AssertionError, "zero_grad()"):
        optimizer.zero_grad()
    with raises(AssertionError, "Adasum"):
        optimizer.skip_synchronize()
    optimizer.step()
    optimizer.zero_grad()
    for i, (parameter, then) in enumerate(zip(layer.parameters(), before, strict=True)):
        combined = model([step[i].flatten().double().tolist() for step in steps])
        near(parameter.detach() - then, combined)
        for other in hvd.allgather(parameter.detach().unsqueeze(0)):
            same(other, parameter.detach())
    same(unused.detach(), torch.ones(2))


hvd.init()
check_vectors()
check_special_vectors()
check_groups()
check_gradient()
check_among_some()
check_optimizer()
hvd.shutdown()
