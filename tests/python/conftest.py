"""Fixtures of the Python tests."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import needs
import sumpter
from jobs import PATIENCE, Job, as_variables
from sumpter._variables import LAUNCHERS

LAUNCHED = (
    "SUMPTER_COORDINATOR",
    "SUMPTER_TOKEN",
    "SUMPTER_TOKEN_FILE",
    *(variable.name for launcher in LAUNCHERS for variable in launcher.variables),
)

# No test depends on how fast this machine is: not on how long an example takes, nor on how soon
# members of a job that a test starts by a command find each other.
settings.register_profile(
    "no clock",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("no clock")
os.environ.update(as_variables(PATIENCE))


def pytest_configure(config: pytest.Config) -> None:
    needs.ASKED[:] = config.args
    config.addinivalue_line(
        "markers", "exclusive: no other test of any session may run on this machine meanwhile"
    )
    config.addinivalue_line(
        "markers", "emulates: no other test of any session may emulate a cluster meanwhile"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every process begins with tests marked exclusive: later each would wait for the tests of all
    other processes to end, and these for it. pytest-xdist gives each process a stretch of the
    tests, all equally long."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    alone = [item for item in items if item.get_closest_marker("exclusive")]
    others = [item for item in items if not item.get_closest_marker("exclusive")]
    ordered: list[pytest.Item] = []
    for left in range(processes, 0, -1):
        length = (len(alone) + len(others)) // left
        first = max(min(-(-len(alone) // left), length), length - len(others))
        ordered += [*alone[:first], *others[: length - first]]
        alone, others = alone[first:], others[length - first :]
    items[:] = ordered


@pytest.fixture(autouse=True)
def turn(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests run side by side, in several processes; those marked exclusive have the machine, and of
    those marked emulates one runs at a time."""
    exclusive = request.node.get_closest_marker("exclusive") is not None
    emulates = request.node.get_closest_marker("emulates") is not None
    place = f"{tempfile.gettempdir()}/sumpter-tests-{os.getuid()}"
    names = ("door", "room", "cluster")
    with ExitStack() as stack:
        door, room, cluster = (stack.enter_context(open(f"{place}.{name}", "a")) for name in names)
        # A test that waits to be alone holds the outer lock, so that no other test starts.
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        if emulates:
            fcntl.flock(cluster, fcntl.LOCK_EX)
        yield


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
