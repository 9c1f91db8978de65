"""The collectives that Sumpter leaves to Gloo.

Point-to-point transfers, exchanges that sum nothing, and element types or reductions without a
kernel. The Gloo group is made when it is first needed and connects pairs of ranks when they
first talk, so that a send between two ranks needs no third one.
"""

import datetime
from typing import Any

import torch.distributed as dist


class GlooDelegate:
    """A Gloo group with the members of one Sumpter group, made on first use."""

    def __init__(
        self, store: dist.Store, rank: int, size: int, timeout: datetime.timedelta
    ) -> None:
        self._store = dist.PrefixStore("sumpter.gloo", store)
        self._rank = rank
        self._size = size
        self._timeout = timeout
        self._group: Any = None

    @property
    def group(self) -> Any:
        """The Gloo group."""
        if self._group is None:
            # Imported here because a torch can be built without Gloo.
            from torch._C._distributed_c10d import ProcessGroupGloo

            options = ProcessGroupGloo._Options()
            options._timeout = self._timeout
            options._devices = [ProcessGroupGloo.create_default_device(lazy_init=True)]
            self._group = ProcessGroupGloo(self._store, self._rank, self._size, options)
        return self._group

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Changes the timeout of the group, made or not."""
        self._timeout = timeout
        if self._group is not None:
            self._group._set_default_timeout(timeout)
