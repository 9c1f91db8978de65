"""Rank 0 waits for a sum to which the others never contribute."""

from __future__ import annotations

import signal

import torch

import sumpter.torch as hvd
from common import RANK, announce

hvd.init()
hvd.allreduce(torch.ones(3), name="together")
announce(f"rank{RANK}")
if RANK == 0:
    hvd.allreduce(torch.ones(3), name="never")
else:
    signal.pause()
