"""Trains with a codec while a worker joins: what is decoded and what is left is what was given."""

from __future__ import annotations

import sys

import torch

import sumpter.torch as hvd
from common import announce
from sumpter.torch import elastic

STEPS = 12
REUNION = 5

# Sums of few small integers are exact in any order.
CODECS = ("topk:k=0.25,two_way=false", "topk:k=0.25")


def main() -> None:
    hvd.init()
    weights = {codec: torch.nn.Parameter(torch.zeros(64, 96)) for codec in CODECS}
    optimizers = {
        codec: hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=1.0), [(codec, weight)], op=hvd.Sum, compression=codec
        )
        for codec, weight in weights.items()
    }
    state = elastic.TorchState(**{f"o{i}": o for i, o in enumerate(optimizers.values())}, step=0)
    generator = torch.Generator().manual_seed(7 + hvd.rank() + 10 * len(sys.argv))
    given = torch.zeros(64, 96)
    sizes = []

    @elastic.run
    def train(state: elastic.TorchState) -> None:
        for codec, weight in weights.items():
            hvd.broadcast_(weight.detach(), 0, name=f"weight {codec}")
        while state.step < STEPS:
            while state.step == REUNION and hvd.size() < 3:
                if hvd.rank() == 0 and not sizes.count(0):
                    announce("alone")
                    sizes.append(0)
                state.commit()
            gradient = torch.randint(-8, 9, (64, 96), generator=generator).float()
            given.add_(gradient)
            for codec, optimizer in optimizers.items():
                optimizer.zero_grad()
                (weights[codec] * gradient).sum().backward()
                optimizer.step()
            sizes.append(hvd.size())
            state.step += 1
            state.commit()

    train(state)
    assert sizes[-1] == 3 and ("newcomer" in sys.argv or 2 in sizes), sizes
    whole = hvd.allreduce(given, op=hvd.Sum, name="given", compression="off")
    for codec, optimizer in optimizers.items():
        kept = optimizer.state_dict()["compression"][codec]
        left = hvd.allreduce(kept["residual"], op=hvd.Sum, name=f"left {codec}", compression="off")
        assert left.any()
        decoded = -weights[codec].detach()
        assert torch.equal(decoded + left.view_as(decoded), whole), codec
    hvd.shutdown()


main()
