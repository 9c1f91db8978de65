"""Collectives on values, which return arrays, and loading of models that were saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from sumpter._arrays import check_movable
from sumpter._calls import collective as kinds
from sumpter._calls import values
from sumpter._calls.codecs import CompressionLike
from sumpter._calls.refusals import Checking
from sumpter._core.compression.codecs import Compression
from sumpter._core.reduction import Average, ReduceOp, choose_op
from sumpter._errors import UnsupportedError
from sumpter.keras.optimizer import DistributedOptimizer


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
    factors = prescale_factor, postscale_factor
    with Checking(kinds.ALL_REDUCE, name):
        given, chosen = _read(value), choose_op(op, average)
    return values.reduce_value(given, chosen, name, compression, *factors)


def push_pull(value: Any, name: str | None = None, average: bool = True) -> np.ndarray:
    """BytePS' name for allreduce: the average, or with `average=False` the sum."""
    return allreduce(value, name, average)


def allgather(value: Any, name: str | None = None) -> np.ndarray:
    """Returns all ranks' rows, joined by rank; ranks may have different numbers of them."""
    with Checking(kinds.ALL_GATHER, name and f"{name}.rows"):
        given = _read(value)
    return values.gather_value(given, name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> np.ndarray:
    """Returns rank `root_rank`'s value."""
    with Checking(kinds.BROADCAST, name):
        given = _read(value)
    return values.broadcast_value(given, root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: ReduceOp = Average) -> np.ndarray:
    """Reduces a value over all ranks and returns this rank's share of the rows."""
    with Checking(kinds.REDUCE_SCATTER, name):
        given, chosen = _read(value), ReduceOp(op)
    return values.scatter_value(given, chosen, name)


def broadcast_global_variables(root_rank: int) -> None:
    """Raises UnsupportedError: Keras 3 runs eagerly, and has no list of all variables."""
    raise UnsupportedError(
        "broadcast_global_variables() is of TensorFlow 1's graphs: give model.fit() "
        "BroadcastGlobalVariablesCallback, or call broadcast_variables(model.variables, root_rank)"
    )


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type[keras.optimizers.Optimizer]] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: CompressionLike = Compression.none,
    legacy_opts: bool = False,
) -> keras.Model:
    """Loads a model that was saved with a distributed optimizer, or an ordinary one, for training.

    Its optimizer is distributed, with the state that was saved. On TensorFlow its step is not
    compiled. Raises UnsupportedError for `legacy_opts`, which Keras 3 has not.
    """
    if legacy_opts:
        raise UnsupportedError(
            "legacy_opts=True: Keras 3 has no legacy optimizers; save the model with one of "
            "keras.optimizers"
        )
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if model.optimizer is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
        if keras.backend.backend() == "tensorflow":
            model.jit_compile = False
    return model


def _read(value: Any) -> np.ndarray:
    """A value of the host: of a number of Python's, what the backend makes of it."""
    made = value if isinstance(value, np.ndarray) else keras.ops.convert_to_tensor(value)
    array = np.asarray(keras.ops.convert_to_numpy(made))
    check_movable(array)
    return array
