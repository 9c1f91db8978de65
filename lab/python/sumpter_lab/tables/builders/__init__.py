"""All tables, by the name that pages call them by."""

from __future__ import annotations

from sumpter_lab.tables.builders import (
    allreduce,
    emulated,
    machine,
    replay,
    server,
    training,
    tuning,
)
from sumpter_lab.tables.table import BUILDERS as ALL

__all__ = [
    "ALL",
    "allreduce",
    "emulated",
    "machine",
    "replay",
    "server",
    "training",
    "tuning",
]
