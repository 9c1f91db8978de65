"""Codecs of users from the workers to the servers and back.

Arguments: "knowing" if servers have them, "by_setting" if the setting `compression` names one.
"""

from __future__ import annotations

import sys

import numpy as np
import torch

import sumpter
import sumpter.torch as hvd
from common import ALL, RANK, raises

COUNT = 20_011


def given(rank: int) -> np.ndarray:
    generator = np.random.default_rng(rank)
    return generator.integers(-512, 513, COUNT).astype(np.float32) / 64


def check_sums() -> None:
    total = sum(given(rank) for rank in ALL)
    for codec in ("halves:ef=false", "halves", "halves:momentum=0.0"):
        got = sumpter.push_pull(given(RANK), average=False, name=codec, compression=codec)
        np.testing.assert_array_equal(got, total)
    # What halves leave out comes later.
    own = np.full(COUNT, 1 + 2**-12, np.float32)
    sums = [
        sumpter.push_pull(own, average=False, name="fed", compression="halves")[0]
        for _ in range(64)
    ]
    assert abs(sum(sums) - 64 * len(ALL) * own[0]) <= len(ALL) * 2**-10, sums


def check_failures() -> None:
    unlucky = given(RANK)
    unlucky[1024] = 13 if RANK == 1 else 1
    for call, names in (
        (
            "encode",
            ("tensor 'allreduce.encode'", "rank 1", "codec halves", "block 1", "ValueError"),
        ),
        (
            "decode",
            ("tensor 'allreduce.decode'", "rank 1", "codec halves", "block 1", "unlucky code"),
        ),
    ):
        codec = f"halves:fail={call},ef=false"
        with raises(sumpter.MismatchError, *names):
            sumpter.push_pull(unlucky, name=call, compression=codec)
    with raises(sumpter.ConfigError, "halves", "ValueError: fail=never"):
        sumpter.push_pull(unlucky, name="never", compression="halves:fail=never")
    with raises(sumpter.ConfigError, "halves", "leave out two_way"):
        sumpter.push_pull(unlucky, name="never", compression="halves:two_way=true")
    with raises(sumpter.ConfigError, "codec late", "before"):
        sumpter.register_codec("late", object)


def check_servers_without_it() -> None:
    with raises(sumpter.MismatchError, "tensor 'allreduce.alone'", "'halves'", "setting codecs"):
        sumpter.push_pull(given(RANK), name="alone", compression="halves")
    # The job goes on.
    assert sumpter.push_pull(np.ones(3, np.float32), name="others")[0] == 1


def check_setting() -> None:
    # halves leave out the last bit.
    own = np.full(COUNT, 1 + 2**-12, np.float32)
    assert (sumpter.push_pull(own, average=False) == len(ALL)).all()
    exact = sumpter.push_pull(own, average=False, compression="off")
    np.testing.assert_array_equal(exact, len(ALL) * own)
    weight = torch.nn.Parameter(torch.zeros(200, 200))
    sgd = torch.optim.SGD([weight], lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, [("weight", weight)], op=hvd.Sum)
    (weight * (1 + 2**-12)).sum().backward()
    optimizer.step()
    assert (weight == -len(ALL)).all()
    left = optimizer.state_dict()["compression"]["weight"]["residual"]
    assert (left == 2**-12).all()


with raises(sumpter.ConfigError, "int8", "not taken"):
    sumpter.register_codec("int8", object)
sumpter.init()
if "knowing" in sys.argv:
    check_sums()
    check_failures()
    check_sums_go_on = sumpter.push_pull(given(RANK), name="on", compression="halves")
    assert check_sums_go_on.shape == (COUNT,)
elif "by_setting" in sys.argv:
    check_setting()
else:
    check_servers_without_it()
sumpter.shutdown()
