"""Sumpter for Keras 3 on TensorFlow, under the name that `horovod.tensorflow.keras` has: see
sumpter.keras."""

from sumpter.keras import *  # noqa: F403
from sumpter.keras import __all__ as __all__
