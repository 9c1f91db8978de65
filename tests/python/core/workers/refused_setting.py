"""Joins a job in which a setting differs: every rank but the first is refused, with a reason."""

from __future__ import annotations

import sys

import sumpter
from common import announce, leave_result, raises

setting, *values = sys.argv[1:]
try:
    with raises(
        sumpter.MismatchError, f"setting {setting} differs", "rank 0 on", "rank 1 on", *values
    ):
        sumpter.init()
    leave_result(b"refused")
finally:
    announce("refused")
