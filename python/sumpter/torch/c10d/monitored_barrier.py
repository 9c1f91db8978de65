"""The monitored barrier: a barrier through torch's store that names the ranks that are missing.

It is for finding out why a job hangs, so it uses neither the core nor Gloo, and only the store of
the group. A rank that comes late finds the result in the store.
"""

import datetime
import time

import torch.distributed as dist

from sumpter._errors import DeadlineError

# How much longer than the timeout a rank waits for the result, so that it does not report the
# timeout alone when rank 0 is about to name the ranks that are missing.
RESULT_S = 2.0
COMPLETE = "complete"


class MonitoredBarrier:
    """The monitored barriers of one group."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self._store = dist.PrefixStore("sumpter.monitored_barrier", store)
        self._rank = rank
        self._size = size
        self._calls = 0

    def wait(self, timeout_s: float, all_ranks: bool) -> None:
        """Returns when all ranks have called it.

        Raises DeadlineError on every rank that did if one has not after `timeout_s`; it names
        the first that is missing or, with `all_ranks`, all of them.
        """
        call, self._calls = self._calls, self._calls + 1
        if self._rank == 0:
            missing = self._missing(call, timeout_s, all_ranks)
            result = _describe_missing(missing, timeout_s) if missing else COMPLETE
            self._store.set(f"{call}.result", result)
        else:
            self._store.set(f"{call}.{self._rank}", "here")
            if not self._waits(f"{call}.result", timeout_s + RESULT_S):
                raise DeadlineError(_describe_missing([0], timeout_s))
            result = self._store.get(f"{call}.result").decode()
        if result != COMPLETE:
            raise DeadlineError(f"Rank {self._rank} reached monitoredBarrier, but {result}")

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


def _describe_missing(ranks: list[int], timeout_s: float) -> str:
    who = f"Rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    return f"{who} failed to pass monitoredBarrier in {timeout_s * 1000:.0f} ms"
