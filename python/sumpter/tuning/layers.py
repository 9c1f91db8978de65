"""What is known of a model's layers: from the tensors that a job sums, and from a profile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sumpter.profiles import Profile
from sumpter.tuning.points import embedded, uniform_layers

if TYPE_CHECKING:
    from sumpter._core.tensor import TensorUse


@dataclass(frozen=True)
class Summed:
    """A tensor that a job sums, as rank 0 knows it."""

    bytes: int
    priority: int  # higher goes first
    ready_s: float | None = None  # after the first tensor of a step, if it is known


def in_each_step(uses: Iterable[TensorUse], steps: int) -> list[Summed]:
    """The tensors of the model: those that most of these steps summed.

    What is summed once in a while, such as metrics, is none of it.
    """
    often = (use for use in uses if use.rounds > steps / 2)
    return [
        Summed(math.prod(one.shape) * _item_bytes(one.dtype), one.priority, one.ready_s)
        for one in often
    ]


def _item_bytes(dtype: str) -> int:
    """Of an element type by name, such as 2 of `bfloat16`."""
    return int(dtype.lstrip("abcdefghijklmnopqrstuvwxyz")) // 8


def of_tensors(tensors: Sequence[Summed], compute_s: float) -> np.ndarray:
    """Shape (BUCKETS, 3): a layer for each tensor, in the order of priority.

    The backward time of a layer is the time from when the gradients behind it were ready until its
    own were; that of the last layer, before which nothing is ready, is the average. A third of
    the compute is the forward pass, in proportion. `compute_s`, the forward and the backward pass
    in seconds, is spread evenly over the layers where gradients were not seen to get ready one
    after the other. Without priorities they were summed as they got ready, so the last one is what
    the forward pass needs first.
    """
    if not tensors:
        return uniform_layers(compute_s, 1.0)
    rows = np.zeros((len(tensors), 3))
    if are_ordered(tensors):
        in_order = sorted(tensors, key=lambda one: -one.priority)
    else:
        in_order = list(reversed(tensors))
    backward = _backward_times([tensor.ready_s for tensor in in_order])
    if backward is None:
        backward = np.full(len(tensors), compute_s * 2 / 3 / len(tensors))
    rows[:, 0], rows[:, 1] = backward / 2, backward
    rows[:, 2] = [tensor.bytes for tensor in in_order]
    return embedded(rows)


def _backward_times(ready: Sequence[float | None]) -> np.ndarray | None:
    """Of layers in the order of the forward pass; None if they are not known."""
    known = [at for at in ready if at is not None]
    if len(known) < max(2, len(ready)) or max(known) == min(known):
        return None
    # A layer is ready no sooner than the one behind it.
    at = np.maximum.accumulate(np.array(known)[::-1])[::-1]
    times = at - np.append(at[1:], at[-1])
    times[-1] = (at[0] - at[-1]) / (len(at) - 1)
    return times


def are_ordered(tensors: Sequence[Summed]) -> bool:
    """Whether their priorities differ: then the next forward pass begins while they travel."""
    return len({tensor.priority for tensor in tensors}) > 1


def of_profile(profile: Profile) -> np.ndarray:
    """Shape (BUCKETS, 3): the profile's own times and sizes."""
    count = len(profile.layers)
    rows = np.zeros((count, 3))
    rows[:, 0] = profile.forward_times_s
    ready = np.zeros(count)
    for tensor in profile.tensors:
        rows[tensor.layer, 2] += tensor.bytes
        ready[tensor.layer] = max(ready[tensor.layer], tensor.ready_s)
    # A layer without gradients is done when the one behind it is.
    for layer in reversed(range(count)):
        ready[layer] = max(ready[layer], ready[layer + 1] if layer + 1 < count else 0.0)
    rows[:, 1] = ready - np.append(ready[1:], 0.0)
    return embedded(rows)


def with_bytes(layers: np.ndarray, total: float) -> np.ndarray:
    """The same layers with so many bytes together, as when gradients are sent compressed."""
    return layers * np.array([1.0, 1.0, total / max(layers[:, 2].sum(), 1.0)])
