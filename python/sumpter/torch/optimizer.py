"""DistributedOptimizer: averages each gradient over the ranks as soon as backward made it.

The result is an instance of the user's optimizer class, so learning-rate schedulers and
isinstance checks keep working; it shares the parameter groups and the state with the optimizer
it was made from.
"""

import contextlib
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from sumpter._core import membership
from sumpter._core.handles import Handle
from sumpter._core.names import identify_call
from sumpter._core.process_sets import ProcessSet, global_process_set, label
from sumpter._core.reduction import Adasum, Average, ReduceOp, Reduction, Sum
from sumpter._errors import UnsupportedError
from sumpter.torch.collectives.adasum import adasum_async
from sumpter.torch.compression import Compression, Compressor
from sumpter.torch.training.asynchronous import AsynchronousSteps
from sumpter.torch.training.deferred import DeferredServerUpdates
from sumpter.torch.training.gradients import GradientExchange, Names, PassCounter, scope_of
from sumpter.torch.training.on_servers import OverlappedServerUpdates, ServerUpdates
from sumpter.torch.training.overlap import (
    OverlappedExchange,
    Updates,
    check_independent,
    needs_whole_step,
    unless_lost,
)
from sumpter.torch.training.server_gradient import clip_
from sumpter.torch.training.variables import load_exactly


def DistributedOptimizer(  # noqa: N802 - the name that Horovod and BytePS scripts use
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Sequence[Sequence[torch.Tensor]] | int | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    overlap_forward: bool = False,
    on_servers: bool = False,
    staleness: int | None = 0,
    deferred: bool = False,
) -> torch.optim.Optimizer:
    """Wraps `optimizer` so that step() applies gradients averaged over all ranks.

    Gradients of `backward_passes_per_step` backward passes are added up before they are
    exchanged, and are not divided by that number. Parameters that a backward pass did not reach
    are exchanged as zeros, since another rank may have reached them. `num_groups` and `groups`
    are accepted for compatibility: gradients are cut by size anyway.
    A sparse gradient is exchanged as it is, entry by entry, unless `sparse_as_dense`. On a rank
    outside `process_set` nothing is exchanged.

    With op=Adasum each rank takes a step of its own, and the steps are combined: step() waits for
    one exchange of all parameters' changes, and there is nothing to synchronize() before.

    With `overlap_forward` step() returns at once and takes the gradients along. The next forward
    pass waits layer by layer, for the parameters that it is about to use, and updates them by the
    optimizer's own rule. synchronize() after step() updates all of them. What the forward pass uses
    first is sent first; without `overlap_forward` the order is that of readiness. ValueError for an
    optimizer that does not update each parameter by itself, such as LBFGS.

    With `on_servers` the servers apply the optimizer's rule to the sums of gradients and send new
    parameters; the optimizer's state is there, and the ranks keep a share of it each. Parameters
    become rank 0's here, and change when their gradients are complete, so before step(), which
    waits for all. state_dict() and load_state_dict() must be called on all ranks. For SGD, Adam,
    AdamW, RMSprop and Adagrad of torch.optim, and for Lion of sumpter.torch, with parameters on the
    CPU or on CUDA devices. UnsupportedError for what servers cannot update. With `overlap_forward`
    as well, the next forward pass waits for the new parameters layer by layer.

    With `deferred` as well, step() decides what the servers do with the sums: gradients may be
    clipped by their global norm after backward(), and a torch.amp.GradScaler used. Parameters
    change in step() then. It costs one more round trip a step.

    With a `staleness` above 0, or None for no bound, ranks train asynchronously: each takes steps
    of its own, and adds what they change, divided by the number of ranks or with op=Sum as it is,
    to parameters that all share. step() returns with these as they are then, once no other rank is
    more than `staleness` steps behind. Parameters become rank 0's here. synchronize() on all ranks
    ends with the same parameters on all. The setting `asynchronous`, or BYTEPS_ENABLE_ASYNC=1, is
    staleness=None and op=Sum, as in BytePS.
    """
    op = ReduceOp(op)
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise ValueError("gradient_predivide_factor needs op=Average")
    _check_groups(num_groups, groups)
    process_set.included()  # raises for a set that was not added
    names = _name_parameters(optimizer, named_parameters)
    options = _Options(
        compression,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        sparse_as_dense,
        process_set,
        overlap_forward,
        on_servers,
        staleness,
        deferred,
    )
    return _distribute(optimizer, names, options)


class _Options(NamedTuple):
    compression: type[Compressor]
    passes: int
    op: ReduceOp
    predivide: float
    sparse_as_dense: bool
    process_set: ProcessSet
    overlap_forward: bool
    on_servers: bool
    staleness: int | None
    deferred: bool


def _distribute(
    optimizer: torch.optim.Optimizer, names: Names, options: _Options
) -> torch.optim.Optimizer:
    if options.staleness == 0 and options.op is Average and _trains_asynchronously():
        options = options._replace(op=Sum, staleness=None)
    _check_kinds(options)
    passes, average, process_set = options.passes, options.op is Average, options.process_set
    if options.staleness != 0:
        staleness = options.staleness
        return _wrap_new(
            optimizer,
            _Asynchronous,
            lambda: AsynchronousSteps(names, passes, average, staleness, process_set),
        )
    if options.op is Adasum:
        deltas = _Deltas(names, passes, options.compression, process_set)
        return _wrap(optimizer, _DistributedAdasum, deltas)
    if options.on_servers:
        updates = _updates_on_servers(options.overlap_forward, options.deferred)
        return wrap_on_servers(
            optimizer, lambda: updates(names, optimizer, passes, average, process_set)
        )
    reduction = _reduction(options.op, options.compression, options.predivide)
    arguments = (names, reduction, passes, options.sparse_as_dense, process_set)
    if not options.overlap_forward:
        return _wrap(optimizer, _Distributed, GradientExchange(*arguments))
    if isinstance(optimizer, _Wrapped):
        raise ValueError("the optimizer is a DistributedOptimizer already: give the one it is of")
    check_independent(optimizer)
    return _wrap(optimizer, _Overlapped, OverlappedExchange(*arguments))


def _trains_asynchronously() -> bool:
    return membership.current().worker.asynchronous


def wrap_on_servers(
    optimizer: torch.optim.Optimizer, make: Callable[[], ServerUpdates]
) -> torch.optim.Optimizer:
    """The optimizer with the updates that `make` makes, which leave it to the servers."""
    return _wrap_new(optimizer, _OnServers, make)


def _wrap_new(
    optimizer: torch.optim.Optimizer, kind: "type[_Wrapped]", make: Callable[[], PassCounter]
) -> torch.optim.Optimizer:
    if isinstance(optimizer, _Wrapped):
        raise ValueError("the optimizer is a DistributedOptimizer already: give what it is of")
    exchange = make()
    kinds = {OverlappedServerUpdates: _OverlappedOnServers, DeferredServerUpdates: _Deferred}
    return _wrap(optimizer, kinds.get(type(exchange), kind), exchange)


def _updates_on_servers(overlap_forward: bool, deferred: bool) -> type[ServerUpdates]:
    if overlap_forward:
        return OverlappedServerUpdates
    return DeferredServerUpdates if deferred else ServerUpdates


def _check_kinds(options: _Options) -> None:
    """Raises ValueError for what cannot be had together."""
    if options.op is Adasum and options.overlap_forward:
        raise ValueError("op=Adasum exchanges whole steps: use it without overlap_forward")
    if options.deferred and not options.on_servers:
        raise ValueError("deferred=True is for on_servers=True: other steps come after their sums")
    if options.deferred and options.overlap_forward:
        raise ValueError(
            "deferred=True has step() wait for the norms of all gradients: without overlap_forward"
        )
    is_asynchronous = options.staleness != 0
    if is_asynchronous and (options.overlap_forward or options.on_servers):
        raise ValueError(
            "asynchronous training takes steps in the workers, and each at once: without "
            "on_servers, and without overlap_forward"
        )
    if not is_asynchronous and not options.on_servers:
        return
    what = "asynchronous training" if is_asynchronous else "on_servers=True"
    if options.op not in (Average, Sum):
        raise ValueError(f"{what} needs op=Average or op=Sum, not {options.op.name}")
    if options.compression is not Compression.none or options.predivide != 1.0:
        sent = "steps" if is_asynchronous else "gradients"
        raise ValueError(f"{what} sends {sent} as they are: no compression, no scaling")


def _reduction(op: ReduceOp, compression: type[Compressor], predivide: float) -> Reduction:
    if predivide == 1.0:
        return Reduction(op, compression=compression)
    return Reduction(op, prescale=1.0 / predivide, postscale=predivide, compression=compression)


def _wrap(
    optimizer: torch.optim.Optimizer, kind: "type[_Wrapped]", exchange: PassCounter
) -> torch.optim.Optimizer:
    base = type(optimizer)
    wrapped = object.__new__(type(base.__name__, (kind, base), {}))
    # A scheduler made earlier has put its own `step` into the old instance; ours must not be
    # shadowed by it.
    wrapped.__dict__.update({k: v for k, v in optimizer.__dict__.items() if k != "step"})
    wrapped._exchange = exchange
    # Horovod's attribute, which scripts read.
    wrapped._parameter_names = dict(exchange.names)
    wrapped._begin()
    return wrapped


class _Wrapped:
    """What both kinds of DistributedOptimizer add to, and change in, the user's class."""

    _exchange: PassCounter
    _parameter_names: dict[torch.nn.Parameter, str]

    def _begin(self) -> None:
        """Called when the instance is complete."""

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes how many backward passes make one exchange."""
        self._exchange.passes = passes

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients; refused between backward() and step()."""
        if self._in_between():
            raise AssertionError(
                "zero_grad() was called after backward() and before step() or synchronize(): "
                "the gradients are still being exchanged"
            )
        super().zero_grad(set_to_none=set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the optimizer's state; gradients in flight and backward passes are forgotten."""
        self._exchange.abandon()
        super().load_state_dict(state_dict)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refused: a copy, or a pickle, would have no part in the exchange."""
        raise TypeError(
            "a DistributedOptimizer cannot be copied or pickled, since the other ranks take part "
            "in what it does: keep its state_dict()"
        )

    def _in_between(self) -> bool:
        raise NotImplementedError


class _Distributed(_Wrapped):
    """Exchanges gradients while backward makes them, and waits for them in step()."""

    _exchange: GradientExchange
    _synchronized = False
    _skip = False
    _warned = False

    def synchronize(self) -> None:
        """Waits until all gradients are averaged; step() then does not exchange them again."""
        self._average()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, step() exchanges nothing: for use after an explicit synchronize()."""
        self._skip = True
        try:
            yield
        finally:
            self._skip = False

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Averages the gradients over all ranks and takes a step of the user's optimizer."""
        if closure is not None:
            return super().step(self._exchanging(closure))
        if not self._skip:
            if self._synchronized:
                self._warn_once()
            else:
                self._average()
        self._synchronized = False
        return super().step()

    def _in_between(self) -> bool:
        return self._exchange.pending

    def _average(self) -> None:
        self._exchange.finish()
        self._synchronized = True

    def _exchanging(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def exchanged() -> Any:
            with torch.enable_grad():
                loss = closure()
            self._exchange.finish()
            return loss

        return exchanged

    def _warn_once(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() after "
                "optimizer.synchronize(): gradients are not exchanged again; wrap step() in "
                "`with optimizer.skip_synchronize():` to say so",
                stacklevel=3,
            )


class _Overlapped(_Distributed):
    """Leaves the updates to the next forward pass, which waits for them layer by layer."""

    _exchange: OverlappedExchange
    _updates: Updates
    _steps = 0
    _final_step: int | None = None

    def _begin(self) -> None:
        parameters = [p for group in self.param_groups for p in group["params"]]
        self._updates = Updates(parameters, dict(self._exchange.names))
        self._exchange.updates = self._updates

    def synchronize(self) -> None:
        """Takes the updates that wait, and waits for the gradients that backward has made.

        After step() this ends the step: parameters are up to date. After backward() gradients are
        averages, and the step() that follows is taken at once, for all parameters.
        """
        self._updates.finish()
        if self._exchange.begun:
            self._average()

    def synchronize_parameters(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Takes the updates that wait for these parameters, for who uses them directly."""
        self._updates.take(parameters)

    def finish_from(self, final_step: int) -> None:
        """Has the step of this number, counted from 1, and those after it wait for all updates."""
        self._final_step = final_step

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Begins a step of the user's optimizer and returns; the gradients belong to it.

        Taken at once, as without overlap_forward, are steps after synchronize(), with a closure,
        of an optimizer with step hooks, and those to which a GradScaler gives its scale.
        """
        self._updates.finish()
        self._steps += 1
        if closure is not None or self._skip or self._synchronized or needs_whole_step(self):
            return super().step(closure)
        self._exchange.check_untouched()
        handles = self._exchange.hand_over()
        self._updates.begin(self.param_groups, handles, self._step_groups)
        if self._final_step is not None and self._steps >= self._final_step:
            self._updates.finish()
        return None

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, when all updates have been taken."""
        self._updates.finish()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the optimizer's state when all updates have been taken, or cannot be any more."""
        with unless_lost():
            self._updates.finish()
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group when all updates have been taken; its gradients are not exchanged."""
        self._updates.finish()
        super().add_param_group(param_group)
        self._updates.adopt(self.param_groups[-1]["params"])

    def _step_groups(self, groups: list[dict[str, Any]]) -> None:
        whole, self.param_groups = self.param_groups, groups
        try:
            super(_Distributed, self).step()
        finally:
            self.param_groups = whole


class _OnServers(_Wrapped):
    """Leaves the updates to the servers."""

    _exchange: ServerUpdates

    def synchronize(self) -> None:
        """Waits until all parameters are updated, as step() does."""
        self._exchange.finish()

    def skip_synchronize(self) -> Any:
        """Refused: gradients and steps are one."""
        raise AssertionError("skip_synchronize() has no meaning with on_servers=True")

    # Step hooks are called around it, as torch does for the optimizer's own step().
    @torch.optim.Optimizer.profile_hook_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Sends what backward has not reached, and waits for the new parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._exchange.finish()
        return loss

    def clip_grad_norm_(self, max_norm: float, **_: Any) -> torch.Tensor:
        """Refused: the rule is applied as soon as gradients are summed."""
        raise ValueError(
            f"clip_grad_norm_({max_norm}): the servers apply the rule as soon as gradients are "
            "summed; make the DistributedOptimizer with deferred=True to clip them before"
        )

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, gathered from what the ranks mirror; for all ranks to call."""
        self._exchange.check_settled("state_dict()")
        self.state.update(self._exchange.gather())
        try:
            return super().state_dict()
        finally:
            self.state.clear()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Has the servers go on from this state and the parameters as they are; on all ranks."""
        self._exchange.check_settled("load_state_dict()")
        super().load_state_dict(state_dict)
        load_exactly(self, state_dict)
        self._exchange.load(self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group between two steps; on all ranks, where its parameters become rank 0's."""
        if self._exchange.begun:
            raise AssertionError(
                "add_param_group() was called between backward() and step(): call it before or "
                "after them"
            )
        super().add_param_group(param_group)
        try:
            self._exchange.add(self.param_groups[-1])
        except BaseException:
            self.param_groups.pop()
            raise

    def _in_between(self) -> bool:
        return self._exchange.pending


class _Asynchronous(_Wrapped):
    """Takes a step of the user's optimizer on each rank and adds it to what all ranks share."""

    _exchange: AsynchronousSteps

    def synchronize(self) -> None:
        """Ends with the same parameters on all ranks, which must all call this."""
        self._exchange.agree()

    def skip_synchronize(self) -> Any:
        """Refused: it is step() that exchanges."""
        raise AssertionError("skip_synchronize() has no meaning in asynchronous training")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes a step of the user's optimizer, adds it, and gets the shared parameters."""
        for number, group in enumerate(self.param_groups):
            for parameter in group["params"]:
                if parameter.requires_grad and parameter not in self._exchange.names:
                    raise ValueError(
                        f"a parameter of shape {list(parameter.shape)} in group {number} was "
                        "frozen when the DistributedOptimizer was made and is trained now: it "
                        "would differ between ranks; make a new one"
                    )
        return self._exchange.step(lambda: super(_Asynchronous, self).step(closure))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from this state and the parameters as they are; on all ranks."""
        super().load_state_dict(state_dict)
        self._exchange.load()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: ranks share the parameters that there were at the start."""
        raise UnsupportedError(
            "parameters cannot be added in asynchronous training; make a new DistributedOptimizer"
        )

    def _in_between(self) -> bool:
        return False


class _Deferred(_OnServers):
    """Decides in step() what the servers do."""

    _exchange: DeferredServerUpdates

    # A GradScaler calls step() whatever it found, and leaves its scale and what it found here.
    _step_supports_amp_scaling = True
    grad_scale: torch.Tensor | None
    found_inf: torch.Tensor | None

    def synchronize(self) -> None:
        """Sends what backward has not reached; gradients may be clipped and scaled then."""
        self._exchange.join()

    def skip_synchronize(self) -> Any:
        """Within it, step() is what it always is: for scripts that call synchronize() before."""
        return contextlib.nullcontext()

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Clips the gradients, as they will be averaged or summed over all ranks, by their norm.

        As torch.nn.utils.clip_grad_norm_ of all parameters of this optimizer; also of those that
        backward has not reached on this rank. Waits for the sums and returns their total norm.
        UnsupportedError for another `norm_type` than 2; RuntimeError for a norm that is not finite,
        if `error_if_nonfinite`.
        """
        if norm_type != 2:
            raise UnsupportedError(
                f"the norm of order {norm_type} of gradients that are on the servers, which know "
                "the 2-norm"
            )
        self._exchange.join()
        return clip_(self._exchange.gradients(), max_norm, error_if_nonfinite)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Sets the gradients to None: what is on the servers cannot be set to zeros here."""
        super().zero_grad(set_to_none=True)

    @torch.optim.Optimizer.profile_hook_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Has the servers apply the rule to the sums as they were clipped and scaled, and waits.

        Parameters, state and the number of steps stay as they are if a GradScaler has found sums
        that are not finite.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scale, found = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        skips = found is not None and bool(found)
        self._exchange.finish_deferred(1.0 if scale is None else 1.0 / float(scale), skips)
        return loss


class _OverlappedOnServers(_OnServers):
    """Leaves the updates to the servers, and waiting for them to the next forward pass."""

    _exchange: OverlappedServerUpdates
    _updates: Updates

    def _begin(self) -> None:
        parameters = [p for group in self.param_groups for p in group["params"]]
        self._updates = Updates(parameters, dict(self._exchange.names))
        self._exchange.updates = self._updates

    def synchronize(self) -> None:
        """Waits for the new parameters after step(); refused between backward() and step()."""
        if self._exchange.pending:
            raise AssertionError(
                "synchronize() between backward() and step() has no meaning with on_servers=True: "
                "the servers update by the gradients as backward() makes them; call it after step()"
            )
        self._updates.finish()

    def synchronize_parameters(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Waits for these parameters' new values, for who uses them directly."""
        self._updates.take(parameters)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Sends what backward has not reached, and returns; the gradients belong to the step.

        With a closure, or of an optimizer with step hooks, it waits, as without overlap_forward.
        """
        self._updates.finish()
        if closure is not None or needs_whole_step(self):
            return super().step(closure)
        handles = {
            parameter: Handle(round_, lambda: None)
            for parameter, round_ in self._exchange.hand_over().items()
        }
        # A parameter is new when its round is done: nothing is left for the optimizer to do.
        self._updates.begin(self.param_groups, handles, lambda groups: None)
        return None

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, gathered when the last step is done; for all ranks to call."""
        self._updates.finish()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Has the servers go on from this state, when the last step is done; on all ranks."""
        with unless_lost():
            self._updates.finish()
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group when the last step is done; on all ranks."""
        self._updates.finish()
        super().add_param_group(param_group)
        self._updates.adopt(self.param_groups[-1]["params"], self._exchange.names)


class _Deltas(PassCounter):
    """What a step changes in the parameters: taken on this rank, combined with the others'."""

    def __init__(
        self,
        names: Names,
        passes: int,
        compression: type[Compressor],
        process_set: ProcessSet,
    ) -> None:
        self._process_set = process_set
        self._reduction = Reduction(Adasum, compression=compression)
        scope = scope_of(names, process_set, Adasum.wire_name, compression.__qualname__)
        mark = f"{zlib.crc32(repr(list(names.values())).encode()):08x}"
        self._place = f"adasum{label(process_set)}"
        self._own = f"{scope}adasum.{mark}"
        self._call = f"step({len(names)} parameters with names marked {mark})"
        super().__init__(names, passes)

    def step(self, take: Callable[[], Any]) -> Any:
        """Takes a step, and moves the parameters to where the combined steps lead."""
        parameters = [parameter.detach() for parameter in self.names]
        before = [parameter.clone() for parameter in parameters]
        result = take()
        self.restart()
        # A step alone is the combined one already.
        if self._process_set.included() and self._process_set.size() > 1:
            deltas = [now - then for now, then in zip(parameters, before, strict=True)]
            identity = identify_call(membership.current(), self._place, self._own, self._call)
            combined = adasum_async(
                "delta", deltas, None, identity, self._reduction, self._process_set
            ).synchronize()
            for parameter, then, delta in zip(parameters, before, combined, strict=True):
                parameter.copy_(then + delta)
        return result


class _DistributedAdasum(_Wrapped):
    """Takes a step of the user's optimizer on each rank and combines the steps."""

    _exchange: _Deltas

    def synchronize(self) -> None:
        """Does nothing: gradients stay with their rank."""

    def skip_synchronize(self) -> Any:
        """Refused, as in Horovod: it is step() that exchanges."""
        raise AssertionError("skip_synchronize() has no meaning with op=Adasum: step() exchanges")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes a step of the user's optimizer and combines it with the other ranks' steps."""
        return self._exchange.step(lambda: super(_DistributedAdasum, self).step(closure))

    def _in_between(self) -> bool:
        return self._exchange.begun


def _check_groups(num_groups: int, groups: object) -> None:
    """Raises ValueError unless the arguments are what Horovod takes, though nothing follows."""
    whole = isinstance(groups, int) and not isinstance(groups, bool)
    lists = isinstance(groups, (list, tuple)) and all(
        isinstance(group, (list, tuple)) and all(isinstance(p, torch.Tensor) for p in group)
        for group in groups
    )
    if num_groups < 0 or (whole and groups < 0):
        raise ValueError(f"num_groups={num_groups}, groups={groups}: a number of groups is from 0")
    if groups is not None and not whole and not lists:
        raise ValueError("groups must be a number, or a list of lists of parameters")


def _name_parameters(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None,
) -> dict[torch.nn.Parameter, str]:
    """The trainable parameters of `optimizer` in its order, with their names."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if named_parameters is None:
        names = {parameter: str(index) for index, parameter in enumerate(parameters)}
    else:
        names = _check_names(list(named_parameters), parameters)
    return {parameter: names[parameter] for parameter in parameters if parameter.requires_grad}


def _check_names(
    named: list[Any], parameters: list[torch.nn.Parameter]
) -> dict[torch.nn.Parameter, str]:
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in named):
        raise ValueError("named_parameters must be pairs of name and parameter")
    seen: set[str] = set()
    duplicates = sorted({name for name, _ in named if name in seen or seen.add(name)})
    if duplicates:
        raise ValueError(f"named_parameters has duplicate names: {', '.join(duplicates)}")
    names = {parameter: name for name, parameter in named}
    unnamed = sum(parameter not in names for parameter in parameters)
    if unnamed:
        raise ValueError(f"named_parameters lacks {unnamed} of the optimizer's parameters")
    return names
