"""A gradient tape whose gradients are those of all ranks."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import tensorflow as tf

from sumpter._core.compression.codecs import Compression
from sumpter._core.process_sets import ProcessSet, global_process_set
from sumpter._core.reduction import Average, ReduceOp
from sumpter.tensorflow.calls import CompressionLike
from sumpter.tensorflow.gradients import GradientReduction


class DistributedGradientTape:
    """A tape whose gradients are reduced over all ranks, all in one call.

    Everything else is the tape's own. Tapes of different models in one job need different names.
    `device_dense`, `device_sparse`, `num_groups` and `groups` are taken for Horovod's sake: what
    they tune is done in another way.
    """

    def __init__(
        self,
        gradtape: tf.GradientTape,
        device_dense: str = "",
        device_sparse: str = "",
        compression: CompressionLike = Compression.none,
        sparse_as_dense: bool = False,
        op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
        name: str = "gradients",
    ) -> None:
        self._tape = gradtape
        self._reduction = GradientReduction(
            name, op, compression, sparse_as_dense, gradient_predivide_factor, process_set
        )

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
        flat = tf.nest.flatten(found, expand_composites=False)
        return tf.nest.pack_sequence_as(found, self._reduction(flat))
