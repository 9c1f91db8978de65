"""What a step waited for: the critical path of its last partition, back to the gradient.

A worker's step ends, as far as communication goes, with the result that comes last. Its way is
followed back, and every instant of the step gets the one cause that it waited for:

1. *computing*: the gradient was not there yet, or the results were all there;
2. *queued*: it waited for its turn behind other gradients, or for credit;
3. *sending*: its bytes were on their way to the lane that sums it;
4. *waiting for rank r*: this worker's contribution was in, the last one was not;
5. *summing*: all contributions were in, the sum was not finished;
6. *receiving*, or *copying* from the lane in the same process: the sum came back.

Chunks overlap: a lane adds and returns the first while the last are on their way. Each cause
therefore ends with the last chunk of its stage, and what is hidden behind an earlier stage does not
count. A tensor that comes right when all before it are summed (a loss that is averaged after the
gradients) was waiting for them: then their way is followed back as well. Where a boundary is not
recorded, the time goes to the next stage. Clocks may make a stage end before the one before it; it
then has no length.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from sumpter._errors import TraceError
from sumpter.trace.file import Slice, Trace

# A cause, and when it ends; None if that is not known.
_Stage = tuple[str, float | None]
# A gradient that comes within this share of the time that the results before it took, when all of
# them are there, was waiting for them.
_AT_ONCE = 0.1
# How causes that are a peer begin.
OF_A_PEER = "waiting for "
# Smaller shares are not shown: they would be 0.0 %.
SHOWN_FROM = 0.0005
# A sum of a tensor's partition in one round.
_Key = tuple[str | None, int | None, int | None, int | None]


@dataclass(frozen=True)
class Explanation:
    """What one rank's step waited for.

    `shares` are by cause and sum to 1; `duration_s` is from the step's first gradient to the next
    step's, or to its own last result. `sentences` say it in words, the longest wait first.
    """

    step: int
    rank: int
    duration_s: float
    shares: dict[str, float]
    sentences: tuple[str, ...]
    tensor: str = ""  # whose result came last


@dataclass
class _Sum:
    """Where and when a partition was summed: times of the lane that made the sum."""

    process: str = ""
    arrived_s: dict[str, float] = field(default_factory=dict)
    waiting: Slice | None = None
    finished_s: float | None = None

    def last(self) -> tuple[float, str] | None:
        """When the last contribution was in, and whose it was."""
        found = [(end_s, rank) for rank, end_s in self.arrived_s.items()]
        if self.waiting is not None and self.waiting.peer is not None:
            found.append((self.waiting.end_s, self.waiting.peer))
        return max(found, default=None)


def explain(trace: Trace, step: int | None = None) -> tuple[Explanation, ...]:
    """What each rank's steps waited for, by step and rank; of one step only, if given.

    Raises:
        TraceError: The trace has no such step.
    """
    steps = [one for one in trace.slices if one.activity == "step"]
    wanted = [one for one in steps if step is None or one.round == step]
    if not wanted:
        known = sorted({one.round for one in steps if one.round is not None})
        there = f"steps {known[0]} to {known[-1]}" if known else "no step"
        raise TraceError(f"step {step}: the trace has {there}")
    sums = _sums(trace.slices)
    by_process: dict[str, list[Slice]] = defaultdict(list)
    for one in trace.slices:
        if one.process.startswith("rank ") and not one.track.startswith("lane "):
            by_process[one.process].append(one)
    found = [_explain(one, by_process[one.process], sums) for one in wanted]
    return tuple(sorted(found, key=lambda one: (one.step, one.rank)))


def _key(one: Slice) -> _Key:
    return (one.tensor, one.round, one.partition, one.tier)


def _sums(slices: Iterable[Slice]) -> dict[_Key, list[_Sum]]:
    """The sums of each partition: one, or with machine aggregates one a machine."""
    found: dict[_Key, dict[tuple[str, str], _Sum]] = defaultdict(dict)
    for one in slices:
        if not one.track.startswith("lane "):
            continue
        lane = (one.process, " ".join(one.track.split()[:2]))
        made = found[_key(one)].setdefault(lane, _Sum(one.process))
        if one.activity == "receiving" and one.peer is not None:
            made.arrived_s[one.peer] = one.end_s
        elif one.activity == "waiting":
            made.waiting = one
        elif one.activity == "summing":
            made.finished_s = one.end_s
    return {key: list(lanes.values()) for key, lanes in found.items()}


def _explain(step: Slice, slices: list[Slice], sums: dict[_Key, list[_Sum]]) -> Explanation:
    rank = int(step.process.split()[1])
    inside = [
        one
        for one in slices
        if one.activity in ("receiving", "copying")
        and one.round == step.round
        and step.begin_s <= one.end_s <= step.end_s
    ]
    if step.round is None or not inside:
        shares = {"computing": 1.0}
        return Explanation(step.round or 0, rank, step.end_s - step.begin_s, shares, ())
    last = max(inside, key=lambda one: one.end_s)
    stages = _chain(last, inside, slices, sums, rank)
    times = _clipped(stages, step)
    duration_s = step.end_s - step.begin_s
    shares = {cause: s / duration_s if duration_s else 0.0 for cause, s in times.items()}
    if not duration_s:
        shares = {"computing": 1.0}
    shares = dict(sorted(shares.items(), key=lambda item: -item[1]))
    sentences = _sentences(step.round, rank, duration_s, shares, last)
    return Explanation(step.round, rank, duration_s, shares, sentences, last.tensor or "")


def _chain(
    last: Slice,
    inside: list[Slice],
    slices: list[Slice],
    sums: dict[_Key, list[_Sum]],
    rank: int,
) -> list[_Stage]:
    """The stages of the last result and, where it was asked for only when all before it was
    there, of what it waited for in turn."""
    begins_s: dict[str | None, float] = {}
    own: dict[_Key, list[Slice]] = defaultdict(list)
    for one in slices:
        own[_key(one)].append(one)
        if one.activity == "queued" and one.round == last.round:
            begins_s.setdefault(one.tensor, one.begin_s)
    stages: list[_Stage] = []
    while True:
        made = _sum_of(last, sums.get(_key(last), []))
        stages = _stages(last, own[_key(last)], made, rank) + stages
        ready_s = begins_s.get(last.tensor)
        if ready_s is None:
            return stages
        earlier = [one for one in inside if begins_s.get(one.tensor, ready_s) < ready_s]
        before = max(earlier, key=lambda one: one.end_s, default=None)
        if before is None:
            return stages
        gap_s = ready_s - before.end_s
        if not 0 <= gap_s <= _AT_ONCE * (before.end_s - begins_s[before.tensor]):
            return stages
        last = before


def _sum_of(last: Slice, made: list[_Sum]) -> _Sum | None:
    """The sum that a result is of: that of the lane it came from."""
    if len(made) <= 1:
        return made[0] if made else None
    owner = " ".join((last.peer or "").split()[:2]) + " "
    return next((one for one in made if one.process.startswith(owner)), None)


def _stages(last: Slice, own: list[Slice], made: _Sum | None, rank: int) -> list[_Stage]:
    """The causes of one partition in the order in which they follow each other."""

    def of(activity: str) -> Slice | None:
        found = [one for one in own if one.activity == activity]
        return max(found, key=lambda one: one.end_s, default=None)

    queued, sent, waited = of("queued"), of("sending"), of("waiting")
    ready_s = None if queued is None else queued.begin_s
    turn_s = None if queued is None else queued.end_s
    mine, peer, in_s, done_s = f"rank {rank}", last.peer or "a lane", None, None
    own_in_s = None if sent is None else sent.end_s
    if made is not None:
        own_in_s = made.arrived_s.get(mine, own_in_s)
        done_s = made.finished_s
        if (latest := made.last()) is not None:
            in_s, peer = latest
    elif waited is not None:
        in_s, peer = waited.end_s, waited.peer or peer
    if peer == mine:
        # Only this worker itself was waited for.
        own_in_s, in_s = in_s, None
    return [
        ("computing", ready_s),
        ("queued", turn_s),
        ("sending", own_in_s),
        (f"{OF_A_PEER}{peer}", in_s),
        ("summing", done_s),
        (last.activity, last.end_s),
    ]


def _clipped(stages: list[_Stage], step: Slice) -> dict[str, float]:
    """Seconds by cause; they sum to the step's."""
    times: dict[str, float] = defaultdict(float)
    at_s = step.begin_s
    for cause, end_s in stages:
        if end_s is None:
            continue
        until_s = min(max(end_s, at_s), step.end_s)
        times[cause] += until_s - at_s
        at_s = until_s
    times["computing"] += step.end_s - at_s
    return {cause: seconds for cause, seconds in times.items() if seconds > 0}


# What each cause means, in words.
CAUSES = {
    "computing": "no gradient of it was under way: the worker computed",
    "queued": "it waited for its turn behind other gradients (bandwidth or credit)",
    "sending": "its own contribution was on its way to the lane",
    "summing": "all contributions were in and the lane was adding",
    "receiving": "the sum was on its way back",
    "copying": "the sum was being taken from the lane in the same process",
}


def _sentences(
    number: int, rank: int, duration_s: float, shares: dict[str, float], last: Slice
) -> tuple[str, ...]:
    path = f"'{last.tensor}'"
    if last.partition:
        path += f" (partition {last.partition})"
    first = (
        f"Step {number} of rank {rank} took {duration_s * 1e3:.1f} ms; its last result was that of "
        f"{path}, summed by {last.peer}."
    )
    lines = []
    for cause, share in shares.items():
        if share < SHOWN_FROM:
            continue
        words = CAUSES.get(cause, "its own contribution was in, that of this peer was not")
        lines.append(f"{share:6.1%} {cause}: {words}")
    return (first, *lines)
