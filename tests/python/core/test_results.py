"""Memory of large results: lent to arrays, and to the next when no array refers to it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import sumpter
from sumpter import _results
from sumpter._results import ResultMemory

LEAST = 1 << 20


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[ResultMemory]:
    monkeypatch.setattr(_results, "LEAST_BYTES", LEAST)
    monkeypatch.setattr(_results, "KEPT_BYTES", 4 * LEAST)
    yield ResultMemory()
    gc.collect()


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def test_the_memory_of_a_result_that_is_gone_serves_the_next(memory: ResultMemory) -> None:
    given = np.zeros((2, LEAST // 8), np.float32)
    first = memory.empty_like(given)
    assert (first.shape, first.dtype) == (given.shape, given.dtype)
    assert first.flags.c_contiguous and first.flags.writeable
    second = memory.empty_like(given)
    assert not np.shares_memory(first, second)
    at = address(first)
    first[:] = 1
    del first
    assert memory.kept_bytes == LEAST
    again = memory.empty_like(given.view(np.int32))
    assert (address(again), again.dtype, memory.kept_bytes) == (at, np.int32, 0)


@pytest.mark.parametrize(
    "derive",
    [
        lambda array: array[5:],
        lambda array: array.reshape(2, -1)[1].view(np.uint8),
        lambda array: memoryview(array),
        lambda array: torch.from_numpy(array),
        lambda array: torch.from_dlpack(array).view(torch.int32)[3:],
        lambda array: np.asarray(array).view(np.recarray),
    ],
)
def test_memory_stays_with_whatever_refers_to_it(memory: ResultMemory, derive) -> None:
    given = np.zeros(LEAST // 4, np.float32)
    result = memory.empty_like(given)
    kept = derive(result)
    del result
    gc.collect()
    assert memory.kept_bytes == 0
    del kept
    gc.collect()
    assert memory.kept_bytes == LEAST


def test_as_much_is_kept_as_the_limit_says_and_the_oldest_goes(memory: ResultMemory) -> None:
    sizes = [LEAST, 2 * LEAST, LEAST, LEAST, LEAST]
    lent = [memory.empty_like(np.zeros(size, np.uint8)) for size in sizes]
    lent.reverse()
    while lent:
        lent.pop()
    # The first block was dropped for the fourth, and the second for the fifth.
    assert memory.kept_bytes == 3 * LEAST
    huge = memory.empty_like(np.zeros(5 * LEAST, np.uint8))
    before = memory.kept_bytes
    del huge
    assert memory.kept_bytes == before


def test_small_arrays_are_ordinary(memory: ResultMemory) -> None:
    given = np.zeros(LEAST // 4 - 1, np.float32)
    assert memory.empty_like(given).flags.owndata


@pytest.mark.usefixtures("alone")
def test_results_of_push_pull_are_right_in_used_memory() -> None:
    array = np.arange(_results.LEAST_BYTES // 4, dtype=np.float32)
    for factor in (1, 2, 3):
        array *= factor
        result = sumpter.push_pull(array, name="large")
        np.testing.assert_array_equal(result, array)
        assert not np.shares_memory(result, array)
        del result
