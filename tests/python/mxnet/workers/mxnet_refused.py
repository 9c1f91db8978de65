"""Calls on arrays of MXNet that one rank cannot make: an error on all ranks, with the reason."""

from __future__ import annotations

import sys
from collections.abc import Callable

import mxnet as mx
import numpy as np

import sumpter.mxnet as sm
from refusing import ODD, RANK, WORLD_SIZE, refused, refused_at_once

ONES = mx.nd.ones((2 * WORLD_SIZE, 2))
BOOLS = mx.np.ones((2 * WORLD_SIZE, 2), dtype="bool").as_nd_ndarray()
ROWS = mx.nd.sparse.row_sparse_array((np.ones((1, 2)), [0]), shape=(4, 2))
CSR = mx.nd.ones((2, 2)).tostype("csr")


def uncomputable() -> mx.nd.NDArray:
    """An array of which MXNet finds out only when it is computed that it cannot be."""
    return mx.nd.random.normal(0, -1, shape=(2, 2))


def update(gradients: list[object], name: str) -> None:
    """A step of a trainer with these gradients."""
    net = mx.gluon.nn.Dense(2, in_units=2)
    net.initialize()
    trainer = sm.DistributedTrainer(net.collect_params(), "sgd", prefix=name)
    trainer._reduce(dict(enumerate(gradients)))


Call = Callable[[str | None], object]
# What one rank calls, what the others call, and what is wrong.
CASES: dict[str, tuple[Call, Call, str]] = {
    "type": (
        lambda name: sm.allreduce(BOOLS, name=name),
        lambda name: sm.allreduce(ONES, name=name),
        "is of bool",
    ),
    "no array": (
        lambda name: sm.push_pull("text", name=name),
        lambda name: sm.push_pull(ONES, name=name),
        "is a str",
    ),
    "group": (
        lambda name: sm.grouped_allreduce([ONES, CSR], name=name),
        lambda name: sm.grouped_allreduce([ONES, ONES], name=name),
        "storage type 'csr'",
    ),
    "operator": (
        lambda name: sm.allreduce(ONES, op=sm.Adasum, name=name),
        lambda name: sm.allreduce(ONES, name=name),
        "no Adasum",
    ),
    "codec": (
        lambda name: sm.allreduce(mx.nd.ones(4, dtype="int32"), name=name, compression="int8"),
        lambda name: sm.allreduce(mx.nd.ones(4, dtype="int32"), name=name),
        "int32",
    ),
    "rows": (
        lambda name: sm.allreduce(ROWS, op=sm.Max, name=name),
        lambda name: sm.allreduce(ROWS, name=name),
        "sums and averages only",
    ),
    "computed": (
        lambda name: sm.grouped_allreduce([ONES, uncomputable()], name=name),
        lambda name: sm.grouped_allreduce([ONES, ONES[:2]], name=name),
        "MXNetError",
    ),
    "root": (
        lambda name: sm.broadcast(ONES, -1, name=name),
        lambda name: sm.broadcast(ONES, ODD, name=name),
        "root_rank is -1",
    ),
    "gather": (
        lambda name: sm.allgather(CSR, name),
        lambda name: sm.allgather(ONES, name),
        "storage type 'csr'",
    ),
    "exchange": (
        lambda name: sm.alltoall(ONES, [1] * WORLD_SIZE, name),
        lambda name: sm.alltoall(ONES, None, name),
        "splits are",
    ),
    "scatter": (
        lambda name: sm.reducescatter(BOOLS, name=name),
        lambda name: sm.reducescatter(ONES, name=name),
        "is of bool",
    ),
    "trainer": (
        lambda name: update([ONES, BOOLS], name or "all"),
        lambda name: update([ONES, ONES], name or "all"),
        "is of bool",
    ),
    "object": (
        lambda name: sm.broadcast_object(lambda: None, ODD, name),
        lambda name: sm.broadcast_object(None, ODD, name),
        "pickle",
    ),
}


def parameters(bad: bool) -> None:
    sm.broadcast_parameters({"weight": CSR if bad else ONES, "bias": ONES})


def check_later(name: str | None) -> None:
    """The next calls match, under the same name and others."""
    total = sum(range(WORLD_SIZE))
    own = mx.nd.ones(3) * RANK
    for again in (name, "another", None):
        for found in (
            sm.allreduce(own, average=False, name=again),
            sm.broadcast(own, 1, name=again) * total,
        ):
            np.testing.assert_array_equal(found.asnumpy(), np.full(3, total))
        assert sm.allgather(own[:1], again).asnumpy().tolist() == list(range(WORLD_SIZE))


sm.init()
if sys.argv[1] == "named":
    for word, (bad, good, reason) in CASES.items():
        refused_at_once(
            lambda bad=bad, word=word: bad(word),
            lambda good=good, word=word: good(word),
            reason,
            sm.barrier,
        )
        check_later(word)
else:
    for word in ("type", "gather"):
        bad, good, reason = CASES[word]
        refused(lambda bad=bad: bad(None), lambda good=good: good(None), reason, sm.barrier)
        check_later(None)
    refused(lambda: parameters(True), lambda: parameters(False), "storage type 'csr'", sm.barrier)
    parameters(False)
sm.shutdown()
