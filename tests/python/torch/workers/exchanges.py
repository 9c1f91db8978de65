"""Horovod's collectives that move pieces, its groups and its process sets, computed locally too."""

from __future__ import annotations

import torch

import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE, raises, same

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def rows_of(rank: int, rows: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows that identify the rank that made them."""
    count = torch.arange(rows * 3).reshape(rows, 3)
    return (count % 7 + 10 * rank).to(dtype)


def check_allgather() -> None:
    for dtype in DTYPES:
        # Every rank another number of rows, one of them none; and ever new numbers.
        for more in (0, 1, 5, 400):
            given = [rows_of(rank, rank * (more + 1), dtype) for rank in ALL]
            same(hvd.allgather(given[RANK]), torch.cat(given))
            same(hvd.allgather(given[RANK], name=f"rows.{dtype}"), torch.cat(given))
    same(hvd.allgather(torch.tensor(RANK)), torch.arange(WORLD_SIZE))
    given = [[rows_of(rank, 2), rows_of(rank, rank + 1, torch.int64)] for rank in ALL]
    expected = [torch.cat([tensors[i] for tensors in given]) for i in range(2)]
    for result in (
        hvd.grouped_allgather(given[RANK]),
        hvd.synchronize(hvd.grouped_allgather_async(given[RANK], name="group")),
    ):
        for actual, wanted in zip(result, expected, strict=True):
            same(actual, wanted)


def check_that_gathers_go_on_by_themselves() -> None:
    """Others finish a gather that this rank waits for only after something else."""
    late = hvd.allgather_async(rows_of(RANK, RANK + 1), name="late")
    if RANK == 0:
        hvd.barrier()
        same(late.synchronize(), torch.cat([rows_of(rank, rank + 1) for rank in ALL]))
    else:
        same(late.synchronize(), torch.cat([rows_of(rank, rank + 1) for rank in ALL]))
        hvd.barrier()
    assert late.poll()
    assert late.synchronize() is late.synchronize()


def splits_of(rank: int) -> list[int]:
    return [(rank + 2 * other) % 3 for other in ALL]


def check_alltoall() -> None:
    for dtype in DTYPES:
        even = rows_of(RANK, 2 * WORLD_SIZE, dtype)
        expected = [rows_of(rank, 2 * WORLD_SIZE, dtype)[2 * RANK : 2 * RANK + 2] for rank in ALL]
        same(hvd.alltoall(even), torch.cat(expected))
        splits = splits_of(RANK)
        parts = [
            rows_of(rank, sum(splits_of(rank)), dtype).split(splits_of(rank))[RANK] for rank in ALL
        ]
        counts = [splits_of(rank)[RANK] for rank in ALL]
        given = rows_of(RANK, sum(splits), dtype)
        rows, received = hvd.alltoall(given, splits)
        same(rows, torch.cat(parts))
        same(received, torch.tensor(counts, dtype=torch.int32))
        handle = hvd.alltoall_async(given, torch.tensor(splits), name=f"uneven.{dtype}")
        rows, received = hvd.synchronize(handle)
        same(rows, torch.cat(parts))
        same(received, torch.tensor(counts))
    with (
        raises(ValueError, "cannot be shared out evenly")
        if WORLD_SIZE > 1
        else raises(ValueError, "at least one dimension")
    ):
        hvd.alltoall(rows_of(RANK, WORLD_SIZE + 1) if WORLD_SIZE > 1 else torch.tensor(1))
    with raises(ValueError, "add up to the 2 rows"):
        hvd.alltoall(rows_of(RANK, 2), [1] * (WORLD_SIZE + 2))


def check_mismatches() -> None:
    """Under one name, rows that differ across ranks are an error on all of them."""
    if WORLD_SIZE == 1:
        return
    for name, dtype, width in (
        ("other width", torch.float32, 3 + RANK),
        ("other type", (torch.float32, torch.float64)[RANK % 2], 3),
    ):
        other = torch.ones(WORLD_SIZE, width, dtype=dtype)
        for call in (hvd.allgather, hvd.alltoall):
            with raises(hvd.MismatchError, name, "must be equal on every rank"):
                call(other, name=name)
    same(hvd.allgather(torch.ones(1), name="after"), torch.ones(WORLD_SIZE))


def check_reducescatter() -> None:
    for rows in (WORLD_SIZE, 2 * WORLD_SIZE + 1, WORLD_SIZE - 1):
        given = [rows_of(rank, rows) for rank in ALL]
        total = torch.stack(given).sum(0)
        same(hvd.reducescatter(given[RANK], op=hvd.Sum), total.tensor_split(WORLD_SIZE)[RANK])
        average = hvd.reducescatter(given[RANK], name=f"rows.{rows}")
        assert torch.allclose(average, (total / WORLD_SIZE).tensor_split(WORLD_SIZE)[RANK])
        largest = torch.stack(given).amax(0).tensor_split(WORLD_SIZE)[RANK]
        same(hvd.synchronize(hvd.reducescatter_async(given[RANK], op=hvd.Max)), largest)
        halved = hvd.reducescatter(given[RANK], op=hvd.Sum, prescale_factor=0.5)
        same(halved, total.tensor_split(WORLD_SIZE)[RANK] / 2)
    whole = [rows_of(rank, WORLD_SIZE, torch.int32) for rank in ALL]
    truncated = torch.stack(whole).sum(0, dtype=torch.int32).div(WORLD_SIZE, rounding_mode="trunc")
    same(hvd.reducescatter(whole[RANK]), truncated.tensor_split(WORLD_SIZE)[RANK])
    both = [rows_of(RANK, WORLD_SIZE), rows_of(RANK, WORLD_SIZE + 1)]
    fp16 = hvd.Compression.fp16
    for rows, result in zip(
        both, hvd.grouped_reducescatter(both, compression=fp16, op=hvd.Sum), strict=True
    ):
        total = torch.stack([rows_of(rank, len(rows)) for rank in ALL]).sum(0)
        same(result, total.tensor_split(WORLD_SIZE)[RANK])


def check_grouped_allreduce() -> None:
    given = [[rows_of(rank, 2), rows_of(rank, 3, torch.int64)] for rank in ALL]
    totals = [torch.stack([tensors[i] for tensors in given]).sum(0) for i in range(2)]
    own = [tensor.clone() for tensor in given[RANK]]
    for result in (
        hvd.grouped_allreduce(own, op=hvd.Sum),
        hvd.synchronize(hvd.grouped_allreduce_async(own, op=hvd.Sum, name="group")),
        hvd.grouped_allreduce(own, op=hvd.Sum, compression=hvd.Compression.fp16),
        hvd.grouped_allreduce_(own, op=hvd.Sum),
    ):
        for actual, wanted in zip(result, totals, strict=True):
            same(actual, wanted)
    for actual, wanted in zip(own, totals, strict=True):
        same(actual, wanted)


def check_gradients() -> None:
    ones = torch.ones
    tensor = rows_of(RANK, RANK + 1).requires_grad_()
    (hvd.allgather(tensor) * 2).sum().backward()
    same(tensor.grad, 2 * ones(RANK + 1, 3))
    tensor = rows_of(RANK, 2 * WORLD_SIZE).requires_grad_()
    rows, received = hvd.alltoall(tensor, [2] * WORLD_SIZE)
    (rows * (RANK + 1)).sum().backward()
    # The rows that went to rank r come back times r + 1.
    same(tensor.grad, torch.arange(1.0, WORLD_SIZE + 1).repeat_interleave(2)[:, None].expand(-1, 3))
    for op, times in ((hvd.Sum, WORLD_SIZE), (hvd.Average, 1)):
        tensor = rows_of(RANK, WORLD_SIZE).requires_grad_()
        hvd.reducescatter(tensor, op=op).sum().backward()
        same(tensor.grad, times * ones(WORLD_SIZE, 3))
    tensors = [rows_of(RANK, 2).requires_grad_(), rows_of(RANK, 1).requires_grad_()]
    sum(tensor.sum() for tensor in hvd.grouped_allreduce(tensors, op=hvd.Sum)).backward()
    for tensor in tensors:
        same(tensor.grad, WORLD_SIZE * ones(len(tensor), 3))


def check_sparse() -> None:
    def entries(rank: int) -> torch.Tensor:
        indices = torch.tensor([[0, rank, rank], [1, 0, 0]])
        return torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0, 3.0]), (WORLD_SIZE, 2))

    total = sum(entries(rank).to_dense() for rank in ALL)
    for op, divisor in ((hvd.Sum, 1), (hvd.Average, WORLD_SIZE)):
        handle = hvd.sparse_allreduce_async(entries(RANK), f"sparse.{op}", op)
        assert torch.allclose(hvd.synchronize(handle).to_dense(), total / divisor)
    with raises(ValueError, "sums and averages only"):
        hvd.sparse_allreduce_async(entries(RANK), "sparse", hvd.Max)


def check_batch_norm() -> None:
    """Against torch's own on the batches of all ranks together, which differ in size."""
    generator = torch.Generator().manual_seed(7)
    batches = [torch.randn(2 + rank, 3, 4, generator=generator) * 3 + 100 for rank in ALL]
    weights = [torch.randn(batch.shape, generator=generator) for batch in batches]
    for momentum in (0.1, None):
        ours = hvd.SyncBatchNorm(3, momentum=momentum).double()
        whole = torch.nn.BatchNorm1d(3, momentum=momentum).double()
        for _ in range(2):
            own = batches[RANK].double().requires_grad_()
            everyones = torch.cat(batches).double().requires_grad_()
            result, expected = ours(own), whole(everyones)
            start = sum(len(batch) for batch in batches[:RANK])
            mine = slice(start, start + len(own))
            assert torch.allclose(result, expected[mine])
            (result * weights[RANK]).sum().backward()
            (expected * torch.cat(weights)).sum().backward()
            assert torch.allclose(own.grad, everyones.grad[mine])
        gradient = hvd.allreduce(ours.weight.grad, op=hvd.Sum)
        assert torch.allclose(gradient, whole.weight.grad)
        assert torch.allclose(ours.running_mean, whole.running_mean)
        assert torch.allclose(ours.running_var, whole.running_var)
        ours.eval(), whole.eval()
        assert torch.allclose(ours(own), whole(own))
    with raises(ValueError, "2 dimensions"):
        hvd.SyncBatchNorm(3)(torch.ones(3))


def check_sparse_gradients() -> None:
    torch.manual_seed(3)
    sparse = torch.nn.Embedding(5, 2, sparse=True)
    dense = torch.nn.Embedding.from_pretrained(sparse.weight.detach().clone(), freeze=False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(sparse.parameters(), 0.5), sparse.named_parameters()
    )
    plain = torch.optim.SGD(dense.parameters(), 0.5)
    for _ in range(2):
        optimizer.zero_grad()
        plain.zero_grad()
        sparse(torch.tensor([RANK % 5, 1, 1])).sum().backward()
        for rank in ALL:
            (dense(torch.tensor([rank % 5, 1, 1])).sum() / WORLD_SIZE).backward()
        optimizer.step()
        plain.step()
        assert sparse.weight.grad.is_sparse
        assert torch.allclose(sparse.weight, dense.weight)


def check_process_sets() -> None:
    with raises(ValueError, "was not added"):
        hvd.ProcessSet([0]).size()
    with raises(ValueError, "distinct ranks"):
        hvd.add_process_set([0, WORLD_SIZE])
    assert hvd.global_process_set.size() == WORLD_SIZE
    assert hvd.global_process_set.rank() == RANK
    if WORLD_SIZE < 3:
        return
    even = hvd.add_process_set(range(0, WORLD_SIZE, 2))
    first = hvd.add_process_set(hvd.ProcessSet([1, 0]))
    assert first.ranks == [0, 1] and (even.process_set_id, first.process_set_id) == (2, 3)
    with raises(ValueError, "already"):
        hvd.add_process_set([0, 1])
    for among in (even, first):
        if not among.included():
            with raises(ValueError, "is not in"):
                hvd.allreduce(torch.ones(1), process_set=among)
            continue
        check_within(among)
    # A rank that leaves takes its lane along, which the others may still need.
    hvd.barrier()
    assert hvd.process_set_ids_and_ranks()[3] == [0, 1]
    assert hvd.remove_process_set(first) and not hvd.remove_process_set(first)
    assert not hvd.remove_process_set(hvd.global_process_set)
    with raises(ValueError, "was not added"):
        first.included()


def check_within(among: hvd.ProcessSet) -> None:
    ranks, size, own = among.ranks, among.size(), among.rank()
    total = torch.tensor([float(sum(ranks)), size])
    given = torch.tensor([float(RANK), 1.0])
    same(hvd.allreduce(given, op=hvd.Sum, process_set=among), total)
    same(hvd.allreduce(given, name="one name", process_set=among), total / size)
    whole = torch.tensor([RANK])
    same(hvd.allreduce(whole, process_set=among), torch.tensor([sum(ranks) // size]))
    root = ranks[-1]
    same(hvd.broadcast(whole, root, process_set=among), torch.tensor([root]))
    with raises(ValueError, "is not in"):
        hvd.broadcast(whole, next(rank for rank in ALL if rank not in ranks), process_set=among)
    pieces = [rows_of(rank, rank + 1) for rank in ranks]
    same(hvd.allgather(pieces[own], process_set=among), torch.cat(pieces))
    assert hvd.allgather_object({"rank": RANK}, process_set=among) == [{"rank": r} for r in ranks]
    assert hvd.broadcast_object(RANK, root, process_set=among) == root
    rows = hvd.alltoall(rows_of(RANK, size), process_set=among)
    same(rows, torch.cat([rows_of(rank, size)[own : own + 1] for rank in ranks]))
    summed = hvd.reducescatter(rows_of(RANK, size), op=hvd.Sum, process_set=among)
    same(summed, torch.stack([rows_of(rank, size) for rank in ranks]).sum(0)[own : own + 1])
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 1.0), model.named_parameters(), process_set=among
    )
    model(torch.tensor([float(RANK)])).backward()
    optimizer.step()
    same(model.weight.data, torch.tensor([[-sum(ranks) / size]]))
    hvd.barrier(process_set=among)


def main() -> None:
    alone = hvd.ProcessSet([0])
    hvd.init(process_sets=[alone] if WORLD_SIZE > 1 else "dynamic")
    if WORLD_SIZE > 1:
        assert hvd.process_set_ids_and_ranks() == {0: list(ALL), 1: [0]}
        assert hvd.remove_process_set(alone)
    check_allgather()
    check_that_gathers_go_on_by_themselves()
    check_alltoall()
    check_mismatches()
    check_reducescatter()
    check_grouped_allreduce()
    check_gradients()
    check_sparse()
    check_sparse_gradients()
    check_batch_norm()
    check_process_sets()
    hvd.shutdown()


main()
