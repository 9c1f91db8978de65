"""Predictions beside what `sumpter bench replay -o FILE` measured on an emulated cluster.

    python -m sumpter.whatif.replayed benches/record/replay-*.json

prints a table of both and the distribution of errors.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sumpter import profiles
from sumpter.whatif.cases import Case, simulate

FORMAT, VERSION = "sumpter-replay", 1
# More than any model: nothing is held back.
_UNBOUNDED_BYTES = 1 << 60
# How each system of a replay differs from the model's defaults. `off` sends in another order.
_SYSTEMS: dict[str, dict[str, Any]] = {
    "priority": {"credit_bytes": _UNBOUNDED_BYTES},
    "credit": {},
    "overlap": {"overlap_forward": True},
}


@dataclass(frozen=True)
class Comparison:
    """The period of an iteration, measured and predicted."""

    workers: int
    servers: int
    bandwidth_mbps: float
    profile: str
    system: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """Of the prediction, as a fraction of what was measured."""
        return self.predicted_s / self.measured_s - 1


def compare(path: str | Path) -> Iterator[Comparison]:
    """One comparison for each cell of a replay and each system that is modelled.

    Raises ProfileError, which names the file, for one that is not of a replay.
    """
    try:
        document = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise profiles.ProfileError(f"{path}: expected the JSON of a replay: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise profiles.ProfileError(f"{path}: format: expected '{FORMAT}'")
    if document.get("version") != VERSION:
        raise profiles.ProfileError(f"{path}: version: expected {VERSION}")
    try:
        for cell in document["cells"]:
            if cell["source"] == "published":
                yield from _compare(cell)
    except KeyError as error:
        raise profiles.ProfileError(f"{path}: expected the field {error}") from None


def _compare(cell: dict[str, Any]) -> Iterator[Comparison]:
    profile = _scaled(cell)
    case = Case(
        workers=cell["workers"],
        servers=cell["servers"],
        architecture="sumpter",
        bandwidth_gbps=1e-3 * cell["link_goodput_mbit"],
        partition_bytes=int(cell["settings"]["partition_bytes"]),
        credit_bytes=int(cell["settings"]["credit_bytes"]),
    )
    measured = {name: cell["systems"][name] for name in _SYSTEMS if name in cell["systems"]}
    outcomes = simulate(profile, [replace(case, **_SYSTEMS[name]) for name in measured])
    machines = (cell["workers"], cell["servers"], cell["bandwidth_mbps"], cell["profile"])
    for (name, system), outcome in zip(measured.items(), outcomes, strict=True):
        yield Comparison(*machines, name, system["seconds"], outcome.iteration_time_s)


def _scaled(cell: dict[str, Any]) -> profiles.Profile:
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
        "| GPU machines | CPU machines | links (Mb/s) | profile | system "
        "| measured (s) | predicted (s) | error |",
        "|---:|---:|---:|---|---|---:|---:|---:|",
    ]
    lines += [
        f"| {one.workers} | {one.servers} | {one.bandwidth_mbps:g} | {one.profile} | {one.system} "
        f"| {one.measured_s:.3f} | {one.predicted_s:.3f} | {one.error:+.1%} |"
        for one in comparisons
    ]
    errors = sorted(abs(one.error) for one in comparisons)
    middle = statistics.median(errors)
    lines += ["", f"{len(errors)} cells: median error {middle:.1%}, largest {errors[-1]:.1%}."]
    return "\n".join(lines)


def main(paths: Sequence[str]) -> None:
    """Prints the comparisons of some files."""
    try:
        comparisons = [one for path in paths for one in compare(path)]
    except profiles.ProfileError as error:
        sys.exit(f"error: {error}")
    if not comparisons:
        sys.exit("usage: python -m sumpter.whatif.replayed replay.json ...")
    print(as_markdown(comparisons))


if __name__ == "__main__":
    main(sys.argv[1:])
