"""Tries to join and says how that went; takes the expected error's name and parts of its text."""

from __future__ import annotations

import sys

import sumpter
from common import raises

expected, *parts = sys.argv[1:]
with raises(getattr(sumpter, expected), *parts):
    sumpter.init()
assert not sumpter.is_initialized()
