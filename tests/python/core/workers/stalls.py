"""Rank 1 comes late to a sum, or never; the line about it is the test's to look for."""

from __future__ import annotations

import sys
import time

import torch

import sumpter.torch as hvd
from common import FOLDER, RANK, raises


def wait_for(name: str) -> None:
    while not (FOLDER / name).exists():
        time.sleep(0.05)


def late() -> None:
    if RANK == 1:
        wait_for("go")
    hvd.allreduce(torch.ones(3), name="late")
    # The end of the wait is announced while the job goes on.
    wait_for("end")


def never() -> None:
    if RANK == 0:
        with raises(hvd.PeerLostError, "rank 1 (host", "allreduce.never", "stall_shutdown_s is 10"):
            hvd.allreduce(torch.ones(3), name="never")
        (FOLDER / "end").touch()
    wait_for("end")


hvd.init()
late() if sys.argv[1] == "late" else never()
