"""The optimizer on the servers: gradients go there, and new parameters come back.

Each parameter is a variable of the core. Its value and the optimizer's state live on the lanes that
sum its gradients, and the ranks mirror a share of them each. The rounds of a parameter take the
hyper-parameters of its group with them, so learning-rate schedulers work as ever.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

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
from sumpter.torch.lion import Lion
from sumpter.torch.tensors import dtype_name
from sumpter.torch.training.gradients import Names, PassCounter
from sumpter.torch.training.order import NeedOrder
from sumpter.torch.training.overlap import Updates

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


def _lion(step: int, group: Group) -> rules.Update:
    beta1, beta2 = group["betas"]
    return rules.lion(
        step,
        lr=float(group["lr"]),
        betas=(float(beta1), float(beta2)),
        weight_decay=group["weight_decay"],
        maximize=group["maximize"],
    )


# Exact types: what a subclass does to its parameters, no rule knows.
RULES: dict[type[torch.optim.Optimizer], Callable[[int, Group], rules.Update]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adamw,
    torch.optim.RMSprop: _rmsprop,
    torch.optim.Adagrad: _adagrad,
    Lion: _lion,
}


def rule_of(optimizer: torch.optim.Optimizer) -> Callable[[int, Group], rules.Update]:
    """The update rule of an optimizer; UnsupportedError for one that the servers do not have."""
    rule = RULES.get(type(optimizer))
    if rule is None:
        known = ", ".join(sorted(kind.__name__ for kind in RULES if kind is not Lion))
        kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        raise UnsupportedError(
            f"servers have no update rule for {kind}: on_servers=True is for {known} of "
            "torch.optim and for sumpter.torch.Lion, not for their subclasses"
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
        self._variables: dict[torch.nn.Parameter, _Variable] = {}
        self._handles: dict[torch.nn.Parameter, RoundHandle] = {}
        # What the servers are to begin with: steps taken, and slots by name.
        self._initial = _taken_state(optimizer)
        # The job that had the state is over.
        self._is_lost = False
        self.order = NeedOrder(names)
        _bring_together(names, process_set)
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
            handle.wait()

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
                "backward() was done; change them before it, or run the optimizer in the workers"
            )
        return handles

    def abandon(self) -> None:
        """Forgets what is in flight, and the variables of a job that has been left."""
        self._handles = {}
        super().abandon()

    def add(self, group: Group) -> None:
        """Takes in a group that the optimizer has got; every rank must call this.

        Its parameters become those of the set's first rank.
        """
        index = len({id(known) for known in self._groups.values()})
        given = group.get("param_names") or [
            f"group {index}.{number}" for number in range(len(group["params"]))
        ]
        pairs = zip(group["params"], given, strict=True)
        self._take_in({parameter: name for parameter, name in pairs if parameter.requires_grad})
        accumulator = group.get("initial_accumulator_value")
        for parameter in group["params"]:
            self._groups[parameter] = group
            if accumulator:
                start = {"sum": torch.full_like(parameter, accumulator), "step": torch.tensor(0.0)}
                self._initial[parameter] = start
        self.restart()

    def _take_in(self, added: Names) -> None:
        """Looks after more parameters, which become those of the set's first rank."""
        for parameter, name in added.items():
            _check(parameter, name)
            if name in self.names.values():
                raise ValueError(f"there is a parameter named {name} already")
        _bring_together(added, self._process_set)
        self.names = {**self.names, **added}
        self.order = NeedOrder(self.names)
        for parameter in added:
            self._hook(parameter)

    def _take_in_unfrozen(self) -> None:
        """Looks after parameters that need gradients now, and did not before."""
        unfrozen = {
            parameter: f"unfrozen {number}"
            for number, parameter in enumerate(self._groups)
            if parameter.requires_grad and parameter not in self.names
        }
        if unfrozen:
            self._take_in(unfrozen)

    def gather(self) -> dict[torch.nn.Parameter, dict[str, torch.Tensor]]:
        """The state of each parameter, as torch's optimizer has it; every rank must call this."""
        self._follow_session()
        if not self._variables:
            return self._initial
        own = {
            self.names[parameter]: variable.tensor.mirrored()
            for parameter, variable in self._variables.items()
        }
        everyone = allgather_object(own, name="optimizer", process_set=self._process_set)
        # Late parameters have none before their first gradient, but what they begin with.
        gathered = dict(self._initial)
        for parameter, variable in self._variables.items():
            name = self.names[parameter]
            gathered[parameter] = variable.state([parts[name] for parts in everyone])
        return gathered

    def load(self, optimizer: torch.optim.Optimizer) -> None:
        """Has the servers go on from the state that the optimizer has loaded."""
        self._initial, self._is_lost = _taken_state(optimizer), False
        self._groups = {p: group for group in optimizer.param_groups for p in group["params"]}
        if self._variables:
            self._put(self._variables)

    def _start(self, parameter: torch.nn.Parameter) -> None:
        gradient = parameter.grad
        if gradient is None:
            gradient = parameter.grad = torch.zeros_like(parameter)
        self._send(parameter, gradient)

    def _send(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        """Starts the round of a gradient."""
        session = membership.current()
        if parameter not in self._variables:
            self._declare(session)
        if gradient.layout != torch.strided:
            raise UnsupportedError(
                f"the gradient of {self.names[parameter]} is sparse: servers update dense "
                "parameters, so run this optimizer in the workers"
            )
        variable = self._variables[parameter]
        group, priority = self._groups[parameter], self._priority(parameter)
        self._handles[parameter] = variable.begin(
            gradient, self._rule, group, self.names[parameter], priority
        )

    def _priority(self, parameter: torch.nn.Parameter) -> int:
        """Of the round of a parameter; all are waited for, so that none goes first."""
        del parameter
        return 0

    def _watch(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        """What changes this gradient before the step has no effect, and is an error."""
        self._variables[parameter].watch(gradient)

    def _end(self, parameter: torch.nn.Parameter) -> bool:
        """Counts a step; whether its gradient or its coefficients have changed since it began."""
        return self._variables[parameter].end(self._rule, self._groups[parameter])

    def _declare(self, session: Session) -> None:
        if self._is_lost:
            raise ValueError(
                "the optimizer's state was on the servers of a job that is over: call "
                "load_state_dict() with what state_dict() returned before, on all ranks"
            )
        # Each optimizer has variables of its own, on all ranks of its set the same.
        among = f"{PREFIX}{label(self._process_set)}"
        scope = f"{among}{session.count(among)}."
        fresh = {p: name for p, name in self.names.items() if p not in self._variables}
        for parameter, name in fresh.items():
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
        self._put(fresh)

    def _put(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Gives the servers the parameters as they are, and the state that was taken."""
        handles = [self._variables[p].put(self._initial.get(p, {})) for p in parameters]
        for handle in handles:
            handle.wait()
        for parameter in parameters:
            self._initial.pop(parameter, None)
        # A rank that goes on must not meet the state from before on another's servers.
        name = f"variables{label(self._process_set)}"
        membership.current().barrier(name, self._process_set.ranks).wait()

    def _follow_session(self) -> None:
        before = self._session
        super()._follow_session()
        if self._session is not before:
            self._is_lost = self._is_lost or bool(self._variables)
            self._variables = {}


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
        priority: int = 0,
    ) -> RoundHandle:
        """Sends a gradient; the new value is in the parameter when the round is done."""
        if self.parameter._version != self._version:
            raise ValueError(
                f"parameter {name} was changed in the worker, but its value is on the servers: "
                "call load_state_dict() of the optimizer after loading parameters, on all ranks"
            )
        update = rule(self._steps + 1, group)
        self._begun = (gradient, gradient._version, update.coefficients)
        # One of another element type travels in the parameter's.
        sent = gradient.detach().to(self.parameter.dtype).contiguous()
        return self.tensor.submit(
            sent.data_ptr(),
            self.parameter.data_ptr(),
            keep=(sent, self.parameter),
            priority=priority,
            update=update.coefficients,
        )

    def watch(self, gradient: torch.Tensor) -> None:
        """Has end() look at this gradient in place of the one that was sent."""
        assert self._begun is not None, "a round is under way"
        self._begun = (gradient, gradient._version, self._begun[2])

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
