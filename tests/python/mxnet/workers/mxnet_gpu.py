"""Arrays of a GPU come back to it, and a trainer updates parameters that are there."""

from __future__ import annotations

import os

import mxnet as mx
import numpy as np

import sumpter.mxnet as sm

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

sm.init()
gpu = mx.gpu(0)
own = mx.nd.arange(12, ctx=gpu).reshape((4, 3)) + RANK
everyone = [np.arange(12, dtype=np.float32).reshape(4, 3) + rank for rank in range(SIZE)]
for found, expected in (
    (sm.push_pull(own, average=False, name="sum"), sum(everyone)),
    (sm.broadcast(own, 1, name="root"), everyone[1]),
    (sm.allgather(own, name="rows"), np.concatenate(everyone)),
):
    assert found.context == gpu, found.context
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-6)
net = mx.gluon.nn.Dense(1, in_units=3)
net.initialize(ctx=gpu)
trainer = sm.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
with mx.autograd.record():
    loss = net(own).sum()
loss.backward()
trainer.step(4)
weights = sm.allgather_object(net.weight.data(gpu).asnumpy().tolist())
assert weights == weights[:1] * SIZE, weights
sm.shutdown()
