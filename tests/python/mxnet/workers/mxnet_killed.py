"""The last rank is killed between two steps; step() of the others raises, with its name."""

from __future__ import annotations

import os
import signal

import mxnet as mx

import sumpter.mxnet as sm

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

sm.init()
net = mx.gluon.nn.Dense(3, in_units=4)
net.initialize()
trainer = sm.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
try:
    for step in range(100):
        with mx.autograd.record():
            loss = net(mx.nd.ones((8, 4))).sum()
        loss.backward()
        if step == 2 and RANK == SIZE - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.step(8)
except sm.PeerLostError as error:
    assert f"rank {SIZE - 1}" in str(error) and "gradient" in str(error), error
else:
    raise AssertionError("nothing was raised")
