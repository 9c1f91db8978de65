"""The monitored barrier: a barrier through torch's store that says which ranks did not come.

It is for finding out why a job hangs, so it uses neither the core nor Gloo, and only the store of
the group. A rank that did not come finds the verdict when it does.
"""

import datetime
import time

import torch.distributed as dist

from sumpter._errors import DeadlineError

# How much longer than the timeout a rank waits for the verdict, so that it is not told of the
# timeout alone when rank 0 is about to name who is missing.
VERDICT_S = 2.0
ALL_HERE = "all here"


class RollCall:
    """The monitored barriers of one group."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self._store = dist.PrefixStore("sumpter.roll_call", store)
        self._rank = rank
        self._size = size
        self._calls = 0

    def meet(self, timeout_s: float, all_ranks: bool) -> None:
        """Returns when all ranks have called it.

        Raises DeadlineError on every rank that did if one has not after `timeout_s`; it names
        the first that is missing or, with `all_ranks`, all of them.
        """
        call, self._calls = self._calls, self._calls + 1
        if self._rank == 0:
            missing = self._missing(call, timeout_s, all_ranks)
            verdict = _accuse(missing, timeout_s) if missing else ALL_HERE
            self._store.set(f"{call}.verdict", verdict)
        else:
            self._store.set(f"{call}.{self._rank}", "here")
            if not self._waits(f"{call}.verdict", timeout_s + VERDICT_S):
                raise DeadlineError(_accuse([0], timeout_s))
            verdict = self._store.get(f"{call}.verdict").decode()
        if verdict != ALL_HERE:
            raise DeadlineError(f"Rank {self._rank} reached monitoredBarrier, but {verdict}")

    def _missing(self, call: int, timeout_s: float, all_ranks: bool) -> list[int]:
        deadline = time.monotonic() + timeout_s
        missing = []
        for rank in range(1, self._size):
            left_s = max(0.001, deadline - time.monotonic())
            if not self._waits(f"{call}.{rank}", left_s):
                missing.append(rank)
                if not all_ranks:
                    break
        return missing

    def _waits(self, key: str, timeout_s: float) -> bool:
        """Whether the key is set in time."""
        try:
            self._store.wait([key], datetime.timedelta(seconds=timeout_s))
        except dist.DistNetworkError:
            raise
        except RuntimeError:  # what a store in a file raises, and the base of what others do
            return False
        return True


def _accuse(ranks: list[int], timeout_s: float) -> str:
    who = f"Rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    return f"{who} failed to pass monitoredBarrier in {timeout_s * 1000:.0f} ms"
