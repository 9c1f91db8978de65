"""Parameters as variables of the core: their values and the optimizer's state, on the servers.

Each parameter's value and the slots of its optimizer live on the lanes that sum its gradients, and
the ranks mirror a share of them each. The rounds of a parameter take the hyper-parameters of its
group with them, so learning-rate schedulers work as ever.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sumpter import _native
from sumpter._core import membership, rules, staging
from sumpter._core.handles import RoundHandle
from sumpter._core.process_sets import ProcessSet, label, members
from sumpter._core.tensor import Tensor
from sumpter._errors import UnsupportedError
from sumpter.torch import devices
from sumpter.torch.collectives.broadcasts import broadcast_async_
from sumpter.torch.functions import allgather_object
from sumpter.torch.lion import Lion
from sumpter.torch.tensors import dtype_name, start_deferred, start_round
from sumpter.torch.training.gradients import Names
from sumpter.torch.training.shares import (
    MASTER,
    Parts,
    StateShare,
    TorchState,
    assemble,
    whole_state,
)

if TYPE_CHECKING:
    from sumpter._native import Decision

Group = Mapping[str, Any]
# By parameter and name of the slot, as torch's optimizers have them.
States = Mapping[torch.nn.Parameter, Mapping[str, torch.Tensor]]

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


class Variables:
    """The values and the optimizer's state of parameters on the servers: put there, and fetched.

    `values` has the tensor of each parameter into which new values come, where that is not the
    parameter's own: on the device of the gradients, or in host memory. Gradients are averaged
    before the rule, or summed. `staleness` is how many rounds a rank may be ahead of the slowest,
    None for no bound; 0 has all take each together.
    """

    def __init__(
        self,
        names: Names,
        optimizer: torch.optim.Optimizer,
        average: bool,
        process_set: ProcessSet,
        values: Mapping[torch.nn.Parameter, torch.Tensor] | None = None,
        staleness: int | None = 0,
    ) -> None:
        self._values = {p: p for p in names} if values is None else dict(values)
        for parameter, name in names.items():
            _check(self._values[parameter], name)
        self.names = names
        self.rule = rule_of(optimizer)
        # Of each parameter, with its hyper-parameters as they are now.
        self.groups = _groups_of(optimizer)
        self._average, self._process_set, self._staleness = average, process_set, staleness
        self._variables: dict[torch.nn.Parameter, Variable] = {}
        # What the servers are to begin with: steps taken, and slots by name.
        self._initial = _taken_state(optimizer)
        self._session = membership.peek()
        # The job that had the state is over.
        self._is_lost = False

    @property
    def declared(self) -> bool:
        """Whether the servers have the values."""
        return bool(self._variables)

    def __getitem__(self, parameter: torch.nn.Parameter) -> "Variable":
        """The variable of a parameter; the first time, every rank must ask for one."""
        self.follow_session()
        if parameter not in self._variables:
            self.declare()
        return self._variables[parameter]

    def gather(self) -> dict[torch.nn.Parameter, dict[str, torch.Tensor]]:
        """The state of each parameter, as torch's optimizer has it; every rank must call this."""
        self.follow_session()
        self._check_kept()
        if not self._variables:
            return self._initial
        # What is mirrored here must be of rounds that are over.
        staging.catch_up(membership.current())
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

    def share(self) -> StateShare:
        """This rank's share of the state, for resume() in another job."""
        self.follow_session()
        self._check_kept()
        if self._variables:
            # What is mirrored here must be of rounds that are over.
            staging.catch_up(membership.current())
        known = {self.names[p]: variable for p, variable in self._variables.items()}
        return StateShare(
            {name: variable.steps for name, variable in known.items()},
            {name: variable.tensor.mirrored() for name, variable in known.items()},
            {self.names[p]: state for p, state in self._initial.items() if p in self.names},
        )

    def resume(self, optimizer: torch.optim.Optimizer, shares: Sequence[StateShare]) -> None:
        """Has the servers go on from the shares of all ranks; every rank must call this.

        ValueError if the ranks that have died had some of it alone.
        """
        self.follow_session()
        groups = _groups_of(optimizer)
        known = _native.update_rules()
        slots = {p: known[self.rule(1, groups[p]).rule] for p in self.names}
        optimizer.state.update(assemble(self.names, slots, shares))
        self.load(optimizer)

    def add(self, names: Names) -> None:
        """Takes more parameters; the servers have their values with the first gradient."""
        for parameter, name in names.items():
            _check(parameter, name)
            if name in self.names.values():
                raise ValueError(f"there is a parameter named {name} already")
        self.names = {**self.names, **names}
        self._values.update({parameter: parameter for parameter in names})

    def begin_from(self, parameter: torch.nn.Parameter, state: dict[str, torch.Tensor]) -> None:
        """What the servers are to begin with, of a parameter that they do not have yet."""
        self._initial[parameter] = state

    def load(self, optimizer: torch.optim.Optimizer) -> None:
        """Has the servers go on from the state that the optimizer has loaded.

        ValueError on all ranks, and all stays as it is on the servers, if any has a state of other
        parameters or of another rule.
        """
        initial = _taken_state(optimizer)
        before, self.groups = self.groups, _groups_of(optimizer)
        try:
            self._agree(self.names, initial)
        except ValueError:
            self.groups = before
            raise
        self._initial, self._is_lost = initial, False
        # A state may be of a rule with other slots, as with momentum where there was none.
        kept = {p: one for p, one in self._variables.items() if one.has_rule(self._rule_of(p))}
        is_other = len(kept) < len(self._variables)
        self._variables = kept
        if kept:
            # No round may be under way, also not one for which only streams wait.
            staging.catch_up(membership.current())
            self._put(kept)
        if is_other:
            self.declare()

    def declare(self) -> None:
        """Gives the servers the values that they lack; every rank must call this."""
        session = membership.current()
        self._check_kept()
        # Each optimizer has variables of its own, on all ranks of its set the same.
        among = f"{PREFIX}{label(self._process_set)}"
        scope = f"{among}{session.count(among)}."
        fresh = {p: name for p, name in self.names.items() if p not in self._variables}
        self._agree(fresh, self._initial)
        for parameter, name in fresh.items():
            value = self._values[parameter]
            rule = self._rule_of(parameter)
            tensor = session.declare(
                scope + name,
                "update",
                tuple(value.shape),
                dtype_name(value),
                average=self._average,
                ranks=self._process_set.ranks,
                rule=rule,
                staleness=self._staleness,
            )
            self._variables[parameter] = Variable(value, tensor, name)
        self._put(fresh)

    def refuse(self, reason: str) -> None:
        """Has the rounds of all variables fail on all ranks, with this reason."""
        for variable in self._variables.values():
            variable.tensor.refuse(reason)

    def follow_session(self) -> None:
        """Forgets the variables of a job that has been left."""
        session = membership.peek()
        if session is not self._session:
            self._session = session
            self._is_lost = self._is_lost or bool(self._variables)
            self._variables = {}

    def _rule_of(self, parameter: torch.nn.Parameter) -> str:
        return self.rule(1, self.groups[parameter]).rule

    def _check_kept(self) -> None:
        if self._is_lost:
            raise ValueError(
                "the optimizer's state was on the servers of a job that is over: call "
                "load_state_dict() with what state_dict() returned before, on all ranks"
            )

    def _agree(self, names: Names, states: States) -> None:
        """Raises ValueError on all ranks if the state on any is not one of these parameters."""
        own = None
        try:
            for parameter, name in names.items():
                if parameter in self._variables:
                    self._variables[parameter].check_form()
                shape = self._values[parameter].shape
                _check_state(states.get(parameter, {}), self._rule_of(parameter), shape, name)
        except (ValueError, KeyError) as error:
            missing = f"{error} is none of its optimizer's hyper-parameters"
            own = missing if isinstance(error, KeyError) else str(error)
        everyone = allgather_object(own, name="optimizer state", process_set=self._process_set)
        wrong = [
            f"rank {rank}: {text}"
            for rank, text in zip(members(self._process_set), everyone, strict=True)
            if text is not None
        ]
        if wrong:
            raise ValueError(f"the state cannot be that of these parameters: {'; '.join(wrong)}")

    def _put(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Gives the servers the values as they are, and the state that was taken."""
        try:
            handles = [self._variables[p].put(self._initial.get(p, {})) for p in parameters]
            for handle in handles:
                handle.wait()
        finally:
            # A rank that goes on must not meet the state from before on another's servers. One
            # with an error comes as well, or the others would wait for it.
            name = f"variables{label(self._process_set)}"
            membership.current().barrier(name, self._process_set.ranks).wait()
        for parameter in parameters:
            self._initial.pop(parameter, None)


class Variable:
    """A parameter whose value and optimizer state are on the servers."""

    def __init__(self, parameter: torch.Tensor, tensor: Tensor, name: str) -> None:
        self.parameter, self.tensor, self._name = parameter, tensor, name
        self._device = parameter.device
        wide = parameter.dtype == torch.float64
        self._master = np.float64 if wide else np.float32
        self.steps = 0
        self._slots = _native.update_rules()[tensor.description.rule or ""]
        self._begun: tuple[torch.Tensor, int, tuple[float, ...]] | None = None
        # The parameter's memory as the servers know it: torch counts what else writes to it.
        self._version, self._address = -1, 0

    def has_rule(self, rule: str) -> bool:
        """Whether this is the rule of the rounds."""
        return self.tensor.description.rule == rule

    def put(self, state: Mapping[str, torch.Tensor]) -> RoundHandle:
        """Gives the servers the value, and the slots of `state` or zeros."""
        taken = any(slot in state for slot in self._slots)
        # torch's SGD does not count its steps; all that matters is which is the first.
        self.steps = int(state.get("step", taken))
        parts = [self._bytes(self._exact_value(state))]
        if taken:
            zeros = torch.zeros(self.parameter.shape, device="cpu")
            parts += [self._bytes(state.get(slot, zeros)) for slot in self._slots]
        self._version, self._address = self.parameter._version, self.parameter.data_ptr()
        return self.tensor.set_state(parts)

    def begin(
        self,
        gradient: torch.Tensor,
        rule: Callable[[int, Group], rules.Update],
        group: Group,
        name: str,
        priority: int = 0,
        order: Sequence[tuple[int, int, int, int]] | None = None,
    ) -> RoundHandle:
        """Sends a gradient; the new value is in the parameter when the round is done.

        With an `order` of another run it follows that: see Tensor.submit().
        """
        self._check_unchanged(name)
        update = rule(self.steps + 1, group)
        self._check_rule(update)
        self._begun = (gradient, gradient._version, update.coefficients)
        # One of another element type travels in the parameter's.
        sent = gradient.detach().to(self.parameter.dtype).contiguous()
        value, coefficients = self.parameter.detach(), update.coefficients
        return start_round(self.tensor, sent, value, priority, update=coefficients, order=order)

    def begin_deferred(
        self, gradient: torch.Tensor, name: str
    ) -> "tuple[RoundHandle, Decision | None]":
        """Sends a gradient; what is returned beside the handle decides what becomes of it."""
        self._check_unchanged(name)
        sent = gradient.detach().to(self.parameter.dtype).contiguous()
        return start_deferred(self.tensor, sent, self.parameter.detach())

    def update(
        self, rule: Callable[[int, Group], rules.Update], group: Group, factor: float
    ) -> tuple[float, ...]:
        """The coefficients that apply the rule to the gradient times `factor` in the next step."""
        update = rule(self.steps + 1, group)
        self._check_rule(update)
        # The scale comes first: 1, or -1 to maximize.
        scale, *others = update.coefficients
        return (scale * factor, *others)

    def count_step(self) -> None:
        """A step is decided: the next one follows it."""
        self.steps += 1

    def _check_rule(self, update: rules.Update) -> None:
        if not self.has_rule(update.rule):
            raise ValueError(
                f"the hyper-parameters of {self._name} need the rule {update.rule}, and its state "
                f"is that of {self.tensor.description.rule}: set momentum, nesterov, centered and "
                "amsgrad before the first step, or load a state that has them"
            )

    def check_form(self) -> None:
        """Raises ValueError if the parameter is no more what the servers were told it is."""
        now, declared = self.parameter, self.tensor.description
        form = (dtype_name(now), tuple(now.shape))
        stays = now.device == self._device and now.is_contiguous()
        if form != (declared.dtype, declared.shape) or not stays:
            raise ValueError(
                f"parameter {self._name} is {form[0]} {list(form[1])} on {now.device} with strides "
                f"{now.stride()} now, and was a contiguous {declared.dtype} "
                f"{list(declared.shape)} on {self._device} when the optimizer was distributed: "
                "make a new DistributedOptimizer"
            )

    def _check_unchanged(self, name: str) -> None:
        self.check_form()
        known = (self._version, self._address)
        if (self.parameter._version, self.parameter.data_ptr()) != known:
            raise ValueError(
                f"parameter {name} was changed in the worker, but its value is on the servers: "
                "call load_state_dict() of the optimizer after loading parameters, on all ranks"
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
        now = rule(self.steps + 1, group).coefficients
        self.steps += 1
        return gradient._version != version or now != coefficients

    def state(self, everyone: Sequence[Parts]) -> TorchState:
        """The state as torch's optimizer has it, from what all ranks mirror."""
        return whole_state(self.parameter, self._slots, self.steps, everyone)

    def _exact_value(self, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The value, before it was rounded if the state has that."""
        value, master = self.parameter.detach().cpu(), state.get(MASTER)
        if master is None:
            return value
        master = master.detach().cpu()
        return master if torch.equal(master.to(value.dtype), value) else value

    def _bytes(self, tensor: torch.Tensor) -> memoryview:
        wide = torch.float64 if self._master is np.float64 else torch.float32
        values = tensor.detach().cpu().to(wide).contiguous().flatten()
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


def load_exactly(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Puts what load_state_dict() has rounded to the parameters' types as it was saved.

    In host memory, from where the servers get it.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    for parameter, number in zip(parameters, numbers, strict=True):
        for key, value in saved["state"].get(number, {}).items():
            is_wider = torch.is_tensor(value) and value.dtype.itemsize > parameter.dtype.itemsize
            if is_wider and value.is_floating_point() and key != "step":
                optimizer.state[parameter][key] = value.detach().cpu()


def _check_state(
    state: Mapping[str, torch.Tensor], rule: str, shape: torch.Size, name: str
) -> None:
    """Raises ValueError unless it has all slots of the rule, in this shape, or none."""
    slots = _native.update_rules()[rule]
    there = [slot for slot in slots if slot in state]
    if there and len(there) < len(slots):
        raise ValueError(f"that of {name} has {', '.join(there)}, and {rule} has {slots}")
    for slot in there:
        if state[slot].shape != shape:
            raise ValueError(
                f"{slot} of {name} has the shape {list(state[slot].shape)}, and the parameter "
                f"has {list(shape)}"
            )


def _groups_of(optimizer: torch.optim.Optimizer) -> dict[torch.nn.Parameter, Group]:
    return {p: group for group in optimizer.param_groups for p in group["params"]}


def bring_together(named: Iterable[tuple[str, torch.Tensor]], process_set: ProcessSet) -> None:
    """Gives all ranks of the set the tensors of its first rank, by name."""
    root = process_set.ranks[0] if process_set.ranks else 0
    handles = [
        broadcast_async_(tensor, root, f"{PREFIX}{name}", process_set) for name, tensor in named
    ]
    for handle in handles:
        handle.synchronize()


def _check(parameter: torch.Tensor, name: str) -> None:
    """Raises UnsupportedError unless servers can update the parameter."""
    if not parameter.is_cpu and not devices.is_carried(parameter):
        raise UnsupportedError(
            f"parameter {name} is on {parameter.device}: servers update parameters of the CPU and "
            "of CUDA devices"
        )
    if not parameter.is_contiguous() or not parameter.dtype.is_floating_point:
        raise UnsupportedError(
            f"parameter {name} is not a contiguous tensor of floats: servers cannot update it"
        )
