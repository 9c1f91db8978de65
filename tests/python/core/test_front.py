"""The NumPy front in a job of one worker, in this process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import sumpter
from jobs import HANG_S
from sumpter._calls import collective as kinds
from sumpter._calls import joining, objects
from sumpter._core import membership
from sumpter._core.process_sets import ProcessSet

DTYPES = st.sampled_from(["f4", "f8", "f2", "i1", "u1", "i4", "i8", ">f4", ">i8"])
ARRAYS = DTYPES.flatmap(
    lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, min_side=0, max_side=5))
)


@pytest.mark.usefixtures("alone")
class TestAlone:
    def test_there_is_one_worker(self) -> None:
        assert (sumpter.rank(), sumpter.size()) == (0, 1)
        assert (sumpter.local_rank(), sumpter.local_size()) == (0, 1)
        sumpter.barrier()
        sumpter.record_samples(1)

    @given(ARRAYS, st.booleans(), st.booleans())
    def test_arrays_come_back_as_they_were(
        self, array: np.ndarray, transpose: bool, average: bool
    ) -> None:
        array = array.T if transpose else array
        before = array.copy()
        result = sumpter.push_pull(array, average)
        assert result.dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(result, before)
        np.testing.assert_array_equal(array, before)
        assert not np.shares_memory(result, array)
        np.testing.assert_array_equal(sumpter.broadcast(array), before)

    def test_dlpack_arrays_come_back_as_their_own_kind(self) -> None:
        tensor = torch.arange(6.0).reshape(2, 3)
        result = sumpter.push_pull(tensor, name="tensor")
        assert isinstance(result, torch.Tensor)
        assert torch.equal(result, tensor)
        assert isinstance(sumpter.broadcast(tensor), torch.Tensor)
        assert sumpter.push_pull([1, 2]).tolist() == [1, 2]

    def test_a_handle_gives_the_same_result_every_time(self) -> None:
        handle = sumpter.push_pull_async(np.ones(5), name="five")
        result = sumpter.synchronize(handle)
        assert sumpter.poll(handle)
        assert sumpter.synchronize(handle) is result

    def test_unsupported_arrays_are_refused_by_name(self) -> None:
        with pytest.raises(sumpter.UnsupportedError, match="complex128"):
            sumpter.push_pull(np.ones(2, dtype=complex))
        with pytest.raises(sumpter.UnsupportedError, match="object"):
            sumpter.push_pull(np.array([None]))
        with pytest.raises(sumpter.UnsupportedError, match="sumpter.torch"):
            sumpter.push_pull(torch.ones(2, dtype=torch.bfloat16))
        with pytest.raises(sumpter.UnsupportedError, match="cuda:3"):
            sumpter.push_pull(OnGpu())
        with pytest.raises(ValueError, match="root_rank is 1"):
            sumpter.broadcast(np.ones(2), root_rank=1)

    @pytest.mark.parametrize("dtype", [object, [("count", "i4"), ("name", object)]])
    def test_arrays_of_objects_are_refused_and_objects_are_taken(self, dtype: object) -> None:
        array = np.empty(3, dtype)
        for call in (
            lambda: sumpter.broadcast(array),
            lambda: objects.broadcast_arrays([np.ones(2), array], 0, "arrays"),
            lambda: objects.on_host(kinds.BROADCAST, "host", array),
            lambda: objects.on_host(kinds.ALL_GATHER, "host", array),
        ):
            with pytest.raises(sumpter.UnsupportedError, match=r"object.*broadcast_object\(\)"):
                call()
        assert sumpter.broadcast_object({"a": [None]}) == {"a": [None]}
        assert sumpter.allgather_object(array.tolist()) == [array.tolist()]

    @pytest.mark.parametrize("dtype", [np.float32, np.int64])
    def test_a_result_goes_where_the_caller_wants_it(self, dtype: type) -> None:
        array = np.arange(12, dtype=dtype).reshape(3, 4)
        out = np.empty_like(array)
        assert sumpter.push_pull(array, name="into", out=out) is out
        np.testing.assert_array_equal(out, np.arange(12).reshape(3, 4))
        assert sumpter.push_pull(array, name="into", out=array) is array
        np.testing.assert_array_equal(array, out)
        # The result of another kind of array is in what was given, too.
        assert sumpter.push_pull(torch.from_numpy(array), name="tensor", out=out) is out

    def test_memory_that_no_result_can_go_to_is_refused(self) -> None:
        array = np.ones((4, 4), np.float32)
        read_only = np.empty_like(array)
        read_only.flags.writeable = False
        for out, why in [
            ([0.0] * 16, "out is a list"),
            (np.empty((4, 5), np.float32), r"out is float32\[4, 5\], but the result is float32"),
            (np.empty((4, 4)), r"out is float64\[4, 4\]"),
            (read_only, "writable"),
            (np.empty((4, 8), np.float32)[:, ::2], "contiguous"),
            (np.ones((5, 4), np.float32)[1:].T, "contiguous"),
        ]:
            with pytest.raises(sumpter.UnsupportedError, match=why):
                sumpter.push_pull(array, name="refused", out=out)
        both = np.ones((5, 4), np.float32)
        with pytest.raises(sumpter.UnsupportedError, match="overlaps"):
            sumpter.push_pull(both[:4], name="refused", out=both[1:])
        assert sumpter.push_pull(array, name="refused").sum() == 16, "the name is free"

    def test_a_name_serves_other_arrays_one_after_another(self) -> None:
        assert sumpter.push_pull(np.ones(2), name="kept").shape == (2,)
        handle = sumpter.push_pull_async(np.ones(3), name="kept")
        with pytest.raises(sumpter.DuplicateNameError, match=r"'allreduce\.kept' is still in"):
            sumpter.push_pull(np.ones(2), name="kept")
        assert handle.synchronize().shape == (3,)
        assert sumpter.push_pull(np.ones(2, np.int32), average=False, name="kept").sum() == 2

    def test_initializing_again_changes_nothing(self) -> None:
        session = membership.current()
        sumpter.init()
        sumpter.init(rank=0, world_size=1)
        assert membership.current() is session
        with pytest.raises(sumpter.StartError, match="world_size"):
            sumpter.init(world_size=2)


class OnGpu:
    """A DLPack array in the memory of a GPU."""

    device = "cuda:3"

    def __dlpack__(self, **_: object) -> object:
        raise AssertionError("must not be asked for its memory")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 3)


def test_nothing_works_before_init_but_counting_samples() -> None:
    assert not sumpter.is_initialized()
    for call in (sumpter.rank, sumpter.size, sumpter.local_rank, sumpter.barrier):
        with pytest.raises(sumpter.NotInitializedError, match=r"init\(\)"):
            call()
    with pytest.raises(ValueError, match=r"init\(\)"):
        sumpter.push_pull(np.ones(2))
    sumpter.record_samples(1)
    sumpter.shutdown()


def test_a_process_may_join_many_times(unlaunched: pytest.MonkeyPatch) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def cycle(value: float) -> None:
        sumpter.init()
        assert sumpter.push_pull(np.array([value])) == [value]
        sumpter.shutdown()

    cycle(0.0)
    before = descriptors()
    for value in range(10):
        cycle(float(value))
    # What an earlier test has left may be closed meanwhile.
    assert descriptors() <= before


def test_a_job_is_joined_as_scripts_of_horovod_and_byteps_do(
    unlaunched: pytest.MonkeyPatch,
) -> None:
    for options in ({"comm": [0]}, {"comm": True}, {"lazy": False}, {"process_sets": "dynamic"}):
        joining.init(**options)
        assert sumpter.size() == 1
        sumpter.shutdown()
    # Of one rank there is no other set than that of all.
    with pytest.raises(ValueError, match=r"with the ranks \[0\] already"):
        joining.init(None, [ProcessSet([0])])
    with pytest.raises(sumpter.UnsupportedError, match="every rank takes part"):
        joining.init(comm=[1])
    assert not sumpter.is_initialized()


def test_settings_that_are_wrong_are_named(unlaunched: pytest.MonkeyPatch) -> None:
    with pytest.raises(sumpter.ConfigError, match="partition_bytes"):
        sumpter.init(partition_bytes=7)
    with pytest.raises(sumpter.ConfigError, match="colour"):
        sumpter.init(colour="red")
    assert not sumpter.is_initialized()


def test_the_session_lasts_as_long_as_any_holder(unlaunched: pytest.MonkeyPatch) -> None:
    sumpter.init()
    session = membership.acquire("a process group", {})
    sumpter.shutdown()
    assert sumpter.is_initialized()
    assert membership.current() is session
    membership.release("a process group")
    assert not sumpter.is_initialized()


def test_a_process_that_forgets_to_leave_ends_well(unlaunched: pytest.MonkeyPatch) -> None:
    script = (
        "import os, numpy, sumpter\n"
        "sumpter.init()\n"
        "if (child := os.fork()) == 0:\n"
        "    assert not sumpter.is_initialized()\n"
        "    raise SystemExit\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "print(sumpter.push_pull(numpy.ones(3)))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S
    )
    assert (ended.returncode, ended.stdout) == (0, "[1. 1. 1.]\n"), ended.stderr
    assert ended.stderr == ""
