"""How ranks find their coordinator, and the errors when they cannot."""

from __future__ import annotations

import json

import pytest

from sumpter import _native
from sumpter._core.rendezvous import Meeting, meet
from sumpter._errors import StartError
from sumpter.launch.attendant import free_port

TOKEN = "a token that only tests use"


class Notice:
    """A board in memory."""

    host = "localhost"
    text = ""

    def post(self, text: str) -> None:
        assert not self.text, "posted twice"
        self.text = text

    def read(self, timeout_s: float) -> str:
        assert timeout_s > 0
        return self.text


def stop(meeting: Meeting) -> None:
    assert meeting.coordinator is not None
    meeting.coordinator.stop()


def test_a_known_coordinator_is_used(unlaunched: pytest.MonkeyPatch) -> None:
    assert meet({"coordinator": "host:1"}, None) == Meeting(
        {"coordinator": "host:1"}, is_in_rank_0=False
    )
    unlaunched.setenv("SUMPTER_COORDINATOR", "host:1")
    assert meet({"job": "mine"}, Notice) == Meeting({"job": "mine"}, is_in_rank_0=False)


def test_a_worker_alone_embeds_a_private_one(unlaunched: pytest.MonkeyPatch) -> None:
    meeting = meet({}, None)
    assert meeting.settings["coordinator"].startswith("127.0.0.1:")
    assert len(meeting.settings["token"]) >= 16
    stop(meeting)


def test_rank_0_posts_where_its_coordinator_is(unlaunched: pytest.MonkeyPatch) -> None:
    board = Notice()
    unlaunched.setenv("WORLD_SIZE", "2")
    first = meet({"rank": "0"}, lambda: board)
    second = meet({"rank": "1"}, lambda: board)
    assert second.coordinator is None
    for name in ("coordinator", "token"):
        assert second.settings[name] == first.settings[name]
    stop(first)


def test_a_token_that_was_given_is_not_posted(unlaunched: pytest.MonkeyPatch) -> None:
    board = Notice()
    unlaunched.setenv("SUMPTER_TOKEN", TOKEN)
    meeting = meet({"rank": "0", "world_size": "2"}, lambda: board)
    assert list(json.loads(board.text)) == ["coordinator"]
    assert TOKEN not in board.text
    stop(meeting)


def test_ranks_learn_why_rank_0_failed(unlaunched: pytest.MonkeyPatch) -> None:
    board = Notice()
    given = {"world_size": "2", "token": "short"}
    with pytest.raises(_native.SumpterError) as failure:
        meet({"rank": "0", **given}, lambda: board)
    with pytest.raises(StartError, match="rank 0") as told:
        meet({"rank": "1", **given}, lambda: board)
    assert str(failure.value) in str(told.value)


def test_without_a_board_the_port_after_the_masters_is_used(
    unlaunched: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    unlaunched.setenv("MASTER_ADDR", "127.0.0.1")
    unlaunched.setenv("MASTER_PORT", str(port - 1))
    unlaunched.setenv("WORLD_SIZE", "2")
    with pytest.raises(StartError, match="SUMPTER_TOKEN"):
        meet({}, None)
    unlaunched.setenv("SUMPTER_TOKEN", TOKEN)
    first = meet({}, None)
    assert meet({"rank": "1"}, None).settings["coordinator"] == f"127.0.0.1:{port}"
    with pytest.raises(StartError, match=str(port)):
        meet({}, None)
    stop(first)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"WORLD_SIZE": "2"}, "MASTER_ADDR"),
        ({"WORLD_SIZE": "two"}, "'two'"),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "65535"}, "65535"),
    ],
)
def test_what_is_missing_is_named(
    unlaunched: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    unlaunched.setenv("SUMPTER_TOKEN", TOKEN)
    for name, text in variables.items():
        unlaunched.setenv(name, text)
    with pytest.raises(StartError, match=expected):
        meet({}, None)
