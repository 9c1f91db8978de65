"""The gradients of a model: when each is complete, and their exchange while backward still runs.

DistributedOptimizer and DistributedDataParallel differ in when they wait: at step(), or when
backward ends. The hooks, the counting of passes and the exchange are here for both.
"""

import functools
import itertools
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from sumpter import _native
from sumpter._core import membership
from sumpter._core.compression.choice import OFF, Limits, gradient_codecs
from sumpter._core.compression.codecs import is_low_rank
from sumpter._core.compression.memory import report_dropped
from sumpter._core.handles import ChainedHandle, Handle
from sumpter._core.process_sets import ProcessSet, global_process_set, label, members
from sumpter._core.reduction import Reduction, Sum
from sumpter._core.session import Session
from sumpter._errors import UnsupportedError
from sumpter.torch.collectives.allreduces import allreduce
from sumpter.torch.collectives.exchange import sparse_allreduce_async
from sumpter.torch.collectives.reduction import RepeatedReduction
from sumpter.torch.tensors import dtype_name
from sumpter.torch.training.low_rank import LowRankReduction, factors_of
from sumpter.torch.training.order import NeedOrder
from sumpter.torch.training.rates import LearningRates

PREFIX = "Gradient."

Names = Mapping[torch.nn.Parameter, str]


class PassCounter:
    """Counts how often backward has completed each parameter's gradient."""

    # Whose it is, in words for messages.
    owner = "DistributedOptimizer"
    # Whether autograd says when a gradient is complete, or something else does.
    is_hooked = True

    def __init__(self, names: Names, passes: int) -> None:
        self.names = names
        self._session = membership.peek()
        self.passes = passes
        for parameter in names:
            self._hook(parameter)

    @property
    def passes(self) -> int:
        """How many backward passes make one exchange."""
        return self._passes

    @passes.setter
    def passes(self, passes: int) -> None:
        if passes < 1:
            raise ValueError(f"backward_passes_per_step is {passes}: it must be 1 or more")
        self._passes = passes
        self.restart()

    @property
    def begun(self) -> bool:
        """Whether a backward pass has completed gradients since the last restart()."""
        self._follow_session()
        return any(remaining != self._passes for remaining in self._remaining.values())

    def restart(self) -> None:
        """Counts the backward passes from the start again."""
        self._remaining = dict.fromkeys(self.names, self._passes)

    def abandon(self) -> None:
        """Forgets what is in flight; its results are not needed any more."""
        self.restart()

    def take_in(self, added: Names) -> None:
        """Counts more parameters as well, from their next backward pass on; on all ranks alike."""
        self.names = {**self.names, **added}
        self._remaining.update(dict.fromkeys(added, self._passes))
        for parameter in added:
            self._hook(parameter)

    def complete(self, parameter: torch.nn.Parameter) -> None:
        """Called when the last pass has completed the gradient of `parameter`."""

    def accumulated(self, parameter: torch.nn.Parameter) -> None:
        """Called by autograd when `parameter.grad` is complete for one backward pass."""
        self._follow_session()
        self._remaining[parameter] -= 1
        if self._remaining[parameter] < 0:
            raise AssertionError(
                f"the gradient of {self.names[parameter]} was computed more than "
                f"{self._passes} times before step(): call step() or synchronize() in between, "
                "or set backward_passes_per_step"
            )
        if self._remaining[parameter] == 0:
            self.complete(parameter)

    def _follow_session(self) -> None:
        """Forgets what was in flight in a job that has been left."""
        session = membership.peek()
        if session is not self._session:
            self._session = session
            self.abandon()

    def _hook(self, parameter: torch.nn.Parameter) -> None:
        earlier = _hooks.get(parameter)
        if earlier is not None:
            earlier.make_way(self)
            del _hooks[parameter]
        if self.is_hooked:
            _hooks[parameter] = _Hook(self, parameter)


class _Hook:
    """What autograd calls for one parameter.

    It knows its counter weakly, so that the exchange ends with its owner and not with the model.
    """

    def __init__(self, counter: PassCounter, parameter: torch.nn.Parameter) -> None:
        self._counter = weakref.ref(counter)
        self._registered = parameter.register_post_accumulate_grad_hook(self)

    def __call__(self, parameter: torch.nn.Parameter) -> None:
        counter = self._counter()
        if counter is not None:
            counter.accumulated(parameter)

    def make_way(self, successor: PassCounter) -> None:
        """Ends for a new counter of the same kind; another kind would exchange twice."""
        counter = self._counter()
        if counter is not None and counter.owner != successor.owner:
            raise ValueError(
                f"the model is in a {counter.owner}, which averages its gradients already: use it "
                f"without a {successor.owner}"
            )
        self._registered.remove()


# The hook that is active on each parameter. A model that gets a new DistributedOptimizer leaves
# its old one: two exchanges of one gradient would write to the same memory.
_hooks = WeakTensorKeyDictionary()


class GradientExchange(PassCounter):
    """Exchanges each gradient as soon as it is complete: which are due, which are in flight."""

    # Whether something waits for one gradient and not for all. Where all are waited for, an order
    # gains nothing, and ranks that overtake at different moments wait for each other.
    by_need = False

    def __init__(
        self,
        names: Names,
        reduction: Reduction,
        passes: int = 1,
        sparse_as_dense: bool = False,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        self._reduction = reduction
        self._process_set = process_set
        self._sparse_as_dense = sparse_as_dense
        # Of those exchanged as dense ones, in how many dimensions they are sparse.
        self._sparse_dims: dict[torch.nn.Parameter, int] = {}
        self._handles: dict[torch.nn.Parameter, GradientHandle] = {}
        self._reductions: dict[torch.nn.Parameter, RepeatedReduction | LowRankReduction] = {}
        self._reductions.update(self._reductions_of(names))
        # What load_compression_state() was given for parameters that are frozen yet.
        self._later: dict[str, Mapping[str, Any]] = {}
        # Of the optimizer that takes the steps, if there is one.
        self.rates: LearningRates | None = None
        self.order = NeedOrder(names)
        super().__init__(names, passes)

    @property
    def pending(self) -> bool:
        """Whether gradients are in flight."""
        self._follow_session()
        return bool(self._handles)

    def finish(self) -> None:
        """Exchanges what has not been exchanged yet and waits for everything."""
        for handle in self.hand_over().values():
            handle.synchronize()

    def hand_over(self) -> dict[torch.nn.Parameter, "GradientHandle"]:
        """Exchanges what has not been exchanged yet; it is for the caller to wait for it all."""
        self._follow_session()
        for parameter in self.names:
            if parameter not in self._handles and not _is_frozen(parameter):
                self._start(parameter)
        handles, self._handles = self._handles, {}
        self.order.adopt()
        self.restart()
        return handles

    def abandon(self) -> None:
        """Forgets the exchanges in flight, whose results are not needed any more."""
        self._handles = {}
        super().abandon()

    def take_in(self, added: Names) -> None:
        """Exchanges the gradients of more parameters as well; on all ranks alike."""
        self._reductions.update(self._reductions_of(added))
        super().take_in(added)
        self.order = NeedOrder(self.names)
        entries = {parameter: self._later.pop(name, None) for parameter, name in added.items()}
        keeping = {parameter for parameter, _ in self._keeping()}
        self._load({p: entry for p, entry in entries.items() if p in keeping and entry is not None})

    def restart(self) -> None:
        """Counts the backward passes from the start again."""
        self.order.forget()
        super().restart()

    def compression_state(self) -> dict[str, Any]:
        """What codecs keep of this rank's gradients from round to round, by their names.

        Raises MismatchError for one that is in flight.
        """
        rates = self.rates
        return {
            **self._later,
            **{
                self.names[parameter]: {
                    **own.state(),
                    "rate": None if rates is None else rates.last(parameter),
                }
                for parameter, own in self._keeping()
            },
        }

    def load_compression_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from what compression_state() returned; what it lacks begins anew.

        What another rank had left out is not taken over, which is logged. What it has of
        parameters that are frozen waits until they are taken in.
        """
        known = set(self.names.values())
        self._later = {name: entry for name, entry in state.items() if name not in known}
        self._load(
            {parameter: state.get(self.names[parameter]) for parameter, _ in self._keeping()}
        )

    def _load(self, entries: Mapping[torch.nn.Parameter, Mapping[str, Any] | None]) -> None:
        dropped = []
        for parameter, entry in entries.items():
            own = self._reductions[parameter]
            if entry is None:
                own.forget()
                continue
            if own.load(entry):
                dropped.append(entry["rank"])
            if self.rates is not None:
                self.rates.restore(parameter, entry.get("rate"))
        if dropped:
            report_dropped(len(dropped), dropped)

    def carry_over(self) -> None:
        """Takes along to the next job what codecs keep in this one."""
        for _, own in self._keeping():
            own.load(own.state())

    def hand_on(self, staying: Collection[int], leaving: Collection[int]) -> None:
        """What ranks that leave the job have left out goes to the lowest one that stays.

        Called on all ranks, while no gradient is in flight. That one adds it to its own, so that
        it counts once; it travels as it is.
        """
        if not self._process_set.included():
            return
        among = members(self._process_set)
        heirs = [rank for rank in sorted(staying) if rank in among]
        rank, givers = membership.rank(), set(leaving).intersection(among)
        if not heirs or not givers:
            return
        for parameter, own in self._keeping():
            leaves_out, *_ = _native.codec_keeps(own.codec)
            if not leaves_out:
                continue
            state = own.state()
            given = state["residual"] if rank in givers else None
            if given is None:
                given = torch.zeros(parameter.numel(), dtype=torch.float32, device="cpu")
            name, process_set = f"{own.name}.residual", self._process_set
            summed = allreduce(given, op=Sum, name=name, compression=OFF, process_set=process_set)
            if rank == heirs[0]:
                kept = state["residual"]
                own.load({**state, "residual": summed if kept is None else kept + summed})

    def _reductions_of(
        self, names: Names
    ) -> dict[torch.nn.Parameter, RepeatedReduction | LowRankReduction]:
        reduction, process_set = self._reduction, self._process_set
        choice = reduction.compression
        limits = Limits.of(membership.current().worker)
        described = {
            name: (tuple(parameter.shape), dtype_name(parameter))
            for parameter, name in names.items()
        }
        codecs = gradient_codecs(choice, limits, described)
        # What codecs keep of a gradient from round to round is kept under its name.
        model = _number_of([*self._reductions, *names]) if any(codecs.values()) else None
        scope = scope_of(names, process_set, reduction.op.wire_name, choice.word, model)
        return {
            parameter: _reduction_of(parameter, scope + name, reduction, process_set, codecs[name])
            for parameter, name in names.items()
        }

    def _keeping(self) -> Iterator[tuple[torch.nn.Parameter, RepeatedReduction | LowRankReduction]]:
        for parameter, own in self._reductions.items():
            if own.keeps:
                yield parameter, own

    def complete(self, parameter: torch.nn.Parameter) -> None:
        """Starts the exchange of the gradient that backward has made."""
        self.order.completed(parameter)
        self._start(parameter)

    def _start(self, parameter: torch.nn.Parameter) -> None:
        """Starts the exchange of one gradient; zeros where backward made none."""
        if not self._process_set.included():
            return
        gradient = parameter.grad
        if gradient is None:
            gradient = parameter.grad = torch.zeros_like(parameter)
        elif gradient.is_sparse:
            if not self._sparse_as_dense:
                self._handles[parameter] = self._start_sparse(parameter)
                return
            self._sparse_dims[parameter] = gradient.sparse_dim()
            gradient = gradient.to_dense()
        priority = self.order.priority(parameter) if self.by_need else 0
        reduction = self._reductions[parameter]
        compressed = self.rates is not None and reduction.codec
        rescale = self.rates.rescale(parameter) if compressed else 1.0
        handle = reduction.start(gradient, priority, rescale)
        dims = self._sparse_dims.get(parameter)
        if dims is None:
            self._handles[parameter] = handle
        else:
            # The optimizer may take sparse gradients only, also where backward made none.
            wait = functools.partial(_as_sparse, handle, dims)
            self._handles[parameter] = _SparseHandle(parameter, wait)

    def _start_sparse(self, parameter: torch.nn.Parameter) -> "_SparseHandle":
        reduction, name = self._reduction, self._reductions[parameter].name
        if not (reduction.compression.is_off or reduction.compression.is_default):
            raise UnsupportedError(
                f"the gradient of {self.names[parameter]} is sparse and would be compressed: pass "
                "sparse_as_dense=True or Compression.none"
            )
        gradient = (
            parameter.grad * reduction.prescale if reduction.prescale != 1.0 else parameter.grad
        )
        wait = sparse_allreduce_async(gradient, name, reduction.op, self._process_set)
        return _SparseHandle(parameter, wait, reduction.postscale)


def _reduction_of(
    parameter: torch.nn.Parameter,
    name: str,
    reduction: Reduction,
    process_set: ProcessSet,
    codec: str,
) -> RepeatedReduction | LowRankReduction:
    if not is_low_rank(codec):
        return RepeatedReduction(name, reduction, process_set, codec)
    factors = factors_of(codec, parameter.shape)
    if factors is None:
        return RepeatedReduction(name, reduction, process_set)
    return LowRankReduction(name, reduction, process_set, codec, factors)


def _is_frozen(parameter: torch.nn.Parameter) -> bool:
    """Whether the optimizer leaves a parameter as it is: an exchange would give it zeros."""
    return not parameter.requires_grad and parameter.grad is None


class _SparseHandle:
    """A sparse gradient in flight; what comes back has other entries, so it is a new tensor."""

    def __init__(
        self, parameter: torch.nn.Parameter, wait: Callable[[], torch.Tensor], scale: float = 1.0
    ) -> None:
        self._parameter = parameter
        self._wait = wait
        self._scale = scale

    def synchronize(self) -> None:
        gradient = self._wait()
        self._parameter.grad = gradient * self._scale if self._scale != 1.0 else gradient


def _as_sparse(handle: Handle[torch.Tensor], dims: int) -> torch.Tensor:
    return handle.synchronize().to_sparse(dims)


GradientHandle = Handle[torch.Tensor] | ChainedHandle | _SparseHandle


def _number_of(parameters: Collection[torch.nn.Parameter]) -> int:
    """The number of a model in the job, the same when its parameters are wrapped again.

    Ranks wrap models in the same order, so it is the same on all of them; what the garbage
    collector has found changes nothing.
    """
    session = membership.current()
    if session not in _models:
        _models[session] = WeakTensorKeyDictionary(), itertools.count()
    numbers, new = _models[session]
    known = {numbers[parameter] for parameter in parameters if parameter in numbers}
    number = known.pop() if len(known) == 1 else next(new)
    for parameter in parameters:
        numbers[parameter] = number
    return number


# The numbers of models by their parameters, and the next.
_models: weakref.WeakKeyDictionary[Session, tuple[WeakTensorKeyDictionary, Iterator[int]]] = (
    weakref.WeakKeyDictionary()
)


def scope_of(names: Names, process_set: ProcessSet, *wire: str | int | None) -> str:
    """A prefix for the names of a model's gradients, which no other kind of model has used."""
    described = {
        name: (dtype_name(parameter), tuple(parameter.shape), *wire)
        for parameter, name in names.items()
    }
    return membership.current().scope(PREFIX + label(process_set), described)
