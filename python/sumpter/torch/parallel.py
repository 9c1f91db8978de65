"""BytePS' DistributedDataParallel: a module whose gradients are averaged when backward ends."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from sumpter._core.reduction import Reduction
from sumpter.torch.compression import Compression, CompressionLike, choose
from sumpter.torch.functions import broadcast_parameters
from sumpter.torch.training.gradients import GradientExchange


class DistributedDataParallel(torch.nn.Module):
    """Wraps `module` so that backward() leaves gradients averaged over all ranks.

    They are exchanged while backward still runs, so any optimizer can take its step afterwards.
    Ranks start from rank 0's parameters and buffers; with `broadcast_buffers` each forward pass
    does from its buffers, so every rank must take the same number of passes. Parameters that
    backward did not reach count as zero. `device_ids` names at most one device, where the module
    must be already. The parameters' names begin with "module." in state_dict().
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Sequence[Any] | None = None,
        broadcast_buffers: bool = True,
        compression: CompressionLike = Compression.none,
    ) -> None:
        super().__init__()
        if device_ids is not None and len(device_ids) > 1:
            raise ValueError(f"device_ids is {list(device_ids)}: a rank has one device at most")
        self.module = module
        self.device_ids = device_ids
        self.broadcast_buffers = broadcast_buffers
        broadcast_parameters(module.state_dict(), root_rank=0)
        self._has_buffers = any(True for _ in module.buffers())
        names = {p: name for name, p in module.named_parameters() if p.requires_grad}
        self._exchange = _BackwardExchange(names, Reduction(compression=choose(compression)))
        self._synchronizes = True

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The module's result."""
        if self._exchange.begun:
            # A backward pass failed on this rank; on the others it may have come to its end.
            self._exchange.finish()
        if self._has_buffers and self.broadcast_buffers:
            broadcast_parameters(self.module.named_buffers(), root_rank=0, prefix="Buffer.")
        output = self.module(*inputs, **options)
        if torch.is_grad_enabled():
            self._exchange.expect(output, self._synchronizes)
        return output

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it, backward passes of the forward passes made there only add up gradients.

        The next backward pass outside exchanges the sum.
        """
        before, self._synchronizes = self._synchronizes, False
        try:
            yield
        finally:
            self._synchronizes = before

    def synchronize(self) -> None:
        """Exchanges gradients that were added up within no_sync(); otherwise they are averaged.

        Every rank must call it alike.
        """
        self._exchange.catch_up()


class _BackwardExchange(GradientExchange):
    """Begins with a backward pass and ends with it."""

    owner = "DistributedDataParallel"
    _active = True
    _armed = False
    _behind = False

    def expect(self, output: Any, active: bool) -> None:
        """Prepares for the backward pass from `output`, which is to exchange if `active`."""
        self._active, self._armed = active, False
        for tensor in _pytree.tree_leaves(output):
            if active and isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                # The outermost backward pass comes here first; one within a checkpoint does not.
                tensor.register_hook(self._arm)

    def accumulated(self, parameter: torch.nn.Parameter) -> None:
        if not self._active:
            self._behind = True
            return
        self._arm()
        super().accumulated(parameter)

    def finish(self) -> None:
        self._armed = self._behind = False
        super().finish()

    def catch_up(self) -> None:
        """Finishes if gradients were made that are not exchanged."""
        if self._behind or self.begun:
            self.finish()

    def _arm(self, _: torch.Tensor | None = None) -> None:
        """Has autograd call finish() at the end of the backward pass that runs."""
        if not self._armed:
            self._armed = True
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)
