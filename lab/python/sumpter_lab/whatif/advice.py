"""What would help a training run most, in words, each with what the simulation predicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sumpter._errors import ConfigError
from sumpter.profiles import Profile
from sumpter_lab.whatif.cases import Case, Outcome, simulate
from sumpter_lab.whatif.codecs import TRIED

# Less is not worth a change, and within what the model leaves out.
_LEAST_GAIN = 0.01
# Of the samples per second of the best change: the simulation does not distinguish these.
_AS_MUCH = 0.98
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
    kind: str = ""  # changes of one kind differ in their amount only

    def __str__(self) -> str:
        return (
            f"{self.change}: {self.gain:.0%} more samples per second "
            f"(scaling factor {self.outcome.scaling_factor:.2f})"
        )


def advise(
    profile: Profile, case: Case, *, bottlenecks: bool = True
) -> tuple[Outcome, list[Advice]]:
    """The outcome of a case, and the changes that gain at least 1 %, the best first.

    Of changes of one kind a larger one must gain 1 % more than a smaller one to be listed. Of
    codecs the best is, or one that gains as much within 2 % and loses less of gradients.
    Without `bottlenecks`, those of the changed cases are not sought, which takes half the time.
    Raises ConfigError for a case that cannot be.
    """
    changes = list(_changes(case))
    now = simulate(profile, [case])[0]
    tried = [changed for _, _, changed in changes]
    outcomes = simulate(profile, tried, bottleneck=bottlenecks)
    advice = [
        Advice(change, now.iteration_time_s / outcome.iteration_time_s - 1, changed, outcome, kind)
        for (kind, change, changed), outcome in zip(changes, outcomes, strict=True)
    ]
    advice.append(_larger_batch(profile, case, now, bottlenecks))
    advice.extend(_codec(profile, case, now, bottlenecks))
    return now, sorted(_worthwhile(advice), key=lambda one: -one.gain)


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
        "inside": "; most of it is waiting for links inside machines.",
        "codec": "; most of it is waiting for the codec.",
    }
    sentences = [f"{cost} an iteration{causes.get(outcome.bottleneck, '.')}"]
    if not advice:
        return [*sentences, f"Nothing tried would gain {_LEAST_GAIN:.0%} or more."]
    best, *others = advice
    sentences.append(f"Most would help: {best}.")
    as_much = [one for one in others if (1 + one.gain) / (1 + best.gain) >= _AS_MUCH]
    for start, ones in (("About as much", as_much), ("Less", others[len(as_much) :])):
        if ones:
            listed = "; ".join(f"{one.change} ({one.gain:.0%})" for one in ones)
            sentences.append(f"{start}: {listed}.")
    return sentences


def _worthwhile(advice: Iterable[Advice]) -> Iterator[Advice]:
    """What gains enough, given that changes of a kind come in the order of their amount."""
    best: dict[str, float] = {}
    for one in advice:
        if one.gain >= best.get(one.kind, 0.0) + _LEAST_GAIN:
            best[one.kind] = one.gain
            yield one


def _changes(case: Case) -> Iterator[tuple[str, str, Case]]:
    """Kind, words and case of each change; those of a kind in the order of their amount."""
    for factor in _BANDWIDTH_FACTORS:
        bandwidth_gbps = factor * case.bandwidth_gbps
        between = " between machines" if case.machines is not None else ""
        change = f"{factor} times the bandwidth{between}, {bandwidth_gbps:g} Gb/s"
        yield "bandwidth", change, replace(case, bandwidth_gbps=bandwidth_gbps)
    for factor in _COMPRESSION_FACTORS if not isinstance(case.compression, str) else ():
        change = f"compression to {1 / factor:.0%} of the bytes sent now"
        yield "compression", change, replace(case, compression=factor * case.compression)
    for servers in sorted({case.workers // part for part in _HELPER_PARTS}):
        # A list has the helpers that it has.
        if servers > case.servers and case.machines is None:
            machines = "CPU machine" if servers == 1 else "CPU machines"
            change = f"{servers} {machines} that help to sum, with Sumpter"
            yield "servers", change, replace(case, servers=servers, architecture="sumpter")


def _codec(profile: Profile, case: Case, now: Outcome, bottleneck: bool) -> Iterator[Advice]:
    """The best codec; none beside a ratio, which stands for one already."""
    if not isinstance(case.compression, str) and case.compression != 1:
        return
    tried: list[tuple[float, Case]] = []
    for codec in TRIED:
        # The rate that a case gives is its codec's.
        rate = case.codec_rate if case.compression == 1 else None
        changed = replace(case, compression=codec, codec_rate=rate)
        try:
            (outcome,) = simulate(profile, [changed], bottleneck=False)
        except ConfigError:
            continue  # It does not fit one of the tensors.
        tried.append((now.iteration_time_s / outcome.iteration_time_s - 1, changed))
    if not tried:
        return
    best = max(gain for gain, _ in tried)
    gain, changed = next(one for one in tried if (1 + one[0]) / (1 + best) >= _AS_MUCH)
    (outcome,) = simulate(profile, [changed], bottleneck=bottleneck)
    change = f"the codec {changed.compression}, which changes numerics"
    yield Advice(change, gain, changed, outcome, "codec")


def _larger_batch(profile: Profile, case: Case, now: Outcome, bottleneck: bool) -> Advice:
    """Computing takes longer in proportion and gradients stay as large."""
    factor = _BATCH_FACTOR
    outcome = simulate(profile.slower(factor), [case], bottleneck=bottleneck)[0]
    gain = factor * now.iteration_time_s / outcome.iteration_time_s - 1
    change = f"{factor} times the batch for each GPU, if memory and convergence allow"
    return Advice(change, gain, case, outcome, "batch")
