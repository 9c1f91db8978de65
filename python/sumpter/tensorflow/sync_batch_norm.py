"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from sumpter._core import membership, seat
from sumpter._core.reduction import Sum
from sumpter._errors import UnsupportedError
from sumpter.tensorflow.ops import allreduce


@keras.saving.register_keras_serializable("sumpter")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """Keras' BatchNormalization by the mean and the variance over the whole batch of all ranks.

    Ranks may have batches of different sizes. In inference, or with one rank, it is Keras' own
    layer. Gradients are those of the sum of all ranks' losses. ValueError for Horovod's `fused`,
    if it is true; UnsupportedError where Keras does not run on TensorFlow.
    """

    def __init__(self, *args: Any, fused: bool = False, **kwargs: Any) -> None:
        if fused:
            raise ValueError("SyncBatchNormalization has no fused=True: leave it out")
        if keras.backend.backend() != "tensorflow":
            raise UnsupportedError(
                f"SyncBatchNormalization is for Keras on TensorFlow, not {keras.backend.backend()}"
            )
        super().__init__(*args, **kwargs)

    def _moments(self, inputs: tf.Tensor, mask: Any) -> tuple[tf.Tensor, tf.Tensor]:
        # Of an elastic job, the next generation may have more.
        if membership.size() == 1 and not seat.held():
            return super()._moments(inputs, mask)
        axes = self._reduction_axes
        weights = tf.ones_like(inputs)
        if mask is not None:
            weights = weights * tf.cast(tf.expand_dims(mask, -1), inputs.dtype)
        # The mean first: sums of squares would cancel where it is large.
        count = tf.reduce_sum(weights, axes)
        total, count = tf.unstack(_total(tf.stack([tf.reduce_sum(inputs * weights, axes), count])))
        mean = tf.math.divide_no_nan(total, tf.stop_gradient(count))
        shape = [1 if axis in axes else -1 for axis in range(inputs.shape.rank)]
        deviations = (inputs - tf.reshape(mean, shape)) * weights
        variance = _total(tf.reduce_sum(tf.square(deviations), axes))
        return mean, tf.math.divide_no_nan(variance, tf.stop_gradient(count))


def _total(local: tf.Tensor) -> tf.Tensor:
    """The sum over all ranks, through which gradients flow."""
    return allreduce(local, op=Sum)
