"""Elastic training with `model.fit`, under Horovod's names: see
sumpter.tensorflow.keras.elastic."""

from sumpter.tensorflow.keras.elastic import *  # noqa: F403
from sumpter.tensorflow.keras.elastic import __all__ as __all__
