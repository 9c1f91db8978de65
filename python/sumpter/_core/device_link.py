"""The connections of a device group's ranks to the one that decides the order of collectives.

What is decided is in device_order.py. The leader, the group's lowest rank, listens on a socket of
the machine in a folder that only its user can enter, and sends its path and a key to the others by
a broadcast of the core. A thread of the leader reads what members are ready for; a thread of each
member launches what it is told to. A lost connection breaks the group: all rounds in flight fail.

The leader is a member like the others, connected to itself by a pipe.
"""

from __future__ import annotations

import contextlib
import ctypes
import hmac
import json
import logging
import os
import queue
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Protocol

from sumpter import _errors
from sumpter._core.action_queue import ActionQueue
from sumpter._core.device_order import STAGES, Break, Fail, Failure, Launch, Operation, Order
from sumpter._errors import ClosedError, MismatchError, PeerLostError, StartError, SumpterError

if TYPE_CHECKING:
    from sumpter._core.handles import RoundHandle
    from sumpter._core.session import Session
    from sumpter._core.streams import DeviceGroup

# What the leader broadcasts: a path of at most 107 bytes, and a key.
MEETING_BYTES = 512

# How long a session that closes waits for rounds of which nothing changes.
SETTLE_S = 60.0

# How long it waits for the others to leave the group as well, so that none uses the memory of a
# device that is gone. Ranks of a job end together; those that do not are not waited for.
LEAVE_S = 5.0

_log = logging.getLogger("sumpter")


class Member(Protocol):
    """A round of this rank in the order of its group."""

    def launch(self, stage: str) -> None:
        """Enqueues a stage on the device. What it raises breaks the group."""

    def conclude(self, error: BaseException) -> None:
        """No stage will be launched any more: this rank's own error, or another one's."""


class DeviceLink:
    """This rank's connection to the leader of its device group."""

    def __init__(
        self,
        ranks: Sequence[int],
        rank: int,
        leader: Connection,
        folder: str,
        hub: Hub | None = None,
    ) -> None:
        self.ranks = tuple(ranks)
        self.rank = rank
        # A folder of the machine for the members, as long as the leader's session is open.
        self.folder = folder
        # What runs the collectives, once a front has made it.
        self.group: DeviceGroup | None = None
        # For what waits for the device: until tensors are computed, and until collectives have run.
        self.computed = ActionQueue("sumpter-device-computed")
        self._completed = ActionQueue("sumpter-device-collectives")
        self._leader = leader
        # The leader has the thread that decides.
        self._hub = hub
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._members: dict[Operation, Member] = {}
        self._errors: dict[Operation, BaseException] = {}
        self._rounds: dict[tuple[str, str], int] = {}
        self._progress = 0
        self._broken: BaseException | None = None
        self._left = threading.Event()
        self._reader = threading.Thread(target=self._read, name="sumpter-device-order", daemon=True)
        self._reader.start()

    @property
    def leads(self) -> bool:
        """Whether this rank is the leader."""
        return self._hub is not None

    def begin(self, name: str, what: str, member: Member) -> Operation:
        """The next round of a tensor, whose stages `member` launches when the leader says so."""
        with self._changed:
            number = self._rounds.get((name, what), 0)
            self._rounds[name, what] = number + 1
            operation = Operation(name, what, number)
            broken = self._broken
            if broken is None:
                self._members[operation] = member
        if broken is not None:
            member.conclude(broken)
        return operation

    def ready(self, operation: Operation, stage: str, priority: int, tag: str = "") -> None:
        """This rank can launch a stage of a round, which was submitted with `tag`."""
        self._send("ready", *operation, stage, priority, tag)

    def fail(self, operation: Operation, error: BaseException) -> None:
        """The round has failed here: it is concluded once the leader launches no more of it."""
        with self._changed:
            if operation not in self._members:
                return
            self._errors.setdefault(operation, error)
        self._send("failed", *operation, *_failure(error))

    def follow(self, name: str, tag: str, round_: RoundHandle) -> None:
        """Has the group's rounds of the same call fail with `round_`, which is in host memory.

        The core does not tell ranks that hold nothing of a tensor that ranks differ.
        """

        def over() -> None:
            try:
                round_.wait()
            except MismatchError as error:
                host = Operation(name, "in host memory", 0)
                self._send("failed", *host, *_failure(error), tag)
            except SumpterError:
                # The session is over, or the group notices it by itself.
                pass

        round_.on_done(over)

    def watch(self, wait: Callable[[], object]) -> None:
        """Has the leader know when `wait` returns: a collective that it has launched has run."""

        def completed() -> None:
            wait()
            self._send("completed")

        if self.leads:
            self._completed.put(completed, self.break_off)

    def break_off(self, error: BaseException) -> None:
        """This rank cannot launch collectives any more: the group's rounds fail on all members."""
        failure = Failure(type(error).__name__, f"rank {self.rank}'s device group: {error}")
        self._send("broken", *failure)
        self._break(error)

    @contextlib.contextmanager
    def around_close(self) -> Iterator[None]:
        """Lets rounds in flight end before the session's worker does, and leaves afterwards."""
        self.settle(SETTLE_S)
        try:
            yield
        finally:
            self.close()

    def settle(self, patience_s: float) -> None:
        """Blocks until no round is in flight, or nothing has changed for `patience_s`."""
        with self._changed:
            while self._members:
                before = self._progress
                if not self._changed.wait_for(
                    lambda before=before: self._progress != before, patience_s
                ):
                    return

    def close(self) -> None:
        """Leaves the group, with the others if they leave soon."""
        self._send("leave")
        together = self._left.wait(LEAVE_S)
        self._send("close")
        self._reader.join(LEAVE_S)
        self._end(ClosedError("the session has been shut down"))
        with contextlib.suppress(OSError):
            self._leader.close()
        for threads in (self.computed, self._completed):
            threads.close(LEAVE_S)
        if self.group is not None:
            self.group.close(together)
        if self._hub is not None:
            self._hub.join(LEAVE_S)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _send(self, *message: object) -> None:
        # Without a connection the group breaks, which the reader notices.
        with self._sending, contextlib.suppress(OSError):
            self._leader.send_bytes(_encode(*message))

    def _read(self) -> None:
        """Carries out what the leader decides, in its order."""
        try:
            while not self._left.is_set():
                kind, *rest = json.loads(self._leader.recv_bytes())
                if kind == "launch":
                    self._launch(Operation(*rest[:3]), rest[3])
                elif kind == "fail":
                    self._conclude(Operation(*rest[:3]), error_of(Failure(*rest[3:])))
                elif kind == "broken":
                    self._break(error_of(Failure(*rest)))
                else:
                    self._left.set()
        except (EOFError, OSError):
            lost = f"rank {self.ranks[0]}, which leads the device group of rank {self.rank}"
            self._break(PeerLostError(f"{lost}, has left the job or died"))
            self._left.set()

    def _launch(self, operation: Operation, stage: str) -> None:
        with self._changed:
            member = self._members.get(operation)
        if member is None:
            # The group is broken.
            return
        try:
            member.launch(stage)
        except BaseException as error:
            with self._changed:
                self._errors.setdefault(operation, error)
            self.break_off(error)
            return
        with self._changed:
            if stage == STAGES[-1]:
                self._members.pop(operation, None)
                self._errors.pop(operation, None)
            self._progress += 1
            self._changed.notify_all()

    def _conclude(self, operation: Operation, error: BaseException) -> None:
        with self._changed:
            member = self._members.pop(operation, None)
            own = self._errors.pop(operation, None)
            self._progress += 1
            self._changed.notify_all()
        if member is not None:
            member.conclude(own or error)

    def _break(self, error: BaseException) -> None:
        """Nothing is launched any more, and what has been launched may never run."""
        if self._end(error):
            _log.error("the device group of rank %d is broken: %s", self.rank, error)

    def _end(self, error: BaseException) -> bool:
        """Concludes all rounds, and those that begin later; whether it is the first such error."""
        with self._changed:
            if self._broken is not None:
                return False
            self._broken = error
            operations = list(self._members)
        if self.group is not None and not self._left.is_set():
            # What runs on the device waits for ranks that will never come.
            self.group.abort()
        for operation in operations:
            self._conclude(operation, error)
        return True


class Hub(threading.Thread):
    """The leader's thread: reads what members are ready for, and tells them what to launch."""

    def __init__(
        self, ranks: Sequence[int], own: Connection, listener: socket.socket, key: str
    ) -> None:
        super().__init__(name="sumpter-device-leader", daemon=True)
        self._ranks = ranks
        self._own = own
        self._listener = listener
        self._key = key
        self._order = Order(len(ranks))
        self._members: dict[Connection, int] = {own: 0}
        # Of those that have not said who they are.
        self._strangers: list[Connection] = []
        self._left: set[int] = set()
        # What is not read any more, and closed at the end.
        self._forgotten: list[Connection] = []
        # Another thread writes: this one always reads, or a member and it could wait for another.
        self._outbox: queue.SimpleQueue[tuple[Connection, bytes] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="sumpter-device-out", daemon=True)

    def run(self) -> None:
        self._writer.start()
        while self._own in self._members:
            known = [*self._members, *self._strangers]
            for ready in connection.wait([self._listener, *known]):
                if ready is self._listener:
                    accepted, _ = self._listener.accept()
                    self._strangers.append(Connection(accepted.detach()))
                elif isinstance(ready, Connection):
                    self._read(ready)
            for decision in self._order.decide():
                self._tell(decision)
        self._outbox.put(None)
        self._writer.join()
        self._listener.close()
        for each in [*self._members, *self._strangers, *self._forgotten]:
            each.close()

    def _read(self, sender: Connection) -> None:
        """Takes one message, or the end of a connection."""
        try:
            kind, *rest = json.loads(sender.recv_bytes())
        except (EOFError, OSError):
            self._lose(sender)
            return
        member = self._members.get(sender)
        if member is None:
            self._strangers.remove(sender)
            if kind == "member" and hmac.compare_digest(str(rest[0]), self._key):
                self._members[sender] = int(rest[1])
            else:
                self._forgotten.append(sender)
        elif kind == "ready":
            try:
                self._order.ready(member, Operation(*rest[:3]), *rest[3:])
            except ValueError as error:
                self._order.broken(Failure("SumpterError", str(error)))
        elif kind == "failed":
            self._order.failed(member, Operation(*rest[:3]), Failure(*rest[3:5]), *rest[5:])
        elif kind == "completed":
            self._order.completed()
        elif kind == "broken":
            self._order.broken(Failure(*rest))
        elif kind == "leave":
            self._leave(member)
        elif kind == "close":
            self._outbox.put((sender, _encode("left")))
            self._forget(sender)

    def _lose(self, sender: Connection) -> None:
        member = self._members.pop(sender, None)
        if member is None:
            self._strangers.remove(sender)
        elif member not in self._left:
            message = f"rank {self._ranks[member]} of the device group has left the job or died"
            self._order.broken(Failure("PeerLostError", message))
            self._leave(member)
        self._forgotten.append(sender)

    def _leave(self, member: int) -> None:
        self._left.add(member)
        if len(self._left) == len(self._ranks):
            self._tell_all("left")

    def _forget(self, sender: Connection) -> None:
        self._members.pop(sender, None)
        self._forgotten.append(sender)

    def _tell(self, decision: Launch | Fail | Break) -> None:
        if isinstance(decision, Launch):
            self._tell_all("launch", *decision.operation, decision.stage)
        elif isinstance(decision, Break):
            self._tell_all("broken", *decision.failure)
        else:
            message = _encode("fail", *decision.operation, *decision.failure)
            for each, member in self._members.items():
                if member == decision.member:
                    self._outbox.put((each, message))

    def _tell_all(self, *message: object) -> None:
        for each in self._members:
            self._outbox.put((each, _encode(*message)))

    def _write(self) -> None:
        while (item := self._outbox.get()) is not None:
            receiver, message = item
            # What ends a connection is noticed by the one who reads.
            with contextlib.suppress(OSError, ValueError):
                receiver.send_bytes(message)


def open_link(session: Session) -> DeviceLink | None:
    """Connects the ranks of a session's device group; None for a group of one.

    Blocks until the leader has joined the job. Raises StartError if this rank cannot reach it.
    """
    ranks = [rank for rank, _ in session.device_group]
    if len(ranks) < 2:
        return None
    leads = session.rank == ranks[0]
    text = ctypes.create_string_buffer(MEETING_BYTES)
    if leads:
        folder = tempfile.mkdtemp(prefix="sumpter-")
        key = secrets.token_hex()
        listener = _listen(folder, len(ranks))
        text.value = json.dumps([folder, key]).encode()
    name = f"sumpter.device_group.{ranks[0]}"
    declared = session.declare(
        name, "broadcast", (MEETING_BYTES,), "uint8", root=ranks[0], ranks=ranks
    )
    address = ctypes.addressof(text)
    declared.submit(address if leads else 0, address, keep=text).wait()
    if leads:
        own, hubs = connection.Pipe()
        hub = Hub(ranks, hubs, listener, key)
        hub.start()
        return DeviceLink(ranks, session.rank, own, folder, hub)
    folder, key = json.loads(text.value)
    try:
        leader = connection.Client(_path(folder), "AF_UNIX")
    except OSError as error:
        raise StartError(
            f"rank {session.rank} cannot reach rank {ranks[0]} of its device group at "
            f"{_path(folder)}: {error}; ranks of one group run on one machine, under one user, and "
            "see the same folder for temporary files"
        ) from error
    leader.send_bytes(_encode("member", key, ranks.index(session.rank)))
    return DeviceLink(ranks, session.rank, leader, folder)


def error_of(failure: Failure) -> BaseException:
    """The error of another rank as this one raises it."""
    kind = getattr(_errors, failure.kind, MismatchError)
    known = isinstance(kind, type) and issubclass(kind, SumpterError)
    return (kind if known else MismatchError)(failure.message)


def _failure(error: BaseException) -> Failure:
    return Failure(type(error).__name__, str(error))


def _listen(folder: str, backlog: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(_path(folder))
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise StartError(
            f"the device group cannot listen at {_path(folder)}: {error} (TMPDIR names another "
            "folder for temporary files)"
        ) from error
    return listener


def _path(folder: str) -> str:
    return os.path.join(folder, "order")


def _encode(*message: object) -> bytes:
    return json.dumps(message).encode()
