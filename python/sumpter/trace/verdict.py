"""What all steps of a trace waited for, taken together: one verdict, and a line for each rank."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from sumpter._words import counted
from sumpter.trace.waits import CAUSES, OF_A_PEER, SHOWN_FROM, Explanation

# Of ranks that are alike, more lines say no more.
_MOST_RANKS = 16


def verdict(explanations: Sequence[Explanation]) -> tuple[str, ...]:
    """Lines for people: the largest cause, all causes with their meaning, and each rank.

    Steps count by their duration. Causes that would be shown as 0.0 % are left out.
    """
    if not explanations:
        return ("No step of this trace can be explained.",)
    shares = _shares(explanations)
    by_rank: dict[int, list[Explanation]] = defaultdict(list)
    for one in explanations:
        by_rank[one.rank].append(one)
    lines = [_headline(explanations, shares, len(by_rank))]
    lines += [f"{share:6.1%}  {cause}: {_meaning(cause)}" for cause, share in _shown(shares)]
    if last := Counter(one.tensor for one in explanations if one.tensor).most_common(1):
        lines.append(f"The last result was most often that of '{last[0][0]}'.")
    slowest_first = sorted(by_rank, key=lambda rank: -_mean_ms(by_rank[rank]))
    lines += [_of_rank(rank, by_rank[rank]) for rank in slowest_first[:_MOST_RANKS]]
    if len(by_rank) > _MOST_RANKS:
        lines.append(f"{counted(len(by_rank) - _MOST_RANKS, 'rank')} with shorter steps left out.")
    return tuple(lines)


def _headline(explanations: Sequence[Explanation], shares: dict[str, float], ranks: int) -> str:
    steps = sorted({one.step for one in explanations})
    which = f"Step {steps[0]}" if len(steps) == 1 else f"Steps {steps[0]} to {steps[-1]}"
    time = f"{which} of {counted(ranks, 'rank')}: {_mean_ms(explanations):.1f} ms on average. "
    cause, share = next(iter(shares.items()))
    if cause != "computing":
        return f"{time}Verdict: {_name(cause)}, {share:.0%} of the time."
    others = [item for item in shares.items() if item[0] != "computing"]
    if not others or others[0][1] < SHOWN_FROM:
        return f"{time}Verdict: computing; communication is hidden behind it."
    exposed = sum(share for _, share in others)
    return (
        f"{time}Verdict: computing, {share:.0%} of the time; of the {exposed:.0%} of exposed "
        f"communication most is {_name(others[0][0])}."
    )


def _name(cause: str) -> str:
    return f"{cause} (a straggler)" if cause.startswith(OF_A_PEER) else cause


def _meaning(cause: str) -> str:
    return CAUSES.get(cause, "all other contributions were in, that of this peer was not")


def _of_rank(rank: int, own: Sequence[Explanation]) -> str:
    causes = ", ".join(f"{share:.1%} {cause}" for cause, share in _shown(_shares(own)))
    return f"Rank {rank}, {_mean_ms(own):.1f} ms: {causes}"


def _mean_ms(explanations: Sequence[Explanation]) -> float:
    return 1e3 * sum(one.duration_s for one in explanations) / len(explanations)


def _shares(explanations: Iterable[Explanation]) -> dict[str, float]:
    """The part of all time that each cause took, the largest first."""
    seconds: dict[str, float] = defaultdict(float)
    total_s = 0.0
    for one in explanations:
        total_s += one.duration_s
        for cause, share in one.shares.items():
            seconds[cause] += share * one.duration_s
    if not total_s:
        return {"computing": 1.0}
    shares = {cause: cause_s / total_s for cause, cause_s in seconds.items()}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _shown(shares: dict[str, float]) -> list[tuple[str, float]]:
    return [(cause, share) for cause, share in shares.items() if share >= SHOWN_FROM]
