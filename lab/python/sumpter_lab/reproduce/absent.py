"""What cannot be tried here, and why: listed, so that nothing of a paper is left out in silence."""

from __future__ import annotations

from sumpter_lab.reproduce.case import (
    BYTEPS,
    NETAI,
    NOT_AT_HAND,
    PHUB,
    SCHEDULING,
    Case,
    Claim,
    Found,
    How,
    undecided,
)


def _absent(name: str, paper: str, place: str, claim: str, claims: list[Claim], why: str) -> Case:
    return Case(
        name, paper, place, claim, How.ABSENT, absent=Found(setup="", claims=claims, why=why)
    )


CASES = (
    _absent(
        "byteps-overheads",
        BYTEPS,
        "overheads",
        "overheads are below half a percent",
        [undecided("overheads", "0.43, 0.33 and 0.078 %")],
        "What the three figures are parts of is not available as text, so that nothing can be set "
        "beside them. Sumpter's own overheads are in [Overhead](overhead.md) and "
        "[Costs](costs.md).",
    ),
    _absent(
        "phub-table4",
        PHUB,
        "Table 4",
        "caching is better than bypassing the cache",
        [undecided("accumulators in cache beside streaming stores", NOT_AT_HAND)],
        "Sumpter's kernels have no streaming stores, so that there is no bypass to compare with. "
        "Sums in cache and in memory are in [Kernels](kernels.md#a-lanes-work-on-a-chunk).",
    ),
    _absent(
        "phub-table5",
        PHUB,
        "Table 5",
        "a rack with PHub has more throughput per dollar",
        [undecided("throughput per dollar", "25 % better")],
        "Prices and throughputs of the paper are not available as text; its formula is that of "
        "`sumpter plan --prices`, in both readings of the NIC's price ([Planning]"
        "(../user/planning.md#costs)). With round prices that stand for no offer CPU machines gain "
        "there as well.",
    ),
    _absent(
        "netai-measured",
        NETAI,
        "Figs. 1 to 5",
        "measured scaling on V100s falls short of linear",
        [undecided("scaling of ResNet-50, ResNet-101 and VGG-16 over Horovod", NOT_AT_HAND)],
        "There are no GPUs and no links of 100 Gb/s here. What its analysis makes of its own "
        "measurements is netai-fig6 to netai-fig8.",
    ),
    _absent(
        "autobyte-fig8",
        SCHEDULING,
        "Figs. 8 and 9",
        "AutoByte's gains",
        [undecided("gains over static sizes", NOT_AT_HAND)],
        "What these figures show is not available as text. Gains over static sizes are "
        "autobyte-fig6 and autobyte-fig7, and over 600 simulated cells in [Tuners](tuning.md).",
    ),
)
