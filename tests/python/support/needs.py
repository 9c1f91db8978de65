"""What some tests need: the static server's program, libfabric, or a framework's environment."""

from __future__ import annotations

import os
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

from sumpter import _native

ROOT = Path(__file__).resolve().parents[3]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
# As `make test-rust` builds it.
SERVER = TARGET / "release" / "sumpter-server"

# The files and folders that this session was asked for, or those of pyproject.toml.
ASKED: list[str] = []


def server() -> Path:
    """The program; a test that needs it is skipped where it has not been built."""
    if not SERVER.exists():
        pytest.skip(
            "sumpter-server is missing, so this checks nothing: "
            "cargo build --release --locked -p sumpter-server"
        )
    return SERVER


# How bytes go from one machine to another.
FABRICS = ("tcp", "libfabric")


def fabric(name: str) -> dict[str, str]:
    """Settings for one of these, by the provider that needs no hardware; a test is skipped where
    libfabric is missing."""
    if name == "tcp":
        return {"fabric": name}
    missing = _native.fabric_networks("tcp", None)[2]
    if missing is not None:
        warnings.warn(f"SKIPPED placed writes: {missing}", stacklevel=2)
        pytest.skip(missing)
    return {"fabric": name, "fabric_provider": "tcp", "log": "info"}


# TensorFlow's LLVM and that of Triton, which torch loads, end a process that has both. Both are
# there only where TensorFlow was installed by hand.
APART = (
    "TensorFlow is beside Triton here, which tests of other folders load: "
    "`make tensorflow-check` has an environment for it"
)


def is_asked_for(folder: str) -> bool:
    """Whether a folder of tests was named, and not only one that has it, or can run with all."""
    return find_spec("triton") is None or any(
        folder in asked.split("::")[0].split("/") for asked in ASKED
    )


# Which environment each framework is in, and what makes it.
_HOMES = {
    "tensorflow": ("target/tensorflow", "make tensorflow-check"),
    "mxnet": ("target/mxnet", "make mxnet-check"),
}


def python_with(framework: str) -> Path | None:
    """The Python of the environment that has a framework, or None for that of the tests; a test is
    skipped where there is neither."""
    if find_spec(framework) is not None:
        # A process of its own, since those of the tests have loaded Triton.
        return Path(sys.executable) if framework == "tensorflow" else None
    home, command = _HOMES.get(framework, (".venv", "make setup"))
    python = ROOT / home / "bin" / "python"
    # An environment that is half made has no command of Sumpter yet.
    if not python.with_name("sumpter").exists():
        missing = f"{framework} is neither here nor in {home}, so this checks nothing: `{command}`"
        warnings.warn(f"SKIPPED several frameworks in one job: {missing}", stacklevel=2)
        pytest.skip(missing)
    return python
