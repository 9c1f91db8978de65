"""Trains a small convolutional network on scikit-learn's handwritten digits with MXNet's gluon.

    python examples/mxnet_digits.py                            alone
    sumpter run -n 2 -s 1 -- python examples/mxnet_digits.py   two workers and a summation server

Every run sees the same batches and starts from the same weights. Needs MXNet 1.9.1.
"""

import sys

import mxnet as mx
import numpy as np
from mxnet import gluon
from sklearn.datasets import load_digits

import sumpter.mxnet as sm

EPOCHS = 6
BATCH = 64  # over all workers
TARGET = 0.97
SEED = 1


def main() -> int:
    sm.init()
    mx.random.seed(SEED)
    digits = load_digits()
    images = digits.images[:, None].astype(np.float32) / 16.0
    held_out = np.arange(len(images)) % 5 == 0
    rows = (~held_out).nonzero()[0]
    share = BATCH // sm.size()

    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(32, 3, padding=1, activation="relu"),
        gluon.nn.Conv2D(64, 3, padding=1, activation="relu"),
        gluon.nn.MaxPool2D(),
        gluon.nn.Flatten(),
        gluon.nn.Dense(128, activation="relu"),
        gluon.nn.Dense(10),
    )
    net.initialize(mx.init.Xavier())
    net.hybridize()
    sm.broadcast_parameters(net.collect_params(), root_rank=0)
    steps = EPOCHS * (len(rows) // BATCH)
    rates = mx.lr_scheduler.CosineScheduler(steps, base_lr=2e-3)
    trainer = sm.DistributedTrainer(net.collect_params(), "adam", {"lr_scheduler": rates})
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    order = np.random.default_rng(SEED)
    for epoch in range(EPOCHS):
        # Whole batches, of which each worker takes its part.
        shuffled = order.permutation(rows)[: len(rows) // BATCH * BATCH]
        total = 0.0
        for own in shuffled.reshape(-1, sm.size(), share)[:, sm.rank()]:
            with mx.autograd.record():
                loss = loss_of(net(mx.nd.array(images[own])), mx.nd.array(digits.target[own]))
            loss.backward()
            trainer.step(share)  # by all workers' gradients
            total += loss.mean().asscalar()
        mean = sm.allreduce(mx.nd.array([total / (len(shuffled) // BATCH)]), name="loss")
        if sm.rank() == 0:
            print(f"epoch {epoch}: loss {mean.asscalar():.4f}")

    found = net(mx.nd.array(images[held_out])).argmax(axis=1).asnumpy()
    accuracy = (found == digits.target[held_out]).mean()
    if sm.rank() == 0:
        print(f"accuracy on {held_out.sum()} held-out digits: {accuracy:.2%}")
    sm.shutdown()
    return 0 if accuracy >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
