"""Profiles of published architectures, with times in proportion to arithmetic.

They are for questions where a recorded profile is not at hand. Real layers are not equally
efficient: the same device may do a large convolution ten times faster, for its arithmetic, than a
batch norm.
"""

from __future__ import annotations

import math

from sumpter.profiles import checks
from sumpter.profiles.model import Layer, Profile, Tensor
from sumpter_lab.profiles.architectures import ARCHITECTURES, elements, operations

# What a V100 reached in single precision on ResNet-50 for the authors of "Is Network the Bottleneck
# of Distributed Training?": 32 images in 0.128 s, at 3 passes of 2 x 3.86e9 operations an image.
FLOPS_PER_S = 5.8e12
# Of the backward pass over the forward pass: gradients of the inputs and of the weights.
_BACKWARD = 2
_OPERATIONS_PER_MULTIPLY_ADD = 2

NAMES = tuple(ARCHITECTURES)


def published(
    name: str, batch_size: int | None = None, flops_per_s: float = FLOPS_PER_S
) -> Profile:
    """The profile of one of NAMES on a device that does `flops_per_s` operations a second.

    Without a batch size, one that is usual for the model is taken. Gradients are of float32; those
    of a layer are ready when the layer's backward pass ends. Raises ProfileError for an unknown
    name or an impossible number.
    """
    checks.choice("name", name, NAMES)
    batch_size = ARCHITECTURES[name].batch_size if batch_size is None else batch_size
    checks.count("batch_size", batch_size)
    if not 0 < flops_per_s < math.inf:
        raise checks.refuse("flops_per_s", "a number above 0", flops_per_s)
    parts = operations(name)
    multiply_add_s = batch_size * _OPERATIONS_PER_MULTIPLY_ADD / flops_per_s
    times_s = [part.multiply_adds * multiply_add_s for part in parts]
    ends_s = _ends(times_s)
    return Profile(
        name=name,
        source="published",
        device=f"{flops_per_s / 1e12:g} TFLOP/s",
        batch_size=batch_size,
        iteration_s=sum(times_s) + ends_s[0],
        backward_s=ends_s[0],
        layers=tuple(
            Layer(part.name, time_s, _BACKWARD * time_s)
            for part, time_s in zip(parts, times_s, strict=True)
        ),
        tensors=tuple(
            Tensor(parameter, index, 4 * elements(shape), "float32", ends_s[index])
            for index, part in enumerate(parts)
            for parameter, shape in part.parameters
        ),
    )


def _ends(times_s: list[float]) -> list[float]:
    """When the backward pass of each layer ends; it begins with the last one."""
    ends_s, end_s = [], 0.0
    for time_s in reversed(times_s):
        end_s += _BACKWARD * time_s
        ends_s.append(end_s)
    return ends_s[::-1]
