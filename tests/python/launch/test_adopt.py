"""Variables of a job in a process that its launcher did not start."""

from __future__ import annotations

import os

import pytest

from sumpter.launch.environment import adopt


def test_a_process_adopts_what_an_attendant_would_give_it(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"KEPT": "own", "GONE": "own", "CHANGED": "own"}
    monkeypatch.setattr(os, "environ", environment)
    adopt({"KEPT": "default", "NEW": "default"}, {"GONE": None, "CHANGED": "job", "ABSENT": None})
    assert environment == {"KEPT": "own", "CHANGED": "job", "NEW": "default"}
