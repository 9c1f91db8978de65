"""DistributedOptimizer: averages each gradient over the ranks as soon as backward made it.

The result is an instance of the user's optimizer class, so learning-rate schedulers and
isinstance checks keep working; it shares the parameter groups and the state with the optimizer
it was made from.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch

from sumpter._core import membership
from sumpter._core.process_sets import ProcessSet, global_process_set
from sumpter._core.reduction import Adasum, Average, ReduceOp, Reduction, Sum
from sumpter.torch.compression import Choice, Compression, CompressionLike, choose
from sumpter.torch.optimizer.adasum import Deltas, DistributedAdasum
from sumpter.torch.optimizer.asynchronous import Asynchronous
from sumpter.torch.optimizer.averaged import Distributed, Overlapped
from sumpter.torch.optimizer.on_servers import Deferred, OnServers, OverlappedOnServers
from sumpter.torch.optimizer.parameters import check_groups, name_parameters, trainable
from sumpter.torch.optimizer.wrapped import Wrapped, wrap
from sumpter.torch.training.asynchronous import AsynchronousSteps
from sumpter.torch.training.deferred import DeferredServerUpdates
from sumpter.torch.training.gradients import GradientExchange, Names, PassCounter
from sumpter.torch.training.on_servers import OverlappedServerUpdates, ServerUpdates
from sumpter.torch.training.overlap import OverlappedExchange, check_independent


def DistributedOptimizer(  # noqa: N802 - the name that Horovod and BytePS scripts use
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: CompressionLike = Compression.none,
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
    By a codec of `compression` gradients of two or more dimensions travel that have at least
    `compression_min_bytes`; Compression.fp16 without arguments casts all of them.
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
    check_groups(num_groups, groups)
    process_set.included()  # raises for a set that was not added
    names = name_parameters(optimizer, named_parameters)
    options = _Options(
        choose(compression),
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
    compression: Choice
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
    optimizer: torch.optim.Optimizer, all_names: Names, options: _Options
) -> torch.optim.Optimizer:
    names = trainable(all_names)
    if options.staleness == 0 and options.op is Average and _trains_asynchronously():
        options = options._replace(op=Sum, staleness=None)
    _check_kinds(options)
    passes, average, process_set = options.passes, options.op is Average, options.process_set
    if options.staleness != 0:
        staleness = options.staleness
        return _wrap_new(
            optimizer,
            Asynchronous,
            lambda: AsynchronousSteps(names, passes, average, staleness, process_set),
        )
    if options.op is Adasum:
        deltas = Deltas(names, passes, options.compression, process_set)
        return wrap(optimizer, DistributedAdasum, deltas, all_names)
    if options.on_servers:
        updates = _updates_on_servers(options.overlap_forward, options.deferred)
        return wrap_on_servers(
            optimizer, lambda: updates(names, optimizer, passes, average, process_set)
        )
    reduction = _reduction(options.op, options.compression, options.predivide)
    arguments = (names, reduction, passes, options.sparse_as_dense, process_set)
    if not options.overlap_forward:
        return wrap(optimizer, Distributed, GradientExchange(*arguments), all_names)
    if isinstance(optimizer, Wrapped):
        raise ValueError("the optimizer is a DistributedOptimizer already: give the one it is of")
    check_independent(optimizer)
    return wrap(optimizer, Overlapped, OverlappedExchange(*arguments), all_names)


def _trains_asynchronously() -> bool:
    return membership.current().worker.asynchronous


def wrap_on_servers(
    optimizer: torch.optim.Optimizer, make: Callable[[], ServerUpdates]
) -> torch.optim.Optimizer:
    """The optimizer with the updates that `make` makes, which leave it to the servers."""
    return _wrap_new(optimizer, OnServers, make)


def _wrap_new(
    optimizer: torch.optim.Optimizer, kind: "type[Wrapped]", make: Callable[[], PassCounter]
) -> torch.optim.Optimizer:
    if isinstance(optimizer, Wrapped):
        raise ValueError("the optimizer is a DistributedOptimizer already: give what it is of")
    exchange = make()
    kinds = {OverlappedServerUpdates: OverlappedOnServers, DeferredServerUpdates: Deferred}
    return wrap(optimizer, kinds.get(type(exchange), kind), exchange)


def _updates_on_servers(overlap_forward: bool, deferred: bool) -> type[ServerUpdates]:
    if overlap_forward:
        return OverlappedServerUpdates
    return DeferredServerUpdates if deferred else ServerUpdates


def _check_kinds(options: _Options) -> None:
    """Raises ValueError for what cannot be had together."""
    if options.op is Adasum and options.overlap_forward:
        raise ValueError("op=Adasum exchanges whole steps: use it without overlap_forward")
    if options.op is Adasum and options.compression.codec:
        raise ValueError(
            "op=Adasum sends steps as they are: use Compression.fp16 or Compression.none"
        )
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
    compressed = not (options.compression.is_default or options.compression.is_off)
    if compressed or options.predivide != 1.0:
        sent = "steps" if is_asynchronous else "gradients"
        raise ValueError(f"{what} sends {sent} as they are: no compression, no scaling")


def _reduction(op: ReduceOp, compression: Choice, predivide: float) -> Reduction:
    if predivide == 1.0:
        return Reduction(op, compression=compression)
    return Reduction(op, prescale=1.0 / predivide, postscale=predivide, compression=compression)
