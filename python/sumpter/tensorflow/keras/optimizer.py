"""Optimizers of Keras that update by all ranks' gradients."""

from __future__ import annotations

from typing import Any

import keras

from sumpter._core.compression.codecs import Compression
from sumpter._core.process_sets import ProcessSet, global_process_set
from sumpter._core.reduction import Average, ReduceOp
from sumpter._errors import UnsupportedError
from sumpter.tensorflow.calls import CompressionLike
from sumpter.tensorflow.gradients import GradientReduction


class _Distributed:
    """What an optimizer of Keras gets in front of its own class."""

    _sumpter_reduction: GradientReduction

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        reduced = self._sumpter_reduction(grads)
        return super().apply(reduced, trainable_variables)  # type: ignore[misc]


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressionLike = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    backward_passes_per_step: int = 1,
) -> keras.optimizers.Optimizer:
    """An optimizer like the given one that reduces gradients over all ranks, in one call a step.

    It is of a class of the same name, so that a model saved with it is an ordinary one; its state
    is the given one's. Optimizers of different models in one job need different names. The
    arguments that DistributedGradientTape takes for Horovod's sake are taken here too. Raises
    UnsupportedError for `backward_passes_per_step`: Keras has `gradient_accumulation_steps`.
    """
    if keras.backend.backend() != "tensorflow":
        raise UnsupportedError(
            f"Keras runs on {keras.backend.backend()} here: this optimizer is for KERAS_BACKEND="
            "tensorflow; on jax use sumpter.jax.distribute with optax"
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UnsupportedError(
            f"a {type(optimizer).__module__}.{type(optimizer).__name__} is no optimizer of Keras 3"
        )
    if backward_passes_per_step != 1:
        raise UnsupportedError(
            f"backward_passes_per_step={backward_passes_per_step}: give the optimizer "
            "gradient_accumulation_steps instead, which is Keras' own"
        )
    kind = type(optimizer)
    if issubclass(kind, _Distributed):
        raise ValueError("the optimizer is distributed already")
    made_of = type(kind.__name__, (_Distributed, kind), {"__module__": kind.__module__})
    made = made_of.from_config(optimizer.get_config())
    made._sumpter_reduction = GradientReduction(
        name or "gradients",
        *(op, compression, sparse_as_dense, gradient_predivide_factor, process_set),
    )
    if optimizer.built:
        made.build(optimizer._trainable_variables)
        for own, given in zip(made.variables, optimizer.variables, strict=True):
            own.assign(given)
    return made
