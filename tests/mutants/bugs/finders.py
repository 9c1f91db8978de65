"""What a bug is, and what finds those of each part of the sources."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

ENGINE = Path("crates/engine/src")


@dataclass(frozen=True)
class Finder:
    """What is to find bugs in the sources under a folder."""

    folder: Path
    # What a failure says, with a number, if it does.
    failure: str
    command: tuple[str, ...]


def cargo(package: str, *test: str) -> tuple[str, ...]:
    """Runs tests of a crate."""
    return ("cargo", "test", "--release", "-q", "-p", package, *test)


SIMULATION = Finder(
    ENGINE,
    r"seed (\d+) failed",
    cargo("sumpter-engine", "--test", "sim", "--", "--nocapture"),
)
PARTS = Finder(ENGINE, r"([1-9]\d*) failed", cargo("sumpter-engine", "--lib"))
LANE = Finder(ENGINE, r"([1-9]\d*) failed", cargo("sumpter-engine", "--test", "lane"))
REGISTRY = Finder(
    Path("crates/membership/src/registry"),
    r"property::\w+ --- FAILED",
    cargo("sumpter-membership", "--lib", "property"),
)
FABRIC = Finder(
    Path("crates/fabric/src"),
    r"([1-9]\d*) failed",
    cargo("sumpter-fabric", "--test", "stream"),
)
OFFERS = Finder(FABRIC.folder, FABRIC.failure, cargo("sumpter-fabric", "--test", "offer"))
FAKED = Finder(FABRIC.folder, FABRIC.failure, cargo("sumpter-fabric", "--test", "faked"))
SIMULATED_FABRIC = Finder(FABRIC.folder, SIMULATION.failure, SIMULATION.command)
PLACED = Finder(
    Path("crates/transport/src"),
    r"([1-9]\d*) failed",
    cargo("sumpter-transport", "--test", "conformance", "--", "fabric_", "placed::"),
)
LOOPS = Finder(
    Path("crates/node/src/event_loop"),
    r"([1-9]\d*) failed",
    cargo("sumpter-node", "--lib", "event_loop::"),
)
PLACED_JOBS = Finder(
    LOOPS.folder,
    r"([1-9]\d*) failed",
    cargo("sumpter-node", "--test", "job", "--", "fabric::"),
)
ELASTIC = Finder(
    Path("python/sumpter/torch"),
    r"([1-9]\d*) failed",
    (sys.executable, "-m", "pytest", "-q", "tests/python/torch/test_elastic.py", "-k", "codec"),
)


@dataclass(frozen=True)
class Mutant:
    """A bug: in one file, this text becomes that."""

    name: str
    invariant: str
    file: str
    sound: str
    broken: str
    finder: Finder = SIMULATION
