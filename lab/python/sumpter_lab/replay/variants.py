"""What can be compared: ways to schedule the same sums, with an optimizer or not, and DDP."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sumpter_lab.scaffold.scaled import scaled_settings
from sumpter_lab.scaffold.spec import RULES

# So much that it never holds anything back: the most that the setting takes.
UNBOUNDED_CREDIT = "1TiB"
DDP = "ddp-gloo"
PEERS = (DDP,)
# What torch's DDP puts into one all-reduce.
DDP_BUCKET_BYTES = 25 << 20
# A member that says nothing for so long has been lost; before, this machine was only busy.
_SILENCE = {"peer_timeout_s": "60", "server_timeout_s": "60"}


@dataclass(frozen=True)
class Variant:
    """One way to schedule. A job does as `paced`, and as `overlap` with `overlap_forward`."""

    name: str
    priority: bool  # forward order; else the order in which gradients get ready
    credit: bool  # how far ahead of what is sent partitions begin is bounded
    overlap: bool  # a layer's forward pass waits for its own sums only


VARIANTS = (
    Variant("off", priority=False, credit=False, overlap=False),
    Variant("paced", priority=False, credit=True, overlap=False),
    Variant("priority", priority=True, credit=False, overlap=False),
    Variant("credit", priority=True, credit=True, overlap=False),
    Variant("overlap", priority=True, credit=True, overlap=True),
)
BY_NAME = {variant.name: variant for variant in VARIANTS}

# Who takes the step of an optimizer: torch in every worker, tensor by tensor or with one kernel for
# all; or the servers, at once or when the norm of all gradients is known.
PLACES = ("workers", "workers-fused", "servers", "servers-deferred")
# Of these rules torch has such a kernel for the cores of a machine.
_FUSED = frozenset({"sgd", "sgd_momentum", "sgd_nesterov", "adam", "adagrad"})


@dataclass(frozen=True)
class Optimizing:
    """An iteration that ends with a step: a rule of `spec.RULES`, and who takes it. Paced."""

    rule: str
    place: str

    @property
    def name(self) -> str:
        """What the system is called."""
        return f"{self.rule}@{self.place}"


def optimizing(rules: Iterable[str]) -> dict[str, Optimizing]:
    """The systems that each rule makes, by name."""
    made = [
        Optimizing(rule, place)
        for rule in rules
        for place in PLACES
        if place != "workers-fused" or rule in _FUSED
    ]
    return {one.name: one for one in made}


OPTIMIZING = optimizing(RULES)


def scaled(scale: float, given: dict[str, str]) -> dict[str, str]:
    """The settings that are sizes, divided like the tensors, and patience; unless given."""
    return scaled_settings(scale, {**_SILENCE, **given})
