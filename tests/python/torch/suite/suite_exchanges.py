"""Broadcast, allgather, alltoall, reducescatter and sparse sums, and the errors between them."""

from __future__ import annotations

import torch
from common_suite import FLOATS, LAST, MOVED, ODD, WHOLE, close, each_kind, of_rank

import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE, raises, same


def check_broadcast() -> None:
    for _, given in each_kind(MOVED):
        for root in ALL:
            own = given[RANK].clone()
            same(hvd.broadcast(own, root), given[root])
            same(own, given[RANK])
            assert hvd.broadcast_(own, root, name="in place") is own
            same(own, given[root])
    own = torch.ones(3, requires_grad=True)
    hvd.broadcast(own, LAST).sum().backward()
    close(own.grad, torch.ones(3) if ODD else torch.zeros(3))


def check_bad_broadcasts() -> None:
    for root in (-1, WORLD_SIZE):
        with raises(ValueError, "root_rank"):
            hvd.broadcast(torch.ones(2), root)
    for name, size, root in (("roots", 2, int(ODD)), ("sizes", 5 if ODD else 2, 0)):
        # A rank that has the root's tensor already learns of it from the next call.
        errors = 0
        for given, start in ((size, root), (2, 0), (2, 0)):
            try:
                result = hvd.broadcast(torch.full((given,), RANK), start, name=f"{name} differ")
            except hvd.HorovodInternalError as error:
                assert f"rank {LAST}" in str(error) or "after call" in str(error), error
                errors += 1
        assert errors in (1, 2)
        same(result, torch.zeros(2, dtype=torch.int64))


def check_allgather() -> None:
    for _, given in each_kind(MOVED):
        rows = given if given.dim() == 1 else torch.cat(list(given))
        same(hvd.allgather(given[RANK].clone()), rows)
    for dtype in MOVED:
        for rows_of in (lambda rank: rank, lambda rank: 3 * rank + 1, lambda _: 0):
            pieces = [of_rank(rank, (rows_of(rank), 4), dtype) for rank in ALL]
            same(hvd.allgather(pieces[RANK], name="uneven"), torch.cat(pieces))
    pieces = [of_rank(rank, (rank + 1, 2), torch.float32) for rank in ALL]
    for result in hvd.grouped_allgather([pieces[RANK]] * 3):
        same(result, torch.cat(pieces))
    own = torch.ones(RANK + 1, 2, requires_grad=True)
    (hvd.allgather(own) * 2).sum().backward()
    close(own.grad, torch.full((RANK + 1, 2), 2.0))


def check_bad_allgathers() -> None:
    with raises(hvd.HorovodInternalError, "shape or element type"):
        hvd.allgather(torch.ones(2, 3 if ODD else 4), name="rows differ")
    with raises(hvd.HorovodInternalError, "shape or element type"):
        hvd.allgather(
            torch.ones(2, dtype=torch.int32 if ODD else torch.float32), name="types differ"
        )


def check_alltoall() -> None:
    for dtype in MOVED:
        whole = [of_rank(rank, (3 * WORLD_SIZE, 2), dtype) for rank in ALL]
        expected = torch.cat([rows[3 * RANK : 3 * RANK + 3] for rows in whole])
        same(hvd.alltoall(whole[RANK]), expected)
        # To rank r go r rows, so the first gets none.
        count = sum(ALL)
        uneven = [of_rank(rank, (count,), dtype) for rank in ALL]
        start = sum(range(RANK))
        rows, received = hvd.alltoall(uneven[RANK], torch.tensor(list(ALL)), name="uneven")
        same(rows, torch.cat([piece[start : start + RANK] for piece in uneven]))
        assert received.tolist() == [RANK] * WORLD_SIZE
    own = torch.ones(WORLD_SIZE, 2, requires_grad=True)
    (hvd.alltoall(own) * (RANK + 1)).sum().backward()
    close(own.grad, torch.arange(1.0, WORLD_SIZE + 1).unsqueeze(1).expand(-1, 2))


def check_bad_alltoalls() -> None:
    for splits in ([1] * (WORLD_SIZE + 1), [5] * WORLD_SIZE, [-1] * WORLD_SIZE):
        with raises(ValueError, "splits"):
            hvd.alltoall(torch.ones(WORLD_SIZE), splits)
    with raises(ValueError, "cannot be shared out"):
        hvd.alltoall(torch.ones(WORLD_SIZE + 1))
    with raises(ValueError, "dimension"):
        hvd.alltoall(torch.tensor(1.0))


def check_reducescatter() -> None:
    for dtype in FLOATS + WHOLE:
        for rows in (2 * WORLD_SIZE, 2 * WORLD_SIZE + 1, 1):
            given = torch.stack([of_rank(rank, (rows, 3), dtype) for rank in ALL])
            own = given[RANK].clone()
            expected = given.sum(0, dtype=dtype).tensor_split(WORLD_SIZE)[RANK]
            same(hvd.reducescatter(own, op=hvd.Sum), expected)
            same(hvd.reducescatter(own, op=hvd.Sum, name="scattered"), expected)
            for part in hvd.grouped_reducescatter([own, own], op=hvd.Sum):
                same(part, expected)
            if dtype.is_floating_point:
                scaled = hvd.reducescatter(
                    own, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25
                )
                same(scaled, expected / 2)
                average = (given.double().sum(0) / WORLD_SIZE).to(dtype)
                close(hvd.reducescatter(own), average.tensor_split(WORLD_SIZE)[RANK])
    own = torch.ones(WORLD_SIZE, requires_grad=True)
    hvd.reducescatter(own, op=hvd.Sum).sum().backward()
    close(own.grad, torch.full((WORLD_SIZE,), float(WORLD_SIZE)))


def check_bad_reducescatters() -> None:
    with raises(RuntimeError, "Adasum"):
        hvd.reducescatter(torch.ones(WORLD_SIZE), op=hvd.Adasum)
    with raises(ValueError, "dimension"):
        hvd.reducescatter(torch.tensor(1.0))
    with raises(hvd.HorovodInternalError, f"rank {LAST}"):
        hvd.reducescatter(torch.ones(WORLD_SIZE, 3 if ODD else 2), name="rows differ")


def check_sparse() -> None:
    for dtype in (torch.float32, torch.float64):
        indices = torch.tensor([[RANK, LAST, 9]])
        values = torch.full((3, 2), RANK + 1.0, dtype=dtype)
        own = torch.sparse_coo_tensor(indices, values, (10, 2))
        expected = torch.zeros(10, 2, dtype=dtype)
        for rank in ALL:
            for row in (rank, LAST, 9):
                expected[row] += rank + 1
        total = hvd.sparse_allreduce_async(own, name="sparse", op=hvd.Sum)()
        assert total.is_sparse
        same(total.to_dense(), expected)
        mean = hvd.sparse_allreduce_async(own, name="sparse", op=hvd.Average)
        close(hvd.synchronize(mean).to_dense(), expected / WORLD_SIZE)
    with raises(ValueError, "sums and averages"):
        hvd.sparse_allreduce_async(own, name="sparse", op=hvd.Max)
    with raises(ValueError, "strided"):
        hvd.sparse_allreduce_async(torch.ones(2), name="sparse", op=hvd.Sum)


def check_sets() -> None:
    some = hvd.add_process_set(sorted({0, LAST} if WORLD_SIZE > 2 else {LAST}))
    if some.included():
        count, place = some.size(), some.rank()
        given = torch.stack([of_rank(rank, (2 * count, 2), torch.float32) for rank in some.ranks])
        own = given[place].clone()
        same(hvd.broadcast(own, LAST, process_set=some), given[-1])
        same(hvd.allgather(own, process_set=some), torch.cat(list(given)))
        rows = hvd.alltoall(own, process_set=some)
        same(rows, torch.cat([piece[2 * place : 2 * place + 2] for piece in given]))
        part = hvd.reducescatter(own, op=hvd.Sum, process_set=some)
        same(part, given.sum(0)[2 * place : 2 * place + 2])
        assert hvd.broadcast_object(RANK, LAST, process_set=some) == LAST
        if count == 2:
            with raises(ValueError, "is not in"):
                hvd.broadcast(own, 1, process_set=some)
        hvd.barrier(some)
    else:
        for call in (hvd.allgather, hvd.alltoall, hvd.reducescatter):
            with raises(ValueError, f"rank {RANK} is not in"):
                call(torch.ones(WORLD_SIZE), process_set=some)
    hvd.barrier()
    assert hvd.remove_process_set(some)


def check_objects() -> None:
    thing = {"rank": RANK, "list": [1.5, "x" * 300 * RANK], "none": None}
    for root in ALL:
        found = hvd.broadcast_object(thing, root, name="thing")
        assert found == {"rank": root, "list": [1.5, "x" * 300 * root], "none": None}
    assert [each["rank"] for each in hvd.allgather_object(thing)] == list(ALL)
    with raises(ValueError, "root_rank"):
        hvd.broadcast_object(thing, WORLD_SIZE)


CHECKS = [
    check_broadcast,
    check_bad_broadcasts,
    check_allgather,
    check_bad_allgathers,
    check_alltoall,
    check_bad_alltoalls,
    check_reducescatter,
    check_bad_reducescatters,
    check_sparse,
    check_sets,
    check_objects,
]
