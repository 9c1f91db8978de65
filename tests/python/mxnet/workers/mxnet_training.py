"""Trains in each way of TEST_MODES; writes the parameters it ends with. Kills servers that
arguments name.

All ways see the same batches, of which each rank takes its share, and start from rank 0's values.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import gluon

import sumpter.mxnet as sm

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FOLDER = Path(os.environ["TEST_FOLDER"])
MODES = os.environ["TEST_MODES"].split(",")
KILLED = [int(pid) for pid in sys.argv[1:]]
BATCH, STEPS, WORDS = 16, 12, 11
SHARE = BATCH // SIZE
LOSS = gluon.loss.L2Loss()


def make(mode: str) -> gluon.Block:
    """With an embedding, whose gradient may be sparse, and layers that find out their shapes."""
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            gluon.nn.Embedding(WORDS, 6, sparse_grad=mode == "rows"),
            gluon.nn.Dense(8, activation="tanh"),
            gluon.nn.BatchNorm(use_global_stats=True),
            gluon.nn.Dense(4),
        )
    # Other values on each rank, until they are broadcast.
    mx.random.seed(5 + RANK)
    net.initialize(mx.init.Xavier())
    net.cast("float64")
    if mode == "hybrid":
        net.hybridize()
    return net


def batches() -> list[tuple[mx.nd.NDArray, mx.nd.NDArray]]:
    data, found = np.random.default_rng(99), []
    own = slice(RANK * SHARE, (RANK + 1) * SHARE)
    for _ in range(STEPS):
        words, y = data.integers(0, WORDS, (BATCH, 3)), data.normal(size=(BATCH, 4))
        found.append((mx.nd.array(words[own]), mx.nd.array(y[own], dtype="float64")))
    return found


def backward(net: gluon.Block, x: mx.nd.NDArray, y: mx.nd.NDArray) -> None:
    with mx.autograd.record():
        loss = LOSS(net(x), y)
    loss.backward()


def train(net: gluon.Block, mode: str) -> None:
    parameters = net.collect_params()
    options = {"gradient_predivide_factor": 2.0} if mode == "predivide" else {}
    if mode != "first step":
        # Most are not initialized yet.
        sm.broadcast_parameters(parameters, 0, prefix=f"{mode}.")
    kind = mx.optimizer.create("adam", learning_rate=0.01)
    trainer = sm.DistributedTrainer(parameters, kind, prefix=f"{mode}.", **options)
    for number, (x, y) in enumerate(batches()):
        if RANK == 0 and KILLED and number % 5 == 4:
            os.kill(KILLED.pop(), signal.SIGKILL)
        backward(net, x, y)
        if mode == "clipped":
            trainer.allreduce_grads()
            # Sums over all ranks, of all examples.
            gradients = [p.grad() for p in parameters.values() if p.grad_req != "null"]
            norm = sum(float((one**2).sum().asscalar()) for one in gradients) ** 0.5
            for one in gradients:
                one *= min(1.0, 0.1 * BATCH / norm)
            trainer.update(SHARE)
        else:
            trainer.step(SHARE)
    assert RANK != 0 or not KILLED, "no server was killed"
    trainer.save_states(str(FOLDER / f"states.{RANK}"))
    trainer.load_states(str(FOLDER / f"states.{RANK}"))


def train_by_updater(net: gluon.Block, mode: str) -> None:
    """As Module does: an updater gets all gradients, and the optimizer divides by the batch."""
    parameters = net.collect_params()
    sm.broadcast_parameters(parameters, prefix=f"{mode}.")
    kind = "sgd" if mode == "updater" else "adam"
    scale = {"rescale_grad": 1 / SHARE, "learning_rate": 0.01}
    optimizer = sm.DistributedOptimizer(
        mx.optimizer.create(kind, **scale), gradient_predivide_factor=2.0
    )
    assert isinstance(optimizer, mx.optimizer.Optimizer) and optimizer.learning_rate == 0.01
    optimizer.set_learning_rate(0.02)
    assert optimizer._optimizer.lr == 0.02
    optimizer = pickle.loads(pickle.dumps(optimizer))
    updater = mx.optimizer.get_updater(optimizer)
    for x, y in batches():
        backward(net, x, y)
        own = [p for p in parameters.values() if p.grad_req != "null"]
        updater(list(range(len(own))), [p.grad() for p in own], [p.data() for p in own])


def train_by_module() -> dict[str, mx.nd.NDArray]:
    """Module.fit, whose optimizer is a DistributedOptimizer."""
    data = mx.sym.Variable("data")
    hidden = mx.sym.FullyConnected(data, num_hidden=8, name="one")
    out = mx.sym.FullyConnected(mx.sym.tanh(hidden), num_hidden=4, name="two")
    symbol = mx.sym.LinearRegressionOutput(out, mx.sym.Variable("label"), name="out")
    source = np.random.default_rng(7)
    x, y = source.normal(size=(STEPS, BATCH, 5)), source.normal(size=(STEPS, BATCH, 4))
    own = slice(RANK * SHARE, (RANK + 1) * SHARE)
    parts = [part[:, own].reshape(STEPS * SHARE, -1).astype("float32") for part in (x, y)]
    batches = mx.io.NDArrayIter(*parts, batch_size=SHARE, label_name="label")
    module = mx.mod.Module(symbol, data_names=["data"], label_names=["label"])
    module.bind(batches.provide_data, batches.provide_label)
    mx.random.seed(5 + RANK)
    module.init_params(mx.init.Xavier())
    parameters = module.get_params()[0]
    sm.broadcast_parameters(parameters)
    module.set_params(parameters, {})
    kind = mx.optimizer.create("sgd", learning_rate=0.01, momentum=0.9, rescale_grad=1 / SHARE)
    optimizer = sm.DistributedOptimizer(kind)
    module.fit(batches, optimizer=optimizer, kvstore=None, num_epoch=2, eval_metric="mse")
    return dict(sorted(module.get_params()[0].items()))


def parameters_after(mode: str) -> np.ndarray:
    """The parameters after training in one way."""
    if mode == "module":
        values = train_by_module()
    else:
        net = make(mode)
        (train_by_updater if mode.startswith("updater") else train)(net, mode)
        values = {name: p.data() for name, p in sorted(net.collect_params().items())}
    return np.concatenate([value.asnumpy().ravel() for value in values.values()])


sm.init()
found = [parameters_after(mode).astype("float64").tobytes() for mode in MODES]
(FOLDER / f"result.{RANK}").write_bytes(pickle.dumps(found))
sm.shutdown()
