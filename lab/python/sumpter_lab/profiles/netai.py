"""The logs of the scripts of "Is Network the Bottleneck of Distributed Training?" (NetAI 2020).

A log of gradients has a line of comment, the number of batches, the number of tensors, and a line
for each tensor in the order of the backward pass: microseconds since the gradient before was
ready, and bytes. A log of additions has a line for each size: bytes and seconds.
"""

from __future__ import annotations

from pathlib import Path

from sumpter._errors import ProfileError
from sumpter.profiles import checks
from sumpter.profiles.file import read_text
from sumpter.profiles.model import Layer, Profile, Tensor, check_additions

_HEAD_LINES = 3


def additions(path: str | Path) -> tuple[tuple[int, float], ...]:
    """Reads a log of additions: (bytes, seconds) by ascending size, as in Profile.add."""
    with checks.within(path, ": "):
        points = [
            (_number(number, "bytes", size, int), _number(number, "seconds", seconds, float))
            for number, (size, seconds) in _pairs(read_text(path).splitlines(), 1)
        ]
        check_additions(tuple(points))
        return tuple(points)


def parse(content: str, name: str, iteration_s: float, batch_size: int | None) -> Profile:
    """The profile in a log of gradients.

    Each tensor counts as a layer whose backward pass took the wait before its gradient; times of
    the forward pass are not known.
    """
    lines = content.splitlines()
    if len(lines) < _HEAD_LINES:
        raise ProfileError(f"expected a NetAI log of {_HEAD_LINES} lines and one a tensor")
    _number(2, "batches", lines[1], int)
    expected = _number(3, "tensors", lines[2], int)
    pairs = _pairs(lines[_HEAD_LINES:], 1 + _HEAD_LINES)
    if len(pairs) != expected:
        raise ProfileError(f"line 3 promises {expected} tensors, but {len(pairs)} lines follow")
    layers, tensors, ready_s = [], [], 0.0
    for backward, (number, (wait, size)) in enumerate(pairs):
        forward = expected - 1 - backward
        wait_s = 1e-6 * _number(number, "microseconds", wait, float)
        ready_s += wait_s
        with checks.within(f"line {number}", ": "):
            layers.append(Layer(f"layer{forward}", None, wait_s))
            nbytes = _number(number, "bytes", size, int)
            tensors.append(Tensor(f"tensor{forward}", forward, nbytes, "float32", ready_s))
    return Profile(
        name=name,
        source="netai",
        device=None,
        batch_size=batch_size,
        iteration_s=iteration_s,
        backward_s=ready_s,
        layers=tuple(reversed(layers)),
        tensors=tuple(reversed(tensors)),
    )


def _pairs(lines: list[str], first: int) -> list[tuple[int, tuple[str, str]]]:
    """The two entries of each line that is not empty, with its number."""
    pairs = []
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        left, comma, right = line.partition(",")
        if not comma:
            raise checks.refuse(f"line {number}", "two numbers with a comma between", line)
        pairs.append((number, (left, right)))
    return pairs


def _number(line: int, field: str, text: str, kind: type) -> int | float:
    """One number of a line."""
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise checks.refuse(f"line {line}, {field}", what, text.strip()) from None
