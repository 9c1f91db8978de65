"""What codecs keep from round to round, taken out of a job and put into another one.

A residual is what one rank has left out of its own contributions, so each rank saves its own. A
rank that gets another one's state goes on without that one's residual, which would otherwise count
twice; its momentum is taken over, which is about the same on all ranks where each encodes the whole
tensor. Of several ranks on a machine each encodes a stretch of it, and has zeros elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sumpter._core import membership
from sumpter._core.tensor import CodecMemory, Tensor
from sumpter._errors import ConfigError

if TYPE_CHECKING:
    from sumpter._core.session import Session

_log = logging.getLogger("sumpter")

# In the state_dict() of an optimizer, what codecs keep of its gradients.
COMPRESSION = "compression"


def compression_state() -> dict[str, dict[str, Any]]:
    """What codecs keep on this rank from round to round, by the names of tensors.

    Save it on each rank, beside the rest of a checkpoint. Arrays are of float32 in the shape of
    their tensor, None where nothing is kept. A DistributedOptimizer has the same of its gradients
    in its own state_dict(). MismatchError names a tensor of which a round is under way.
    """
    session = membership.current()
    return {tensor.name: _entry(session, tensor) for tensor in _compressed(session)}


def load_compression_state(state: Mapping[str, Mapping[str, Any]]) -> None:
    """Has codecs go on from what compression_state() returned, in this job or an earlier one.

    Call it on each rank, with what a rank of the same number saved, while no round is under way.
    What another rank saved is loaded without what that one had left out, which is logged. Tensors
    that the state lacks begin anew. ConfigError names an entry that is none.
    """
    session = membership.current()
    loaded = {name: _memory(name, entry) for name, entry in state.items()}
    others = {entry["rank"] for entry in state.values()} - {session.rank}
    if others:
        report_dropped(sum(entry["rank"] in others for entry in state.values()), others)
    for name, entry in state.items():
        if entry["rank"] != session.rank:
            loaded[name] = loaded[name]._replace(residual=None)
    for tensor in _compressed(session):
        tensor.restore(loaded.pop(tensor.name, CodecMemory()))
    # Of tensors that are declared later.
    session.restored = loaded


def report_dropped(count: int, ranks: Iterable[int]) -> None:
    """Logs that what other ranks had left out of so many tensors is not loaded."""
    numbers = ", ".join(map(str, sorted(set(ranks))))
    _log.warning(
        "compression: what rank %s had left out of %d tensors is not loaded on rank %d, which "
        "begins with zeros: save and load the state on each rank to keep it",
        *(numbers, count, membership.rank()),
    )


def without_residuals(kept: Mapping[str, Any]) -> dict[str, Any]:
    """What all ranks may have of what one has under COMPRESSION."""
    return {name: {**entry, "residual": None} for name, entry in kept.items()}


def with_own(alike: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """What a rank goes on from that has `own` and gets what is `alike` from another one."""
    return {name: _with_own(entry, own.get(name)) for name, entry in alike.items()}


def draws_of(entry: Mapping[str, Any]) -> tuple[int, int] | None:
    """Where random numbers go on, of a state that may be of a codec without them."""
    if entry.get("draws") is None:
        return None
    tensor, round_ = entry["draws"]
    return int(tensor), int(round_)


def as_bytes(array: np.ndarray) -> memoryview:
    """The bytes of an array as the core takes them."""
    return memoryview(np.ascontiguousarray(array, dtype=np.float32).reshape(-1)).cast("B")


def _compressed(session: Session) -> list[Tensor]:
    """The compressed tensors, one for each name."""
    declared = {tensor.name: tensor for tensor in session.declared() if tensor.keeps}
    return list(declared.values())


def _with_own(alike: Mapping[str, Any], own: Mapping[str, Any] | None) -> dict[str, Any]:
    if own is None:
        return dict(alike)
    parts = {"rank": own["rank"], "residual": own["residual"]}
    if own.get("momentum") is not None:
        parts["momentum"] = own["momentum"]
    return {**alike, **parts}


def _entry(session: Session, tensor: Tensor) -> dict[str, Any]:
    memory, shape = tensor.codec_memory(), tensor.description.shape

    def array(part: bytearray | memoryview | None) -> np.ndarray | None:
        return None if part is None else np.frombuffer(part, dtype=np.float32).reshape(shape)

    residual, momentum = array(memory.residual), array(memory.momentum)
    parts = {"residual": residual, "momentum": momentum, "draws": memory.draws}
    return {"rank": session.rank, **parts}


def _memory(name: str, entry: Mapping[str, Any]) -> CodecMemory:
    try:
        parts = entry["residual"], entry["momentum"]
        draws = draws_of(entry)
        int(entry["rank"])
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            f"compression state of {name!r}: expected rank, residual and momentum as "
            f"compression_state() has them, not {entry!r:.80}"
        ) from None
    return CodecMemory(*(None if part is None else as_bytes(part) for part in parts), draws)
