"""The oldest JAX that has what the front is made of."""

import importlib
import re
from pathlib import Path

import jax

OLDEST = (0, 4, 35)


def foreign_version() -> tuple[int, int]:
    """The version of XLA's foreign function interface, major and minor; zeros if it is not said."""
    try:
        functions = importlib.import_module("jax.ffi")
    except ImportError:
        # XLA of older versions ends the process where a call takes a token.
        return 0, 0
    header = Path(functions.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        text = header.read_text()
    except OSError:
        return 0, 0
    found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", text))
    return int(found.get("MAJOR", 0)), int(found.get("MINOR", 0))


def check() -> None:
    """Raises ImportError if JAX is older."""
    if jax.__version_info__ < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            f"sumpter.jax needs jax {oldest} or newer, and {jax.__version__} is installed: pip "
            "install --upgrade 'sumpter[jax]'",
            name="jax",
        )
