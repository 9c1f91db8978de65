"""Sumpter for Keras 3 on TensorFlow, under the name that `horovod.keras` has: see
sumpter.tensorflow.keras."""

from sumpter.tensorflow.keras import *  # noqa: F403
from sumpter.tensorflow.keras import __all__ as __all__
