"""Rounds by BytePS' dictionary have the bytes of its definitions in NumPy, on every rank."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import byteps_codecs as byteps
import sumpter
from byteps_codecs import Codec, Draw
from common import ALL, RANK, WORLD_SIZE

ROUNDS = 5
# Four blocks, and a part of one.
ELEMENTS = 4 * byteps.BLOCK + 904
FEEDBACK = {"ef": "vanilla"}
MOMENTUM = {"ef": "vanilla", "momentum": "nesterov", "mu": 0.9}


class Case(NamedTuple):
    """What a user of BytePS writes, and what it is."""

    parameters: dict[str, object]
    codec: Codec
    feeds_back_sums: bool = False


def cases() -> list[Case]:
    found = []
    for more in ({}, FEEDBACK, MOMENTUM):
        for scaling in (True, False):
            # Without a scale errors would grow, so that error feedback is for scaled signs.
            if scaling or not more:
                one = {"compressor": "onebit", "scaling": scaling, **more}
                found.append(Case(one, byteps.onebit(scaling), bool(more)))
        for k in (0.01, 50):
            one = {"compressor": "topk", "k": k, **more}
            found.append(Case(one, byteps.topk(k), bool(more)))
        one = {"compressor": "randomk", "k": 0.05, "seed": 7, **more}
        found.append(Case(one, byteps.randomk(0.05)))
        one = {"compressor": "dithering", "k": 7, "seed": 2**33 + 5, **more}
        found.append(Case(one, byteps.dithering(7)))
    for partition in ("linear", "natural"):
        for normalize in ("max", "l2"):
            one = {"compressor": "dithering", "k": 4, "partition": partition}
            codec = byteps.dithering(4, partition, normalize)
            found.append(Case({**one, "normalize": normalize, "seed": 3}, codec))
    return found


def gradient(rank: int, number: int, round_: int) -> np.ndarray:
    """Of all magnitudes; a block of zeros, one of equal elements, and some ties."""
    random = np.random.default_rng([rank, number, round_])
    made = random.standard_normal(ELEMENTS) * 10 ** random.uniform(-3, 3, ELEMENTS)
    made[: byteps.BLOCK] = 0
    made[byteps.BLOCK : 2 * byteps.BLOCK] = -0.3 if rank else 0.7
    made[-200:] = np.round(made[-200:])
    return made.astype(np.float32)


def stream(name: str) -> int:
    """What a tensor of the NumPy interface draws by: FNV-1a of its name."""
    hashed = 0x811C9DC5
    for byte in f"allreduce.{name}:sum".encode():
        hashed = (hashed ^ byte) * 0x01000193 % (1 << 32)
    return hashed


def check(number: int, case: Case) -> None:
    name = f"case {number}"
    parameters = case.parameters
    memory = {"ef": "ef" in parameters, "mu": parameters.get("mu")}
    is_randomk = parameters["compressor"] == "randomk"
    rounds = byteps.Rounds(case.codec, WORLD_SIZE, ELEMENTS, adds_codes=is_randomk, **memory)
    for round_ in range(ROUNDS):
        gradients = [gradient(rank, number, round_) for rank in ALL]
        draw = Draw(int(parameters.get("seed", 0)), stream(name), round_, 0)
        expected = rounds.sum(gradients, draw, case.feeds_back_sums)
        found = sumpter.push_pull(gradients[RANK], average=False, name=name, compression=parameters)
        wrong = np.flatnonzero(found.view(np.uint32) != expected.view(np.uint32))
        assert not len(wrong), (
            f"{parameters}, round {round_}: {len(wrong)} of {ELEMENTS} elements, the first "
            f"{wrong[0]}: {found[wrong[0]]!r} instead of {expected[wrong[0]]!r}"
        )


sumpter.init()
for number, case in enumerate(cases()):
    check(number, case)
sumpter.shutdown()
