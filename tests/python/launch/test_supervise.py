"""How the launcher starts the workers of an elastic job again. No processes: these only pretend."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sumpter._failure import Failure
from sumpter.launch import supervise
from sumpter.launch.output import Label
from sumpter.launch.supervise import Elastic, Interruption


class Pretender:
    """A worker that ends with the next of its codes each time it is started."""

    def __init__(self, index: int, *codes: int) -> None:
        self.label, self.codes, self.starts = Label("worker", index), list(codes), 0
        self.place, self.where = SimpleNamespace(lost=False), "here"
        self.errors: list[str] = []

    async def start(self) -> Pretender:
        self.starts += 1
        return self

    async def ended(self) -> int:
        return self.codes.pop(0)


def run(elastic: Elastic, *workers: Pretender) -> tuple[int, list[str]]:
    said: list[str] = []
    output: Any = SimpleNamespace(say=said.append)

    async def job() -> int:
        with Interruption() as interruption:
            starts: Any = [worker.start for worker in workers]
            end = await supervise.supervise(starts, output, interruption, elastic)
            return end.code

    return asyncio.run(job()), said


def test_pauses_grow_from_nothing_to_a_limit() -> None:
    pauses = [supervise.pause_s(soon) for soon in range(9)]
    assert pauses == [0, 0, 1, 2, 4, 8, 16, 30, 30]
    assert supervise.pause_s(10**6) == supervise.LONGEST_PAUSE_S


def test_a_worker_that_ends_at_once_again_and_again_waits_longer_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervise, "SOON_S", float("inf"))
    monkeypatch.setattr(supervise, "FIRST_PAUSE_S", 0.25)
    monkeypatch.setattr(supervise, "LONGEST_PAUSE_S", 0.5)
    worker = Pretender(0, 7, 7, 7, 7, 0)
    code, said = run(Elastic(1, 4), worker)
    assert (code, worker.starts) == (0, 5)
    assert [line.partition("; ")[2] for line in said] == [
        "starting it again (1 of 4)",
        "starting it again in 0.25 s (2 of 4)",
        "starting it again in 0.5 s (3 of 4)",
        "starting it again in 0.5 s (4 of 4)",
    ]


def test_a_worker_that_has_lived_a_while_is_started_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervise, "SOON_S", 0.0)
    code, said = run(Elastic(1, 2), Pretender(0, 7, 7, 7))
    assert code == 7
    assert [line.partition("; ")[2] for line in said] == [
        "starting it again (1 of 2)",
        "starting it again (2 of 2)",
        "too few workers are left",
    ]


def test_no_worker_waits_for_a_pause_once_one_has_ended_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervise, "SOON_S", float("inf"))
    monkeypatch.setattr(supervise, "FIRST_PAUSE_S", 3600.0)
    monkeypatch.setattr(supervise, "LONGEST_PAUSE_S", 3600.0)
    unlucky = Pretender(1, 7, 7)

    class Last(Pretender):
        async def ended(self) -> int:
            # Only once the other has been given a pause of an hour.
            while unlucky.codes:
                await asyncio.sleep(0.01)
            return await super().ended()

    code, said = run(Elastic(1, 4), Last(0, 0), unlucky)
    assert (code, unlucky.starts) == (0, 2)
    assert said[-1].endswith("starting it again in 3600 s (2 of 4)")


class Stranded(Pretender):
    """A worker whose machine is lost before it can be started again."""

    is_lost = False

    async def start(self) -> Pretender:
        if self.starts:
            self.is_lost = True
            raise Failure("lost host2")
        return await super().start()


@pytest.mark.parametrize(
    ("least", "code", "meaning"),
    [(1, 0, "going on with 1 worker"), (2, 1, "too few workers are left")],
)
def test_a_worker_that_cannot_be_started_again_is_done_without(
    least: int, code: int, meaning: str
) -> None:
    stranded = Stranded(1, 7)

    class Last(Pretender):
        async def ended(self) -> int:
            while not stranded.is_lost:
                await asyncio.sleep(0.01)
            return await super().ended()

    ended, said = run(Elastic(least, 4), Last(0, 0), stranded)
    assert ended == code
    assert said[-1] == f"worker 1 cannot be started again: lost host2; {meaning}"
