"""The rank that holds all of a small tensor never begins a round of it; the others hold nothing."""

from __future__ import annotations

import torch

import fake_device
import fake_group
import sumpter.torch as hvd
from common import FOLDER, RANK, announce, raises
from fake_device import on_fake
from sumpter._core import membership

if __name__ == "__main__":
    fake_device.install()
    fake_group.install()
    hvd.init()
    hvd.allreduce_(on_fake(torch.ones(3)), op=hvd.Sum, name="late")
    declared = membership.current().rounds()
    (shards,) = [tensor.shards for tensor in declared if tensor.name == "allreduce.late:sum"]
    assert shards is not None
    (holder,) = [rank for rank, _, size in shards if size]
    if holder == RANK:
        (FOLDER / "over").open("rb").read()
    else:
        with raises(hvd.PeerLostError, f"waiting for rank {holder} (host", "'allreduce.late:sum'"):
            hvd.allreduce_(on_fake(torch.ones(3)), op=hvd.Sum, name="late")
        announce("over")
