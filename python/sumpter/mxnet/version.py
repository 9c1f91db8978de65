"""The NumPy that MXNet can be imported with."""

import numpy as np

# From here on NumPy lacks names that MXNet 1.9.1, the last release, uses.
TOO_NEW = (1, 24)


def check() -> None:
    """Raises ImportError if NumPy is too new."""
    if tuple(map(int, np.__version__.split(".")[:2])) >= TOO_NEW:
        raise ImportError(
            f"MXNet needs a NumPy below {'.'.join(map(str, TOO_NEW))}, and {np.__version__} is "
            "installed: make an environment of its own by pip install 'sumpter[mxnet]'",
            name="mxnet",
        )
