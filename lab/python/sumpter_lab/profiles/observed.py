"""From what was observed of some iterations to a profile: medians, without torch or a clock."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sumpter.profiles.model import Layer, Profile, Tensor
from sumpter_lab import _native

# From what fits into the nearest cache to what fits into few.
_ADDITION_BYTES = tuple(4096 * 4**step for step in range(7))
_ADDITION_TURN_BYTES = 16 << 20
_ADDITION_TURNS = 3


@dataclass(frozen=True)
class Forward:
    """One call of a layer. Times in seconds since the iteration began."""

    layer: int
    parent: int | None  # index of the call during which this one was made
    begun_s: float
    ended_s: float


@dataclass(frozen=True)
class Iteration:
    """One iteration. Times in seconds since it began."""

    seconds: float
    calls: tuple[Forward, ...]
    backward: tuple[tuple[int, float], ...]  # layer and when its backward pass began
    ready: dict[int, float]  # when the gradient of each tensor was complete


@dataclass(frozen=True)
class Parameter:
    """What a tensor is, apart from times."""

    name: str
    layer: int
    bytes: int
    dtype: str


def profile_of(
    name: str,
    layers: Sequence[str],
    parameters: Sequence[Parameter],
    iterations: Sequence[Iteration],
    *,
    device: str | None = None,
    batch_size: int | None = None,
    add: tuple[tuple[int, float], ...] | None = None,
) -> Profile:
    """The profile of some iterations: the median of each figure.

    Without any call of a layer, times of the forward pass are unknown. `layers` are named in
    forward order; `parameters` are those that got a gradient in every iteration, in any order.
    """
    forward = [_exclusive(one, len(layers)) for one in iterations if one.calls]
    begun_s = [_backward_begin(one) for one in iterations]
    backward = [_segments(one, len(layers)) for one in iterations]
    tensors = []
    for index, parameter in enumerate(parameters):
        ready_s = statistics.median(
            one.ready[index] - start_s for one, start_s in zip(iterations, begun_s, strict=True)
        )
        tensors.append(Tensor(**vars(parameter), ready_s=ready_s))
    # Medians of different figures may come from different iterations, and need not fit together.
    backward_s = max(tensor.ready_s for tensor in tensors)
    iteration_s = max(backward_s, statistics.median(one.seconds for one in iterations))
    return Profile(
        name=name,
        source="recorded",
        device=device,
        batch_size=batch_size,
        iteration_s=iteration_s,
        backward_s=backward_s,
        layers=tuple(
            Layer(
                layer,
                statistics.median(times[index] for times in forward) if forward else None,
                statistics.median(times[index] for times in backward),
            )
            for index, layer in enumerate(layers)
        ),
        tensors=tuple(sorted(tensors, key=lambda tensor: tensor.layer)),
        add=add,
    )


def measure_additions() -> tuple[tuple[int, float], ...]:
    """Seconds that one core takes to add arrays of float32, by bytes of one array."""
    return tuple((size, _addition_s(size)) for size in _ADDITION_BYTES)


def _addition_s(size_bytes: int) -> float:
    # Written to, so that they are real memory and not one page of zeros.
    total, other = (np.ones(size_bytes // 4, dtype=np.float32) for _ in range(2))
    step = ("sum", "float32", total.ctypes.data, other.ctypes.data, 0, total.size)
    repeats = max(1, _ADDITION_TURN_BYTES // size_bytes)
    _native.bench_steps([step], 1)
    turns = [_native.bench_steps([step], repeats) for _ in range(_ADDITION_TURNS)]
    return min(turns) / repeats


def _exclusive(one: Iteration, layers: int) -> list[float]:
    """The forward time of each layer, without that of layers which it calls."""
    times_s = [0.0] * layers
    for call in one.calls:
        duration_s = call.ended_s - call.begun_s
        times_s[call.layer] += duration_s
        if call.parent is not None:
            times_s[one.calls[call.parent].layer] -= duration_s
    return [max(0.0, time_s) for time_s in times_s]


def _backward_begin(one: Iteration) -> float:
    return min((*(moment_s for _, moment_s in one.backward), *one.ready.values()))


def _segments(one: Iteration, layers: int) -> list[float]:
    """The backward time of each layer: until that of another one begins, or all gradients are."""
    begins = sorted(one.backward, key=lambda event: event[1])
    ends_s = [moment_s for _, moment_s in begins[1:]]
    ends_s.append(max(one.ready.values()))
    times_s = [0.0] * layers
    for (layer, begun_s), ended_s in zip(begins, ends_s, strict=True) if begins else ():
        times_s[layer] += max(0.0, ended_s - begun_s)
    return times_s
