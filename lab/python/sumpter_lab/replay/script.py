"""What a worker plays: a profile with its sizes divided and its times multiplied."""

from __future__ import annotations

from dataclasses import dataclass

from sumpter.profiles import Profile

ELEMENT_BYTES = 4


@dataclass(frozen=True)
class Script:
    """The times of one iteration, and the tensors that it sums. Times in seconds."""

    forward_s: tuple[float, ...]  # by layer
    tensors_of: tuple[tuple[int, ...], ...]  # by layer
    shapes: tuple[tuple[int, ...], ...]  # of float32 tensors, in forward order
    ready: tuple[tuple[int, float], ...]  # tensor and time since the backward pass began, in order
    backward_s: float
    scale: float  # what sizes were divided by

    @property
    def bytes(self) -> int:
        """The bytes of all tensors."""
        return ELEMENT_BYTES * sum(elements for (elements,) in self.shapes)

    @property
    def compute_s(self) -> float:
        """One iteration if sums took no time."""
        return sum(self.forward_s) + self.backward_s


def script_of(profile: Profile, scale: float, slowdown: float) -> Script:
    """The script of a profile with sizes divided by `scale` and times multiplied by `slowdown`.

    Element types count only by their bytes: all tensors are of float32.
    """
    slow = profile.slower(slowdown)
    tensors_of: list[list[int]] = [[] for _ in slow.layers]
    for index, tensor in enumerate(slow.tensors):
        tensors_of[tensor.layer].append(index)
    return Script(
        forward_s=slow.forward_times_s,
        tensors_of=tuple(map(tuple, tensors_of)),
        shapes=tuple(
            (max(1, round(tensor.bytes / ELEMENT_BYTES / scale)),) for tensor in slow.tensors
        ),
        ready=tuple((index, slow.tensors[index].ready_s) for index in slow.ready_order),
        backward_s=slow.backward_s,
        scale=scale,
    )
