"""Fixtures of the Python tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import sumpter
from jobs import Job
from sumpter._variables import LAUNCHERS

LAUNCHED = (
    "SUMPTER_COORDINATOR",
    "SUMPTER_TOKEN",
    "SUMPTER_TOKEN_FILE",
    *(variable.name for launcher in LAUNCHERS for variable in launcher.variables),
)


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Makes jobs, each in a folder of its own, that end with the test."""
    with ExitStack() as jobs:

        def make(ranks: int, servers: int = 0, **settings: object) -> Job:
            folder = tmp_path / f"job{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            return jobs.enter_context(Job(folder, ranks, servers, **settings))

        yield make


@pytest.fixture
def unlaunched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without any launcher's variables."""
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture
def alone(unlaunched: pytest.MonkeyPatch) -> Iterator[None]:
    """A job of one worker in this process."""
    sumpter.init()
    yield
    sumpter.shutdown()
