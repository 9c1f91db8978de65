"""What is trained, and what is compared; free of torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sumpter._core.compression.codecs import canonical, has_momentum

# Nesterov's, in the optimizer, or for codecs that have it themselves in the codec.
MOMENTUM = 0.9
WARM_UP = 0.1  # of the steps
LOWEST_RATE = 0.01  # of the highest


@dataclass(frozen=True)
class Training:
    """How a model is trained: the same for all codecs."""

    model: str
    steps: int
    batch: int  # of all workers together
    rate: float  # of learning, the highest

    def rate_at(self, step: int) -> float:
        """The part of the highest rate: it rises in a line, then falls as a cosine does."""
        rising = max(1, round(WARM_UP * self.steps))
        if step < rising:
            return (step + 1) / rising
        part = (step - rising) / max(1, self.steps - rising)
        return LOWEST_RATE + (1 - LOWEST_RATE) * (1 + math.cos(math.pi * part)) / 2


# With these all codecs and three seeds take minutes on two cores, and training ends while the loss
# still says something: of digits that are known by heart it is next to nothing, and a difference in
# rounding at the start makes several percent of that.
TRAININGS = {
    "digits": Training("digits", steps=176, batch=64, rate=0.02),
    "gpt": Training("gpt", steps=200, batch=16, rate=0.3),
}
QUICK = {
    "digits": Training("digits", steps=8, batch=16, rate=0.02),
    "gpt": Training("gpt", steps=4, batch=8, rate=0.3),
}


@dataclass(frozen=True)
class Case:
    """A way to send gradients."""

    name: str
    codec: str = "off"
    # Of the first parameters, how much they differ from those of the other cases.
    nudge: float = 0.0

    @property
    def has_momentum(self) -> bool:
        """Whether momentum is the codec's."""
        return has_momentum(self.codec)


# What all others are compared with.
REFERENCE = Case("off")
# What training makes of a difference that means nothing: about a rounding of float32.
CONTROL = Case("off, nudged", nudge=1e-6)

# Those that lose little, and those that BytePS has for slow networks, with its momentum.
DEFAULT_CODECS = (
    "bf16",
    "int8",
    "fp8",
    "dithering:bits=4,ef=true",
    "powersgd:rank=4",
    f"onebit:momentum={MOMENTUM}",
    f"topk:k=0.01,momentum={MOMENTUM}",
)


@dataclass(frozen=True)
class Spec:
    """All of a run."""

    trainings: tuple[Training, ...]
    codecs: tuple[str, ...]
    seeds: int
    workers: int
    servers: int
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def cases(self) -> list[Case]:
        """In the order in which they train."""
        return [REFERENCE, CONTROL, *(Case(codec, codec) for codec in self.codecs)]

    @property
    def total_steps(self) -> int:
        """Of all trainings."""
        each = len(self.cases) * self.seeds
        return sum(training.steps * each for training in self.trainings)


def codecs_of(parts: Sequence[str]) -> tuple[str, ...]:
    """Codecs in their canonical form, each once. ConfigError says what is wrong with one."""
    found = (canonical(part) for part in parts)
    return tuple(dict.fromkeys(found))
