"""What one training iteration would take with other machines, links or helpers.

    from sumpter_lab import (profiles)
    from sumpter_lab import (whatif)

    profile = profiles.load("resnet50.profile.json")
    case = whatif.Case(workers=64, servers=16, architecture="sumpter", bandwidth_gbps=10)
    print(whatif.simulate(profile, [case])[0].scaling_factor)

An exact event-driven simulation: no clock, no randomness, the same answer everywhere, but for the
speed of codecs where it is not given.
`docs/user/whatif.md` says what it models and what not.
"""

from sumpter_lab.whatif.advice import Advice, advise
from sumpter_lab.whatif.cases import (
    ARCHITECTURES,
    LOCAL_REDUCTIONS,
    ORDERS,
    Case,
    Listed,
    Outcome,
    described_list,
    listed,
    simulate,
)
from sumpter_lab.whatif.codecs import CodecRate

__all__ = [
    "ARCHITECTURES",
    "LOCAL_REDUCTIONS",
    "ORDERS",
    "Advice",
    "Case",
    "CodecRate",
    "Listed",
    "Outcome",
    "advise",
    "described_list",
    "listed",
    "simulate",
]
