"""The order log of asynchronous training: in which order the steps of all ranks were added.

Each rank writes a file of its own, `rank-N.jsonl`. For each optimizer it has a head, which says
what must be the same when the log is replayed, and a line for each exchange:

    {"optimizer": 0, "kind": "step", "order": [[[180, 4, 5]], [[10, 4, 5], [30, 5, 7]]]}

`order` has, for each parameter in the order of the head, stretches of elements: the element after
the last one; the position at which this rank's delta was added, which is the number of deltas, of
all ranks, that were in the stretch before; and how many were in the value that the rank got. An
exchange is a "step", the last one of synchronize() ("agree"), or one of zeros while other ranks
train ("pace"). A line "meet", without an order, is where a rank waits for all others.
"""

import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from sumpter._core import membership
from sumpter._core.process_sets import ProcessSet, label
from sumpter._errors import MismatchError
from sumpter.torch.functions import allgather_object

VERSION = 1

# Of one parameter in one exchange: first element, the one after the last, position, answer.
Spans = list[tuple[int, int, int, int]]

# What the kinds of lines are in a user's script.
KINDS = {
    "step": "step()",
    "meet": "synchronize() or load_state_dict()",
    "pace": "an exchange while other ranks train",
    "agree": "the end of synchronize()",
}


class _Said(NamedTuple):
    """What ranks exchange before they begin."""

    record_order: bool
    replay_order: bool
    problem: str
    # Of the log that is followed, and one for the log that is written.
    run: str
    fresh: str


class OrderLog:
    """Records the exchanges of one optimizer, has them follow a log, or both, or neither.

    `head` says what must be the same in a replay. Every rank of the set must make one. Raises
    MismatchError on all of them if the log of any cannot be written or followed.
    """

    def __init__(self, head: dict[str, Any], process_set: ProcessSet) -> None:
        session = membership.current()
        self._optimizer = session.count("order log")
        self._head = {"order_log": VERSION, "optimizer": self._optimizer} | head
        self._out: TextIO | None = None
        self._in: TextIO | None = None
        self._line = 0
        # What the ranks of one run have in common, of the log that is followed.
        self._run = ""
        # Read ahead.
        self._next: dict[str, Any] | None = None
        record, replay = session.worker.record_order, session.worker.replay_order
        problem = ""
        try:
            if replay is not None:
                self._open_replay(self._file(replay))
            if record is not None:
                self._open_record(self._file(record))
        except (OSError, MismatchError) as error:
            problem = str(error)
        own = _Said(
            record is not None, replay is not None, problem, self._run, secrets.token_hex(8)
        )
        said = allgather_object(own, f"order log{label(process_set)}", process_set)
        try:
            _compare(said, process_set)
        except MismatchError:
            self._drop()
            raise
        if self._out is not None:
            self._write(self._head | {"run": said[0].fresh})

    @property
    def follows(self) -> bool:
        """Whether a log is replayed."""
        return self._in is not None

    def next(self, kind: str) -> list[Spans] | None:
        """The order of the next exchange by parameter, if a log is replayed.

        Raises MismatchError if the log has another kind of exchange there, or none.
        """
        if self._in is None:
            return None
        entry = self._next
        if entry is None or entry["kind"] != kind:
            has = "ends there" if entry is None else f"has {KINDS.get(entry['kind'], '?')} there"
            raise MismatchError(
                f"rank {membership.rank()} calls {KINDS[kind]}, but its order log {has} (line "
                f"{self._line} of {self._in.name}): replay the script that was recorded"
            )
        try:
            spans = [_spans(parameter) for parameter in entry["order"]]
        except (ValueError, TypeError, KeyError):
            raise MismatchError(
                f"line {self._line} of {self._in.name} has no order of parameters"
            ) from None
        self._next = self._read()
        if kind != "meet" and len(spans) != len(self._head["parameters"]):
            raise MismatchError(f"{self._in.name}: an exchange of {len(spans)} parameters")
        return spans

    def is_next(self, kind: str) -> bool:
        """Whether the log that is replayed has this kind of exchange next."""
        return self._next is not None and self._next["kind"] == kind

    def record(self, kind: str, order: Sequence[Spans] = ()) -> None:
        """Writes an exchange that is done, by parameter."""
        if self._out is not None:
            ends = [[span[1:] for span in parameter] for parameter in order]
            self._write({"optimizer": self._optimizer, "kind": kind, "order": ends})

    def _file(self, folder: os.PathLike[str]) -> Path:
        return Path(folder) / f"rank-{membership.rank()}.jsonl"

    def _open_record(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # The other optimizers of this run are in the same file.
            self._out = path.open("a" if self._optimizer else "x", buffering=1)
        except FileExistsError:
            raise MismatchError(f"{path} exists: record an order log in a new directory") from None

    def _drop(self) -> None:
        """Leaves nothing of a log that is not written."""
        if self._out is not None:
            self._out.close()
            if not self._optimizer:
                os.unlink(self._out.name)

    def _open_replay(self, path: Path) -> None:
        self._in = path.open()
        head = self._read()
        if head is None or "order_log" not in head:
            raise MismatchError(f"{path} has no optimizer number {self._optimizer}")
        for name, now in self._head.items():
            if (recorded := head.get(name)) != now:
                raise MismatchError(f"{path} is of another run: {_differ(name, recorded, now)}")
        self._run = str(head.get("run"))
        self._next = self._read()

    def _read(self) -> dict[str, Any] | None:
        """The next line of this optimizer; None at the end."""
        assert self._in is not None
        for text in self._in:
            self._line += 1
            try:
                line = json.loads(text)
                if line["optimizer"] == self._optimizer:
                    return dict(line)
            except (ValueError, TypeError, KeyError):
                raise MismatchError(
                    f"line {self._line} of {self._in.name} is not one of an order log"
                ) from None
        self._line += 1
        return None

    def _write(self, line: dict[str, Any]) -> None:
        assert self._out is not None
        self._out.write(json.dumps(line, separators=(",", ":")) + "\n")


def _spans(parameter: list[list[int]]) -> Spans:
    spans: Spans = []
    for end, position, answer in parameter:
        numbers = (end, position, answer)
        if not all(isinstance(number, int) and 0 <= number < 1 << 32 for number in numbers):
            raise ValueError(f"{numbers} are not all numbers from 0")
        spans.append((spans[-1][1] if spans else 0, end, position, answer))
    return spans


def _differ(name: str, recorded: Any, now: Any) -> str:
    """What differs, in words."""
    if name == "parameters" and isinstance(recorded, dict):
        before, after = list(recorded.items()), list(now.items())
        for one, other in zip(before, after, strict=False):
            if one != other:
                return (
                    f"it has parameter {one[0]} of {one[1]} elements, this has {other[0]} of "
                    f"{other[1]}"
                )
        return f"it has {len(before)} parameters, this has {len(after)}"
    return f"it has {name} {recorded!r}, this has {now!r}"


def _compare(said: list[_Said], process_set: ProcessSet) -> None:
    """Raises MismatchError, the same on all ranks, unless all can do the same."""
    by_rank = list(zip(process_set.ranks or range(len(said)), said, strict=True))
    for setting in ("record_order", "replay_order"):
        without = [rank for rank, one in by_rank if not getattr(one, setting)]
        if 0 < len(without) < len(said):
            raise MismatchError(f"{setting} is not set on ranks {without}: set it on all")
    problems = [f"rank {rank}: {one.problem}" for rank, one in by_rank if one.problem]
    if problems:
        raise MismatchError(f"order log: {'; '.join(problems)}")
    others = [rank for rank, one in by_rank if one.run != said[0].run]
    if others:
        raise MismatchError(
            f"the order logs of ranks {others} are of another run than that of rank {by_rank[0][0]}"
        )
