"""See sumpter.keras.callbacks."""

from sumpter.keras.callbacks import *  # noqa: F403
from sumpter.keras.callbacks import __all__ as __all__
