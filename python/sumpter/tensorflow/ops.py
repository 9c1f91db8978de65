"""Collectives on tensors, eagerly and within tf.function, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from sumpter._arrays import SUMMABLE
from sumpter._core import membership
from sumpter._core.reduction import Adasum, Average, ReduceOp, Sum
from sumpter._errors import UnsupportedError
from sumpter.tensorflow.rounds import ALL_REDUCE, BROADCAST, Collective, perform


def init(**settings: object) -> None:
    """Joins the job; does nothing if this process has joined already.

    Settings given by name override the environment.
    """
    membership.join(settings)


def allreduce(tensor: Any, op: ReduceOp = Average, name: str | None = None) -> tf.Tensor:
    """Returns the reduction of a tensor over all ranks; averages of integers are rounded down.

    Without a name, calls are matched by their order. IndexedSlices are reduced as dense tensors.
    """
    return _reduced([tensor], op, (name,))[0]


def grouped_allreduce(
    tensors: Sequence[Any], op: ReduceOp = Average, name: str | None = None
) -> list[tf.Tensor]:
    """Returns the reduction of each tensor over all ranks, in one call."""
    names = tuple(None if name is None else f"{name}.{index}" for index in range(len(tensors)))
    return _reduced(tensors, op, names)


def push_pull(tensor: Any, average: bool = True, name: str | None = None) -> tf.Tensor:
    """Returns the average, or the sum, of a tensor over all ranks."""
    return allreduce(tensor, Average if average else Sum, name)


def broadcast(tensor: Any, root_rank: int = 0, name: str | None = None) -> tf.Tensor:
    """Returns rank `root_rank`'s tensor; its gradient arrives at the root, others get zeros."""
    return grouped_broadcast([tensor], root_rank, (name,))[0]


def grouped_broadcast(
    tensors: Sequence[Any], root_rank: int, names: tuple[str | None, ...]
) -> list[tf.Tensor]:
    """Returns rank `root_rank`'s tensors, in one call."""
    membership.check_root(membership.current(), root_rank)
    dense = [_dense(tensor, name) for tensor, name in zip(tensors, names, strict=True)]

    @tf.custom_gradient
    def called(*given: tf.Tensor) -> tuple[Any, Any]:
        def gradient(*upstream: tf.Tensor) -> list[tf.Tensor]:
            sums = _call(Collective(ALL_REDUCE, _ending(names), Sum), upstream)
            own = membership.current().rank == root_rank
            return sums if own else [tf.zeros_like(one) for one in sums]

        return _call(Collective(BROADCAST, names, root=root_rank), given), gradient

    return list(called(*dense)) if dense else []


def _reduced(
    tensors: Sequence[Any], op: ReduceOp, names: tuple[str | None, ...]
) -> list[tf.Tensor]:
    op = ReduceOp(op)
    if op is Adasum:
        raise UnsupportedError("there is no Adasum of TensorFlow's tensors: use Average")
    dense = [_dense(tensor, name) for tensor, name in zip(tensors, names, strict=True)]
    for tensor, name in zip(dense, names, strict=True):
        if tensor.dtype.name not in SUMMABLE:
            raise UnsupportedError(
                f"{_called(name)} is of {tensor.dtype.name}, which cannot be reduced: cast it first"
            )

    @tf.custom_gradient
    def called(*given: tf.Tensor) -> tuple[Any, Any]:
        def gradient(*upstream: tf.Tensor) -> list[tf.Tensor]:
            if op not in (Sum, Average):
                raise UnsupportedError(f"there is no gradient of a reduction by {op.value}")
            return _call(Collective(ALL_REDUCE, _ending(names), op), upstream)

        return _call(Collective(ALL_REDUCE, names, op), given), gradient

    return list(called(*dense)) if dense else []


def _call(collective: Collective, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """At once where TensorFlow runs eagerly, otherwise one operation of the graph."""
    if tf.executing_eagerly():
        results = perform(collective, [tensor.numpy() for tensor in tensors])
        return [tf.convert_to_tensor(result) for result in results]

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        return perform(collective, [np.asarray(array) for array in arrays])

    # Stateful: tf.function keeps the order of such operations, and removes none.
    results = tf.numpy_function(run, list(tensors), [tensor.dtype for tensor in tensors])
    for result, tensor in zip(results, tensors, strict=True):
        result.set_shape(tensor.shape)
    return list(results)


def _dense(tensor: Any, name: str | None) -> tf.Tensor:
    if isinstance(tensor, (tf.RaggedTensor, tf.SparseTensor)):
        raise UnsupportedError(
            f"{_called(name)} is a {type(tensor).__name__}, which has another form on each rank: "
            "give a dense tensor"
        )
    dense = tf.convert_to_tensor(tensor)
    if dense.dtype in (tf.string, tf.resource, tf.variant):
        raise UnsupportedError(
            f"{_called(name)} is of {dense.dtype.name}: give a tensor of numbers"
        )
    return dense


def _called(name: str | None) -> str:
    return "the tensor" if name is None else f"tensor {name}"


def _ending(names: tuple[str | None, ...]) -> tuple[str | None, ...]:
    return tuple(None if name is None else f"{name}.gradient" for name in names)
