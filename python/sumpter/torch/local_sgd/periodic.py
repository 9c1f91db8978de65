"""What LocalSGD and DiLoCo share: steps of an optimizer are counted, and lead to something."""

import itertools
from types import TracebackType
from typing import Any, Self

import torch
from torch.utils.hooks import RemovableHandle

from sumpter._core import seat
from sumpter._core.process_sets import ProcessSet
from sumpter._errors import UnsupportedError
from sumpter.torch.local_sgd.fragments import Names
from sumpter.torch.local_sgd.site import Site, SiteGroup
from sumpter.torch.training.gradients import GradientExchange
from sumpter.torch.training.variables import bring_together


class Periodic:
    """A context manager within which `_on_step` follows each step of an optimizer."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        sync_every: int,
        process_set: ProcessSet,
        site: SiteGroup | None,
    ) -> None:
        if isinstance(sync_every, bool) or not isinstance(sync_every, int) or sync_every < 1:
            raise ValueError(f"sync_every is {sync_every!r}: it must be a number of steps from 1")
        exchange = getattr(optimizer, "_exchange", None)
        if exchange is not None and not isinstance(exchange, GradientExchange):
            raise UnsupportedError(
                "the inner optimizer is a DistributedOptimizer that changes parameters otherwise "
                "than by a step with averaged gradients: make it without on_servers, without "
                "staleness and without op=Adasum"
            )
        self._names: Names = {p: n for n, p in model.named_parameters() if p.requires_grad}
        if not self._names:
            raise ValueError("the model has no parameter that is trained")
        self._model, self._optimizer = model, optimizer
        self._sync_every, self._process_set = sync_every, process_set
        self._site = Site(site, process_set)
        self._steps = self._rounds = 0
        # Whether all ranks have been given the same start, or a state that was loaded.
        self._started = False
        self._hook: RemovableHandle | None = None

    @property
    def rounds(self) -> int:
        """How often the whole model has been sent: the same on all ranks after as many rounds."""
        return self._rounds

    def _prepare(self) -> None:
        """Called when the context is entered, when ranks have the same parameters."""

    def _on_step(self) -> None:
        """Called after a step of the optimizer."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Called when the context is left without an error."""

    def __enter__(self) -> Self:
        if self._hook is not None:
            raise ValueError(f"this {type(self).__name__} has been entered already")
        with torch.no_grad():
            if not self._started:
                self._begin_alike()
            self._prepare()
        self._started = True
        self._hook = self._optimizer.register_step_post_hook(self._stepped)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._hook is not None, "entered before"
        self._hook.remove()
        self._hook = None
        if kind is None:
            self._finish()

    def _stepped(self, *_: Any) -> None:
        self._steps += 1
        with torch.no_grad():
            self._on_step()

    def _begin_alike(self) -> None:
        """Gives all ranks the parameters and buffers of the first.

        In an elastic job the state of elastic.run() does so: a worker may make this by itself.
        """
        if seat.held():
            return
        tensors = itertools.chain(self._model.named_parameters(), self._model.named_buffers())
        named = [(name, tensor.detach()) for name, tensor in tensors]
        if self._site.is_leader:
            bring_together(named, self._process_set)
        self._site.spread(named)

    def _check_trained(self) -> None:
        """Raises ValueError if a parameter is trained that was frozen at the start."""
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad and parameter not in self._names:
                raise ValueError(
                    f"parameter {name} was frozen when the {type(self).__name__} was made and is "
                    "trained now: it would differ between ranks; make a new one"
                )
