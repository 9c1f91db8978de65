"""DiLoCo: local steps, whose sum is the gradient of an outer optimizer."""

import zlib
from collections.abc import Sequence
from typing import Any

import torch

from sumpter._core import membership, seat
from sumpter._core.names import agree, identify_call
from sumpter._core.process_sets import ProcessSet, global_process_set, label
from sumpter.torch.functions import allgather_object
from sumpter.torch.local_sgd.fragments import Names, offset, split
from sumpter.torch.local_sgd.outer import Outer, OuterInWorkers, OuterOnServers
from sumpter.torch.local_sgd.periodic import Periodic
from sumpter.torch.local_sgd.site import SiteGroup
from sumpter.torch.local_sgd.theta import Theta
from sumpter.torch.training.shares import StateShare


class DiLoCo(Periodic):
    """Takes a step of an outer optimizer after each `sync_every` steps of the inner one.

    Each rank trains by itself. Then the difference between the parameters at the start and now, the
    pseudo-gradient, is averaged over the ranks, and the outer optimizer takes a step with it from
    where all started: DiLoCo (Douillard et al., arXiv 2311.08105, algorithm 1). With `fragments`,
    parts of the model take turns (Streaming DiLoCo, Douillard et al., arXiv 2501.18512): a number
    of parts of about equal bytes, or modules that have each trained parameter once.

    A context manager: within it, each step of `inner_optimizer` counts. When it is first entered,
    parameters and buffers become those of the first rank, unless a state was loaded; buffers are
    each rank's own afterwards. Parameters that are frozen when this is made are never exchanged. A
    rank holds a copy of the parameters at the start of a round in host memory, in their element
    types; pinned, if they are on a CUDA device.

    - `outer_optimizer` has the model's trained parameters: SGD, Adam, AdamW, RMSprop or Adagrad of
      torch.optim, whose state is on the servers. Its hyper-parameters travel with each fragment.
      With `on_servers=False` it runs in each worker instead, which any optimizer can; then each
      worker has the state.
    - `sync_every` counts inner steps. Ranks may differ: their rounds meet by number, and all must
      make as many (`rounds`).
    - `fragment_sync_delay` is the number of inner steps between sending a fragment and using the
      result, below `sync_every`. Any number of fragments may be in flight.
    - `fragment_update_alpha`, from 0 to 1, is the weight of the local parameters when the result
      comes: they become (1 - alpha) * result + alpha * local, so 0 takes the result.
    - `process_set` are the ranks that take part. With `site`, a process set or a group of
      torch.distributed, one rank of each site takes part, and the others of the site, which must
      train the same parameters, get the results from that one.

    ValueError for arguments outside these bounds; UnsupportedError for an outer optimizer that the
    servers have no rule for; MismatchError where ranks have other fragments.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        inner_optimizer: torch.optim.Optimizer,
        outer_optimizer: torch.optim.Optimizer,
        sync_every: int,
        fragments: int | Sequence[torch.nn.Module] = 1,
        fragment_sync_delay: int = 0,
        fragment_update_alpha: float = 0.0,
        *,
        process_set: ProcessSet = global_process_set,
        site: SiteGroup | None = None,
        on_servers: bool = True,
    ) -> None:
        super().__init__(model, inner_optimizer, sync_every, process_set, site)
        if not 0 <= fragment_sync_delay < sync_every:
            raise ValueError(
                f"fragment_sync_delay is {fragment_sync_delay}: it must be from 0 and below "
                f"sync_every, {sync_every}, since a fragment must be back before it is sent again"
            )
        if not 0.0 <= fragment_update_alpha <= 1.0:
            raise ValueError(
                f"fragment_update_alpha is {fragment_update_alpha}: it must be within 0..1"
            )
        if outer_optimizer is inner_optimizer:
            raise ValueError("the outer optimizer is the inner one: make two of the parameters")
        self._delay, self._alpha = fragment_sync_delay, fragment_update_alpha
        parts = split(self._names, fragments)
        self._fragments = [
            _Fragment(part, offset(index, len(parts), sync_every))
            for index, part in enumerate(parts)
        ]
        # Inner steps since the last whole round, and the fragment to send next.
        self._in_round = self._next = 0
        _check_outer(outer_optimizer, self._names)
        self._theta = Theta(self._names)
        self._outer_optimizer = outer_optimizer
        self._outer: Outer | None = None
        if self._site.is_leader:
            kind = OuterOnServers if on_servers else OuterInWorkers
            self._outer = kind(self._names, self._theta, outer_optimizer, process_set)

    def _prepare(self) -> None:
        """Gives the servers the parameters, or what was loaded."""
        self._take_start()
        if self._outer is not None:
            if not seat.held():
                _agree([one.parameters for one in self._fragments], self._process_set)
            self._theta.settle()
            self._outer.start()

    def _on_step(self) -> None:
        """Sends the fragments whose turn it is, then uses the results that are due."""
        self._in_round += 1
        while self._fragments[self._next].offset <= self._in_round:
            self._send(self._fragments[self._next])
            self._next += 1
            if self._next == len(self._fragments):
                self._next = self._in_round = 0
                self._rounds += 1
        for fragment in self._fragments:
            if fragment.due is not None and fragment.due <= self._steps:
                self._merge(fragment)

    @torch.no_grad()
    def _finish(self) -> None:
        """Waits for the fragments in flight and uses their results, whether due or not."""
        for fragment in self._fragments:
            if fragment.due is not None:
                self._merge(fragment)

    @torch.no_grad()
    def global_parameters(self) -> dict[str, torch.Tensor]:
        """Copies in host memory of the parameters after the last outer steps, by name.

        They are the same on all ranks that have made as many rounds, and are what to evaluate and
        to keep at the end. Waits for the fragments in flight, whose results are used when they are
        due. In a site, all ranks must call this.
        """
        return self._known()

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to go on besides the model's parameters; for all ranks to call.

        Both optimizers' states, the outer one's gathered; the parameters after the last outer
        steps; counters. Training is not disturbed. On the ranks of a site that do not take part in
        the outer rounds, the outer optimizer's state is None. ValueError on all ranks if they have
        not made as many rounds.
        """
        if self._outer is not None and self._outer.is_shared():
            self._check_alike()
        own = self._own_state()
        return {**own, "outer": None if self._outer is None else self._outer.state_dict()}

    @property
    def has_shares(self) -> bool:
        """Whether the outer optimizer's state is on the servers, where each rank has a share."""
        return isinstance(self._outer, OuterOnServers)

    @torch.no_grad()
    def share(self) -> tuple[dict[str, Any], StateShare]:
        """State for resume() in another job: what is alike on all ranks, and this rank's share."""
        assert isinstance(self._outer, OuterOnServers), "has_shares"
        groups, share = self._outer.share()
        return {**self._own_state(), "outer": groups}, share

    @torch.no_grad()
    def resume(self, state: dict[str, Any], shares: Sequence[StateShare]) -> None:
        """Goes on from the state of one rank and the shares of all; every rank must call this."""
        assert isinstance(self._outer, OuterOnServers), "has_shares"
        self._check_state(state)
        self._load(state)
        self._outer.resume(state["outer"], shares)

    def _own_state(self) -> dict[str, Any]:
        """All but the outer optimizer's."""
        theta = self._known()
        due = [None if one.due is None else one.due - self._steps for one in self._fragments]
        return {
            "inner": self._optimizer.state_dict(),
            "theta": theta,
            "sync_every": self._sync_every,
            "rounds": self._rounds,
            "in_round": self._in_round,
            "next": self._next,
            "due": due,
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from what state_dict() returned; for all ranks to call.

        The model's parameters must be loaded as well, before or after. ValueError if the state is
        of another model or other fragments. The state of a rank with another `sync_every` goes on
        from the last fragment that was sent.
        """
        self._check_state(state_dict)
        if self._outer is not None and self._outer.is_shared():
            for fragment in self._fragments:
                if fragment.in_flight:
                    self._outer.end(fragment.parameters)
        self._load(state_dict)
        if self._outer is not None:
            self._outer.load(state_dict["outer"])

    def _load(self, state_dict: dict[str, Any]) -> None:
        """Takes all but the outer optimizer's state."""
        self._optimizer.load_state_dict(state_dict["inner"])
        self._theta.settle()
        for parameter, name in self._names.items():
            self._theta.tensors[parameter].copy_(state_dict["theta"][name])
        self._rounds, self._next = state_dict["rounds"], state_dict["next"]
        self._in_round = state_dict["in_round"]
        if state_dict["sync_every"] != self._sync_every:
            self._in_round = self._fragments[self._next - 1].offset if self._next else 0
        self._steps = self._rounds * self._sync_every + self._in_round
        for fragment, due in zip(self._fragments, state_dict["due"], strict=True):
            fragment.due = None if due is None else self._steps + due
            fragment.in_flight = False
        self._started = True

    def _take_start(self) -> None:
        """Until the first round, the start is what the model has, however it came to it."""
        if not self._started:
            for parameter in self._names:
                self._theta.take(parameter, parameter.detach())

    def _known(self) -> dict[str, torch.Tensor]:
        """Copies of the parameters after the last outer steps, by name."""
        self._take_start()
        self._collect_all()
        self._theta.settle()
        return {name: self._theta.tensors[p].clone() for p, name in self._names.items()}

    def _check_state(self, state_dict: dict[str, Any]) -> None:
        """Raises ValueError unless the state is of this model, these fragments and such a rank."""
        shapes = {name: tuple(p.shape) for p, name in self._names.items()}
        if {name: tuple(one.shape) for name, one in state_dict["theta"].items()} != shapes:
            raise ValueError("the state is of a model with other parameters, or other frozen ones")
        known, own = len(state_dict["due"]), len(self._fragments)
        if known != own:
            raise ValueError(f"the state is of {known} fragments, and there are {own}")
        if self._outer is not None and state_dict["outer"] is None:
            raise ValueError(
                "the state has none of the outer optimizer: it is of a rank that took no part in "
                "the outer rounds, and this one does; load that of a rank that did"
            )

    def _send(self, fragment: "_Fragment") -> None:
        self._check_trained()
        if fragment.due is not None:
            self._merge(fragment)
        fragment.due = self._steps + self._delay
        fragment.in_flight = True
        if self._outer is not None:
            # Where all started less where this rank is: what a gradient step would take away.
            self._outer.begin({p: self._theta.near(p) - p.detach() for p in fragment.parameters})
            # Learning-rate schedulers of torch ask whether the optimizer has taken a step.
            self._outer_optimizer._opt_called = True  # type: ignore[attr-defined]

    def _collect(self, fragment: "_Fragment") -> None:
        """Waits until `theta` has the result of a fragment in flight."""
        if not fragment.in_flight:
            return
        if self._outer is not None:
            self._outer.end(fragment.parameters)
        if self._site.has_others:
            near = {p: self._theta.near(p) for p in fragment.parameters}
            self._site.spread((fragment.parameters[p], theta) for p, theta in near.items())
            if not self._site.is_leader:
                for parameter, theta in near.items():
                    self._theta.take(parameter, theta)
        fragment.in_flight = False

    def _collect_all(self) -> None:
        for fragment in self._fragments:
            self._collect(fragment)

    def _merge(self, fragment: "_Fragment") -> None:
        self._collect(fragment)
        fragment.due = None
        for parameter in fragment.parameters:
            theta = self._theta.near(parameter)
            if self._alpha:
                theta = torch.lerp(theta, parameter.detach(), self._alpha)
            parameter.detach().copy_(theta)

    def _check_alike(self) -> None:
        """Raises ValueError on all ranks unless they have sent the same fragments."""
        own = (self._rounds, self._next)
        everyone = allgather_object(own, name="DiLoCo.sent", process_set=self._process_set)
        if any(other != own for other in everyone):
            raise ValueError(
                "state_dict() was called after different outer rounds: the ranks have made these "
                f"rounds, and sent these fragments of the next: {everyone}; call it on all ranks "
                "after the same number of rounds"
            )


class _Fragment:
    """Parameters that are sent together, in step `offset` of each interval."""

    def __init__(self, parameters: Names, offset: int) -> None:
        self.parameters, self.offset = parameters, offset
        # The step in which the result is used, if it was not yet.
        self.due: int | None = None
        # Whether the result may not be in `theta` yet.
        self.in_flight = False


def _check_outer(optimizer: torch.optim.Optimizer, names: Names) -> None:
    """Raises ValueError unless the optimizer has the trained parameters and no others."""
    own = {p for group in optimizer.param_groups for p in group["params"]}
    missing = [name for parameter, name in names.items() if parameter not in own]
    if missing:
        raise ValueError(
            f"the outer optimizer lacks {len(missing)} of the model's parameters: "
            f"{', '.join(missing[:3])}"
        )
    strangers = sum(parameter.requires_grad and parameter not in names for parameter in own)
    if strangers:
        raise ValueError(f"{strangers} of the outer optimizer's parameters are not the model's")


def _agree(parts: list[Names], process_set: ProcessSet) -> None:
    """Raises MismatchError on all ranks unless they send the same parameters in one order."""
    mark = f"{zlib.crc32(repr([list(part.values()) for part in parts]).encode()):08x}"
    call = f"DiLoCo({len(parts)} fragments, of parameters with names marked {mark})"
    session, among = membership.current(), label(process_set)
    identity = identify_call(session, f"diloco{among}", f"diloco{among}.{mark}", call)
    agree(session, identity, process_set.ranks).synchronize()
