"""The oldest JAX that has what the front is made of."""

import jax

OLDEST = (0, 4, 35)


def check() -> None:
    """Raises ImportError if JAX is older."""
    if jax.__version_info__ < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            f"sumpter.jax needs jax {oldest} or newer, and {jax.__version__} is installed: pip "
            "install --upgrade 'sumpter[jax]'",
            name="jax",
        )
