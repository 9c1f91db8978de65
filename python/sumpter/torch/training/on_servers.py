"""The optimizer on the servers: gradients go there, and new parameters come back."""

import contextlib
from collections.abc import Sequence

import torch

from sumpter._core import membership, seat
from sumpter._core.handles import RoundHandle
from sumpter._core.process_sets import ProcessSet
from sumpter._errors import SumpterError, UnsupportedError
from sumpter.torch.training.gradients import Names, PassCounter
from sumpter.torch.training.order import NeedOrder
from sumpter.torch.training.overlap import Updates
from sumpter.torch.training.shares import StateShare
from sumpter.torch.training.variables import Group, Variables, bring_together


class ServerUpdates(PassCounter):
    """Sends each gradient as soon as it is complete; the new parameter comes into its memory."""

    def __init__(
        self,
        names: Names,
        optimizer: torch.optim.Optimizer,
        passes: int,
        average: bool,
        process_set: ProcessSet,
    ) -> None:
        if not process_set.included():
            raise UnsupportedError(
                f"rank {membership.rank()} is outside {process_set}, whose servers update its "
                "parameters: give this rank a plain optimizer"
            )
        self._variables = Variables(names, optimizer, average, process_set)
        self._process_set = process_set
        self._handles: dict[torch.nn.Parameter, RoundHandle] = {}
        self.order = NeedOrder(names)
        # In an elastic job the state of elastic.run() does so: a worker may make this by itself.
        if not seat.held():
            bring_together([(name, p.data) for p, name in names.items()], process_set)
        super().__init__(names, passes)

    @property
    def pending(self) -> bool:
        """Whether gradients are in flight."""
        self._follow_session()
        return bool(self._handles)

    def complete(self, parameter: torch.nn.Parameter) -> None:
        """Sends the gradient that backward has made."""
        self.order.completed(parameter)
        self._start(parameter)

    def restart(self) -> None:
        """Counts the backward passes from the start again."""
        self.order.forget()
        super().restart()

    def finish(self) -> None:
        """Sends what has not been sent, zeros where backward made none, and waits for it all.

        Frozen parameters, which need no gradients now, stay as they are.
        """
        for handle in self.hand_over().values():
            self._wait(handle)

    def hand_over(self) -> dict[torch.nn.Parameter, RoundHandle]:
        """Sends what has not been sent; it is for the caller to wait for it all."""
        self._follow_session()
        self._take_in_unfrozen()
        for parameter in self.names:
            if parameter not in self._handles and parameter.requires_grad:
                self._start(parameter)
        handles, self._handles = self._handles, {}
        self.order.adopt()
        self.restart()
        changed = [self.names[parameter] for parameter in handles if self._end(parameter)]
        if changed:
            for handle in handles.values():
                handle.wait()
            raise ValueError(
                f"the gradient or the hyper-parameters of {', '.join(changed[:3])} were changed "
                "between backward() and step(): the servers have updated by what they were when "
                "backward() was done; change them before it, or make the DistributedOptimizer with "
                "deferred=True to clip or scale gradients after it"
            )
        return handles

    def abandon(self) -> None:
        """Forgets what is in flight, and the variables of a job that has been left."""
        self._handles = {}
        super().abandon()

    def check_settled(self, what: str) -> None:
        """Raises AssertionError while new parameters, and a new state, may be on their way."""
        if self.pending:
            raise AssertionError(
                f"{what} was called after backward() and before step() or synchronize(): the "
                "servers are changing parameters and state by the gradients"
            )

    def add(self, group: Group) -> None:
        """Takes in a group that the optimizer has got; every rank must call this.

        Its parameters become those of the set's first rank.
        """
        groups = self._variables.groups
        index = len({id(known) for known in groups.values()})
        given = group.get("param_names") or [
            f"group {index}.{number}" for number in range(len(group["params"]))
        ]
        pairs = zip(group["params"], given, strict=True)
        self.take_in({parameter: name for parameter, name in pairs if parameter.requires_grad})
        accumulator = group.get("initial_accumulator_value")
        for parameter in group["params"]:
            groups[parameter] = group
            if accumulator:
                start = {"sum": torch.full_like(parameter, accumulator), "step": torch.tensor(0.0)}
                self._variables.begin_from(parameter, start)
        self.restart()

    def gather(self) -> dict[torch.nn.Parameter, dict[str, torch.Tensor]]:
        """The state of each parameter, as torch's optimizer has it; every rank must call this."""
        return self._variables.gather()

    def load(self, optimizer: torch.optim.Optimizer) -> None:
        """Has the servers go on from the state that the optimizer has loaded."""
        self._variables.load(optimizer)

    def share(self) -> StateShare:
        """This rank's share of the state, for resume() in another job."""
        return self._variables.share()

    def resume(self, optimizer: torch.optim.Optimizer, shares: Sequence[StateShare]) -> None:
        """Has the servers go on from the shares of all ranks; every rank must call this."""
        self.abandon()
        self._variables.resume(optimizer, shares)

    def _end_early(self) -> None:
        """A backward pass fails: waits for the rounds that it has begun, and forgets it."""
        handles = self._handles
        self.abandon()
        for parameter, handle in handles.items():
            with contextlib.suppress(SumpterError):
                handle.wait()
                self._end(parameter)

    def take_in(self, added: Names) -> None:
        """Looks after more parameters, which become those of the set's first rank.

        UnsupportedError in an elastic job: a worker that joins later would not know when.
        """
        if seat.held():
            raise UnsupportedError(
                f"{', '.join(added.values())} cannot be added to, or unfrozen in, an optimizer on "
                "the servers in an elastic job (min_workers): make a new DistributedOptimizer"
            )
        self._variables.add(added)
        bring_together([(name, p.data) for p, name in added.items()], self._process_set)
        super().take_in(added)
        self.order = NeedOrder(self.names)

    def _take_in_unfrozen(self) -> None:
        """Looks after parameters that need gradients now, and did not before."""
        unfrozen = {
            parameter: f"unfrozen {number}"
            for number, parameter in enumerate(self._variables.groups)
            if parameter.requires_grad and parameter not in self.names
        }
        if unfrozen:
            self.take_in(unfrozen)

    def _start(self, parameter: torch.nn.Parameter) -> None:
        gradient = parameter.grad
        if gradient is None:
            gradient = parameter.grad = torch.zeros_like(parameter)
        try:
            self._send(parameter, gradient)
        except Exception:
            self._end_early()
            raise

    def _send(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        """Starts the round of a gradient."""
        if gradient.layout != torch.strided:
            raise UnsupportedError(
                f"the gradient of {self.names[parameter]} is sparse: servers update dense "
                "parameters, so run this optimizer in the workers"
            )
        self._handles[parameter] = self._begin(parameter, gradient)

    def _begin(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> RoundHandle:
        variables = self._variables
        return variables[parameter].begin(
            gradient,
            variables.rule,
            variables.groups[parameter],
            self.names[parameter],
            self._priority(parameter),
        )

    def _wait(self, handle: RoundHandle) -> None:
        """Waits for a round; of parameters on a device, the current stream sees the new value."""
        handle.wait()

    def _priority(self, parameter: torch.nn.Parameter) -> int:
        """Of the round of a parameter; all are waited for, so that none goes first."""
        del parameter
        return 0

    def _watch(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        """What changes this gradient before the step has no effect, and is an error."""
        self._variables[parameter].watch(gradient)

    def _end(self, parameter: torch.nn.Parameter) -> bool:
        """Counts a step; whether its gradient or its coefficients have changed since it began."""
        variables = self._variables
        return variables[parameter].end(variables.rule, variables.groups[parameter])

    def _follow_session(self) -> None:
        super()._follow_session()
        self._variables.follow_session()


class OverlappedServerUpdates(ServerUpdates):
    """Updates that the next forward pass waits for, layer by layer."""

    # The updates that wait; known when the optimizer is complete.
    updates: Updates | None = None

    def accumulated(self, parameter: torch.nn.Parameter) -> None:
        """Called by autograd; an error for a parameter that was used before it was new."""
        if self.updates is not None:
            self.updates.check_taken(parameter)
        super().accumulated(parameter)

    def _priority(self, parameter: torch.nn.Parameter) -> int:
        """The next forward pass needs the first layers first."""
        return self.order.priority(parameter)
