"""What each rank keeps of optimizer state on the servers, when a job ends and another goes on.

Every element is mirrored by two ranks of an elastic job, so the shares of those who are left have
all of the state after one has died.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

# In the state of a 16-bit parameter, its value on the servers in float32.
MASTER = "master_value"

# Of each stretch of a parameter: its first element, the one after its last, and its parts (the
# value and the slots) as bytes of the master type.
Parts = list[tuple[int, int, list[bytes]]]
TorchState = dict[str, torch.Tensor]


class StateShare(NamedTuple):
    """A rank's share of the state of parameters, by their names."""

    # Steps taken, and what the rank mirrors.
    steps: dict[str, int]
    parts: dict[str, Parts]
    # Of parameters that the servers do not have yet: all of what they are to begin with.
    initial: dict[str, TorchState]

    @property
    def mark(self) -> int:
        """Equal for shares that were taken after the same steps."""
        begun = (int(state.get("step", 0)) for state in self.initial.values())
        return sum(self.steps.values()) + sum(begun)


def whole_state(
    parameter: torch.Tensor,
    slots: Sequence[str],
    steps: int,
    everyone: Iterable[Parts],
) -> TorchState:
    """A parameter's state as torch's optimizer has it, from what ranks mirror of it.

    ValueError if these do not have all of it.
    """
    master = np.float64 if parameter.dtype == torch.float64 else np.float32
    found = np.zeros((1 + len(slots), parameter.numel()), master)
    lacking = np.ones(parameter.numel(), bool)
    for start, stop, own in (one for parts in everyone for one in parts):
        lacking[start:stop] = False
        for part, data in zip(found, own, strict=True):
            part[start:stop] = np.frombuffer(data, master)
    if lacking.any():
        raise ValueError(
            f"{lacking.sum()} of {lacking.size} elements of the optimizer's state were kept only "
            "by ranks that have died"
        )
    state = {"step": torch.tensor(float(steps))}
    named = list(zip(slots, found[1:], strict=True))
    if not steps and "momentum_buffer" in slots[:1]:
        # SGD's first buffer is the gradient, without dampening: torch has none before.
        named = []
    if parameter.dtype.itemsize < found.itemsize:
        named.append((MASTER, found[0]))
    for slot, part in named:
        state[slot] = torch.from_numpy(part.reshape(parameter.shape).copy())
    return state


def assemble(
    parameters: Mapping[torch.nn.Parameter, str],
    slots: Mapping[torch.nn.Parameter, Sequence[str]],
    shares: Sequence[StateShare],
) -> dict[torch.nn.Parameter, TorchState]:
    """The state of all parameters from the shares of all ranks, those of newcomers left out.

    ValueError, which names the parameter, if they do not have all of it.
    """
    state: dict[torch.nn.Parameter, TorchState] = {}
    for parameter, name in parameters.items():
        initial = [share.initial[name] for share in shares if name in share.initial]
        if initial:
            state[parameter] = initial[0]
        steps = [share.steps[name] for share in shares if name in share.steps]
        if not steps:
            continue
        everyone = [share.parts[name] for share in shares if name in share.parts]
        try:
            state[parameter] = whole_state(parameter, slots[parameter], steps[0], everyone)
        except ValueError as error:
            raise ValueError(f"parameter {name}: {error}: resume from a checkpoint") from None
    return state
