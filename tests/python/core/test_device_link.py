"""The connections of a device group, whose ranks are threads here."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from sumpter import ClosedError, MismatchError, PeerLostError, StartError
from sumpter._core import device_link
from sumpter._core.device_link import DeviceLink, error_of, open_link
from sumpter._core.device_order import GATHER, REDUCE, Failure, Operation

HANG_S = 120.0
RANKS = (2, 3, 5)


class Board:
    """What a broadcast of the core does among threads."""

    def __init__(self) -> None:
        self._sent: Future[bytes] = Future()

    def declare(self, name: str, collective: str, *_: object, **rest: object) -> Board:
        assert (name, collective) == ("sumpter.device_group.2", "broadcast")
        assert (rest["root"], rest["ranks"]) == (2, list(RANKS))
        return self

    def submit(self, send: int, receive: int, *, keep: Any) -> Board:
        if send:
            self._sent.set_result(keep.raw)
        else:
            ctypes.memmove(receive, self._sent.result(HANG_S), len(keep))
        return self

    def wait(self) -> None:
        pass


class Session:
    """The part of a session that a link needs."""

    def __init__(self, rank: int, board: Board) -> None:
        self.rank, self.declare = rank, board.declare
        self.device_group = [(each, True) for each in RANKS]


class Round:
    """A round of a rank: says that it is ready for the next stage when a test says so."""

    def __init__(self, rank: Rank, name: str) -> None:
        self.rank, self.name = rank, name
        self.over: Future[str] = Future()
        self.operation = rank.link.begin(name, "float32", self)

    def ready(self, stage: str = REDUCE, priority: int = 0) -> None:
        self.rank.link.ready(self.operation, stage, priority)

    def launch(self, stage: str) -> None:
        if self.name == self.rank.cannot_launch:
            raise RuntimeError("out of memory")
        self.rank.launched.append((self.name, stage))
        self.rank.link.watch(lambda: None)
        if stage == REDUCE:
            self.ready(GATHER)
        else:
            self.over.set_result("gathered")

    def conclude(self, error: BaseException) -> None:
        self.over.set_exception(error)


class Rank:
    """A member of the group."""

    cannot_launch = ""

    def __init__(self, link: DeviceLink) -> None:
        self.link = link
        self.launched: list[tuple[str, str]] = []
        self.aborted = threading.Event()
        self.closed: list[bool] = []
        link.group = self  # type: ignore[assignment]

    def abort(self) -> None:
        self.aborted.set()

    def close(self, together: bool) -> None:
        self.closed.append(together)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Rank]]:
    monkeypatch.setattr(device_link, "LEAVE_S", 20.0)
    board = Board()
    links = at_once([lambda rank=rank: open_link(Session(rank, board)) for rank in RANKS])
    ranks = [Rank(link) for link in links]
    folder = links[0].folder
    assert os.stat(folder).st_mode & 0o777 == 0o700
    yield ranks
    at_once([rank.link.close for rank in ranks])
    assert not os.path.exists(folder)


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [each.result(HANG_S) for each in [pool.submit(call) for call in calls]]


def test_all_ranks_launch_in_one_order_whatever_theirs_is(ranks: list[Rank]) -> None:
    names = [f"t{index}" for index in range(40)]
    orders = [names, names[::-1], names[20:] + names[:20]]

    def run(rank: Rank, order: list[str]) -> list[str]:
        rounds = [Round(rank, name) for name in order]
        for each in rounds:
            each.ready(priority=hash(each.name) % 3)
        return [each.over.result(HANG_S) for each in rounds]

    at_once([lambda r=r, o=o: run(r, o) for r, o in zip(ranks, orders, strict=True)])
    assert ranks[0].launched == ranks[1].launched == ranks[2].launched
    assert len(ranks[0].launched) == 80


def test_an_error_of_one_rank_is_one_of_all(ranks: list[Rank]) -> None:
    rounds = [Round(rank, "a") for rank in ranks]
    for each in rounds[1:]:
        each.ready()
    ranks[0].link.fail(rounds[0].operation, PeerLostError("rank 9 died"))
    for each in rounds:
        with pytest.raises(PeerLostError, match="^rank 9 died$"):
            each.over.result(HANG_S)
    # The group goes on with other tensors.
    others = [Round(rank, "b") for rank in ranks]
    for each in others:
        each.ready()
    assert [each.over.result(HANG_S) for each in others] == ["gathered"] * 3
    assert not any(rank.aborted.is_set() for rank in ranks)


def test_a_rank_keeps_its_own_error(ranks: list[Rank]) -> None:
    rounds = [Round(rank, "a") for rank in ranks]
    for index, each in enumerate(rounds):
        each.rank.link.fail(each.operation, ValueError(f"of {index}"))
    for index, each in enumerate(rounds):
        with pytest.raises(ValueError, match=f"of {index}"):
            each.over.result(HANG_S)


@pytest.mark.parametrize("gone", [0, 2])
def test_a_rank_that_dies_is_an_error_of_the_others(ranks: list[Rank], gone: int) -> None:
    rounds = [Round(rank, "a") for rank in ranks]
    for each in rounds:
        if each.rank is not ranks[gone]:
            each.ready()
    # As when its process ends.
    hub = ranks[0].link._hub
    assert hub is not None
    lost = [each for each, member in list(hub._members.items()) if gone in (0, member)]
    ends = [socket.socket(fileno=os.dup(each.fileno())) for each in lost]
    for end in ends:
        end.shutdown(socket.SHUT_RDWR)
        end.close()
    for each in rounds:
        if each.rank is not ranks[gone]:
            with pytest.raises(PeerLostError, match="rank [25]"):
                each.over.result(HANG_S)
            assert each.rank.aborted.is_set()
            with pytest.raises(PeerLostError):
                Round(each.rank, "later").over.result(HANG_S)


def test_a_rank_that_cannot_launch_breaks_the_group(ranks: list[Rank]) -> None:
    ranks[1].cannot_launch = "a"
    rounds = [Round(rank, "a") for rank in ranks]
    for each in rounds:
        each.ready()
    for each in rounds:
        kind = RuntimeError if each.rank is ranks[1] else MismatchError
        with pytest.raises(kind, match="out of memory"):
            each.over.result(HANG_S)
    assert all(rank.aborted.is_set() for rank in ranks)


def test_leaving_waits_for_rounds_and_for_the_others(ranks: list[Rank]) -> None:
    def leave(rank: Rank) -> None:
        of = Round(rank, "a")
        of.ready()
        with rank.link.around_close():
            assert of.over.done()

    at_once([lambda rank=rank: leave(rank) for rank in ranks])
    assert [rank.closed for rank in ranks] == [[True]] * 3
    assert not any(rank.aborted.is_set() for rank in ranks)
    with pytest.raises(ClosedError):
        Round(ranks[0], "later").over.result(HANG_S)


def test_a_rank_that_leaves_alone_is_not_kept(
    ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_link, "LEAVE_S", 0.05)
    ranks[1].link.close()
    assert ranks[1].closed == [False]
    ranks[0].link.close()
    assert ranks[0].closed == [False]


def test_a_group_of_one_has_no_link() -> None:
    session = Session(2, Board())
    session.device_group = [(2, True)]
    assert open_link(session) is None


def test_a_leader_that_cannot_listen_names_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(device_link.tempfile, "tempdir", str(deep))
    with pytest.raises(StartError, match="cannot listen at .*TMPDIR"):
        open_link(Session(2, Board()))
    assert not list(deep.iterdir())


def test_errors_of_other_ranks_have_their_class_if_it_is_one_of_sumpters() -> None:
    assert isinstance(error_of(Failure("PeerLostError", "x")), PeerLostError)
    for kind in ("RuntimeError", "annotations", "HostsUpdatedInterrupt"):
        assert isinstance(error_of(Failure(kind, "x")), MismatchError)
    assert Operation("a", "b", 0) == ("a", "b", 0)
