"""Trainers with codecs, by Horovod's and BytePS' arguments, and what trainers refuse."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from unittest import mock

import mxnet as mx
import numpy as np
from mxnet import gluon

import sumpter
import sumpter.mxnet as sm
from sumpter._calls import rounds
from sumpter._core import membership
from sumpter._core.tensor import Tensor

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BATCH, STEPS = 16, 40
ONEBIT = {"compressor": "onebit", "ef": "vanilla", "momentum": "nesterov", "scaling": True}


def expect_error(kind: type[BaseException], call: Callable[[], object], *parts: str) -> None:
    try:
        call()
    except kind as error:
        missing = [part for part in parts if part not in str(error)]
        assert not missing, f"{missing} not in: {error}"
    else:
        raise AssertionError(f"expected {kind}")


def make(prefix: str) -> gluon.Block:
    net = gluon.nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(gluon.nn.Dense(32, "tanh", in_units=8), gluon.nn.Dense(4, in_units=32))
    mx.random.seed(3)
    net.initialize(mx.init.Xavier())
    return net


def train(net: gluon.Block, trainer: sm.DistributedTrainer) -> list[float]:
    """The losses of training on noise-free data, which end far below where they begin."""
    data = np.random.default_rng(RANK)
    target, losses = np.random.default_rng(7).normal(size=(8, 4)), []
    for _ in range(STEPS):
        x = data.normal(size=(BATCH, 8))
        with mx.autograd.record():
            loss = gluon.loss.L2Loss()(net(mx.nd.array(x)), mx.nd.array(x @ target))
        loss.backward()
        trainer.step(BATCH)
        losses.append(float(loss.mean().asscalar()))
    return losses


def codecs() -> Mapping[str, object]:
    return {
        tensor.name: tensor.description.compression
        for tensor in membership.current().declared()
        if "gradient" in tensor.name
    }


def check_codecs() -> None:
    plain = {"learning_rate": 0.2}
    momentum = {**plain, "momentum": 0.9}
    ways: dict[str, Callable[[object], sm.DistributedTrainer]] = {
        # BytePS' fifth argument, and by name; its momentum is the optimizer's.
        "topk": lambda p: sm.DistributedTrainer(
            *(p, "sgd", plain, 0, {"compressor": "topk", "k": 0.3, "ef": "vanilla"}),
            prefix="topk.",
        ),
        "onebit": lambda p: sm.DistributedTrainer(
            p,
            "sgd",
            {**momentum, "learning_rate": 0.02},
            compression_params=ONEBIT,
            prefix="onebit.",
        ),  # fmt: skip
        "fp16": lambda p: sm.DistributedTrainer(
            p, "sgd", momentum, compression_params={"fp16": True}, prefix="fp16."
        ),
        # Horovod's fourth argument.
        "bf16": lambda p: sm.DistributedTrainer(
            p, "sgd", momentum, sm.Compression.bf16, prefix="bf16."
        ),
    }
    for name, make_trainer in ways.items():
        net = make(f"{name}_")
        trainer = make_trainer(net.collect_params())
        assert trainer.optimizer.momentum == (0.9 if name in ("fp16", "bf16") else 0.0)
        losses = train(net, trainer)
        assert losses[-1] < losses[0] / 5, (name, losses)
        sums = [sm.allreduce(p.data(), average=False) for p in net.collect_params().values()]
        for value, total in zip(net.collect_params().values(), sums, strict=True):
            np.testing.assert_array_equal(total.asnumpy(), value.data().asnumpy() * SIZE)
        used = {one: codec for one, codec in codecs().items() if f"{name}." in one}
        # Weights by the codec, biases as they are.
        assert len(used) == 4 and sum(name in codec for codec in used.values()) == 2, used
    assert momentum == {"learning_rate": 0.2, "momentum": 0.9}, "an argument was changed"
    kept = sumpter.compression_state()
    assert any("onebit" in one and entry["momentum"] is not None for one, entry in kept.items())


def check_order() -> None:
    """All gradients begin before the first is waited for, the last layer's first."""
    net = make("order_")
    trainer = sm.DistributedTrainer(net.collect_params(), "sgd", prefix="order.")
    seen: list[tuple[str, int] | str] = []
    submit, finish = Tensor.submit, rounds.finish

    def submitted(self: Tensor, *arguments: object, priority: int = 0, **more: object) -> object:
        if "gradient.order" in self.name:
            seen.append((self.name.rpartition(".")[2], priority))
        return submit(self, *arguments, priority=priority, **more)

    def waits(begun: object) -> object:
        seen.append("waits")
        return finish(begun)

    with mx.autograd.record():
        loss = net(mx.nd.ones((2, 8))).sum()
    loss.backward()
    with mock.patch.object(Tensor, "submit", submitted):
        trainer.step(2)
        seen.clear()
        with mock.patch.object(rounds, "finish", waits):
            trainer.allreduce_grads()
    assert seen == [*((f"{number}:sum", -number) for number in (3, 2, 1, 0)), "waits"], seen


def check_arguments() -> None:
    net = make("arguments_")
    parameters = net.collect_params()
    inner = mx.optimizer.create("sgd")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = sm.DistributedTrainer(parameters, sm.DistributedOptimizer(inner))
    assert trainer.optimizer is inner and "taken out" in str(caught[0].message)
    last = sm.add_process_set([SIZE - 1])
    alone = sm.DistributedTrainer(parameters, "sgd", process_set=last, prefix="alone.")
    before = [value.data().asnumpy() for value in parameters.values()]
    with mx.autograd.record():
        loss = net(mx.nd.ones((2, 8))).sum()
    loss.backward()
    alone.step(2)
    assert not np.array_equal(before[0], next(iter(parameters.values())).data().asnumpy())


def check_refused() -> None:
    def trainer(**options: object) -> sm.DistributedTrainer:
        return sm.DistributedTrainer(make("refused_").collect_params(), "sgd", **options)

    refused = {
        "powersgd": lambda: trainer(compression=sm.Compression.powersgd),
        "'gzip'": lambda: trainer(compression_params={"compressor": "gzip"}),
        "no key 'level'": lambda: trainer(compression_params={"compressor": "topk", "level": 3}),
        # There is no factor to take.
        "mu is missing": lambda: trainer(compression_params=ONEBIT),
    }
    for part, call in refused.items():
        expect_error(sm.SumpterError, call, part)
    expect_error(ValueError, lambda: trainer(gradient_predivide_factor=0), "above 0")
    expect_error(TypeError, lambda: sm.DistributedOptimizer("sgd"), "mx.optimizer")
    two = gluon.nn.Dense(3, in_units=2)
    two.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    expect_error(
        sm.UnsupportedError, lambda: sm.DistributedTrainer(two.collect_params(), "sgd"),
        "2 devices", "a process for each",
    )  # fmt: skip
    rows = gluon.Parameter("rows", shape=(4, 2), stype="row_sparse", grad_stype="row_sparse")
    rows.initialize()
    expect_error(
        sm.UnsupportedError, lambda: sm.DistributedTrainer([rows], "sgd"), "rows", "row_sparse"
    )
    # Shapes that differ: an error on all ranks, that says who.
    net = gluon.nn.Dense(3 + (RANK == 0), in_units=2, prefix="differs_")
    net.initialize()
    expect_error(
        sm.MismatchError, lambda: sm.broadcast_parameters(net.collect_params()),
        ".of.differs_", "rank 0 declared shape [4",
    )  # fmt: skip
    with mx.autograd.record():
        loss = net(mx.nd.ones((2, 2))).sum()
    loss.backward()
    gradients = sm.DistributedTrainer(net.collect_params(), "sgd", prefix="differs.")
    expect_error(sm.MismatchError, lambda: gradients.step(2), "rank 0")


sm.init()
check_codecs()
check_order()
check_arguments()
check_refused()
sm.shutdown()
