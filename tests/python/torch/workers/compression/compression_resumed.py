"""Trains with codecs, in one job or in two: "through", "begin" FOLDER, or "resume" FOLDER."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import torch

import sumpter
import sumpter.torch as hvd
from common import RANK, leave_result, raises

CODECS = (
    *("int8", "onebit:momentum=0.9", "topk:k=0.1", "int8:sum_ef=true", "powersgd:rank=2", "bf16"),
    *("randomk:k=0.2", "dithering:bits=4", "dithering:bits=4,ef=true,seed=9"),
)
OF_ARRAYS = ("onebit:momentum=0.5", "topk:k=0.01", "dithering:bits=2")
# Within a stretch of the same learning rate, and so that the rate changes with the next step.
STOPS_AFTER, STEPS = 4, 8

part, *folder = sys.argv[1:]
heard: list[str] = []
logging.getLogger("sumpter").addFilter(lambda record: bool(heard.append(record.getMessage())) or 1)


def make(codec: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(96, 300), torch.nn.Tanh(), torch.nn.Linear(300, 96))
    sgd = torch.optim.SGD(model.parameters(), 0.2)
    named = [(f"{codec}.{name}", parameter) for name, parameter in model.named_parameters()]
    return model, hvd.DistributedOptimizer(sgd, named, compression=codec)


def take(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    generator = torch.Generator().manual_seed(100 * step + RANK)
    inputs = torch.randn(16, 96, generator=generator)
    optimizer.param_groups[0]["lr"] = 0.2 if step < STOPS_AFTER else 0.05
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), torch.roll(inputs, 3, 1).tanh()).backward()
    optimizer.step()


def kept_of(optimizer: torch.optim.Optimizer) -> dict[str, dict[str, object]]:
    return optimizer.state_dict().get("compression", {})


def train() -> None:
    """All codecs, some steps of each, and tensors of the NumPy interface."""
    begun = {codec: make(codec) for codec in CODECS}
    totals = []
    steps = {"through": range(STEPS), "begin": range(STOPS_AFTER)}
    if part == "resume":
        saved = torch.load(f"{folder[0]}/{RANK}.pt", weights_only=True)
        for codec, (model, optimizer) in begun.items():
            model.load_state_dict(saved[codec]["model"])
            optimizer.load_state_dict(saved[codec]["optimizer"])
            again, wanted = kept_of(optimizer), saved[codec]["optimizer"].get("compression", {})
            assert again.keys() == wanted.keys(), codec
            for name, entry in wanted.items():
                same = {key: _equal(again[name][key], value) for key, value in entry.items()}
                assert all(same.values()), (codec, name, same)
        arrays = np.load(f"{folder[0]}/{RANK}.npy", allow_pickle=True).item()
        sumpter.load_compression_state(arrays)
        # Random numbers do not depend on tensors' numbers, which are others then.
        sumpter.push_pull(np.ones(3, np.float32), name="shifts the numbers")
    for step in steps.get(part, range(STOPS_AFTER, STEPS)):
        for model, optimizer in begun.values():
            take(model, optimizer, step)
        own = np.random.default_rng(10 * step + RANK).normal(size=50_000).astype(np.float32)
        for codec in OF_ARRAYS:
            totals.append(sumpter.push_pull(own, name=codec, compression=codec).tobytes())
    if part == "begin":
        states = {
            codec: {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            for codec, (model, optimizer) in begun.items()
        }
        assert not kept_of(begun["bf16"][1])
        torch.save(states, f"{folder[0]}/{RANK}.pt")
        mine = {k: v for k, v in sumpter.compression_state().items() if not k.startswith("Grad")}
        assert len(mine) == len(OF_ARRAYS) and all(entry["rank"] == RANK for entry in mine.values())
        np.save(f"{folder[0]}/{RANK}.npy", np.array(mine, dtype=object))
        check_others(states)
        return
    weights = [p.detach().numpy().tobytes() for m, _ in begun.values() for p in m.parameters()]
    leave_result(b"".join([*weights, *totals[-len(OF_ARRAYS) * (STEPS - STOPS_AFTER) :]]))


def _equal(one: object, other: object) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def check_others(states: dict[str, dict[str, dict[str, object]]]) -> None:
    """What rank 0 had left out is not taken over by others, its momentum is."""
    torch.save(states, f"{folder[0]}/check.{RANK}.pt")
    hvd.barrier()
    of_first = torch.load(f"{folder[0]}/check.0.pt", weights_only=True)
    codec = "onebit:momentum=0.9"
    _, optimizer = make(codec)
    heard.clear()
    optimizer.load_state_dict(of_first[codec]["optimizer"])
    dropped = [text for text in heard if "what rank 0 had left out of 2 tensors" in text]
    assert len(dropped) == (RANK != 0), heard
    for name, entry in kept_of(optimizer).items():
        wanted = of_first[codec]["optimizer"]["compression"][name]
        assert torch.equal(entry["momentum"], wanted["momentum"])
        assert (entry["residual"] is not None) == (RANK == 0)
    # A broadcast leaves each rank's own as it is.
    _, optimizer = make(codec)
    optimizer.load_state_dict(states[codec]["optimizer"])
    heard.clear()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for name, entry in kept_of(optimizer).items():
        wanted = states[codec]["optimizer"]["compression"][name]
        assert torch.equal(entry["residual"], wanted["residual"]) and entry["rank"] == RANK
    assert not [text for text in heard if "left out" in text]


def check_misuse() -> None:
    codec = "topk:k=0.1"
    own = np.ones(20_000, np.float32)
    for name in ("short", "busy"):
        sumpter.push_pull(own, name=name, compression=codec)
    kept = sumpter.compression_state()
    entry = kept["allreduce.short"]
    assert entry["residual"].shape == own.shape and entry["momentum"] is None
    short = {**kept, "allreduce.short": {**entry, "residual": entry["residual"][1:]}}
    sumpter.load_compression_state(short)
    with raises(sumpter.MismatchError, "tensor 'allreduce.short'", "80000", "79996 were given"):
        sumpter.push_pull(own, name="short", compression=codec)
    with raises(sumpter.ConfigError, "'allreduce.busy'", "rank, residual and momentum"):
        sumpter.load_compression_state({"allreduce.busy": {"residual": None}})
    handle = None
    if RANK == 0:
        handle = sumpter.push_pull_async(own, name="busy", compression=codec)
        with raises(sumpter.MismatchError, "tensor 'allreduce.busy': a round is under way"):
            sumpter.compression_state()
    sumpter.barrier()
    handle = handle or sumpter.push_pull_async(own, name="busy", compression=codec)
    sumpter.synchronize(handle)
    assert sumpter.compression_state()["allreduce.busy"]["residual"].any()


Path(folder[0] if folder else ".").mkdir(exist_ok=True)
hvd.init()
train()
if part == "begin":
    check_misuse()
hvd.shutdown()
