"""Collectives on values, which return arrays, and loading of models that were saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sumpter._core.compression.codecs import Compression
from sumpter._core.reduction import Average, ReduceOp
from sumpter.tensorflow import ops
from sumpter.tensorflow.calls import CompressionLike
from sumpter.tensorflow.keras.optimizer import DistributedOptimizer


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: CompressionLike = Compression.none,
) -> np.ndarray:
    """Returns the reduction of a value over all ranks, by default its average."""
    factors = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    given = tf.convert_to_tensor(value)
    return ops.allreduce(
        given, average, op=op, name=name, compression=compression, **factors
    ).numpy()


def allgather(value: Any, name: str | None = None) -> np.ndarray:
    """Returns all ranks' rows, joined by rank."""
    return ops.allgather(tf.convert_to_tensor(value), name).numpy()


def broadcast(value: Any, root_rank: int, name: str | None = None) -> np.ndarray:
    """Returns rank `root_rank`'s value."""
    return ops.broadcast(tf.convert_to_tensor(value), root_rank, name).numpy()


def reducescatter(value: Any, name: str | None = None, op: ReduceOp = Average) -> np.ndarray:
    """Reduces a value over all ranks and returns this rank's share of the rows."""
    return ops.reducescatter(tf.convert_to_tensor(value), op=op, name=name).numpy()


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type[keras.optimizers.Optimizer]] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: CompressionLike = Compression.none,
) -> keras.Model:
    """Loads a model that was saved with a distributed optimizer, or an ordinary one, for training.

    Its optimizer is distributed, with the state that was saved, and its step is not compiled.
    """
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if model.optimizer is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
        model.jit_compile = False
    return model
