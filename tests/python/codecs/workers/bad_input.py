"""What cannot be compressed is an error on every rank that names it; the job goes on after each.

NaNs reach every rank, or their block counts as zeros, and no later round knows of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

import sumpter
import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE, raises
from sumpter import Compression, ConfigError, MismatchError

BLOCK = 1024
# Three blocks, and a part of one.
COUNT = 3 * BLOCK + 100
CODECS = (
    *("fp16", "bf16", "int8", "fp8", "onebit", "topk:k=0.1", "randomk:k=0.1"),
    *("dithering:bits=8", "int8:momentum=0.5", "int8:two_way=false"),
)


def gradient(rank: int, round_: int = 0) -> np.ndarray:
    made = np.random.default_rng([rank, round_]).standard_normal(COUNT)
    return made.astype(np.float32)


def optimized(codec: object, shape: tuple[int, ...] = (40, 50)) -> Callable[[], object]:
    """A step of an optimizer with this codec, of one parameter."""

    def step() -> None:
        weight = torch.nn.Parameter(torch.zeros(shape))
        sgd = torch.optim.SGD([weight], 0.1)
        optimizer = hvd.DistributedOptimizer(sgd, [("layer.weight", weight)], compression=codec)
        weight.sum().backward()
        optimizer.step()

    return step


def check_goes_on(what: str) -> None:
    """The next operation of all ranks is right."""
    summed = sumpter.push_pull(np.full(7, RANK, np.float32), average=False, name=f"after {what}")
    assert (summed == sum(ALL)).all(), what


def check_counts() -> None:
    """A k of none, and one of more elements than there are."""
    own, tensor = gradient(RANK), torch.from_numpy(gradient(RANK))
    none: list[Callable[[], object]] = [
        lambda: sumpter.push_pull(own, name="none", compression="topk:k=0"),
        lambda: hvd.allreduce(tensor, name="none", compression={"compressor": "topk", "k": 0}),
        lambda: Compression.randomk(k=0),
        optimized("randomk:k=0"),
    ]
    for call in none:
        with raises(ConfigError, "k=0", "give a part"):
            call()
    where = f"rank {RANK}"
    for codec in ("topk", "randomk"):
        many = f"{codec}:k=4000"
        with raises(MismatchError, f"numpy {codec}", where, f"codec {codec}", "k=4000", "3172"):
            sumpter.push_pull(own, name=f"numpy {codec}", compression=many)
        with raises(MismatchError, f"torch {codec}", where, f"codec {codec}", "k=4000", "3172"):
            hvd.push_pull(tensor, name=f"torch {codec}", compression=many)
        with raises(MismatchError, "layer.weight", where, f"codec {codec}", "k=4000", "2000"):
            optimized(many)()
        check_goes_on(many)


def check_integers() -> None:
    whole = torch.arange(COUNT, dtype=torch.int64)
    for codec in ("int8", "bf16", "topk:k=0.1"):
        word = codec.partition(":")[0]
        with raises(MismatchError, "whole", f"rank {RANK}", f"codec {word}", "int64"):
            hvd.allreduce(whole, op=hvd.Sum, name="whole", compression=codec)
        with raises(MismatchError, "numbers", f"rank {RANK}", f"codec {word}", "int32"):
            sumpter.push_pull(whole.numpy().astype(np.int32), name="numbers", compression=codec)
        check_goes_on(codec)


def check_ranks_that_differ() -> None:
    """Another codec, another argument of it, or none on one rank."""
    for number, (one, other) in enumerate(
        (
            ("int8", "fp8"),
            ("topk:k=0.1", "topk:k=0.2"),
            ("int8", "int8:ef=false"),
            ("dithering:bits=4,seed=1", "dithering:bits=4,seed=2"),
            ("bf16", "off"),
        )
    ):
        codec = other if RANK else one
        shown = [f"rank {rank} declared" for rank in (0, 1)] + [f"compressed by {one}"]
        shown += [f"compressed by {other}"] if other != "off" else []
        with raises(MismatchError, f"differ {number}", *shown):
            sumpter.push_pull(gradient(RANK), name=f"differ {number}", compression=codec)
        with raises(MismatchError, "layer.weight", *shown):
            optimized(codec, (40 + number, 50))()
        check_goes_on(f"ranks that differ {number}")


def check_nans_pass(codec: str) -> None:
    """Every rank sees that something was wrong in the block; nothing of it is left."""
    name, wrong = f"passed by {codec}", gradient(RANK)
    if RANK == 1:
        wrong[5] = np.nan
        wrong[BLOCK + 7] = np.inf
    found = sumpter.push_pull(wrong, average=False, name=name, compression=codec)
    is_bad = ~np.isfinite(found)
    for block in (0, 1):
        assert is_bad[block * BLOCK :][:BLOCK].any(), f"{codec} hides block {block}"
    assert not is_bad[2 * BLOCK :].any(), f"{codec}: what is wrong has spread"
    for round_ in range(1, 4):
        later = sumpter.push_pull(
            gradient(RANK, round_), average=False, name=name, compression=codec
        )
        assert np.isfinite(later).all(), f"{codec} remembers what was wrong"


def check_nans_skip(codec: str) -> None:
    """The block of the rank that has one counts as zeros, in this round alone."""
    codec += ("," if ":" in codec else ":") + "nan=skip"
    wrong = gradient(RANK)
    if RANK == 1:
        wrong[5] = -np.inf
    skipped = [gradient(rank) for rank in ALL]
    skipped[1][:BLOCK] = 0
    for round_ in range(3):
        # As if that rank had had zeros from the beginning.
        own, other = (wrong, skipped[RANK]) if round_ == 0 else [gradient(RANK, round_)] * 2
        found, expected = (
            sumpter.push_pull(x, average=False, name=f"{word} {codec}", compression=codec)
            for x, word in ((own, "with"), (other, "without"))
        )
        assert np.isfinite(found).all(), codec
        # Random numbers are another tensor's.
        if not codec.startswith(("dithering", "randomk")):
            np.testing.assert_array_equal(found, expected, err_msg=f"{codec}, round {round_}")


def check_nans_of_an_optimizer() -> None:
    """A step that is skipped, as by a GradScaler, leaves the next one as it would have been."""
    weight = torch.nn.Parameter(torch.zeros(40, 50))
    sgd = torch.optim.SGD([weight], 1.0)
    optimizer = hvd.DistributedOptimizer(sgd, [("scaled", weight)], compression="int8")
    for step in range(4):
        optimizer.zero_grad()
        factor = torch.full((40, 50), float("inf") if (RANK, step) == (1, 1) else 1.0)
        (weight * factor).sum().backward()
        optimizer.synchronize()
        is_finite = bool(weight.grad.isfinite().all())
        assert is_finite == (step != 1), step
        if is_finite:
            with optimizer.skip_synchronize():
                optimizer.step()
    assert torch.equal(weight.detach(), torch.full((40, 50), -3.0))


hvd.init()
assert WORLD_SIZE > 1
check_counts()
check_integers()
check_ranks_that_differ()
for codec in CODECS:
    check_nans_pass(codec)
    check_nans_skip(codec)
check_nans_of_an_optimizer()
hvd.shutdown()
