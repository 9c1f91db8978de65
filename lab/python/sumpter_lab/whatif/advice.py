"""What would help a training run most, in words, each with what the simulation predicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sumpter.profiles import Profile
from sumpter_lab.whatif.cases import Case, Outcome, simulate

# Less is not worth a change, and within what the model leaves out.
_LEAST_GAIN = 0.01
_BANDWIDTH_FACTORS = (2, 4)
_HELPER_PARTS = (4, 2, 1)  # of the number of workers
_COMPRESSION_FACTORS = (2, 4)
_BATCH_FACTOR = 2


@dataclass(frozen=True)
class Advice:
    """One change, and what it would give."""

    change: str  # in words
    gain: float  # more samples per second, as a fraction
    case: Case
    outcome: Outcome

    def __str__(self) -> str:
        return (
            f"{self.change}: {self.gain:.0%} more samples per second "
            f"(scaling factor {self.outcome.scaling_factor:.2f})"
        )


def advise(
    profile: Profile, case: Case, *, bottlenecks: bool = True
) -> tuple[Outcome, list[Advice]]:
    """The outcome of a case, and the changes that gain at least 1 %, the best first.

    Without `bottlenecks`, those of the changed cases are not sought, which takes half the time.
    Raises ConfigError for a case that cannot be.
    """
    changes = list(_changes(case))
    now = simulate(profile, [case])[0]
    tried = [changed for _, changed in changes]
    outcomes = simulate(profile, tried, bottleneck=bottlenecks)
    advice = [
        Advice(change, now.iteration_time_s / outcome.iteration_time_s - 1, changed, outcome)
        for (change, changed), outcome in zip(changes, outcomes, strict=True)
    ]
    advice.append(_larger_batch(profile, case, now, bottlenecks))
    worthwhile = [one for one in advice if one.gain >= _LEAST_GAIN]
    return now, sorted(worthwhile, key=lambda one: -one.gain)


def in_words(outcome: Outcome, advice: list[Advice]) -> list[str]:
    """Sentences: what communication costs, and what would help most."""
    part = outcome.overhead_s / outcome.iteration_time_s
    if outcome.bottleneck == "none":
        cost = f"Communication is not the bottleneck: it takes {part:.1%} of"
    else:
        cost = f"Communication takes {part:.1%} of"
    causes = {
        "network": "; most of it is waiting for links.",
        "addition": "; most of it is waiting for additions.",
    }
    sentences = [f"{cost} an iteration{causes.get(outcome.bottleneck, '.')}"]
    if not advice:
        return [*sentences, f"Nothing tried would gain {_LEAST_GAIN:.0%} or more."]
    sentences.append(f"Most would help: {advice[0]}.")
    return sentences + [f"Else: {one}." for one in advice[1:]]


def _changes(case: Case) -> Iterator[tuple[str, Case]]:
    for factor in _BANDWIDTH_FACTORS:
        bandwidth_gbps = factor * case.bandwidth_gbps
        change = f"{factor} times the bandwidth, {bandwidth_gbps:g} Gb/s"
        yield change, replace(case, bandwidth_gbps=bandwidth_gbps)
    for factor in _COMPRESSION_FACTORS:
        change = f"compression to {1 / factor:.0%} of the bytes sent now"
        yield change, replace(case, compression=factor * case.compression)
    for servers in sorted({case.workers // part for part in _HELPER_PARTS}):
        if servers > case.servers:
            machines = "CPU machine" if servers == 1 else "CPU machines"
            change = f"{servers} {machines} that help to sum, with Sumpter"
            yield change, replace(case, servers=servers, architecture="sumpter")


def _larger_batch(profile: Profile, case: Case, now: Outcome, bottleneck: bool) -> Advice:
    """Computing takes longer in proportion and gradients stay as large."""
    factor = _BATCH_FACTOR
    outcome = simulate(profile.slower(factor), [case], bottleneck=bottleneck)[0]
    gain = factor * now.iteration_time_s / outcome.iteration_time_s - 1
    change = f"{factor} times the batch for each GPU, if memory and convergence allow"
    return Advice(change, gain, case, outcome)
