"""Allreduces: every type, operation and form, with gradients, and the errors they can end with."""

from __future__ import annotations

import torch
from common_suite import FLOATS, LAST, ODD, WHOLE, close, each_kind

import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE, raises, same


def check_every_type_and_operation() -> None:
    for dtype, given in each_kind(FLOATS + WHOLE):
        own = given[RANK].clone()
        same(hvd.allreduce(own, op=hvd.Sum), given.sum(0, dtype=dtype))
        same(hvd.allreduce(own, average=False, name="old spelling"), given.sum(0, dtype=dtype))
        same(hvd.allreduce(own, op=hvd.Min), given.amin(0))
        same(hvd.allreduce(own, op=hvd.Max), given.amax(0))
        same(hvd.allreduce(own, op=hvd.Product), given.prod(0, dtype=dtype))
        same(own, given[RANK])
        if dtype.is_floating_point:
            close(hvd.allreduce(own), (given.double().sum(0) / WORLD_SIZE).to(dtype))
        else:
            whole = torch.div(given.sum(0, dtype=dtype), WORLD_SIZE, rounding_mode="trunc")
            same(hvd.allreduce(own), whole)


def check_in_place_and_asynchronous() -> None:
    for dtype, given in each_kind(FLOATS + WHOLE):
        total = given.sum(0, dtype=dtype)
        own = given[RANK].clone()
        assert hvd.allreduce_(own, op=hvd.Sum) is own
        same(own, total)
        many = [given[RANK].clone() for _ in range(4)]
        handles = [hvd.allreduce_async_(tensor, op=hvd.Sum) for tensor in many]
        handles += [hvd.allreduce_async(given[RANK], op=hvd.Sum, name=f"many {dtype}")]
        for handle in reversed(handles):
            same(hvd.synchronize(handle), total)
        for tensor in many:
            same(tensor, total)


def check_groups() -> None:
    for dtype, given in each_kind((torch.float32, torch.int64)):
        own, total = given[RANK], given.sum(0, dtype=dtype)
        for name in (None, "grouped"):
            for result in hvd.grouped_allreduce([own, own, own], op=hvd.Sum, name=name):
                same(result, total)
        copies = [own.clone(), own.clone()]
        hvd.grouped_allreduce_(copies, op=hvd.Max)
        for copy in copies:
            same(copy, given.amax(0))


def check_factors() -> None:
    for dtype, given in each_kind(FLOATS):
        own = given[RANK].clone()
        # Powers of two: nothing is rounded.
        result = hvd.allreduce(own, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
        same(result, 2 * given.sum(0, dtype=dtype))
    for dtype, given in each_kind((torch.int32, torch.int64)):
        before = (given.double() * 1.7).trunc().sum(0)
        result = hvd.allreduce(given[RANK].clone(), op=hvd.Sum, prescale_factor=1.7)
        same(result, before.to(dtype))
        after = (given.double().sum(0) * 1.7).trunc()
        same(hvd.allreduce(given[RANK], op=hvd.Sum, postscale_factor=1.7), after.to(dtype))


def check_half_precision_is_rounded_where_the_guide_says() -> None:
    """Before the sum, which is rounded once, and after it."""
    for dtype in (torch.float16, torch.bfloat16):
        given = [torch.randn(999, generator=torch.Generator().manual_seed(r)) for r in ALL]
        sent = [(tensor.to(dtype) * 0.3).double() for tensor in given]
        result = hvd.allreduce(given[RANK].to(dtype), op=hvd.Sum, prescale_factor=0.3)
        total = sum(sent)
        # In float32 sums of a few such numbers have bits to spare; which way ties go may differ.
        close(result, total.to(dtype))


def check_compression() -> None:
    for dtype, given in each_kind((torch.float32, torch.float64)):
        result = hvd.allreduce(given[RANK], op=hvd.Sum, compression=hvd.Compression.fp16)
        same(result, given.sum(0, dtype=dtype))


def check_gradients() -> None:
    for op, factor in ((hvd.Sum, WORLD_SIZE), (hvd.Average, 1)):
        own = torch.full((5,), RANK + 1.0, requires_grad=True)
        hvd.allreduce(own, op=op).sum().backward()
        close(own.grad, torch.full((5,), float(factor)))
        pair = [torch.ones(2, requires_grad=True) for _ in range(2)]
        sum(t.sum() for t in hvd.grouped_allreduce(pair, op=op)).backward()
        for tensor in pair:
            close(tensor.grad, torch.full((2,), float(factor)))


def check_sets() -> None:
    even = hvd.add_process_set(range(0, WORLD_SIZE, 2))
    last = hvd.add_process_set([LAST]) if even.ranks != [LAST] else None
    for mine in (even, last):
        if mine is None:
            continue
        for dtype, given in each_kind((torch.float32, torch.float16, torch.int32)):
            if not mine.included():
                continue
            part = given[mine.ranks]
            own = given[RANK].clone()
            same(hvd.allreduce(own, op=hvd.Sum, process_set=mine), part.sum(0, dtype=dtype))
            same(hvd.allreduce_(own, op=hvd.Max, process_set=mine), part.amax(0))
    if not even.included():
        with raises(ValueError, f"rank {RANK} is not in"):
            hvd.allreduce(torch.ones(2), process_set=even)
    for known in (even, last):
        assert known is None or hvd.remove_process_set(known)
    with raises(ValueError, "add_process_set"):
        hvd.allreduce(torch.ones(2), process_set=even)


def check_bad_sets() -> None:
    for ranks in ([], [0, 0], [WORLD_SIZE], [-1], list(ALL)):
        with raises(ValueError):
            hvd.add_process_set(ranks)
    with raises(TypeError):
        hvd.add_process_set("0")
    assert not hvd.remove_process_set(hvd.global_process_set)


def check_calls_that_differ() -> None:
    one = torch.ones
    for name in (None, "differs"):
        with raises(hvd.HorovodInternalError, f"rank {LAST}", "[3]", "[4]"):
            hvd.allreduce(one(4 if ODD else 3), name=name)
        with raises(hvd.HorovodInternalError, f"rank {LAST}", "[2, 3]", "[6]"):
            hvd.allreduce(one(6) if ODD else one(2, 3), name=name)
        with raises(hvd.HorovodInternalError, f"rank {LAST}", "float32", "int32"):
            hvd.allreduce(one(3, dtype=torch.int32 if ODD else torch.float32), name=name)
        same(hvd.allreduce(one(3), op=hvd.Sum, name=name), torch.full((3,), float(WORLD_SIZE)))


def check_bad_arguments() -> None:
    with raises(ValueError, "not both"):
        hvd.allreduce(torch.ones(2), average=True, op=hvd.Sum)
    with raises(TypeError):
        hvd.allreduce([1.0])
    with raises(TypeError, "complex64"):
        hvd.allreduce(torch.ones(2, dtype=torch.complex64))
    handle = hvd.allreduce_async(torch.ones(2), name="once")
    with raises(ValueError, "once"):
        hvd.allreduce_async(torch.ones(2), name="once")
    handle.synchronize()


CHECKS = [
    check_every_type_and_operation,
    check_bad_arguments,
    check_in_place_and_asynchronous,
    check_calls_that_differ,
    check_groups,
    check_bad_sets,
    check_factors,
    check_half_precision_is_rounded_where_the_guide_says,
    check_compression,
    check_gradients,
    check_sets,
]
