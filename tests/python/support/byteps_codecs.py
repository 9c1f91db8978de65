"""BytePS' codecs, error feedback and momentum in NumPy, and rounds of a job by them.

Written from what its docs/gradient-compression.md and its tests define. Each codec is a function of
a block, which is all of a partition in BytePS and 1,024 elements here, and returns what the block
decodes to. Here an operation in float32 is rounded to float32, sums for means and norms are in
float64 and in the order of docs/design/decisions/codecs.md, and random numbers are those of Philox.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

BLOCK = 1024
# In place of a rank, for numbers that all ranks share, and for those of a sum.
ALL_RANKS = 2**32 - 1
SUM = 2**32 - 2


class Draw(NamedTuple):
    """What random numbers are a function of, besides the block."""

    seed: int
    tensor: int
    round: int
    rank: int


Block = np.ndarray
# What a block decodes to, given its random words and the elements of the whole tensor.
Codec = Callable[[Block, np.ndarray, int], Block]


# --- random numbers ---


def philox(counter: Sequence[np.ndarray | int], key: Sequence[int]) -> list[np.ndarray]:
    """Philox4x32 with 7 rounds, of a counter of four words or of four arrays of words."""
    words = [np.atleast_1d(np.asarray(word, np.uint64)) for word in counter]
    low = np.uint64(2**32 - 1)
    keys = [np.uint64(key[0]), np.uint64(key[1])]
    for _ in range(7):
        one, other = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [
            (other >> np.uint64(32)) ^ words[1] ^ keys[0],
            other & low,
            (one >> np.uint64(32)) ^ words[3] ^ keys[1],
            one & low,
        ]
        keys = [keys[0] + np.uint64(0x9E3779B9) & low, keys[1] + np.uint64(0xBB67AE85) & low]
    return words


def words_of(draw: Draw, block: int) -> np.ndarray:
    """The 1,024 random words of a block."""
    seed = (draw.seed & 0xFFFFFFFF, draw.seed >> 32)
    first, second, *_ = philox((draw.tensor, draw.round, draw.rank, 0), seed)
    low, high = block & 0xFFFFFFFF, block >> 32
    counter = (np.arange(256), low, high, 0)
    return np.concatenate([np.broadcast_to(w, 256) for w in philox(counter, (first[0], second[0]))])


# --- codecs ---


def ordered_sum(x: np.ndarray) -> np.float64:
    """Lane i mod 16 adds elements i; then the upper half of the lanes is added to the lower one."""
    lanes = np.zeros(16)
    for start in range(0, len(x), 16):
        row = x[start : start + 16]
        lanes[: len(row)] += row
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return lanes[0]


def onebit(scaling: bool = False) -> Codec:
    """Signs, times the mean magnitude if `scaling`; of zeros nothing is made."""

    def decoded(x: Block, _words: np.ndarray, _elements: int) -> Block:
        mean = ordered_sum(np.abs(x).astype(np.float64)) / len(x)
        scale = np.float32(mean if scaling else bool(x.any()))
        return np.where(x < 0, -scale, scale).astype(np.float32)

    return decoded


def kept_of(k: float, block: int, elements: int) -> int:
    """How many of a block are kept: a part, or its share of so many of the tensor, rounded up."""
    return int(np.ceil(k * block)) if k < 1 else -(-int(k) * block // elements)


def topk(k: float) -> Codec:
    """The largest magnitudes, of equal ones the first."""

    def decoded(x: Block, _words: np.ndarray, elements: int) -> Block:
        largest = np.argsort(-np.abs(x), kind="stable")[: kept_of(k, len(x), elements)]
        y = np.zeros_like(x)
        y[largest] = x[largest]
        return y

    return decoded


def randomk(k: float, scaling: bool = False) -> Codec:
    """An element of each of k stretches, times the stretch's length if `scaling`."""

    def decoded(x: Block, words: np.ndarray, elements: int) -> Block:
        kept = kept_of(k, len(x), elements)
        borders = np.arange(kept + 1) * len(x) // kept
        lengths = np.diff(borders)
        chosen = borders[:-1] + (words[:kept] * lengths.astype(np.uint64) >> np.uint64(32)).astype(
            np.int64
        )
        y = np.zeros_like(x)
        y[chosen] = x[chosen] * (lengths.astype(np.float32) if scaling else np.float32(1))
        return y

    return decoded


def dithering(k: int, partition: str = "linear", normalize: str = "max") -> Codec:
    """The level above or below, such that the expectation is the element."""

    def decoded(x: Block, words: np.ndarray, _elements: int) -> Block:
        if normalize == "max":
            scale = np.abs(x).max()
        else:
            squares = ordered_sum(x.astype(np.float64) ** 2)
            scale = np.float32(min(np.sqrt(squares), np.finfo(np.float32).max))
        if scale == 0:
            return np.zeros_like(x)
        parts = np.float32(k) if partition == "linear" else np.float32(2.0 ** (k - 1))
        y = np.abs(x) / scale * parts
        if partition == "linear":
            low, length = np.floor(y), np.ones_like(y)
        else:
            # The power of two at or below, and 0 below 1.
            mantissa, exponent = np.frexp(y)
            del mantissa
            low = np.where(y < 1, 0, np.ldexp(np.float32(1), exponent - 1)).astype(np.float32)
            length = np.where(low == 0, 1, low).astype(np.float32)
        random = (words[: len(x)] >> np.uint64(8)).astype(np.float64) / 2**24
        is_up = random < (y.astype(np.float64) - low) / length
        levels = (low + length * is_up).astype(np.float32)
        return np.copysign(levels / parts * scale, x)

    return decoded


def decoded(codec: Codec, draw: Draw, x: np.ndarray) -> np.ndarray:
    """What a tensor decodes to, block by block."""
    blocks = [
        codec(x[start : start + BLOCK], words_of(draw, start // BLOCK), len(x))
        for start in range(0, len(x), BLOCK)
    ]
    return np.concatenate(blocks)


# --- rounds ---


class Memory:
    """Nesterov momentum, then error feedback, around a codec: one rank's, or without either."""

    def __init__(self, elements: int, ef: bool = False, mu: float | None = None) -> None:
        self._mu = None if mu is None else np.float32(mu)
        self._velocity = np.zeros(elements, np.float32)
        self.error = np.zeros(elements, np.float32) if ef else None

    def decoded(self, codec: Codec, draw: Draw, gradient: np.ndarray) -> np.ndarray:
        """What the others get of a gradient."""
        if self._mu is not None:
            self._velocity = self._mu * self._velocity + gradient
            gradient = gradient + self._mu * self._velocity
        if self.error is not None:
            gradient = gradient + self.error
        sent = decoded(codec, draw, gradient)
        if self.error is not None:
            self.error = gradient - sent
        return sent


class Rounds:
    """The rounds of one tensor, of which every rank gets the same sums."""

    def __init__(
        self, codec: Codec, ranks: int, elements: int, *, adds_codes: bool = False, **memory: object
    ) -> None:
        self._codec, self._elements, self._adds_codes = codec, elements, adds_codes
        self._memories = [Memory(elements, **memory) for _ in range(ranks)]

    def sum(
        self, gradients: Sequence[np.ndarray], draw: Draw, feeds_back_sums: bool = False
    ) -> np.ndarray:
        """The next round; of the fields of `draw` all but the rank count."""
        sent = [
            memory.decoded(
                self._codec, draw._replace(rank=ALL_RANKS if self._adds_codes else rank), gradient
            )
            for rank, (memory, gradient) in enumerate(zip(self._memories, gradients, strict=True))
        ]
        total = sent[0]
        for one in sent[1:]:
            total = total + one
        if self._adds_codes:
            return total
        result = decoded(self._codec, draw._replace(rank=SUM), total)
        if feeds_back_sums:
            self._carry(total - result)
        return result

    def _carry(self, lost: np.ndarray) -> None:
        """Each rank keeps what sums of an equal share of the blocks have lost."""
        blocks, ranks = -(-self._elements // BLOCK), len(self._memories)
        for rank, memory in enumerate(self._memories):
            share = slice(*(blocks * i // ranks * BLOCK for i in (rank, rank + 1)))
            assert memory.error is not None
            memory.error[share] += lost[share]
