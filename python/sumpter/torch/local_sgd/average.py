"""LocalSGD: parameters are averaged over the ranks after some local steps."""

from typing import Any

import torch

from sumpter._core import membership
from sumpter._core.process_sets import ProcessSet, global_process_set, label
from sumpter._core.reduction import Average, Reduction
from sumpter.torch.collectives.reduction import RepeatedReduction
from sumpter.torch.local_sgd.periodic import Periodic
from sumpter.torch.local_sgd.site import SiteGroup


class LocalSGD(Periodic):
    """Averages the model's parameters over all ranks after each `sync_every` steps.

    Local SGD as in Stich, "Local SGD Converges Fast and Communicates Little" (arXiv 1805.09767).
    A context manager: within it, each step of `optimizer` counts. When it is first entered,
    parameters and buffers become those of the first rank, unless a state was loaded; buffers and
    the optimizer's state are each rank's own afterwards. Parameters that are frozen when this is
    made are never exchanged.

    `process_set` are the ranks whose parameters are averaged. With `site`, a process set or a group
    of torch.distributed, one rank of each site is in it, and the others of the site, which must
    train the same parameters, get the average from that one. Ranks may have different `sync_every`:
    their averages meet by number, so all must make as many (`rounds`).

    ValueError for `sync_every` below 1, and for a rank that no average would reach.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        sync_every: int,
        *,
        process_set: ProcessSet = global_process_set,
        site: SiteGroup | None = None,
    ) -> None:
        super().__init__(model, optimizer, sync_every, process_set, site)
        among = f"LocalSGD{label(process_set)}"
        scope = f"{among}.{membership.current().count(among)}."
        self._reductions = {
            parameter: RepeatedReduction(scope + name, Reduction(Average), process_set)
            for parameter, name in self._names.items()
        }

    def _on_step(self) -> None:
        """Averages if it is time to."""
        if self._steps >= self._sync_every:
            self.sync()

    @torch.no_grad()
    def sync(self) -> None:
        """Averages now, on all ranks; the steps to the next average count from here."""
        self._check_trained()
        if self._site.is_leader:
            handles = [one.start(parameter) for parameter, one in self._reductions.items()]
            for handle in handles:
                handle.synchronize()
        self._site.spread((name, parameter.detach()) for parameter, name in self._names.items())
        self._steps = 0
        self._rounds += 1

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state and the counters of this rank; parameters are the model's."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "steps": self._steps,
            "rounds": self._rounds,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from what state_dict() returned."""
        self._optimizer.load_state_dict(state_dict["optimizer"])
        self._steps, self._rounds = state_dict["steps"], state_dict["rounds"]
        self._started = True
