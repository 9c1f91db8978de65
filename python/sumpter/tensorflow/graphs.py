"""What belongs to TensorFlow 1's graphs and sessions, which tf.compat.v1 still has."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sumpter._errors import UnsupportedError
from sumpter.tensorflow.ops import grouped_broadcast


def broadcast_global_variables(root_rank: int) -> tf.Operation:
    """An operation that gives the graph's global variables the values of rank `root_rank`'s.

    Raises UnsupportedError where TensorFlow runs eagerly, which has no list of all variables.
    """
    if tf.executing_eagerly():
        raise UnsupportedError(
            "broadcast_global_variables() is for a graph of tf.compat.v1: TensorFlow runs eagerly "
            "here, so call broadcast_variables(variables, root_rank), or give model.fit() "
            "BroadcastGlobalVariablesCallback"
        )
    variables = tf.compat.v1.global_variables()
    values = grouped_broadcast(variables, root_rank, "global_variables")
    pairs = zip(variables, values, strict=True)
    return tf.group(*[tf.compat.v1.assign(variable, value) for variable, value in pairs])


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Gives all ranks rank `root_rank`'s global variables when a MonitoredSession is made."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            with tf.device(self.device or None):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self.bcast_op)
