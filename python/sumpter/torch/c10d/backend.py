"""The torch.distributed backend named "sumpter".

A Python subclass of torch's C++ Backend over the Rust core; torch finds it by its entry point, so
`dist.init_process_group("sumpter")` needs no import. It carries allreduce, broadcast, reduce,
barrier, allgather and reduce_scatter in their forms; the rest goes to Gloo (delegate.py).

How a collective becomes rounds of the core is in collective.py.
"""

import datetime
import itertools
import sys
import zlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as C10DBackend

from sumpter import _core
from sumpter._core import membership, staging
from sumpter._core.handles import RoundHandle
from sumpter.torch import devices, tensors
from sumpter.torch.c10d import collective, delegate, own_work, work
from sumpter.torch.c10d.collective import Call, Group, label_of, op_number, reduce_in_place
from sumpter.torch.c10d.delegate import DelegatedCollectives, GlooDelegate
from sumpter.torch.c10d.monitored_barrier import MonitoredBarrier
from sumpter.torch.c10d.options import GroupOptions, limits_of
from sumpter.torch.c10d.registration import NAME, register
from sumpter.torch.c10d.tracing import never_trace
from sumpter.torch.c10d.work import SumpterWork
from sumpter.torch.store import StoreBoard

# The entry point of the package names `register` here.
__all__ = ["SumpterBackend", "create", "register"]

_holder_numbers = itertools.count()
# The backends in use. Under TORCH_DISTRIBUTED_DEBUG=DETAIL torch keeps only the C++ half of a
# backend, and a half without its Python object has lost its methods.
_alive: dict[str, "SumpterBackend"] = {}


class SumpterBackend(DelegatedCollectives, C10DBackend):
    """One process group's collectives."""

    # Without these, torch's trampoline asks the base class, which asks the trampoline again.
    supports_splitting = True
    supports_coalescing = False
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False
    _supports_time_estimate = False

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: datetime.timedelta,
        group: str,
        ranks: Sequence[int] | None,
        options: GroupOptions | None = None,
    ) -> None:
        super().__init__(rank, size)
        self._holder = f"c10d.{next(_holder_numbers)}"
        settings = {} if ranks is not None else {"rank": rank, "world_size": size}
        session = membership.acquire(self._holder, settings, lambda: StoreBoard(store))
        try:
            limits = limits_of(session.worker, options)
        except BaseException:
            membership.release(self._holder)
            raise
        self._group = Group(
            session,
            # Groups of one name can exist one after the other with different members.
            label_of(session, "world" if ranks is None else f"{group}.{_digest(ranks)}"),
            rank,
            None if ranks is None else tuple(ranks),
            timeout.total_seconds(),
            streams_wait=not session.worker.blocking_wait,
            limits=limits,
        )
        self._own_options = options
        self._options = C10DBackend.Options(NAME, timeout=timeout)
        self._options.group_name = group
        self._options.global_ranks_in_group = list(range(size) if ranks is None else ranks)
        self._gloo = GlooDelegate(store, self._group, size, timeout)
        self._monitored_barrier = MonitoredBarrier(store, rank, size)
        _alive[self._holder] = self

    @property
    def streams_wait(self) -> bool:
        """Whether streams wait for results on a device, where they can, and no thread."""
        return self._group.streams_wait

    # What torch asks about the group.

    @property
    def options(self) -> C10DBackend.Options:
        return self._options

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return NAME

    def _get_sequence_number_for_group(self) -> int:
        return self._group.calls.count

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to agree on: every rank counts from 0."""

    def split(
        self, store: dist.Store, ranks: list[int], opts: C10DBackend.Options
    ) -> "SumpterBackend | None":
        """The group of some of this group's ranks; None on the others."""
        if self.rank() not in ranks:
            return None
        known = self._options.global_ranks_in_group
        return SumpterBackend(
            store,
            ranks.index(self.rank()),
            len(ranks),
            opts._timeout,
            opts.group_name,
            [known[rank] for rank in ranks],
            self._own_options,
        )

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._group.timeout_s = timeout.total_seconds()
        self._options._timeout = timeout
        self._gloo.set_timeout(timeout)

    def shutdown(self) -> None:
        _alive.pop(self._holder, None)
        self._gloo.close()
        membership.release(self._holder)

    def abort(self) -> None:
        self.shutdown()

    # Reductions.

    def allreduce(
        self, tensors: list[torch.Tensor], opts: Any, priority: int = 0
    ) -> dist.Work | None:
        call = reduce_in_place(self._group, "all_reduce", tensors, None, opts, priority)
        if call is None:
            return self._reduced("all_reduce", "allreduce", tensors, opts)
        return call if opts.asyncOp else call.done()

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work | None:
        call = reduce_in_place(self._group, "all_reduce", tensors, None, opts)
        if call is None:
            return self._reduced("all_reduce", "allreduce_coalesced", tensors, opts)
        return call if opts.asyncOp else call.done()

    def average_bucket(self, bucket: torch.Tensor, priority: int) -> dist.Work:
        """Averages one bucket of gradients, before other tensors of a lower priority."""
        opts = dist.AllreduceOptions()
        opts.reduceOp = dist.ReduceOp.AVG
        call = reduce_in_place(self._group, "all_reduce", [bucket], None, opts, priority)
        return call or self._reduced("all_reduce", "allreduce", [bucket], opts)

    def average_compressed(
        self, bucket: torch.Tensor, name: str, codec: str, priority: int, rescale: float
    ) -> dist.Work:
        """Averages one bucket of gradients by a codec, which keeps what it left out by the name."""
        opts = dist.AllreduceOptions()
        opts.reduceOp = dist.ReduceOp.AVG
        kept = self._group.bucket(name, bucket, codec)
        return Call.of(self._group, "all_reduce", opts, [bucket], [kept], priority, rescale)

    def is_worth_compressing(self, bucket: torch.Tensor) -> bool:
        """Whether a codec fits a bucket of gradients."""
        return self._group.limits.fits(bucket.shape, tensors.dtype_name(bucket))

    def count(self, what: str) -> int:
        """How many times `what` has been counted in this group before."""
        return self._group.session.count(f"{self._group.label}.{what}")

    def work_of(
        self, rounds: list[RoundHandle], outputs: list[torch.Tensor], label: str
    ) -> SumpterWork:
        """The Work of rounds that were begun elsewhere, which `label` names in messages."""
        return SumpterWork().begin(self._group, label, outputs, rounds)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work | None:
        root = opts.rootRank
        call = reduce_in_place(self._group, "reduce", tensors, root, opts)
        if call is None:
            return self._reduced("reduce", "reduce", tensors, opts, f", root {root}")
        return call if opts.asyncOp else call.done()

    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
    ) -> dist.Work | None:
        each = [
            (piece, root, output if root == self.rank() else None)
            for output, pieces in zip(outputs, inputs, strict=True)
            for root, piece in enumerate(pieces)
        ]
        op = opts.reduceOp
        number, group = op_number(op), self._group
        kept = [group.reduction("reduce_scatter", piece, number, root) for piece, root, _ in each]
        if None in kept:
            return self._reduced_and_scattered(outputs, inputs, opts)
        call = Call.of(group, "reduce_scatter", opts, outputs)
        for how, (piece, _, target) in zip(kept, each, strict=True):
            call.reduce(how, piece, target, op)
        return call if opts.asyncOp else call.done()

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any
    ) -> dist.Work | None:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> dist.Work | None:
        pieces = [
            _split(whole, self.size(), output)
            for output, whole in zip(outputs, inputs, strict=True)
        ]
        return self.reduce_scatter(outputs, pieces, opts)

    # Copies.

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work | None:
        call = Call.of(self._group, "broadcast", opts, tensors)
        for tensor in tensors:
            call.broadcast(tensor, opts.rootRank)
        return call if opts.asyncOp else call.done()

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> dist.Work | None:
        received = [piece for pieces in outputs for piece in pieces]
        call = Call.of(self._group, "all_gather", opts, received)
        for pieces, source in zip(outputs, inputs, strict=True):
            own = pieces[self.rank()]
            if (own.numel(), own.dtype) != (source.numel(), source.dtype):
                raise ValueError(
                    f"the input has {source.numel()} elements of {source.dtype}, but this rank's "
                    f"part of the output has {own.numel()} of {own.dtype}"
                )
            own.detach().copy_(source.detach().reshape(own.shape))
            for root, piece in enumerate(pieces):
                call.broadcast(piece, root, "all_gather")
        return call if opts.asyncOp else call.done()

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any
    ) -> dist.Work | None:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> dist.Work | None:
        pieces = [
            _split(whole, self.size(), source)
            for whole, source in zip(outputs, inputs, strict=True)
        ]
        return self.allgather(pieces, inputs, opts)

    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> dist.Work | None:
        # Here the outer list is by rank, the inner one by tensor.
        return self.allgather([list(row) for row in zip(*outputs, strict=True)], inputs, opts)

    def barrier(self, opts: Any) -> dist.Work | None:
        call = Call.of(self._group, "barrier", opts, [])
        call.barrier()
        return call if opts.asyncOp else call.done()

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool) -> None:
        timeout_s = opts.timeout.total_seconds()
        limit_s = timeout_s if timeout_s >= 0 else self._group.timeout_s
        self._monitored_barrier.wait(limit_s, wait_all_ranks)


def create(opts: Any, options: GroupOptions | None = None) -> SumpterBackend:
    """The backend of a process group, from what torch says of it, and `pg_options`."""
    return SumpterBackend(
        opts.store,
        opts.group_rank,
        opts.group_size,
        opts.timeout,
        opts.group_id,
        opts.global_ranks_in_group or None,
        options,
    )


def _split(whole: torch.Tensor, size: int, piece: torch.Tensor) -> list[torch.Tensor]:
    """The `size` equal parts of `whole`, each as large as `piece`."""
    if whole.numel() != size * piece.numel() or not whole.is_contiguous():
        raise ValueError(
            f"expected a contiguous tensor of {size} x {piece.numel()} elements, not "
            f"{list(whole.shape)} with strides {list(whole.stride())}"
        )
    return list(whole.detach().view(size, *piece.shape).unbind())


def _digest(ranks: Sequence[int]) -> str:
    return f"{zlib.crc32(','.join(map(str, ranks)).encode()):08x}"


own_work.install()
never_trace(
    sys.modules[__name__],
    membership,
    staging,
    _core.callbacks,
    _core.deadlines,
    _core.handles,
    _core.session,
    _core.tensor,
    collective,
    delegate,
    devices,
    own_work,
    tensors,
    work,
)
