"""Sums by codecs: within the codec's error, the same on all ranks, and what is refused."""

from __future__ import annotations

import numpy as np
import torch

import sumpter
import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE, leave_result, raises
from sumpter import Compression

COUNT = 20_011


def given(rank: int, round_: int = 0) -> np.ndarray:
    """Multiples of 1/64, so that sums are exact in any order."""
    generator = np.random.default_rng(1000 * round_ + rank)
    return generator.integers(-512, 513, COUNT).astype(np.float32) / 64


TOTAL = sum(given(rank) for rank in ALL)
results: list[bytes] = []


def summed(codec: object, name: str | None, array: np.ndarray | None = None) -> np.ndarray:
    own = given(RANK) if array is None else array
    result = sumpter.push_pull(own, average=False, name=name, compression=codec)
    results.append(result.tobytes())
    return result


def check_half() -> None:
    half = sum(given(rank).astype(np.float16).astype(np.float32) for rank in ALL)
    expected = half.astype(np.float16).astype(np.float32)
    for codec in ("fp16", Compression.fp16):
        np.testing.assert_array_equal(summed(codec, "half"), expected)
    own = torch.from_numpy(given(RANK))
    for codec in ("fp16", hvd.Compression.fp16):
        cast = hvd.push_pull(own, average=False, name="cast", compression=codec)
        np.testing.assert_array_equal(cast.numpy(), expected)


def check_errors() -> None:
    largest = [float(np.abs(given(rank)).max()) for rank in ALL]
    most = sum(largest) / 254 + sum(largest) / 254
    for codec in ("int8", Compression.int8(ef=False), "int8:nan=skip"):
        assert np.abs(summed(codec, f"int8 {codec}") - TOTAL).max() <= most * 1.01
    exact = summed("int8", "exact", np.zeros(COUNT, np.float32))
    assert not exact.any()
    for codec in ("bf16", "fp8", "fp8:format=e5m2", "dithering:bits=8", "topk:k=0.999"):
        error = np.linalg.norm(summed(codec, f"by {codec}") - TOTAL) / np.linalg.norm(TOTAL)
        assert 0 <= error < 0.12, (codec, error)
    unnamed = summed("int8", None)
    assert np.abs(unnamed - TOTAL).max() <= most * 1.01
    averaged = sumpter.push_pull(given(RANK), name="mean", compression="bf16")
    assert np.abs(averaged - TOTAL / WORLD_SIZE).max() <= np.abs(TOTAL).max() / 128


def check_feedback() -> None:
    """What rounds leave out comes later: the error of their sum does not grow with them."""
    total = np.zeros(COUNT, np.float32)
    errors = []
    for round_ in range(24):
        total += summed("topk:k=0.25,two_way=false", "fed back")
        errors.append(float(np.abs(total - (round_ + 1) * TOTAL).max()))
    assert errors[-1] <= errors[5] * 1.5 + 1, errors
    lost = 24 * summed("topk:k=0.25,two_way=false,ef=false", "lost") - 24 * TOTAL
    assert np.abs(lost).max() > 2 * errors[-1]


def check_others_than_float32() -> None:
    own = torch.from_numpy(given(RANK))
    total = torch.from_numpy(TOTAL)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        result = hvd.allreduce(own.to(dtype), op=hvd.Sum, name=f"{dtype}", compression="int8")
        results.append(result.float().numpy().tobytes())
        assert result.dtype == dtype
        assert torch.linalg.norm(result.float() - total) < 0.02 * torch.linalg.norm(total)
    leaf = own.clone().requires_grad_()
    hvd.allreduce(leaf, op=hvd.Sum, name="leaf", compression="int8").sum().backward()
    assert torch.allclose(leaf.grad, torch.full_like(own, float(WORLD_SIZE)), rtol=0.02)


def check_refusals() -> None:
    whole = np.arange(5000, dtype=np.int32)
    with raises(sumpter.MismatchError, "whole", f"rank {RANK}", "codec int8", "int32"):
        summed("int8", "whole", whole)
    with raises(sumpter.MismatchError, "few", f"rank {RANK}", "codec topk", "k=90000"):
        summed("topk:k=90000", "few")
    with raises(sumpter.ConfigError, "int8:scale=shared", "use int8"):
        summed("int8:scale=shared", "shared")
    with raises(sumpter.ConfigError, "powersgd", "DistributedOptimizer"):
        summed("powersgd", "matrix")
    own = torch.from_numpy(given(RANK))
    with raises(sumpter.MismatchError, "codec int8", "not a all_reduce max"):
        hvd.allreduce(own, op=hvd.Max, name="most", compression="int8")
    with raises(sumpter.UnsupportedError, "reducescatter", "int8"):
        hvd.reducescatter(own, compression="int8")
    with raises(sumpter.UnsupportedError, "Adasum", "int8"):
        hvd.allreduce(own, op=hvd.Adasum, compression="int8")


def check_ranks_out_of_data() -> None:
    """A rank without data goes on to send what it has left out, while others train."""

    state = sumpter.compression_state

    def left() -> np.ndarray:
        (entry,) = [kept for name, kept in state().items() if name.endswith(".uneven:sum")]
        residual = entry["residual"]
        return np.zeros(COUNT, np.float32) if residual is None else residual

    def rounds(rank: int) -> range:
        return range(2 + 4 * rank)

    total = np.zeros(COUNT, np.float32)
    for round_ in rounds(RANK):
        own = torch.from_numpy(given(RANK, round_))
        codec = "topk:k=0.25,two_way=false"
        total += hvd.allreduce(own, op=hvd.Sum, name="uneven", compression=codec).numpy()
    before = np.abs(left()).sum()
    last = hvd.join()
    assert last == WORLD_SIZE - 1
    if RANK != last and before > 0:
        assert not left().any(), "not all of it was sent"
    all_left = sumpter.push_pull(left(), average=False, name="left", compression="off")
    if RANK == last:
        contributed = sum(given(rank, round_) for rank in ALL for round_ in rounds(rank))
        np.testing.assert_array_equal(total + all_left, contributed)


def check_ranks_that_differ() -> None:
    codec = "int8" if RANK else "fp8"
    with raises(sumpter.MismatchError, "differ", "compressed by int8", "compressed by fp8"):
        summed(codec, "differ")


hvd.init()
check_half()
check_errors()
check_feedback()
check_others_than_float32()
check_refusals()
if WORLD_SIZE > 1:
    check_ranks_out_of_data()
    check_ranks_that_differ()
leave_result(b"".join(results))
hvd.shutdown()
