"""Fixtures of the tests of staging."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import fake_device
from fake_core import Core, GateWatch
from fake_device import FakeDevice
from sumpter._core import staging


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    monkeypatch.setattr(staging, "SLICE_BYTES", 16)
    monkeypatch.setattr(staging, "GateWatch", GateWatch)
    return fake_device.install()


@pytest.fixture
def core() -> Iterator[Core]:
    core = Core()
    yield core
    core.close()
