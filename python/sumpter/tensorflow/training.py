"""Data-parallel training: gradients of all ranks, and the same start on each."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import tensorflow as tf

from sumpter._core.reduction import Average, ReduceOp
from sumpter.tensorflow.ops import grouped_allreduce, grouped_broadcast


class DistributedGradientTape:
    """A tape whose gradients are reduced over all ranks, all in one call.

    Everything else is the tape's own. Tapes of different models in one job need different names.
    """

    def __init__(
        self, gradtape: tf.GradientTape, op: ReduceOp = Average, name: str = "gradients"
    ) -> None:
        self._tape, self._op, self._name = gradtape, op, name

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tape.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **more: Any) -> Any:
        """The reduced gradients, in the structure of `sources`; None where there is none."""
        found = self._tape.gradient(target, sources, output_gradients, **more)
        flat = tf.nest.flatten(found)
        there = [index for index, gradient in enumerate(flat) if gradient is not None]
        reduced = grouped_allreduce([flat[index] for index in there], self._op, self._name)
        for index, gradient in zip(there, reduced, strict=True):
            flat[index] = gradient
        return tf.nest.pack_sequence_as(found, flat)


def broadcast_variables(variables: Sequence[Any], root_rank: int = 0) -> None:
    """Gives the variables the values of rank `root_rank`'s, in one call."""
    names = tuple(f"variables.{index}" for index in range(len(variables)))
    values = grouped_broadcast(list(variables), root_rank, names)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
