"""Optimizer state on the servers in an elastic job: each rank keeps its share in a commit.

The servers' state ends with a generation of the job. In the next one the ranks that have shares of
the oldest rank's last commit put the state together again, and all begin with it.
"""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from sumpter.torch.functions import allgather_object, broadcast_object
from sumpter.torch.local_sgd import DiLoCo
from sumpter.torch.training.on_servers import ServerUpdates
from sumpter.torch.training.shares import StateShare


class Share(NamedTuple):
    """What a rank keeps of an object with state on the servers."""

    alike: Any  # on all ranks
    own: StateShare

    @property
    def mark(self) -> int:
        """Equal for shares that were taken after the same steps."""
        return self.own.mark


def is_shared(value: object) -> bool:
    """Whether an object has optimizer state on the servers."""
    if isinstance(value, DiLoCo):
        return value.has_shares
    return isinstance(getattr(value, "_exchange", None), ServerUpdates)


def take_share(value: Any) -> Share:
    """This rank's share, without communication."""
    if isinstance(value, DiLoCo):
        alike, own = value.share()
    else:
        alike = torch.optim.Optimizer.state_dict(value)["param_groups"]
        own = value._exchange.share()
    return Share(copy.deepcopy(alike), own)


def sync_shares(value: Any, offers: Sequence[Share], root: int) -> None:
    """Has the servers go on from the newest share of rank `root` and those that belong to it.

    Every rank must call this with what it has, the newest first. ValueError on all ranks if the
    ranks that are left do not have all of the state.
    """
    newest = offers[0]
    alike, mark = broadcast_object((newest.alike, newest.mark), root)
    own = next((offer.own for offer in offers if offer.mark == mark), None)
    shares = [share for share in allgather_object(own) if share is not None]
    if isinstance(value, DiLoCo):
        value.resume(alike, shares)
        return
    groups = {"state": {}, "param_groups": alike}
    torch.optim.Optimizer.load_state_dict(value, groups)
    value._exchange.resume(value, shares)
