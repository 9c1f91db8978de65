"""DistributedOptimizer: averages each gradient over the ranks as soon as backward made it.

The result is an instance of the user's optimizer class, so learning-rate schedulers and
isinstance checks keep working; it shares the parameter groups and the state with the optimizer
it was made from.
"""

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from sumpter import _session
from sumpter._errors import UnsupportedError
from sumpter.torch.compression import Compression, Compressor
from sumpter.torch.exchange import sparse_allreduce_async
from sumpter.torch.handles import Identity, TensorHandle
from sumpter.torch.process_sets import ProcessSet, global_process_set, label
from sumpter.torch.reduction import Average, ReduceOp, Reduction, Sum, reduce_async
from sumpter.torch.tensors import dtype_name

PREFIX = "Gradient."

# The hook that is active on each parameter. A model that gets a new DistributedOptimizer leaves
# its old one: two exchanges of one gradient would write to the same memory.
_hooks = WeakTensorKeyDictionary()


def DistributedOptimizer(  # noqa: N802 - the name that Horovod and BytePS scripts use
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: object = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> torch.optim.Optimizer:
    """Wraps `optimizer` so that step() applies gradients averaged over all ranks.

    Gradients of `backward_passes_per_step` backward passes are added up before they are
    exchanged, and are not divided by that number. Parameters that a backward pass did not reach
    are exchanged as zeros, since another rank may have reached them. `num_groups` and `groups`
    are accepted for compatibility: gradients are cut and scheduled by size and priority anyway.
    A sparse gradient is exchanged as it is, entry by entry, unless `sparse_as_dense`. On a rank
    outside `process_set` nothing is exchanged.
    """
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise ValueError("gradient_predivide_factor needs op=Average")
    size = process_set.size()
    reduction = Reduction(op, compression=compression)
    if gradient_predivide_factor != 1.0:
        reduction = Reduction(
            Sum,
            prescale=1.0 / gradient_predivide_factor,
            postscale=gradient_predivide_factor / size,
            compression=compression,
        )
    exchange = GradientExchange(
        optimizer,
        named_parameters,
        reduction,
        backward_passes_per_step,
        sparse_as_dense,
        process_set,
    )
    base = type(optimizer)
    wrapped = object.__new__(type(base.__name__, (_Distributed, base), {}))
    # A scheduler made earlier has put its own `step` into the old instance; ours must not be
    # shadowed by it.
    wrapped.__dict__.update({k: v for k, v in optimizer.__dict__.items() if k != "step"})
    wrapped._exchange = exchange
    return wrapped


class GradientExchange:
    """The gradients of one optimizer: which are due, which are in flight."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None,
        reduction: Reduction,
        passes: int,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self._reduction = reduction
        self._process_set = process_set
        self._exchanges = process_set.included()
        self._sparse_as_dense = sparse_as_dense
        self._names = _name_parameters(optimizer, named_parameters)
        wire = (reduction.op.wire_name, reduction.compression.__qualname__)
        described = {
            name: (dtype_name(parameter), tuple(parameter.shape), *wire)
            for parameter, name in self._names.items()
        }
        self._scope = _session.current().scope(PREFIX + label(process_set), described)
        self._handles: dict[torch.nn.Parameter, TensorHandle | _SparseHandle] = {}
        self._identities: dict[torch.nn.Parameter, Identity] = {}
        self._priorities: dict[torch.nn.Parameter, int] = {}
        self.passes = passes
        for index, (parameter, name) in enumerate(self._names.items()):
            self._identities[parameter] = Identity(self._scope + name)
            # The next forward pass needs the first layers first.
            self._priorities[parameter] = len(self._names) - index
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
    def pending(self) -> bool:
        """Whether gradients are in flight."""
        return bool(self._handles)

    def restart(self) -> None:
        """Counts the backward passes from the start again."""
        self._remaining = dict.fromkeys(self._names, self._passes)

    def finish(self) -> None:
        """Exchanges what has not been exchanged yet and waits for everything."""
        for parameter in self._names:
            if parameter not in self._handles:
                self._start(parameter)
        handles, self._handles = self._handles, {}
        self.restart()
        for handle in handles.values():
            handle.synchronize()

    def _hook(self, parameter: torch.nn.Parameter) -> None:
        # Weakly, so that the exchange ends with its optimizer and not with the model.
        method = weakref.WeakMethod(self._accumulated)

        def accumulated(parameter: torch.nn.Parameter) -> None:
            call = method()
            if call is not None:
                call(parameter)

        earlier = _hooks.get(parameter)
        if earlier is not None:
            earlier.remove()
        _hooks[parameter] = parameter.register_post_accumulate_grad_hook(accumulated)

    def _accumulated(self, parameter: torch.nn.Parameter) -> None:
        """Called by autograd when `parameter.grad` is complete for one backward pass."""
        self._remaining[parameter] -= 1
        if self._remaining[parameter] < 0:
            raise AssertionError(
                f"the gradient of {self._names[parameter]} was computed more than "
                f"{self._passes} times before step(): call step() or synchronize() in between, "
                "or set backward_passes_per_step"
            )
        if self._remaining[parameter] == 0:
            self._start(parameter)

    def _start(self, parameter: torch.nn.Parameter) -> None:
        if not self._exchanges:
            return
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.is_sparse:
            if not self._sparse_as_dense:
                self._handles[parameter] = self._start_sparse(parameter)
                return
            parameter.grad = parameter.grad.to_dense()
        self._handles[parameter] = reduce_async(
            "gradient",
            parameter.grad,
            parameter.grad,
            self._identities[parameter],
            self._reduction,
            self._priorities[parameter],
            self._process_set,
        )

    def _start_sparse(self, parameter: torch.nn.Parameter) -> "_SparseHandle":
        reduction, name = self._reduction, self._identities[parameter].name
        if reduction.compression is not Compression.none:
            raise UnsupportedError(
                f"the gradient of {self._names[parameter]} is sparse and would be compressed: pass "
                "sparse_as_dense=True or Compression.none"
            )
        gradient = (
            parameter.grad * reduction.prescale if reduction.prescale != 1.0 else parameter.grad
        )
        wait = sparse_allreduce_async(gradient, name, reduction.op, self._process_set)
        return _SparseHandle(parameter, wait, reduction.postscale)


class _SparseHandle:
    """A sparse gradient in flight; what comes back has other entries, so it is a new tensor."""

    def __init__(
        self, parameter: torch.nn.Parameter, wait: Callable[[], torch.Tensor], scale: float
    ) -> None:
        self._parameter = parameter
        self._wait = wait
        self._scale = scale

    def synchronize(self) -> None:
        gradient = self._wait()
        self._parameter.grad = gradient * self._scale if self._scale != 1.0 else gradient


class _Distributed:
    """What a DistributedOptimizer adds to, and changes in, the user's optimizer class."""

    _exchange: GradientExchange
    _synchronized = False
    _skip = False
    _warned = False

    def synchronize(self) -> None:
        """Waits until all gradients are averaged; step() then does not exchange them again."""
        self._exchange.finish()
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, step() exchanges nothing: for use after an explicit synchronize()."""
        self._skip = True
        try:
            yield
        finally:
            self._skip = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes how many backward passes make one exchange."""
        self._exchange.passes = passes

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Averages the gradients over all ranks and takes a step of the user's optimizer."""
        if closure is not None:
            return super().step(self._exchanging(closure))
        if not self._skip:
            if self._synchronized:
                self._warn_once()
            else:
                self.synchronize()
        self._synchronized = False
        return super().step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients; refused between backward() and step()."""
        if self._exchange.pending:
            raise AssertionError(
                "zero_grad() was called after backward() and before step() or synchronize(): "
                "the gradients are still being exchanged"
            )
        super().zero_grad(set_to_none=set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the optimizer's state; backward passes are counted from the start again."""
        self._exchange.restart()
        super().load_state_dict(state_dict)

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
                "step() after synchronize() does not exchange gradients again; wrap it in "
                "`with optimizer.skip_synchronize():` to say so",
                stacklevel=3,
            )


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
