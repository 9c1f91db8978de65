"""An open membership in a job: the native worker, and the tensors that were declared.

A tensor's name identifies it on all ranks and for the whole job, with one shape, element type and
operation. Operations without a name use tensors that take turns, so that the number of names stays
bounded however long a job runs.
"""

import contextlib
import ctypes
import itertools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sumpter import _native
from sumpter._core import callbacks, device_link, seat
from sumpter._core.compression.codecs import going_on
from sumpter._core.handles import RoundHandle
from sumpter._core.rendezvous import (
    Board,
    device_group,
    has_timeline,
    is_elastic,
    job_name,
    meet,
)
from sumpter._core.tensor import (
    CodecMemory,
    Description,
    Tensor,
    TensorCycle,
    TensorUse,
    ready_times,
)
from sumpter._errors import (
    ConfigError,
    MismatchError,
    PeerLostError,
    SumpterError,
    UnsupportedError,
)

_log = logging.getLogger("sumpter")


class Session:
    """An open membership: the native worker and the tensors declared to it."""

    def __init__(self, settings: dict[str, str], board: Callable[[], Board] | None) -> None:
        meeting = meet(settings, board)
        place = _find_device_group(meeting.settings)
        self.settings = settings
        self._meeting = meeting
        self._coordinator = meeting.coordinator
        try:
            self.worker = _join(settings, {**meeting.settings, **place})
        except BaseException:
            if self._coordinator is not None:
                self._coordinator.stop()
            raise
        self.rank = self.worker.rank
        self.world_size = self.worker.world_size
        # The ranks that reduce on their devices before this one contributes to a sharded tensor,
        # itself included, and whether each holds shards.
        self.device_group = self.worker.device_group
        self._counters: dict[str, int] = {}
        self._declared: dict[tuple[Any, ...], Tensor] = {}
        # Those in which no other rank takes part, by name.
        self._alone: dict[str, Description] = {}
        # Whether a timeline is written, which has nothing to show of what begins no round.
        self.has_timeline = has_timeline(meeting.settings)
        self._cycles: dict[tuple[Any, ...], TensorCycle] = {}
        # What codecs kept in an earlier job, of tensors that are not declared yet, by name.
        self.restored: dict[str, CodecMemory] = {}
        # What fronts know of the operations of one description, by a key that describes them.
        self.operations: dict[tuple[Any, ...], Any] = {}
        self._scopes: dict[tuple[str, int], dict[str, object]] = {}
        # What the model's layers take, if that was given to `tune`.
        self.profile: Any = None
        # Rounds and when they began, while a tuner wants to know.
        self.begun: list[tuple[Tensor, float]] | None = None
        # What went wrong with an operation whose caller had gone on without waiting for it.
        self.late: BaseException | None = None
        # Where streams wait for rounds: to be called before `late` is looked at, since they see
        # that a round has failed before a thread of Python does.
        self.await_failures: Callable[[], None] | None = None
        # What is entered before the worker finishes what is in flight, and left when it has.
        self.around_close: list[Callable[[], contextlib.AbstractContextManager[None]]] = []
        # Whether devices reduce among each other what all ranks reduce: the same on all ranks.
        self.has_device_groups = bool(device_group({**meeting.settings, **place}))
        # The connection to this rank's device group, unless it is a group of one.
        self.device_link = self._open_device_link()
        for opened in at_open:
            opened(self)

    def _open_device_link(self) -> device_link.DeviceLink | None:
        try:
            link = device_link.open_link(self)
        except BaseException:
            self.close()
            raise
        if link is not None:
            self.around_close.append(link.around_close)
        return link

    def close(self) -> None:
        """Leaves the job, then stops the embedded coordinator if there is one."""
        try:
            with contextlib.ExitStack() as around:
                for enter in self.around_close:
                    around.enter_context(enter())
                self.worker.shutdown()
            callbacks.finish()
        finally:
            if self._coordinator is not None:
                self._coordinator.stop()
            # They refer to the session: its sockets would stay open until a collection of cycles.
            for known in (self._declared, self._cycles, self.operations):
                known.clear()

    def is_over(self) -> bool:
        """Whether nothing that all ranks take part in can be done any more.

        The job has failed, or some rank is gone for good. The coordinator is asked, because ranks
        may leave while this one does nothing.
        """
        try:
            self.worker.step(0)
        except SumpterError:
            return True
        if is_elastic(self.settings):
            return False
        try:
            view = json.loads(_native.status(self._meeting.settings, self.worker.job))
        except SumpterError:
            # A run outlives a coordinator, unless that is in rank 0, which has left then.
            return self._meeting.is_in_rank_0
        return any(worker["gone"] for job in view["jobs"] for worker in job["workers"])

    def has_lost_workers(self) -> bool:
        """Whether workers have died, and the others go on without them; ClosedError at the end."""
        return bool(json.loads(self.worker.plan())["gone"])

    def abandon(self) -> None:
        """Keeps what works for it for ever: in a forked child, ending it would never return."""
        for native in (self.worker, self._coordinator, self.around_close):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))

    def declare(
        self,
        name: str,
        collective: str,
        shape: Sequence[int],
        dtype: str,
        op: str = "sum",
        root: int = 0,
        average: bool = False,
        ranks: Sequence[int] | None = None,
        rule: str | None = None,
        staleness: int | None = 0,
        sharded: bool = False,
        compression: str = "",
    ) -> Tensor:
        """The tensor of this name and description; the same one every time.

        Ranks that describe a name differently get MismatchError from its rounds. Raises
        ConfigError for a word that the core does not know.
        """
        members = None if ranks is None else tuple(ranks)
        described = Description(
            collective,
            tuple(shape),
            dtype,
            op,
            root,
            average,
            members,
            rule,
            staleness,
            sharded,
            compression,
        )
        key = (name, *described)
        tensor = self._declared.get(key)
        if tensor is None:
            restored = self.restored.get(name)
            if restored is not None:
                compression = going_on(compression, restored.draws)
                described = described._replace(compression=compression)
            tensor = self._declared[key] = Tensor(self, name, described)
            if restored is not None and tensor.keeps:
                tensor.restore(self.restored.pop(name))
        return tensor

    def declared(self) -> list[Tensor]:
        """The tensors that have been declared."""
        return list(self._declared.values())

    def is_of_all(self, ranks: Sequence[int] | None) -> bool:
        """Whether an operation among `ranks` is one of all ranks; None means all."""
        return ranks is None or len(ranks) == self.world_size

    def check_meaning(self, tensor: Tensor) -> None:
        """Raises MismatchError if another tensor has the name, as other ranks would find it."""
        # Ranks need not agree about averaging, which each does by itself.
        meaning = tensor.description._replace(average=False)
        known = self._alone.setdefault(tensor.name, meaning)
        if known != meaning:
            raise MismatchError(
                f"tensor {tensor.name!r} was {known} and is {meaning} now: a name has one meaning "
                "in a job"
            )

    def cycle(self, name: str, length: int, description: Description) -> TensorCycle:
        """The `length` tensors, named after `name`, for operations that have no name."""
        key = (name, description)
        cycle = self._cycles.get(key)
        if cycle is None:
            cycle = self._cycles[key] = TensorCycle(self, name, description, length)
        return cycle

    def rounds(self) -> dict[Tensor, int]:
        """How many rounds of each declared tensor have begun."""
        return {tensor: tensor.rounds for tensor in self.declared()}

    def uses_since(self, before: Mapping[Tensor, int]) -> list[TensorUse]:
        """The reduced tensors with rounds begun since `rounds()` returned `before`.

        With the times at which they were ready, if `begun` is recorded.
        """
        ready = ready_times(self.begun or ())
        return [
            TensorUse(described.shape, described.dtype, tensor.priority, begun, ready.get(tensor))
            for tensor, rounds in self.rounds().items()
            if (begun := rounds - before.get(tensor, 0))
            and (described := tensor.description).collective in ("all_reduce", "update")
        ]

    def status(self) -> str:
        """The coordinator's view of this job, as JSON.

        Raises StartError if the coordinator cannot be reached.
        """
        settings = {**self._meeting.settings, "coordinator": self.worker.coordinator}
        return _native.status(settings, self.worker.job)

    def raise_late(self) -> None:
        """Raises, once, what went wrong with an operation whose caller had gone on."""
        if self.late is not None:
            late, self.late = self.late, None
            raise late.with_traceback(None)

    def barrier(
        self, name: str = "barrier", ranks: Sequence[int] | None = None, tag: str = ""
    ) -> RoundHandle:
        """Starts a barrier; it is done when every participant has started it."""
        tensor = self.declare(name, "barrier", (1,), "uint8", ranks=ranks)
        return tensor.submit(0, 0, keep=None, tag=tag)

    def refuse_name(self, name: str, reason: str) -> None:
        """This rank takes no part in the rounds of a name, whatever the others make of it.

        As `Tensor.refuse()`, for a tensor that this rank cannot describe: only a round declares
        one to the other ranks.
        """
        self.worker.declare(name, "barrier", (1,), "uint8").refuse(reason)

    def out_of_data(self) -> int:
        """Takes part with zeros in what other ranks begin until all have called this.

        Returns the last rank to do so. Names count from 0 again, on all ranks, since each has
        counted what it has begun itself.
        """
        if self.device_link is not None:
            raise UnsupportedError(
                "a rank of a device group cannot run out of data before the others: its device has "
                "to reduce with theirs; give all ranks as many batches, or unset device_group"
            )
        last = self.worker.out_of_data()
        self._counters.clear()
        for cycle in self._cycles.values():
            cycle.restart()
        return last

    def count(self, what: str) -> int:
        """How many times `what` has been counted before this call."""
        before = self._counters.get(what, 0)
        self._counters[what] = before + 1
        return before

    def scope(self, prefix: str, described: Mapping[str, object]) -> str:
        """A prefix under which every name in `described` is new or means the same as before.

        Two models may both call a parameter "0.weight"; the second gets another prefix, and a
        model that comes back gets its old one again.
        """
        for index in itertools.count():
            known = self._scopes.setdefault((prefix, index), {})
            if all(known.get(name, what) == what for name, what in described.items()):
                known.update(described)
                return prefix if index == 0 else f"{prefix}{index}."
        raise AssertionError("itertools.count() never ends")


# Called with each session when it has opened.
at_open: list[Callable[[Session], object]] = []

# What find this rank's device group, where the setting is to be found out, from the settings: the
# settings `device_group` and `device_shards`, or None if they know nothing of devices.
group_finders: list[Callable[[Mapping[str, str]], dict[str, str] | None]] = []

AUTOMATIC = "auto"


def _find_device_group(given: Mapping[str, str]) -> dict[str, str]:
    """The settings of this rank's device group, if its name is to be found out."""
    if device_group(given) != AUTOMATIC:
        return {}
    for find in group_finders:
        found = find(given)
        if found is not None:
            return found
    raise ConfigError(
        "device_group is auto, but this process has not imported a front that knows its device: "
        "import sumpter.torch before, or give the group's name"
    )


def _join(given: dict[str, str], settings: dict[str, str]) -> _native.Worker:
    """Joins the job, or the next generation of an elastic one."""
    if not is_elastic(settings):
        return _native.Worker.join(settings)
    while True:
        seated, place = seat.take(given, settings, job_name(settings))
        try:
            return _native.Worker.join(seated, place)
        except PeerLostError as error:
            # Newcomers would end here, and cost the job more workers than have died.
            _log.warning("%s; meeting again", error)
