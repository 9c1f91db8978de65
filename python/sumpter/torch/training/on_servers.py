"""The optimizer on the servers: gradients go there, and new parameters come back.

Each parameter is a variable of the core. Its value and the optimizer's state live on the lanes that
sum its gradients, and the ranks mirror a share of them each. The rounds of a parameter take the
hyper-parameters of its group with them, so learning-rate schedulers work as ever.

If steps are deferred, the rounds begin without: step() decides what they do, and until then a
`ServerGradient` stands for each gradient, for those who clip, scale or check it.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sumpter import _native
from sumpter._core import membership, rules
from sumpter._core.handles import RoundHandle
from sumpter._core.process_sets import ProcessSet, label
from sumpter._core.session import Session
from sumpter._core.tensor import Tensor
from sumpter._errors import UnsupportedError
from sumpter.torch.collectives.broadcasts import broadcast_async_
from sumpter.torch.functions import allgather_object
from sumpter.torch.tensors import dtype_name
from sumpter.torch.training.gradients import Names, PassCounter
from sumpter.torch.training.server_gradient import ServerGradient

if TYPE_CHECKING:
    from sumpter._native import Decision

Group = Mapping[str, Any]

# Of the names under which parameters become equal.
PREFIX = "Variable."


def _sgd(step: int, group: Group) -> rules.Update:
    given = {name: float(group[name]) for name in ("lr", "momentum", "dampening", "weight_decay")}
    return rules.sgd(step, **given, nesterov=group["nesterov"], maximize=group["maximize"])


def _adam(step: int, group: Group) -> rules.Update:
    beta1, beta2 = group["betas"]
    return rules.adam(
        step,
        lr=float(group["lr"]),
        betas=(float(beta1), float(beta2)),
        eps=group["eps"],
        weight_decay=group["weight_decay"],
        amsgrad=group["amsgrad"],
        decoupled_weight_decay=group.get("decoupled_weight_decay", False),
        maximize=group["maximize"],
    )


def _adamw(step: int, group: Group) -> rules.Update:
    return _adam(step, {**group, "decoupled_weight_decay": True})


def _rmsprop(step: int, group: Group) -> rules.Update:
    given = {name: float(group[name]) for name in ("lr", "alpha", "eps", "weight_decay")}
    return rules.rmsprop(
        step,
        **given,
        momentum=group["momentum"],
        centered=group["centered"],
        maximize=group["maximize"],
    )


def _adagrad(step: int, group: Group) -> rules.Update:
    given = {name: float(group[name]) for name in ("lr", "lr_decay", "eps", "weight_decay")}
    return rules.adagrad(step, **given, maximize=group["maximize"])


# Exact types: what a subclass does to its parameters, no rule knows.
RULES: dict[type[torch.optim.Optimizer], Callable[[int, Group], rules.Update]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adamw,
    torch.optim.RMSprop: _rmsprop,
    torch.optim.Adagrad: _adagrad,
}


def rule_of(optimizer: torch.optim.Optimizer) -> Callable[[int, Group], rules.Update]:
    """The update rule of an optimizer; UnsupportedError for one that the servers do not have."""
    rule = RULES.get(type(optimizer))
    if rule is None:
        known = ", ".join(sorted(kind.__name__ for kind in RULES))
        raise UnsupportedError(
            f"servers have no update rule for {type(optimizer).__name__}: on_servers=True is for "
            f"{known} of torch.optim, not for their subclasses"
        )
    return rule


class ServerUpdates(PassCounter):
    """Sends each gradient as soon as it is complete; the new parameter comes into its memory."""

    def __init__(
        self,
        names: Names,
        optimizer: torch.optim.Optimizer,
        passes: int,
        average: bool,
        process_set: ProcessSet,
        deferred: bool = False,
    ) -> None:
        for parameter, name in names.items():
            _check(parameter, name)
        if not process_set.included():
            raise UnsupportedError(
                f"rank {membership.rank()} is outside {process_set}, whose servers update its "
                "parameters: give this rank a plain optimizer"
            )
        self._rule = rule_of(optimizer)
        self._groups = {p: group for group in optimizer.param_groups for p in group["params"]}
        self._average, self._process_set = average, process_set
        self._deferred = deferred
        self._variables: dict[torch.nn.Parameter, _Variable] = {}
        self._handles: dict[torch.nn.Parameter, RoundHandle] = {}
        # Of rounds that wait for step(): what decides about them, and what stands for the gradient.
        self._undecided: dict[torch.nn.Parameter, tuple[Decision | None, ServerGradient]] = {}
        # What the servers are to begin with: steps taken, and slots by name.
        self._initial = _taken_state(optimizer)
        # The job that had the state is over.
        self._is_lost = False
        _bring_together(names, process_set)
        super().__init__(names, passes)

    @property
    def pending(self) -> bool:
        """Whether gradients are in flight."""
        self._follow_session()
        return bool(self._handles)

    def complete(self, parameter: torch.nn.Parameter) -> None:
        """Sends the gradient that backward has made."""
        self._start(parameter)

    def finish(self) -> None:
        """Sends what has not been sent, zeros where backward made none, and waits for it all."""
        self._follow_session()
        self.join()
        self._decide(1.0, skips=False)
        handles, self._handles = self._handles, {}
        self.restart()
        changed = []
        for parameter, handle in handles.items():
            handle.wait()
            variable = self._variables[parameter]
            if not self._deferred and variable.end(self._rule, self._groups[parameter]):
                changed.append(self.names[parameter])
        if changed:
            raise ValueError(
                f"the gradient or the hyper-parameters of {', '.join(changed[:3])} were changed "
                "between backward() and step(): the servers have updated by what they were when "
                "backward() was done; change them before it, or make the DistributedOptimizer with "
                "deferred=True to clip or scale gradients after it"
            )

    def finish_deferred(self, scale: float, skips: bool) -> None:
        """Has the servers multiply the gradients by their factors and `scale`, and waits.

        With `skips` parameters and state stay as they are. ValueError if a factor is not finite;
        then they do as well.
        """
        self._follow_session()
        self.join()
        lost = self._decide(scale, skips)
        self.finish()
        if lost:
            raise ValueError(
                f"the gradients of {', '.join(lost[:3])} were multiplied by what is not finite, "
                "such as by clipping to the norm of gradients that are not: the step was skipped"
            )

    def join(self) -> list[ServerGradient]:
        """Sends zeros where backward made no gradient; what stands for these, if it is deferred."""
        late = [parameter for parameter in self.names if parameter not in self._handles]
        for parameter in late:
            self._start(parameter)
        return [self._undecided[parameter][1] for parameter in late if self._deferred]

    def check(self, gradient: ServerGradient) -> None:
        """Raises ValueError if the step of a gradient is over."""
        _, waits = self._undecided.get(gradient.parameter, (None, None))
        if gradient is not waits:
            raise ValueError(f"{gradient!r} is of a step that is over: its sum is there no more")

    def squares(self, parameter: torch.nn.Parameter) -> float:
        """Waits for the sum of a gradient over the ranks, and returns that of its squares."""
        decision, _ = self._undecided[parameter]
        return 0.0 if decision is None else decision.squares()

    def _decide(self, scale: float, skips: bool) -> list[str]:
        """Says what the rounds do that wait for it; the names of those with useless factors."""
        undecided, self._undecided = self._undecided, {}
        factors = {
            parameter: scale * gradient.factor for parameter, (_, gradient) in undecided.items()
        }
        lost = [self.names[p] for p, factor in factors.items() if not math.isfinite(factor)]
        for parameter, (decision, gradient) in undecided.items():
            update = None
            if not skips and not lost:
                rule, group = self._rule, self._groups[parameter]
                update = self._variables[parameter].decide(rule, group, factors[parameter])
            if decision is not None:
                decision.decide(update)
            if parameter.grad is gradient:
                parameter.grad = None
        return [] if skips else lost

    def abandon(self) -> None:
        """Forgets what is in flight, and the variables of a job that has been left."""
        # The servers must not wait for what will never be decided.
        self._decide(1.0, skips=True)
        self._handles = {}
        super().abandon()

    def gather(self) -> dict[torch.nn.Parameter, dict[str, torch.Tensor]]:
        """The state of each parameter, as torch's optimizer has it; every rank must call this."""
        self._follow_session()
        if not self._variables:
            return self._initial
        own = {
            name: self._variables[parameter].tensor.mirrored()
            for parameter, name in self.names.items()
        }
        everyone = allgather_object(own, name="optimizer", process_set=self._process_set)
        return {
            parameter: self._variables[parameter].state([parts[name] for parts in everyone])
            for parameter, name in self.names.items()
        }

    def load(self, optimizer: torch.optim.Optimizer) -> None:
        """Has the servers go on from the state that the optimizer has loaded."""
        self._initial, self._is_lost = _taken_state(optimizer), False
        self._groups = {p: group for group in optimizer.param_groups for p in group["params"]}
        if self._variables:
            self._put()

    def _start(self, parameter: torch.nn.Parameter) -> None:
        session = membership.current()
        if not self._variables:
            self._declare(session)
        gradient = parameter.grad
        if gradient is None:
            gradient = parameter.grad = torch.zeros_like(parameter)
        if gradient.layout != torch.strided:
            raise UnsupportedError(
                f"the gradient of {self.names[parameter]} is sparse: servers update dense "
                "parameters, so run this optimizer in the workers"
            )
        variable = self._variables[parameter]
        if self._deferred:
            handle, decision = variable.begin_deferred(gradient, self.names[parameter])
            stand_in = ServerGradient(parameter, self.names[parameter], self)
            self._handles[parameter] = handle
            self._undecided[parameter] = (decision, stand_in)
            parameter.grad = stand_in
            return
        self._handles[parameter] = variable.begin(
            gradient, self._rule, self._groups[parameter], self.names[parameter]
        )

    def _declare(self, session: Session) -> None:
        if self._is_lost:
            raise ValueError(
                "the optimizer's state was on the servers of a job that is over: call "
                "load_state_dict() with what state_dict() returned before, on all ranks"
            )
        # Each optimizer has variables of its own, on all ranks of its set the same.
        among = f"{PREFIX}{label(self._process_set)}"
        scope = f"{among}{session.count(among)}."
        for parameter, name in self.names.items():
            rule = self._rule(1, self._groups[parameter]).rule
            tensor = session.declare(
                scope + name,
                "update",
                tuple(parameter.shape),
                dtype_name(parameter),
                average=self._average,
                ranks=self._process_set.ranks,
                rule=rule,
            )
            self._variables[parameter] = _Variable(parameter, tensor)
        self._put()

    def _put(self) -> None:
        """Gives the servers the parameters as they are, and the state that was taken."""
        handles = [
            variable.put(self._initial.get(parameter, {}))
            for parameter, variable in self._variables.items()
        ]
        for handle in handles:
            handle.wait()
        self._initial = {}
        # A rank that goes on must not meet the state from before on another's servers.
        name = f"variables{label(self._process_set)}"
        membership.current().barrier(name, self._process_set.ranks).wait()

    def _follow_session(self) -> None:
        before = self._session
        super()._follow_session()
        if self._session is not before:
            self._is_lost = self._is_lost or bool(self._variables)
            self._variables = {}


class _Variable:
    """A parameter whose value and optimizer state are on the servers."""

    def __init__(self, parameter: torch.nn.Parameter, tensor: Tensor) -> None:
        self.parameter, self.tensor = parameter, tensor
        wide = parameter.dtype == torch.float64
        self._master = np.float64 if wide else np.float32
        self._steps = 0
        self._slots = _native.update_rules()[tensor.description.rule or ""]
        self._begun: tuple[torch.Tensor, int, tuple[float, ...]] | None = None
        # The parameter's memory as the servers know it: torch counts what else writes to it.
        self._version = -1

    def put(self, state: Mapping[str, torch.Tensor]) -> RoundHandle:
        """Gives the servers the value, and the slots of `state` or zeros."""
        taken = any(slot in state for slot in self._slots)
        # torch's SGD does not count its steps; all that matters is which is the first.
        self._steps = int(state.get("step", taken))
        parts = [self._bytes(self.parameter.detach())]
        if taken:
            zeros = torch.zeros_like(self.parameter)
            parts += [self._bytes(state.get(slot, zeros)) for slot in self._slots]
        self._version = self.parameter._version
        return self.tensor.set_state(parts)

    def begin(
        self,
        gradient: torch.Tensor,
        rule: Callable[[int, Group], rules.Update],
        group: Group,
        name: str,
    ) -> RoundHandle:
        """Sends a gradient; the new value is in the parameter when the round is done."""
        self._check_unchanged(name)
        update = rule(self._steps + 1, group)
        self._begun = (gradient, gradient._version, update.coefficients)
        sent = gradient.detach().contiguous()
        return self.tensor.submit(
            sent.data_ptr(),
            self.parameter.data_ptr(),
            keep=(sent, self.parameter),
            update=update.coefficients,
        )

    def begin_deferred(
        self, gradient: torch.Tensor, name: str
    ) -> "tuple[RoundHandle, Decision | None]":
        """Sends a gradient; what is returned beside the handle decides what becomes of it."""
        self._check_unchanged(name)
        sent = gradient.detach().contiguous()
        return self.tensor.submit_deferred(
            sent.data_ptr(), self.parameter.data_ptr(), keep=(sent, self.parameter)
        )

    def decide(
        self, rule: Callable[[int, Group], rules.Update], group: Group, factor: float
    ) -> tuple[float, ...]:
        """Counts a step; the coefficients that apply the rule to the gradient times `factor`."""
        self._steps += 1
        # The scale comes first: 1, or -1 to maximize.
        scale, *others = rule(self._steps, group).coefficients
        return (scale * factor, *others)

    def _check_unchanged(self, name: str) -> None:
        if self.parameter._version != self._version:
            raise ValueError(
                f"parameter {name} was changed in the worker, but its value is on the servers: "
                "call load_state_dict() of the optimizer after loading parameters, on all ranks"
            )

    def end(self, rule: Callable[[int, Group], rules.Update], group: Group) -> bool:
        """Counts a step; whether its gradient or its coefficients have changed since it began."""
        assert self._begun is not None, "a round that is done has begun"
        gradient, version, coefficients = self._begun
        self._begun = None
        now = rule(self._steps + 1, group).coefficients
        self._steps += 1
        return gradient._version != version or now != coefficients

    def state(self, everyone: list[list[tuple[int, int, list[bytes]]]]) -> dict[str, torch.Tensor]:
        """The state as torch's optimizer has it, from what all ranks mirror."""
        parts = np.zeros((1 + len(self._slots), self.parameter.numel()), self._master)
        for start, stop, own in (one for rank in everyone for one in rank):
            for part, data in zip(parts, own, strict=True):
                part[start:stop] = np.frombuffer(data, self._master)
        state = {"step": torch.tensor(float(self._steps))}
        for slot, part in zip(self._slots, parts[1:], strict=True):
            state[slot] = torch.from_numpy(part.reshape(self.parameter.shape).copy())
        return state

    def _bytes(self, tensor: torch.Tensor) -> memoryview:
        wide = torch.float64 if self._master is np.float64 else torch.float32
        values = tensor.detach().to(wide).contiguous().flatten()
        return memoryview(values.numpy()).cast("B")


def _taken_state(
    optimizer: torch.optim.Optimizer,
) -> dict[torch.nn.Parameter, dict[str, torch.Tensor]]:
    """The optimizer's state, which the optimizer has no longer."""
    taken = {
        parameter: {key: value for key, value in state.items() if value is not None}
        for parameter, state in optimizer.state.items()
    }
    optimizer.state.clear()
    return taken


def _bring_together(names: Names, process_set: ProcessSet) -> None:
    """Gives all ranks of the set the parameters of the first."""
    root = process_set.ranks[0] if process_set.ranks else 0
    handles = [
        broadcast_async_(parameter.data, root, f"{PREFIX}{name}", process_set)
        for parameter, name in names.items()
    ]
    for handle in handles:
        handle.synchronize()


def _check(parameter: torch.nn.Parameter, name: str) -> None:
    """Raises UnsupportedError unless servers can update the parameter."""
    if not parameter.is_cpu:
        raise UnsupportedError(
            f"parameter {name} is on {parameter.device}: on_servers=True updates parameters in "
            "host memory only so far"
        )
    if not parameter.is_contiguous() or not parameter.dtype.is_floating_point:
        raise UnsupportedError(
            f"parameter {name} is not a contiguous tensor of floats: servers cannot update it"
        )
