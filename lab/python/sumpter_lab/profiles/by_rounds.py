"""The profile of a training script in any framework, from the rounds that it begins alone.

A script that runs as a job of one worker begins each gradient's round when the gradient is there,
or when its framework hands it over, and the job's timeline says when. What comes before is not
seen: the backward pass is taken to be two thirds of an iteration, as it has twice the arithmetic of
a forward pass, and no shorter than from the first gradient to the last.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from sumpter._calls.collective import ALL_REDUCE
from sumpter._core.names import SUMS
from sumpter._errors import ProfileError
from sumpter.profiles import Profile
from sumpter.profiles.model import ELEMENT_BYTES
from sumpter_lab.profiles import observed

BACKWARD_SHARE = 2 / 3

_MICRO = 1e-6


class _Round(NamedTuple):
    """Of one tensor. Times in seconds since the timeline began."""

    ready_s: float
    done_s: float


class _Gradient(NamedTuple):
    name: str
    bytes: int
    dtype: str
    rounds: list[_Round]


def profile_of(timeline: Path, name: str, iterations: int, warmup: int) -> Profile:
    """The profile of as many iterations after the warm-up.

    Gradients are the tensors of floats that are reduced most often. Raises ProfileError if there
    are not enough rounds.
    """
    reduced = _read(timeline)
    if not reduced:
        raise ProfileError(
            "no module of PyTorch was called in training mode, and Sumpter reduced "
            "no tensor of floats"
        )
    most = max(len(one.rounds) for one in reduced)
    # An iteration ends where the next one is seen.
    seen = max(0, most - warmup - 1)
    if seen < iterations:
        raise ProfileError(
            f"seen {seen} of {iterations} iterations after {warmup} of warm-up: an iteration ends "
            "when the next one reduces its gradients"
        )
    gradients = [one for one in reduced if len(one.rounds) == most]
    steps = [_iteration(gradients, warmup + number) for number in range(iterations)]
    ready_s = [
        statistics.median(step.ready[index] for step in steps) for index in range(len(gradients))
    ]
    order = sorted(range(len(gradients)), key=lambda index: -ready_s[index])
    layer_of = {index: layer for layer, index in enumerate(order)}
    return observed.profile_of(
        name,
        [gradients[index].name for index in order],
        [
            observed.Parameter(one.name, layer_of[index], one.bytes, one.dtype)
            for index, one in enumerate(gradients)
        ],
        [_with_layers(step, layer_of) for step in steps],
        add=observed.measure_additions(),
    )


def _iteration(gradients: list[_Gradient], number: int) -> observed.Iteration:
    """One iteration, in seconds since its backward pass is taken to have begun."""
    rounds = [one.rounds[number] for one in gradients]
    first, last = min(one.ready_s for one in rounds), max(one.ready_s for one in rounds)
    done = max(one.done_s for one in rounds)
    following = min(one.rounds[number + 1].ready_s for one in gradients)
    # What the job of one takes for its rounds is not of the iteration.
    seconds = following - first - (done - last)
    begun = last - max(last - first, BACKWARD_SHARE * seconds)
    ready = {index: one.ready_s - begun for index, one in enumerate(rounds)}
    return observed.Iteration(max(seconds, last - begun), (), (), ready)


def _with_layers(step: observed.Iteration, layer_of: dict[int, int]) -> observed.Iteration:
    """Each gradient is of a layer whose backward pass begins with the gradient before."""
    begins, begun = [], 0.0
    for index in sorted(step.ready, key=lambda index: step.ready[index]):
        begins.append((layer_of[index], begun))
        begun = step.ready[index]
    return observed.Iteration(step.seconds, (), tuple(begins), step.ready)


def _read(timeline: Path) -> list[_Gradient]:
    try:
        text = timeline.read_text()
    except OSError:
        return []
    # A script that has ended without shutdown() leaves the list open.
    closed = text if text.rstrip().endswith("]") else f"{text.rstrip().rstrip(',')}]"
    names: dict[int, str] = {}
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    waits: dict[int, float] = {}
    for event in json.loads(closed):
        number = event.get("tid")
        if event["name"] == "thread_name":
            names[number] = event["args"]["name"]
        elif event["name"] == "NEGOTIATE_ALLREDUCE":
            waits[number] = event["ts"]
        elif event["name"] == "ALLREDUCE" and event["args"].get("dtype") in ELEMENT_BYTES:
            found[number].append({**event, "ready": waits.get(number, event["ts"])})
    return [
        _Gradient(
            names[number].removeprefix(f"{ALL_REDUCE}.").removesuffix(SUMS),
            events[0]["args"]["bytes"],
            events[0]["args"]["dtype"],
            [_Round(_MICRO * one["ready"], _MICRO * (one["ts"] + one["dur"])) for one in events],
        )
        for number, events in found.items()
    ]
