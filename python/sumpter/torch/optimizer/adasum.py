"""Optimizers that step on each rank and combine the steps by Adasum."""

import zlib
from collections.abc import Callable
from typing import Any

from sumpter._core import membership
from sumpter._core.names import identify_call
from sumpter._core.process_sets import ProcessSet, label
from sumpter._core.reduction import Adasum, Reduction
from sumpter.torch.collectives.adasum import adasum_async
from sumpter.torch.compression import Choice
from sumpter.torch.optimizer.wrapped import InWorkers
from sumpter.torch.training.gradients import Names, PassCounter, scope_of


class Deltas(PassCounter):
    """What a step changes in the parameters: taken on this rank, combined with the others'."""

    def __init__(
        self,
        names: Names,
        passes: int,
        compression: Choice,
        process_set: ProcessSet,
    ) -> None:
        self._process_set = process_set
        self._reduction = Reduction(Adasum, compression=compression)
        self._place = f"adasum{label(process_set)}"
        super().__init__(names, passes)
        self._describe()

    def take_in(self, added: Names) -> None:
        """Combines the steps of more parameters as well; on all ranks alike."""
        super().take_in(added)
        self._describe()

    def _describe(self) -> None:
        # In an order in which a rank that joins later has them, too.
        self.names = dict(sorted(self.names.items(), key=lambda item: item[1]))
        names, process_set = self.names, self._process_set
        word = self._reduction.compression.word
        scope = scope_of(names, process_set, Adasum.wire_name, word)
        mark = f"{zlib.crc32(repr(list(names.values())).encode()):08x}"
        self._own = f"{scope}adasum.{mark}"
        self._call = f"step({len(names)} parameters with names marked {mark})"

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


class DistributedAdasum(InWorkers):
    """Takes a step of the user's optimizer on each rank and combines the steps."""

    _exchange: Deltas

    def synchronize(self) -> None:
        """Does nothing: gradients stay with their rank."""

    def skip_synchronize(self) -> Any:
        """Refused, as in Horovod: it is step() that exchanges."""
        raise AssertionError("skip_synchronize() has no meaning with op=Adasum: step() exchanges")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes a step of the user's optimizer and combines it with the other ranks' steps."""
        self._take_in()
        return self._exchange.step(lambda: super(DistributedAdasum, self).step(closure))

    def _in_between(self) -> bool:
        return self._exchange.begun
