"""A worker leaves in good order: what is decoded and what is left is what all have given."""

from __future__ import annotations

import os
import signal

import torch

import sumpter.torch as hvd
from common import FOLDER, RANK, WORLD_SIZE, leave_result, raises
from sumpter.torch import elastic

STEPS = 12
LEAVES = 5

# Sums of few small integers are exact in any order; the factors' are not.
EXACT = ("topk:k=0.25,two_way=false", "topk:k=0.25", "auto:codecs=topk:k=0.25")
CODECS = (*EXACT, "powersgd:rank=2")


def main() -> None:
    state = elastic.TorchState()
    with raises(hvd.UnsupportedError, "elastic"):
        state.leave()
    hvd.init()
    weights = {codec: torch.nn.Parameter(torch.zeros(64, 96)) for codec in CODECS}
    optimizers = {
        codec: hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=1.0), [(codec, weight)], op=hvd.Sum, compression=codec
        )
        for codec, weight in weights.items()
    }
    state = elastic.TorchState(**{f"o{i}": o for i, o in enumerate(optimizers.values())}, step=0)
    signal.signal(signal.SIGTERM, lambda *_: state.leave())
    generator = torch.Generator().manual_seed(RANK)
    given = torch.zeros(64, 96)
    sizes = []

    @elastic.run
    def train(state: elastic.TorchState) -> None:
        while state.step < STEPS:
            gradient = torch.randint(-8, 9, (64, 96), generator=generator).float()
            given.add_(gradient)
            for codec, optimizer in optimizers.items():
                optimizer.zero_grad()
                (weights[codec] * gradient).sum().backward()
                optimizer.step()
            sizes.append(hvd.size())
            state.step += 1
            if RANK == 0 and state.step == LEAVES:
                # Those of a rank that is not there any more when all are added.
                leave_result(given.numpy().tobytes())
                os.kill(os.getpid(), signal.SIGTERM)
            state.commit()

    train(state)
    assert sizes == [WORLD_SIZE] * LEAVES + [WORLD_SIZE - 1] * (STEPS - LEAVES), sizes
    given.add_(gone() if hvd.rank() == 0 else 0)
    whole = hvd.allreduce(given, op=hvd.Sum, name="given", compression="off")
    for codec, optimizer in optimizers.items():
        kept = optimizer.state_dict()["compression"][codec]
        residual = kept["residual"]
        residual = torch.zeros(64 * 96) if residual is None else residual
        left = hvd.allreduce(residual, op=hvd.Sum, name=f"left {codec}", compression="off")
        decoded = -weights[codec].detach()
        lost = whole - (decoded + left.view_as(decoded))
        assert lost.abs().max() <= (0 if codec in EXACT else 0.01), (codec, lost.abs().max())
        assert left.any() or codec not in EXACT[:2], codec
    hvd.shutdown()


def gone() -> torch.Tensor:
    """What the rank that left had given."""
    content = (FOLDER / "result.0").read_bytes()
    return torch.frombuffer(bytearray(content), dtype=torch.float32).view(64, 96)


main()
