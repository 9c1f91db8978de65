"""Crossing the barrier: the next forward pass begins while gradients are still on their way.

step() leaves each parameter's update to be taken later: by the first module that is about to use
the parameter, which waits for this gradient only and then has the optimizer take its own step, of
these parameters alone. Communication goes on in threads of the core meanwhile, so nothing is gained
by taking updates in another thread, and none is needed: each update is taken in the thread and on
the stream of the forward pass, in the order in which the model uses its parameters.

What must hold:
- An update is what the optimizer would have done in step(): with the options that were set then,
  whatever a scheduler has set since, and with autograd, autocast and inference mode as there.
- A module never computes with a parameter whose update waits. Modules are watched by one hook for
  all; what a module uses of modules that are never called themselves waits with it.
- Who gets a gradient of a parameter whose update waits has computed with its old value: an error.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.weak import WeakTensorKeyDictionary

from sumpter._core.handles import Handle
from sumpter._errors import SumpterError
from sumpter.torch.training.gradients import GradientExchange, GradientHandle

# What says of an optimizer that is not torch's that it can be overlapped.
DECLARATION = "updates_parameters_independently"

# Those of torch that compute each parameter's update from its own gradient and state.
_INDEPENDENT = (
    "SGD Adam AdamW NAdam RAdam Adamax Adagrad Adadelta RMSprop Rprop ASGD Adafactor Muon "
    "SparseAdam"
).split()


def check_independent(optimizer: torch.optim.Optimizer) -> None:
    """Raises ValueError unless one parameter's update never depends on another parameter."""
    kind = type(optimizer)
    author = next(base for base in kind.__mro__ if "step" in vars(base))
    known = [getattr(torch.optim, name, None) for name in _INDEPENDENT]
    if author not in known and not getattr(kind, DECLARATION, False):
        raise ValueError(
            f"overlap_forward takes the updates of single parameters, and {author.__name__} is not "
            "known to update each by itself: leave overlap_forward out or, if its step() computes "
            "each parameter's update from that parameter's gradient and state alone and writes "
            f"nothing to param_groups, set {author.__name__}.{DECLARATION} = True"
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise ValueError("overlap_forward takes no gradients through step(): not differentiable")


def needs_whole_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether something looks at all gradients or parameters at once around step()."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
        # A GradScaler gives these to fused optimizers, and takes them back after step().
        or getattr(optimizer, "grad_scale", None) is not None
        or getattr(optimizer, "found_inf", None) is not None
    )


@dataclass
class Update:
    """One parameter's part of a step that was begun."""

    parameter: torch.nn.Parameter
    gradient: torch.Tensor
    # None if nothing is exchanged: on a rank outside of the process set.
    handle: GradientHandle | Handle[None] | None
    # Of its parameter group when the step was begun; one object for a group.
    options: dict[str, Any]


class Updates:
    """The updates of an optimizer's parameters that wait to be taken."""

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], names: dict[torch.nn.Parameter, str]
    ) -> None:
        self._names = names
        self._known: set[torch.nn.Parameter] = set()
        self.waiting: dict[torch.nn.Parameter, Update] = {}
        # Steps the optimizer for the parameters of some groups, whose gradients are in place. It
        # is known only while updates wait, which must not be lost with the optimizer.
        self._step: Callable[[list[dict[str, Any]]], None] | None = None
        # Forward passes may run in several threads.
        self._lock = threading.RLock()
        self._plans: weakref.WeakKeyDictionary[torch.nn.Module, list[torch.nn.Parameter]]
        self._plans = weakref.WeakKeyDictionary()
        self._called: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._forward_begun = True
        self.adopt(parameters)
        _watch(self)

    def begin(
        self,
        groups: Iterable[dict[str, Any]],
        handles: Mapping[torch.nn.Parameter, GradientHandle | Handle[None]],
        step: Callable[[list[dict[str, Any]]], None],
    ) -> None:
        """Lets the updates of all parameters that have a gradient wait; takes the gradients."""
        self._step = step
        _busy.add(self)
        for group in groups:
            options = {key: _kept(value) for key, value in group.items() if key != "params"}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    handle = handles.get(parameter)
                    update = Update(parameter, parameter.grad, handle, options)
                    self.waiting[parameter] = update
                    parameter.grad = None
        self._forward_begun = False

    def adopt(
        self,
        parameters: Iterable[torch.nn.Parameter],
        names: Mapping[torch.nn.Parameter, str] = MappingProxyType({}),
    ) -> None:
        """Looks after more parameters; `names` are for messages."""
        self._names = {**self._names, **names}
        parameters = list(parameters)
        settle(parameters)  # by another optimizer
        with self._lock:
            for parameter in parameters:
                _owners[parameter] = weakref.ref(self)
            self._known.update(parameters)
            self._plans.clear()

    def finish(self) -> None:
        """Takes all updates that wait."""
        self.take(list(self.waiting))

    def take(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Waits for the gradients of those parameters whose updates wait, and updates them.

        If that fails no update waits any longer; the error has a note that names the parameter.
        """
        with self._lock:
            updates = [self.waiting[p] for p in parameters if p in self.waiting]
            if not updates:
                return
            try:
                with _as_in_step(updates):
                    self._update(updates)
            except BaseException:
                self.waiting.clear()
                raise
            finally:
                for update in updates:
                    self.waiting.pop(update.parameter, None)
                if not self.waiting:
                    self._step = None
                    _busy.discard(self)

    def check_taken(self, parameter: torch.nn.Parameter) -> None:
        """Raises AssertionError if the update of a parameter that has a gradient still waits."""
        if parameter in self.waiting:
            raise AssertionError(
                f"{self._name(parameter)} was used before its update: not by the forward() of a "
                "module that holds it, but directly. Call optimizer.synchronize_parameters([...]) "
                "with it before such a use, or optimizer.synchronize() for all of them"
            )

    def before(self, module: torch.nn.Module) -> None:
        """Takes the updates of what `module`, which is being called, is about to use."""
        plan = self._plans.get(module)
        if plan is None:
            plan = self._learn(module)
        if not self.waiting or not plan:
            return
        first, self._forward_begun = not self._forward_begun, True
        # Evaluation may use any parameter anywhere: torch has fast paths that call no layers.
        if not module.training and (first or not torch.is_grad_enabled()):
            self.finish()
        else:
            self.take(plan)

    def _update(self, updates: list[Update]) -> None:
        found = []
        try:
            for update in updates:
                found.append((update.parameter, update.parameter.grad))
                update.parameter.grad = update.gradient
                if update.handle is not None:
                    with self._naming([update]):
                        update.handle.synchronize()
            with self._naming(updates):
                self._step(_grouped(updates))
        finally:
            for parameter, gradient in found:
                parameter.grad = gradient

    @contextlib.contextmanager
    def _naming(self, updates: list[Update]) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            names = [self._name(update.parameter) for update in updates]
            error.add_note(f"in the update, after step(), of {', '.join(names)}")
            raise

    def _name(self, parameter: torch.nn.Parameter) -> str:
        return self._names.get(parameter, "a parameter without a name")

    def _learn(self, module: torch.nn.Module) -> list[torch.nn.Parameter]:
        """What has to be up to date when `module` is called; notes that it is called."""
        with self._lock:
            if self._known.isdisjoint(module.parameters()):
                return self._plans.setdefault(module, [])
            if module not in self._called:
                for part in module.modules():
                    if not self._known.isdisjoint(part.parameters(recurse=False)):
                        _guard(part)
                self._called.add(module)
                # Callers of this module need no longer wait for what it uses.
                self._plans.clear()
            plan = [p for part in self._served(module) for p in part.parameters(recurse=False)]
            plan = [parameter for parameter in dict.fromkeys(plan) if parameter in self._known]
            self._plans[module] = plan
            return plan

    def _served(self, module: torch.nn.Module) -> Iterator[torch.nn.Module]:
        """The module, and those in it that nothing has called: it may use what they hold."""
        seen, ahead = {module}, [module]
        while ahead:
            part = ahead.pop()
            yield part
            for child in part.children():
                if child not in seen and child not in self._called:
                    seen.add(child)
                    ahead.append(child)


class OverlappedExchange(GradientExchange):
    """An exchange whose results are applied later; gradients in flight must not change."""

    # The next forward pass needs the first layers first.
    by_need = True

    def __init__(self, *arguments: Any) -> None:
        self._sent: dict[torch.nn.Parameter, tuple[torch.Tensor, int]] = {}
        self.updates: Updates | None = None
        super().__init__(*arguments)

    def accumulated(self, parameter: torch.nn.Parameter) -> None:
        if self.updates is not None:
            self.updates.check_taken(parameter)
        super().accumulated(parameter)

    def check_untouched(self) -> None:
        """Raises AssertionError if a gradient in flight has been changed or replaced."""
        for parameter, (gradient, version) in self._sent.items():
            if parameter.grad is not gradient or gradient._version != version:
                raise AssertionError(
                    f"the gradient of {self.names[parameter]} was changed between backward() and "
                    "step() while it was being exchanged. To clip or to unscale gradients call "
                    "optimizer.synchronize() before, and step() within "
                    "`with optimizer.skip_synchronize():`"
                )

    def restart(self) -> None:
        self._sent.clear()
        super().restart()

    def _start(self, parameter: torch.nn.Parameter) -> None:
        super()._start(parameter)
        if parameter in self._handles:
            self._sent[parameter] = (parameter.grad, parameter.grad._version)


def settle(parameters: Iterable[torch.Tensor]) -> None:
    """Takes the updates that wait for any of these parameters, whatever optimizer they are of."""
    by_owner: dict[Updates, list[Any]] = {}
    for parameter in parameters:
        reference = _owners.get(parameter)
        owner = reference() if reference is not None else None
        if owner is not None:
            by_owner.setdefault(owner, []).append(parameter)
    for owner, owned in by_owner.items():
        owner.take(owned)


# Who updates each parameter; those for whom updates wait; the modules whose state dictionaries
# wait for updates.
_owners = WeakTensorKeyDictionary()
_busy: set[Updates] = set()
_guarded: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def _guard(module: torch.nn.Module) -> None:
    """Has the module's state_dict() and load_state_dict() wait for its own parameters."""
    if module not in _guarded:
        _guarded.add(module)
        module.register_state_dict_pre_hook(_before_saving)
        module.register_load_state_dict_pre_hook(_before_loading)


# Functions and no methods: modules are copied, and pickled, with their hooks.


def _before_saving(module: torch.nn.Module, *_: Any) -> None:
    settle(module.parameters(recurse=False))


def _before_loading(module: torch.nn.Module, *_: Any) -> None:
    with unless_lost():
        settle(module.parameters(recurse=False))


@contextlib.contextmanager
def unless_lost() -> Iterator[None]:
    """Drops updates that cannot be taken any more: something is loaded in their place."""
    with contextlib.suppress(SumpterError):
        yield


def _watch(updates: Updates) -> None:
    """Calls `updates.before` before each call of a module, for as long as it lives."""
    reference = weakref.ref(updates)

    # Dynamo divides a compiled model here: what it compiled as one could not wait in between.
    @torch.compiler.disable
    def before(module: torch.nn.Module, _: Any) -> None:
        known = reference()
        if known is not None:
            known.before(module)

    hook = register_module_forward_pre_hook(before)
    weakref.finalize(updates, hook.remove)


def _kept(value: Any) -> Any:
    """An option's present value; schedulers change tensors in place."""
    return value.clone() if isinstance(value, torch.Tensor) else value


def _grouped(updates: list[Update]) -> list[dict[str, Any]]:
    """Parameter groups of the updates' parameters only."""
    groups: dict[int, dict[str, Any]] = {}
    for update in updates:
        group = groups.setdefault(id(update.options), {**update.options, "params": []})
        group["params"].append(update.parameter)
    return list(groups.values())


@contextlib.contextmanager
def _as_in_step(updates: list[Update]) -> Iterator[None]:
    """Computes as after backward(), wherever in a forward pass this is."""
    with contextlib.ExitStack() as around:
        if torch.is_inference_mode_enabled():
            # What the optimizer makes, as its state, must be usable outside as well.
            around.enter_context(torch.inference_mode(False))
        around.enter_context(torch.no_grad())
        for kind in {update.parameter.device.type for update in updates}:
            if torch.is_autocast_enabled(kind):
                around.enter_context(torch.autocast(kind, enabled=False))
        yield
