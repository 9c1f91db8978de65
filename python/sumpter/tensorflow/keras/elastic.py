"""See sumpter.keras.elastic."""

from sumpter.keras.elastic import *  # noqa: F403
from sumpter.keras.elastic import __all__ as __all__
