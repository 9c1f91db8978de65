"""The static server's program, as `make test-rust` builds it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
SERVER = TARGET / "release" / "sumpter-server"


def server() -> Path:
    """The program; a test that needs it is skipped where it has not been built."""
    if not SERVER.exists():
        pytest.skip(
            "sumpter-server is missing, so this checks nothing: "
            "cargo build --release --locked -p sumpter-server"
        )
    return SERVER
