"""Predictions beside what `sumpter bench replay -o FILE` measured on an emulated cluster.

    python -m sumpter_lab.whatif.replayed lab/records/scheduling/*.json

prints a table of both and the distribution of errors.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sumpter._sizes import parse_size
from sumpter.profiles import Profile
from sumpter_lab import profiles
from sumpter_lab.scaffold.results.document import REPLAY, DocumentError
from sumpter_lab.whatif.cases import Case, simulate

# More than any model: nothing is held back.
_UNBOUNDED_BYTES = 1 << 60
# How each system of a replay differs from the model's defaults, which are those of `paced`.
_SYSTEMS: dict[str, dict[str, Any]] = {
    "off": {"credit_bytes": _UNBOUNDED_BYTES},
    "paced": {},
    "priority": {"order": "forward", "credit_bytes": _UNBOUNDED_BYTES},
    "credit": {"order": "forward"},
    "overlap": {"overlap_forward": True},
}


@dataclass(frozen=True)
class Comparison:
    """The period of an iteration, measured and predicted."""

    workers: int
    servers: int
    bandwidth_mbps: float
    profile: str
    ratio: float  # of all sums at best without servers to compute
    system: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """Of the prediction, as a fraction of what was measured."""
        return self.predicted_s / self.measured_s - 1


def compare(path: str | Path) -> Iterator[Comparison]:
    """One comparison for each cell of a replay and each system that is modelled.

    Raises DocumentError, which names the file, for one that is not of a replay.
    """
    try:
        for cell in REPLAY.read(Path(path)):
            if cell["source"] == "published":
                yield from _compare(cell)
    except KeyError as error:
        raise DocumentError(f"{path}: expected the field {error}") from None


def _compare(cell: dict[str, Any]) -> Iterator[Comparison]:
    profile = _scaled(cell)
    case = Case(
        workers=cell["workers"],
        servers=cell["servers"],
        architecture="sumpter",
        bandwidth_gbps=1e-3 * cell["link_goodput_mbit"],
        partition_bytes=int(parse_size(cell["settings"]["partition_bytes"])),
        credit_bytes=int(parse_size(cell["settings"]["credit_bytes"])),
    )
    measured = {name: cell["systems"][name] for name in _SYSTEMS if name in cell["systems"]}
    outcomes = simulate(profile, [replace(case, **_SYSTEMS[name]) for name in measured])
    machines = (cell["workers"], cell["servers"], cell["bandwidth_mbps"], cell["profile"])
    ratio = cell["ratio"]
    for (name, system), outcome in zip(measured.items(), outcomes, strict=True):
        yield Comparison(*machines, ratio, name, system["seconds"], outcome.iteration_time_s)


def _scaled(cell: dict[str, Any]) -> Profile:
    """What was played: a published profile with longer times and smaller gradients."""
    profile = profiles.published(cell["profile"], cell["batch_size"]).slower(cell["slowdown"])
    tensors = (
        replace(tensor, bytes=4 * max(1, round(tensor.bytes / 4 / cell["scale"])))
        for tensor in profile.tensors
    )
    return replace(profile, tensors=tuple(tensors))


def as_markdown(comparisons: Sequence[Comparison]) -> str:
    """A table, and the distribution of the errors."""
    lines = [
        "| GPU machines | CPU machines | links (Mb/s) | profile | comm/comp | system "
        "| measured (s) | predicted (s) | error |",
        "|---:|---:|---:|---|---:|---|---:|---:|---:|",
    ]
    lines += [
        f"| {one.workers} | {one.servers} | {one.bandwidth_mbps:g} | {one.profile} "
        f"| {one.ratio:.1f} | {one.system} "
        f"| {one.measured_s:.3f} | {one.predicted_s:.3f} | {one.error:+.1%} |"
        for one in comparisons
    ]
    lines += ["", distribution("all", [one.error for one in comparisons])]
    for system in _SYSTEMS:
        of_system = [one.error for one in comparisons if one.system == system]
        if of_system:
            lines.append(distribution(system, of_system))
    return "\n".join(lines)


def distribution(of: str, errors: Sequence[float]) -> str:
    """How large these errors are, as fractions, in words."""
    errors = sorted(map(abs, errors))
    near = sum(error <= 0.05 for error in errors) / len(errors)
    return (
        f"- {of}: {len(errors)} cells, median error {statistics.median(errors):.1%}, "
        f"within 5 % in {near:.0%}, largest {errors[-1]:.1%}"
    )


def main(paths: Sequence[str]) -> None:
    """Prints the comparisons of some files."""
    try:
        comparisons = [one for path in paths for one in compare(path)]
    except DocumentError as error:
        sys.exit(f"error: {error}")
    if not comparisons:
        sys.exit("usage: python -m sumpter_lab.whatif.replayed replay.json ...")
    print(as_markdown(comparisons))


if __name__ == "__main__":
    main(sys.argv[1:])
