"""Asynchronous training: each rank takes its own steps, and adds them to parameters that all share.

The shared parameters are variables on the servers. A step of the user's optimizer is taken in the
worker, from the parameters as they were when it got them last; the change, which BytePS calls a
delta, is added to the variable when it arrives, and the worker goes on from what the variable is
then. With a bound on staleness (Ho et al., "More Effective Distributed ML via a Stale Synchronous
Parallel Parameter Server", NIPS 2013) it waits until no other rank is more than so many steps
behind.
"""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from sumpter import _native
from sumpter._core import membership
from sumpter._core.handles import RoundHandle
from sumpter._core.process_sets import ProcessSet, label
from sumpter._core.reduction import Max
from sumpter._core.staging import DeviceRound
from sumpter._errors import MismatchError, UnsupportedError
from sumpter.torch.collectives.allreduces import allreduce_async_
from sumpter.torch.training.gradients import Names, PassCounter
from sumpter.torch.training.order_log import OrderLog, Spans
from sumpter.torch.training.variables import Variables, bring_together

# Of the names under which ranks exchange data about shared parameters.
PREFIX = "AsyncParam."
# Where all ranks wait for each other.
MEETINGS = ("agree", "agreed")


class _Exchange(NamedTuple):
    """A round of each variable, under way."""

    kind: str
    handles: list[RoundHandle]


class AsynchronousSteps(PassCounter):
    """Adds what a step changes to the shared parameters, and gets what they are then."""

    def __init__(
        self,
        names: Names,
        passes: int,
        average: bool,
        staleness: int | None,
        process_set: ProcessSet,
    ) -> None:
        is_number = isinstance(staleness, int) and not isinstance(staleness, bool)
        if staleness is not None and not (is_number and staleness >= 1):
            raise ValueError(
                f"staleness={staleness}: it is a number of steps from 0, or None for no bound"
            )
        if not process_set.included():
            raise UnsupportedError(
                f"rank {membership.rank()} is outside {process_set}, which shares the parameters: "
                "give this rank a plain optimizer"
            )
        self._staleness, self._process_set, self._average = staleness, process_set, average
        bring_together([(name, p.data) for p, name in names.items()], process_set)
        # The shared parameters as this rank got them last.
        self._shared = {p: p.detach().contiguous().clone() for p in names}
        self._deltas = {p: torch.empty_like(shared) for p, shared in self._shared.items()}
        # As torch counts what writes to a parameter's memory.
        self._versions = {p: p._version for p in names}
        # SGD that maximizes, with this learning rate, adds what it gets as it is.
        self._adder = torch.optim.SGD(list(names), lr=1.0, maximize=True)
        self._variables = Variables(
            names, self._adder, average, process_set, self._shared, staleness
        )
        # Begun of each variable.
        self._rounds = 0
        super().__init__(names, passes)
        self._declare()

    def step(self, take: Callable[[], Any]) -> Any:
        """Takes a step of the user's optimizer, and exchanges what it has changed."""
        self._follow_session()
        self._check()
        result = take()
        self.restart()
        for parameter, shared in self._shared.items():
            torch.sub(parameter.detach(), shared, out=self._deltas[parameter])
        self._finish(self._begin("step"))
        self._adopt()
        return result

    def agree(self) -> None:
        """Ends with the same parameters on all ranks, which must all call this.

        They have every step that any rank has taken. A rank that waits for others here does not
        hold them up, whatever the bound.
        """
        self._follow_session()
        self._check()
        self._meet()
        self._finish(self._begin("agree"))
        self._adopt()
        # A step that another takes from here must not be in what this rank got.
        self._barrier("agreed").wait()

    def load(self) -> None:
        """Has all ranks go on from the parameters as they are, the same on all."""
        self._follow_session()
        is_new = not self._variables.declared
        if not is_new:
            self._meet()
        for parameter, shared in self._shared.items():
            shared.copy_(parameter.detach())
            self._versions[parameter] = parameter._version
        self._variables.load(self._adder)
        if is_new:
            self._declare()

    def _declare(self) -> None:
        """Begins in a job; all ranks are here."""
        head = {
            "rank": membership.rank(),
            "world_size": membership.size(),
            "ranks": self._process_set.ranks,
            "staleness": self._staleness,
            "average": self._average,
            "parameters": {name: p.numel() for p, name in self.names.items()},
        }
        self._log = OrderLog(head, self._process_set)
        # The first step must not wait for those of others.
        self._variables.declare()

    def _meet(self) -> None:
        """Returns when all ranks have called this, and no step is under way."""
        for delta in self._deltas.values():
            delta.zero_()
        self._follow("meet")
        self._log.record("meet")
        arrived = self._barrier("agree")
        if self._log.follows:
            while self._log.is_next("pace"):
                self._finish(self._begin("pace"))
            arrived.wait()
            return
        pending = None
        if self._staleness is not None:
            pending = self._keep_pace(until=arrived)
        arrived.wait()
        if self._staleness is None:
            return
        # All ranks must have begun as many rounds for the last of them to end.
        rounds = torch.tensor([self._rounds])
        name = f"{PREFIX}rounds{label(self._process_set)}"
        allreduce_async_(rounds, op=Max, name=name, process_set=self._process_set).synchronize()
        if pending is not None:
            self._finish(pending)
        while self._rounds < int(rounds):
            self._finish(self._begin("pace"))

    def _barrier(self, name: str) -> RoundHandle:
        name = f"{PREFIX}{name}{label(self._process_set)}"
        return membership.current().barrier(name, self._process_set.ranks)

    def _begin(self, kind: str) -> _Exchange:
        """Sends the deltas."""
        orders = self._follow(kind) or [[] for _ in self._deltas]
        self._rounds += 1
        variables = self._variables
        handles = []
        for (p, delta), order in zip(self._deltas.items(), orders, strict=True):
            sent = (delta, variables.rule, variables.groups[p], self.names[p])
            handles.append(variables[p].begin(*sent, order=order))
        return _Exchange(kind, handles)

    def _finish(self, exchange: _Exchange) -> None:
        variables = self._variables
        try:
            for parameter, handle in zip(self._shared, exchange.handles, strict=True):
                handle.wait()
                variables[parameter].end(variables.rule, variables.groups[parameter])
        except MismatchError as error:
            # What a lane says of this rank's log; the others wait for its turns elsewhere, too.
            if f"the order log of rank {membership.rank()} " in str(error):
                self._refuse(str(error))
            raise
        self._log.record(exchange.kind, [_order(handle) for handle in exchange.handles])

    def _follow(self, kind: str) -> list[Spans] | None:
        """The order of the next exchange, if a log is replayed."""
        try:
            return self._log.next(kind)
        except MismatchError as error:
            self._refuse(str(error))
            raise

    def _refuse(self, reason: str) -> None:
        """Has all that other ranks may wait for fail there, with this reason."""
        self._variables.refuse(reason)
        for meeting in MEETINGS:
            name = f"{PREFIX}{meeting}{label(self._process_set)}"
            membership.current().refuse_name(name, reason)

    def _adopt(self) -> None:
        with torch.no_grad():
            for parameter, shared in self._shared.items():
                parameter.copy_(shared)
                self._versions[parameter] = parameter._version

    def _check(self) -> None:
        for parameter, name in self.names.items():
            if parameter._version != self._versions[parameter]:
                raise ValueError(
                    f"parameter {name} was changed in the worker, but all ranks share it: call "
                    "load_state_dict() of the optimizer after loading parameters, on all ranks"
                )

    def _keep_pace(self, until: RoundHandle) -> _Exchange | None:
        """Takes part with zeros while others still train. Returns what is under way."""
        changed = threading.Event()
        until.on_done(changed.set)
        pending: _Exchange | None = None
        while not until.poll():
            if pending is None or all(handle.poll() for handle in pending.handles):
                if pending is not None:
                    self._finish(pending)
                pending = self._begin("pace")
                for handle in pending.handles:
                    handle.on_done(changed.set)
            changed.wait()
            changed.clear()
        return pending

    def _follow_session(self) -> None:
        before = self._session
        super()._follow_session()
        self._variables.follow_session()
        if self._session is not before:
            self._rounds = 0


def _order(handle: RoundHandle) -> Spans:
    """When a round that is done had its turns; nothing of a parameter without elements."""
    return handle.order() if isinstance(handle, _native.Handle | DeviceRound) else []
