"""The collectives that Sumpter leaves to Gloo, and the Work objects for them.

Point-to-point transfers, exchanges that sum nothing, and element types or reductions without a
kernel. The Gloo group is made when it is first needed and connects pairs of ranks when they
first talk, so that a send between two ranks needs no third one.

Gloo matches collectives by their number alone: ranks that make different calls wait until the
timeout, read each other's bytes or are aborted. Each delegated collective is therefore preceded
by a round of the core that moves nothing and fails on every rank if another rank made another
call; Gloo starts when it is done, in the order of calls.
"""

import collections
import concurrent.futures
import contextlib
import datetime
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from sumpter._core.callbacks import CallbackQueue
from sumpter._core.names import describe
from sumpter._errors import DeadlineError, PeerLostError, SumpterError, UnsupportedError
from sumpter.torch import devices
from sumpter.torch.c10d.collective import Call, Group
from sumpter.torch.c10d.own_work import OwnWork
from sumpter.torch.c10d.work import SumpterWork
from sumpter.torch.tensors import DTYPE_NAMES, dtype_name, readable

_Context = Callable[[], contextlib.AbstractContextManager[Any]]

# Gloo moves eight element types; others travel as one of the same size.
_SAME_SIZE = {1: torch.uint8, 2: torch.float16, 4: torch.int32, 8: torch.int64}


class GlooDelegate:
    """A Gloo group with the members of one Sumpter group, made on first use."""

    def __init__(
        self,
        store: dist.Store,
        members: Group,
        size: int,
        timeout: datetime.timedelta,
    ) -> None:
        self._store = store
        self._members = members
        self._size = size
        self._timeout = timeout
        self._era = members.era
        self._group: Any = None
        self._queue: collections.deque[_Start] = collections.deque()
        self._making = threading.Lock()
        self._starting = threading.Lock()

    @property
    def group(self) -> Any:
        """The Gloo group of the present era."""
        with self._making:
            if self._group is None or self._era != self._members.era:
                # In another era ranks do not agree on the number of the old group's next call.
                self._era = self._members.era
                self._group = self._make()
            return self._group

    def _make(self) -> Any:
        # Imported here because a torch can be built without Gloo.
        from torch._C._distributed_c10d import ProcessGroupGloo

        options = ProcessGroupGloo._Options()
        options._timeout = self._timeout
        options._devices = [ProcessGroupGloo.create_default_device(lazy_init=True)]
        store = dist.PrefixStore(f"sumpter.gloo.{self._era}", self._store)
        return ProcessGroupGloo(store, self._members.rank, self._size, options)

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Changes the timeout of the group, made or not."""
        self._timeout = timeout
        if self._group is not None:
            self._group._set_default_timeout(timeout)

    def start_after(
        self, agreement: SumpterWork, start: Callable[[], dist.Work]
    ) -> "concurrent.futures.Future[dist.Work]":
        """Starts a collective when `agreement` is done, after those before it."""
        turn = _Start(agreement, start, concurrent.futures.Future())
        self._queue.append(turn)
        agreement.on_settled(self._start_due)
        return turn.started

    def _start_due(self) -> None:
        with self._starting:
            while self._queue and self._queue[0].agreement.is_settled():
                self._queue.popleft().run()

    def close(self) -> None:
        """Lets go of the group."""
        self._group = None


@dataclass(frozen=True)
class _Start:
    """A collective of Gloo that waits for its turn."""

    agreement: SumpterWork
    start: Callable[[], dist.Work]
    started: "concurrent.futures.Future[dist.Work]"

    def run(self) -> None:
        try:
            self.agreement.check()
            self.started.set_result(self.start())
        except Exception as error:
            self.started.set_exception(error)


class Loan:
    """Tensors in a form that Gloo reads and writes as it should: without gaps, in host memory.

    What is moved and not `reduced` travels as elements of a type that Gloo has. The calling thread
    waits for copies from and to a device.
    """

    def __init__(self, reduced: bool = False) -> None:
        self._reduced = reduced
        self._copies: list[tuple[_Context, torch.Tensor, torch.Tensor]] = []

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` for Gloo to read from."""
        if tensor.layout != torch.strided:
            if not tensor.is_cpu:
                raise UnsupportedError(
                    f"Gloo carries sparse tensors, and not those on {tensor.device}: copy it to "
                    "the CPU first"
                )
            return tensor
        memory = readable(tensor).cpu()
        return memory if self._reduced else _plain(memory)

    def write(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor`, or memory for finish() to copy into it, for Gloo to read and write."""
        memory = self.read(tensor)
        if memory is not tensor and memory.data_ptr() != tensor.data_ptr():
            self._note(tensor, memory)
        return memory

    def write_parts(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """One piece of memory to write, whose parts finish() copies into `tensors`."""
        like = _plain(tensors[0].detach())
        sizes = [tensor.numel() for tensor in tensors]
        memory = torch.empty(sum(sizes), dtype=like.dtype, device="cpu")
        for tensor, part in zip(tensors, memory.split(sizes), strict=True):
            self._note(tensor, part.view(tensor.shape))
        return memory

    def finish(self) -> None:
        """Copies what was written elsewhere to where it belongs."""
        for context, tensor, memory in self._copies:
            with context():
                tensor.copy_(memory.view(tensor.dtype))
        self._copies.clear()

    def _note(self, tensor: torch.Tensor, memory: torch.Tensor) -> None:
        # On a device the copy comes after what the caller has been computing with the tensor.
        self._copies.append((devices.stream_context(tensor), tensor.detach(), memory))


class DelegatedWork(OwnWork):
    """A collective or a transfer that Gloo carries out."""

    def __init__(
        self,
        label: str,
        started: "concurrent.futures.Future[dist.Work]",
        outputs: list[torch.Tensor],
        loan: Loan,
        callbacks: CallbackQueue,
        agreement: SumpterWork | None = None,
    ) -> None:
        super().__init__()
        self._label = label
        self._started = started
        self._outputs = outputs
        self._loan = loan
        self._callbacks = callbacks
        self._agreement = agreement
        self._finishing = threading.Lock()
        self._future: torch.futures.Future | None = None

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        """Blocks until Gloo is done; raises if it failed or if ranks made different calls."""
        self._wait(timeout)
        with self._finishing:
            self._loan.finish()
        return True

    def is_completed(self) -> bool:
        if not self._started.done():
            # Its turn may come later, to find that ranks made different calls.
            return self._agreement is not None and self._agreement.has_failed()
        return self._started.exception() is not None or self._started.result().is_completed()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._outputs

    def make_future(self) -> torch.futures.Future:
        if self._agreement is None:
            raise NotImplementedError(f"{self._label} has no future, as over Gloo: use wait()")
        if self._future is None:
            done = torch.futures.Future(devices=devices.for_futures(self._outputs))
            self._future = done.then(lambda _: self.result())
            self._callbacks.add(self._settle, lambda: done.set_result(None))
        return self._future

    def _settle(self) -> None:
        """Blocks until wait() would not."""
        # What went wrong is raised by result().
        with contextlib.suppress(RuntimeError):
            self._wait(datetime.timedelta(0))

    def _wait(self, timeout: datetime.timedelta) -> None:
        try:
            if self._agreement is not None:
                self._agreement.wait(timeout)
            self._started.result().wait(timeout)
        except SumpterError:
            raise
        except RuntimeError as error:
            raise translated(error, self._label) from None

    def _source_rank(self) -> int:
        return self._started.result()._source_rank()


def translated(error: RuntimeError, label: str) -> RuntimeError:
    """Gloo's error with the name of the call, as the error of ours that it is."""
    text = str(error)
    if "imed out" in text or "imeout" in text:
        return DeadlineError(f"{label} was not complete within its timeout: {text}")
    if "onnection" in text:
        return PeerLostError(f"{label} lost a rank: {text}")
    return RuntimeError(f"{label} failed in Gloo: {text}")


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as elements that Gloo knows."""
    if tensor.dtype in DTYPE_NAMES or tensor.element_size() not in _SAME_SIZE:
        return tensor
    return tensor.view(_SAME_SIZE[tensor.element_size()])


def _describe(kind: str, tensor: torch.Tensor, detail: str) -> str:
    """A collective on the elements of `tensor`, whatever its shape."""
    return describe(kind, dtype_name(tensor), [tensor.numel()], detail)


class DelegatedCollectives:
    """The methods of a backend whose work Gloo does."""

    _group: Group
    _gloo: GlooDelegate

    def allreduce_sparse(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        return self._reduced("all_reduce", "allreduce", tensors, opts)

    def gather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> dist.Work:
        loan = Loan()
        rows = [[loan.write(tensor) for tensor in row] for row in outputs]
        sent = [loan.read(tensor) for tensor in inputs]
        label = _describe("gather", inputs[0], f"root {opts.rootRank}")
        return self._collective(
            "gather", label, opts, loan, [t for row in outputs for t in row], rows, sent
        )

    def scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
    ) -> dist.Work:
        loan = Loan()
        received = [loan.write(tensor) for tensor in outputs]
        rows = [[loan.read(tensor) for tensor in row] for row in inputs]
        label = _describe("scatter", outputs[0], f"root {opts.rootRank}")
        return self._collective("scatter", label, opts, loan, outputs, received, rows)

    def alltoall(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> dist.Work:
        # Gloo wants tensors of one size in a list, but has no such wish for parts of one tensor.
        loan = Loan()
        sent = torch.cat([loan.read(tensor).reshape(-1) for tensor in inputs])
        received = loan.write_parts(outputs)
        label = f"all_to_all({dtype_name(outputs[0])})"
        input_sizes = [tensor.numel() for tensor in inputs]
        output_sizes = [tensor.numel() for tensor in outputs]
        return self._collective(
            "all_to_all_single", label, opts, loan, outputs,
            received, sent, output_sizes, input_sizes,
        )  # fmt: skip

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any,
    ) -> dist.Work:
        loan = Loan()
        # With splits, each rank has sizes of its own.
        size = "" if output_splits or input_splits else f" [{input.numel()}]"
        label = f"all_to_all_single({dtype_name(input)}{size})"
        received, sent = loan.write(output), loan.read(input)
        return self._collective(
            "all_to_all_single", label, opts, loan, [output],
            received, sent, output_splits, input_splits,
        )  # fmt: skip

    def send(self, tensors: list[torch.Tensor], destination: int, tag: int) -> dist.Work:
        loan = Loan()
        sent = [loan.read(tensor) for tensor in tensors]
        start = functools.partial(self._gloo.group.send, sent, destination, tag)
        return self._transfer("send", f"to rank {destination}", tensors, loan, start)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> dist.Work:
        loan = Loan()
        received = [loan.write(tensor) for tensor in tensors]
        start = functools.partial(self._gloo.group.recv, received, source, tag)
        return self._transfer("recv", f"from rank {source}", tensors, loan, start)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> dist.Work:
        loan = Loan()
        received = [loan.write(tensor) for tensor in tensors]
        start = functools.partial(self._gloo.group.recv_anysource, received, tag)
        return self._transfer("recv", "from any rank", tensors, loan, start)

    def _reduced(
        self, kind: str, method: str, tensors: list[torch.Tensor], opts: Any, root: str = ""
    ) -> dist.Work:
        """A reduction in place that the core has no kernel for."""
        loan = Loan(reduced=True)
        memory = [loan.write(tensor) for tensor in tensors]
        op = opts.reduceOp.op.name.lower()
        label = _describe(kind, tensors[0], op + root)
        return self._collective(method, label, opts, loan, tensors, memory)

    def _reduced_and_scattered(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
    ) -> dist.Work:
        """A reduce-scatter that the core has no kernel for."""
        loan = Loan(reduced=True)
        received = [loan.write(tensor) for tensor in outputs]
        rows = [[loan.read(tensor) for tensor in row] for row in inputs]
        label = _describe("reduce_scatter", outputs[0], opts.reduceOp.op.name.lower())
        return self._collective("reduce_scatter", label, opts, loan, outputs, received, rows)

    def _collective(
        self,
        method: str,
        label: str,
        opts: Any,
        loan: Loan,
        outputs: list[torch.Tensor],
        *arguments: Any,
    ) -> DelegatedWork:
        carry_out = getattr(self._gloo.group, method)
        agreement = Call.of(self._group, method, opts, [])
        agreement.meet(label)
        started = self._gloo.start_after(agreement, lambda: carry_out(*arguments, opts))
        return DelegatedWork(
            self._group.shown(label), started, outputs, loan, self._group.callbacks, agreement
        )

    def _transfer(
        self,
        kind: str,
        whom: str,
        tensors: list[torch.Tensor],
        loan: Loan,
        start: Callable[[], dist.Work],
    ) -> DelegatedWork:
        tensor = tensors[0]
        label = self._group.shown(describe(kind, dtype_name(tensor), tensor.shape, whom))
        started: concurrent.futures.Future[dist.Work] = concurrent.futures.Future()
        try:
            started.set_result(start())
        except RuntimeError as error:
            # Gloo connects here, which can take too long already.
            raise translated(error, label) from None
        return DelegatedWork(label, started, tensors, loan, self._group.callbacks)
