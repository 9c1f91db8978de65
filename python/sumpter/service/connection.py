"""A worker's connection to a namespace: variables, and the rounds of their gradients."""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any

import numpy as np

from sumpter import _arrays, _native
from sumpter._core import membership
from sumpter._core.handles import Handle
from sumpter._core.names import agree, identify_call
from sumpter._core.session import Session
from sumpter._core.tensor import Tensor
from sumpter._errors import (
    ClosedError,
    ConfigError,
    MismatchError,
    StartError,
    SumpterError,
    UnsupportedError,
    VariableError,
)
from sumpter.service.hyperparameters import plain, update_of
from sumpter.service.ticket import Ticket

_HOLDER = "service"

_open: Connection | None = None


def connect(
    ticket: Ticket | str | os.PathLike[str] | None = None,
    rank: int | None = None,
    **settings: object,
) -> Connection:
    """Joins a namespace as one of its workers; returns when all workers and servers are there.

    `ticket` is create_service()'s, or a file that it was saved to. Without one, the environment
    says which job to join, as under `sumpter run`. `rank` is this worker's number, from 0; without
    it, that of the environment. Further `settings` override both. A process has one connection at
    a time, and `sumpter.push_pull` and its relatives work in the same job meanwhile.

    Raises AuthError if the coordinator does not admit the namespace with this token, StartError if
    workers, servers or the coordinator are missing, or this process is in another job already.
    """
    global _open
    if _open is not None and not _open.is_closed():
        raise StartError(
            f"this process is connected to namespace {_open.namespace!r} already: close() that "
            "connection first"
        )
    given: dict[str, object] = {}
    if ticket is not None:
        if not isinstance(ticket, Ticket):
            ticket = Ticket.load(ticket)
        given = {
            "job": ticket.namespace,
            "coordinator": ticket.coordinator,
            "token": ticket.token,
            "world_size": ticket.workers,
            "servers": ticket.servers,
        }
    if rank is not None:
        given["rank"] = rank
    _open = Connection(membership.acquire(_HOLDER, {**given, **settings}))
    return _open


class Connection:
    """This worker's place in a namespace; as a context manager it closes with the block.

    Where a method takes a variable, its name does as well.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.namespace: str = session.worker.job
        self.rank: int = session.rank
        self.size: int = session.world_size
        self._variables: dict[str, Variable] = {}
        # Used without a value since their last init_variable().
        self._unknown: set[str] = set()
        self._has_left = False

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the job when what is in flight is done; variables end with it. May be repeated."""
        if not self.is_closed():
            self._has_left = True
            membership.release(_HOLDER)
        self._variables.clear()

    def is_closed(self) -> bool:
        """Whether the connection was closed, or its process was forked."""
        # The job may go on for other fronts.
        return self._has_left or membership.peek() is not self._session

    def init_variable(
        self,
        name: str,
        value: Any,
        rule: str | None = None,
        *,
        average: bool | None = None,
        state: Mapping[str, Any] | None = None,
        **hyperparameters: Any,
    ) -> Variable:
        """Gives a variable its value, which is rank 0's, and the rule that gradients change it by.

        All ranks call this in one order, with arrays of one shape and element type and with the
        same arguments. The rules are "sgd", "adam", "adamw", "rmsprop", "adagrad" and "lion"; their
        `hyperparameters` are those of torch.optim, with its defaults (`lr` of "sgd" has none).
        Variables with a rule have elements of float16, bfloat16, float32 or float64; for the first
        two the servers keep a value of float32, and workers get it rounded. Without a rule the
        value of a variable is the last sum of what was pushed, and integers are possible.

        `average` divides sums by the number of workers: by default with a rule, and not without
        one. With `state`, which state() has returned, the rule goes on from there. A variable of
        the same name is replaced.

        Raises MismatchError on all ranks if their calls differ, UnsupportedError for elements that
        cannot be summed or that the rule is not for, ConfigError for a rule that there is not and
        for wrong hyper-parameters. Other variables go on.
        """
        self._check_open()
        turn = self._turn(name)
        self._unknown.discard(name)
        try:
            given, restore = _arrays.read(value)
            parts = _read_state(state or {})
            hyperparameters = plain(hyperparameters)
        except Exception as error:
            # The other ranks are not to wait for this one.
            turn.refuse(f"rank {self.rank}: {error}")
            raise
        average = rule is not None if average is None else average
        options = ", ".join(f"{key}={hyperparameters[key]!r}" for key in sorted(hyperparameters))
        shapes = ", ".join(f"{key} {list(parts[key].shape)}" for key in sorted(parts))
        what = (
            f"init_variable({name!r}, {given.dtype.name} {list(given.shape)}, {rule}({options}), "
            f"average={average}, state={{{shapes}}})"
        )
        turn.submit(0, 0, keep=None).wait()
        self._agree(what)
        variable = Variable(
            self._session,
            (name, turn.name.removesuffix(".begin")),
            given,
            (rule, average, hyperparameters),
        )
        variable._begin(given, restore, parts)
        self._variables[name] = variable
        return variable

    def push(self, variable: Variable | str, gradient: Any, priority: int = 0) -> Handle[Any]:
        """Starts a round: sums the gradient over all workers and applies the variable's rule.

        All workers must push. The gradient has the variable's shape and element type, and must not
        change before the round is done. `synchronize()` of what this returns waits for it and
        returns the new value, an array of the gradient's kind; pull() does so for the variable. A
        higher `priority` goes first.

        Raises VariableError for a variable without a value or of another namespace, MismatchError
        on all ranks for a gradient of another shape or element type; it then fails the variable,
        with the rounds whose value a rank does not have yet.
        """
        return self._find(variable)._push(gradient, priority)

    def pull(self, variable: Variable | str) -> Any:
        """Waits for the rounds that this worker has pushed to, and returns the variable's value.

        Until the next round it is the same array every time: changing it changes nothing on the
        servers. Raises what went
        wrong with a round, such as MismatchError if ranks apply different hyper-parameters;
        VariableError as push() does.
        """
        return self._find(variable)._pull()

    def push_pull(self, variable: Variable | str, gradient: Any, priority: int = 0) -> Any:
        """Pushes a gradient, waits for the round and returns the new value."""
        self.push(variable, gradient, priority)
        return self.pull(variable)

    def set_hyperparameters(self, variable: Variable | str, **changes: Any) -> None:
        """Changes hyper-parameters of the rule from the next push on; all ranks must do so alike.

        Raises ConfigError, and changes nothing, for those that cannot be. Whether SGD or RMSprop
        has momentum, and other choices that decide what state there is, cannot be changed.
        """
        self._find(variable)._set(changes)

    def state(self, variable: Variable | str) -> dict[str, Any]:
        """The state of a variable's rule, for init_variable(); all ranks must call this.

        "step": rounds so far; "value": the value, of float64 for float64, else of float32; and by
        torch's names the slots of the rule, such as "exp_avg", of the same type. Gathered from all
        ranks, and the same on all.
        """
        return self._find(variable)._state()

    def _find(self, variable: Variable | str) -> Variable:
        self._check_open()
        if isinstance(variable, Variable):
            if variable.namespace != self.namespace:
                raise VariableError(
                    f"variable {variable.name!r} belongs to namespace {variable.namespace!r}, and "
                    f"this connection is to {self.namespace!r}: connect to {variable.namespace!r} "
                    "with its ticket, or call init_variable() here"
                )
            if self._variables.get(variable.name) is variable:
                return variable
            raise VariableError(
                f"variable {variable.name!r} has been replaced, or is of a connection that was "
                "closed: use what the last init_variable() has returned"
            )
        known = self._variables.get(variable)
        if known is None:
            if variable not in self._unknown:
                self._unknown.add(variable)
                # Ranks that give it a value now, or later, get an error that says so.
                self._turn(variable).refuse(f"rank {self.rank} has used it before init_variable()")
            raise VariableError(
                f"variable {variable!r} has no value in namespace {self.namespace!r} on rank "
                f"{self.rank}: call init_variable() on all ranks first"
            )
        return known

    def _turn(self, name: str) -> Tensor:
        """A barrier for the next init_variable() of a name, which a rank can refuse."""
        count = self._session.count(f"{_HOLDER}.{name}")
        return self._session.declare(f"{_HOLDER}.{name}.{count}.begin", "barrier", (1,), "uint8")

    def _agree(self, what: str) -> None:
        """Returns when all ranks have made this call; raises MismatchError on all if they differ.

        Ranks whose calls differ do not meet, which the coordinator finds and tells them.
        """
        own = f"{_HOLDER}.{zlib.crc32(what.encode()):08x}"
        identity = identify_call(self._session, _HOLDER, own, what)
        agree(self._session, identity, None).synchronize()

    def _check_open(self) -> None:
        if self.is_closed():
            raise ClosedError(
                f"the connection to namespace {self.namespace!r} was closed: connect() again"
            )


class Variable:
    """A named array of a namespace whose value and optimizer state are on the servers."""

    def __init__(
        self,
        session: Session,
        named: tuple[str, str],
        like: np.ndarray,
        ruled: tuple[str | None, bool, dict[str, Any]],
    ) -> None:
        self.name, unique = named
        self.namespace: str = session.worker.job
        self.shape: tuple[int, ...] = like.shape
        self.dtype: str = _arrays.check_summable(like)
        self.rule, self.average, self._hyperparameters = ruled
        self.steps = 0  # rounds pushed to
        self._session = session
        if self.rule is None:
            if self._hyperparameters:
                raise _unruled(self._hyperparameters)
            kind, exact = "all_reduce", None
        else:
            kind, exact = "update", update_of(self.rule, 1, self._hyperparameters).rule
        if like.dtype.kind in "iu" and (exact is not None or self.average):
            raise UnsupportedError(
                f"variable {self.name!r} has elements of {self.dtype}: integers have no update "
                "rule and no average; use floats, or rule=None for plain sums"
            )
        self._tensor: Tensor = session.declare(
            unique,
            kind,
            self.shape,
            self.dtype,
            average=self.average,
            rule=exact,
        )
        self._master = np.dtype(np.float64 if self.dtype == "float64" else np.float32)
        self._slots = _native.update_rules()[exact] if exact is not None else []
        self._value: Any = None
        self._pushes: deque[Handle[Any]] = deque()
        self._failure: Exception | None = None

    def __repr__(self) -> str:
        return (
            f"Variable({self.name!r}, namespace={self.namespace!r}, {self.dtype} "
            f"{list(self.shape)}, rule={self.rule!r})"
        )

    @property
    def hyperparameters(self) -> Mapping[str, Any]:
        """Those that were given; the others have the defaults of the rule."""
        return MappingProxyType(self._hyperparameters)

    def _begin(
        self, given: np.ndarray, restore: _arrays.Restore, state: Mapping[str, np.ndarray]
    ) -> None:
        """Gives the servers rank 0's value and state; all ranks do so at once."""
        self._check_state(state)
        value = self._from_rank_0("value", given.copy())
        self._value = restore(value)
        if self._tensor.description.rule is None:
            return
        steps = np.array([int(state.get("step", 0))], np.int64)
        self.steps = int(self._from_rank_0("step", steps)[0])
        # Without a state all slots are zeros, which need not travel.
        names = ["value", *self._slots] if state else []
        parts = [
            self._from_rank_0(f"state.{name}", np.array(state[name], self._master, order="C"))
            for name in names
        ] or [value.astype(self._master)]
        failure = None
        try:
            self._tensor.set_state(
                [memoryview(part.reshape(-1)).cast("B") for part in parts]
            ).wait()
        except SumpterError as error:
            failure = error
        # A rank that goes on needs the parts that the others mirror.
        self._session.barrier(f"{self._tensor.name}.ready").wait()
        if failure is not None:
            raise failure

    def _check_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Raises ConfigError unless these are the parts of a state of this variable."""
        if not state:
            return
        shapes = dict.fromkeys(["value", *self._slots], self.shape) | {"step": ()}
        if self.rule is None or {name: part.shape for name, part in state.items()} != shapes:
            found = ", ".join(f"{name} {list(part.shape)}" for name, part in state.items())
            wanted = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            raise ConfigError(
                f"variable {self.name!r}: the state has {found}; rule {self.rule!r} needs "
                + (wanted if self.rule is not None else "none")
            )

    def _from_rank_0(self, what: str, array: np.ndarray) -> np.ndarray:
        """Overwrites the array with rank 0's."""
        tensor = self._session.declare(
            f"{self._tensor.name}.{what}", "broadcast", array.shape, array.dtype.name
        )
        address = array.ctypes.data
        tensor.submit(address if self._session.rank == 0 else 0, address, keep=array).wait()
        return array

    def _push(self, gradient: Any, priority: int) -> Handle[Any]:
        self._raise_failure()
        given, restore = self._read(gradient)
        update = None
        if self.rule is not None:
            update = update_of(self.rule, self.steps + 1, self._hyperparameters).coefficients
        value = np.empty_like(given)
        round_ = self._tensor.submit(
            given.ctypes.data,
            value.ctypes.data,
            keep=(given, value),
            priority=priority,
            update=update,
        )
        self.steps += 1
        handle = Handle(round_, lambda: restore(value))
        # Those that are done need not be kept for pull().
        while self._pushes and self._pushes[0].poll():
            self._take()
        self._pushes.append(handle)
        return handle

    def _read(self, gradient: Any) -> tuple[np.ndarray, _arrays.Restore]:
        """A gradient as it travels; on all ranks an error for one that does not fit."""
        rank = self._session.rank
        try:
            given, restore = _arrays.read(gradient)
            if given.shape == self.shape and given.dtype.name == self.dtype:
                return given, restore
            raise MismatchError(
                f"variable {self.name!r} is {self.dtype} {list(self.shape)}, and rank {rank} has "
                f"pushed {given.dtype.name} {list(given.shape)}"
            )
        except Exception as error:
            # The other ranks are not to wait for this one.
            self._tensor.refuse(f"rank {rank}: {error}")
            self._failure = error
            raise

    def _pull(self) -> Any:
        while self._pushes:
            self._take()
        self._raise_failure()
        return self._value

    def _take(self) -> None:
        """Waits for the oldest round."""
        try:
            self._value = self._pushes.popleft().synchronize()
        except SumpterError as error:
            self._failure = self._failure or error
            raise

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _set(self, changes: dict[str, Any]) -> None:
        if self.rule is None:
            raise _unruled(changes)
        changed = {**self._hyperparameters, **plain(changes)}
        exact = update_of(self.rule, self.steps + 1, changed).rule
        if exact != self._tensor.description.rule:
            raise ConfigError(
                f"variable {self.name!r}: with {changes} rule {self.rule!r} has other state than "
                f"it had at init_variable(), which was {', '.join(self._slots) or 'none'}: call "
                "init_variable() again"
            )
        self._hyperparameters = changed

    def _state(self) -> dict[str, Any]:
        self._pull()
        if self.rule is None:
            raise VariableError(f"variable {self.name!r} has no update rule, and so no state")
        names = ["value", *self._slots]
        parts = np.zeros((len(names), *self.shape), self._master)
        flat = parts.reshape(len(names), -1)
        for start, stop, own in self._tensor.mirrored():
            for part, data in zip(flat, own, strict=True):
                part[start:stop] = np.frombuffer(data, self._master)
        # Each byte is zero on all ranks but the one that mirrors it, or in an elastic job the two,
        # which have the same.
        raw = parts.reshape(-1).view(np.uint8)
        total = np.empty_like(raw)
        tensor = self._session.declare(
            f"{self._tensor.name}.gather", "all_reduce", raw.shape, "uint8", "max"
        )
        tensor.submit(raw.ctypes.data, total.ctypes.data, keep=(raw, total)).wait()
        whole = total.view(self._master).reshape(parts.shape)
        return {"step": self.steps, **dict(zip(names, whole, strict=True))}


def _read_state(state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    parts = {key: np.asarray(part) for key, part in state.items()}
    for key, part in parts.items():
        if part.dtype.kind not in "fiu":
            raise ConfigError(f"the state's {key} has elements of {part.dtype}, not numbers")
    return parts


def _unruled(given: Mapping[str, Any]) -> ConfigError:
    names = ", ".join(given)
    return ConfigError(f"rule=None gives plain sums, which have no hyper-parameters: {names}")
