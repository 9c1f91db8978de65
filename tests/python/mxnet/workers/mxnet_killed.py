"""The last rank is killed between two steps; step() of the others raises, with its name, soon."""

from __future__ import annotations

import mxnet as mx

import sumpter.mxnet as sm
from common import RANK, WORLD_SIZE, check_death, die

LAST = WORLD_SIZE - 1

sm.init()
net = mx.gluon.nn.Dense(3, in_units=4)
net.initialize()
trainer = sm.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
try:
    for step in range(100):
        with mx.autograd.record():
            loss = net(mx.nd.ones((8, 4))).sum()
        loss.backward()
        if step == 2 and RANK == LAST:
            die()
        trainer.step(8)
except sm.PeerLostError as error:
    check_death(error, LAST, "gradient")
else:
    raise AssertionError("nothing was raised")
