"""Sites: ranks with the same parameters, of which one synchronizes with the other sites."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from sumpter._core import membership
from sumpter._core.process_sets import ProcessSet
from sumpter.torch.collectives.broadcasts import broadcast_async_

# The ranks of a site: known to Sumpter, or to torch.distributed.
SiteGroup = ProcessSet | dist.ProcessGroup


class Site:
    """The ranks that train the same parameters as this one; without a group, this rank alone.

    The leader is the one that is in `outer`, the ranks that synchronize. ValueError if there is
    none, or more than one.
    """

    def __init__(self, group: SiteGroup | None, outer: ProcessSet) -> None:
        self._group = group
        self.is_leader = outer.included()
        if group is None:
            if not self.is_leader:
                raise ValueError(
                    f"rank {membership.rank()} is outside {outer} and would never be synchronized: "
                    "give it the ranks that it shares its parameters with, as site"
                )
            return
        leaders = self._leaders(group, outer)
        if len(leaders) != 1:
            raise ValueError(
                f"the site of rank {membership.rank()} has {len(leaders)} of the ranks of {outer}: "
                "one rank of each site must take part in the synchronization"
            )
        self._leader = leaders[0]

    @property
    def has_others(self) -> bool:
        """Whether spread() may reach other ranks."""
        return self._group is not None

    def spread(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Overwrites the tensors of all ranks of the site by the leader's."""
        group = self._group
        if group is None:
            return
        # Each is a broadcast of its own, and all are in flight together.
        waits: list[Any] = []
        for name, tensor in named:
            if isinstance(group, ProcessSet):
                handle = broadcast_async_(tensor, self._leader, f"Site.{name}", group)
                waits.append(handle.synchronize)
            else:
                work = dist.broadcast(tensor, self._leader, group=group, async_op=True)
                waits.append(work.wait)
        for wait in waits:
            wait()

    def _leaders(self, group: SiteGroup, outer: ProcessSet) -> list[int]:
        """Those of the site's ranks that are in `outer`, as the group numbers its root."""
        if isinstance(group, ProcessSet):
            if not group.included():
                raise ValueError(f"rank {membership.rank()} is not in its site {group}")
            everyone = range(membership.size())
            own = everyone if group.ranks is None else group.ranks
            return [rank for rank in own if outer.ranks is None or rank in outer.ranks]
        if not isinstance(group, dist.ProcessGroup):
            raise ValueError(
                f"site is a {type(group).__name__}: give a process set, or a group of "
                "torch.distributed"
            )
        flags: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(flags, self.is_leader, group)
        return [dist.get_global_rank(group, at) for at, leads in enumerate(flags) if leads]
