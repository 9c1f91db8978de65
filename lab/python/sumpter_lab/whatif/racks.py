"""Predictions beside what `sumpter bench emulate --racks` measured.

    python -m sumpter_lab.whatif.racks lab/records/trees/*.csv

prints a table of both and the distribution of errors. There is no compute in these records: a round
is one tensor that all workers have at once, so communication alone is compared. The prediction
knows the goodput of a plain connection on links and trunks, and nothing else of the run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sumpter import _native
from sumpter.profiles import Layer, Profile, Tensor
from sumpter_lab.scaffold.results.document import DocumentError
from sumpter_lab.scaffold.results.schema import from_csv
from sumpter_lab.whatif.cases import listed, simulate
from sumpter_lab.whatif.replayed import distribution

# What a job runs, and Gloo's ring.
_ARCHITECTURES = {"sumpter": "sumpter", "gloo": "allreduce"}


@dataclass(frozen=True)
class Comparison:
    """A round, measured and predicted."""

    racks: int
    workers: int  # GPU machines of each rack
    servers: int  # CPU machines of each rack
    trunk_mbit: float
    system: str
    measured_s: float
    predicted_s: float
    measured_trunk_bytes: float  # each way over one trunk
    predicted_trunk_bytes: float

    @property
    def error(self) -> float:
        """Of the predicted time, as a fraction of what was measured."""
        return self.predicted_s / self.measured_s - 1

    @property
    def bytes_error(self) -> float:
        """Of the predicted bytes over a trunk."""
        return self.predicted_trunk_bytes / self.measured_trunk_bytes - 1


def compare(path: str | Path) -> Iterator[Comparison]:
    """One comparison for each row with racks and each system that is modelled.

    Raises DocumentError, which names the file, for one that is not of `sumpter bench emulate` with
    racks, and OSError for one that cannot be read.
    """
    place = Path(path)
    kind, rows = from_csv(place, place.read_text())
    rows = [row for row in rows if row.get("racks")]
    if kind != "emulate" or not rows:
        raise DocumentError(f"{path}: expected rows of `sumpter bench emulate --racks`")
    for row in rows:
        yield from _compare(row)


def _compare(row: dict[str, Any]) -> Iterator[Comparison]:
    text = _machine_list(row)
    planned = json.loads(_native.plan(json.dumps({"machines": text, "bytes": row["bytes"]})))
    n = row["workers"]
    over_trunks = {
        "sumpter": planned["trees"]["job"]["trunk_bytes"][0],
        # A ring in the order of racks crosses each trunk once.
        "gloo": 2 * (n - 1) / n * row["bytes"],
    }
    measured = {"sumpter": row["seconds"], "gloo": row["gloo_seconds"]}
    for system, architecture in _ARCHITECTURES.items():
        if measured[system] is None:
            continue
        case = listed(text, architecture=architecture)
        (outcome,) = simulate(_round_of(row["bytes"]), [case], bottleneck=False)
        yield Comparison(
            row["racks"],
            n // row["racks"],
            row["servers"] // row["racks"],
            row["trunk_mbit"],
            system,
            measured[system],
            outcome.overhead_s,
            row["trunk_bytes_mean"][system],
            over_trunks[system],
        )


def _machine_list(row: dict[str, Any]) -> str:
    """The cluster of a row, whose racks are alike, with the goodput of its links and trunks."""
    racks = row["racks"]
    trunk_gbps = 1e-3 * min(row["trunk_goodput_mbit"].values())
    lines = ["[[rack]]", 'name = "rack"', f"count = {racks}", f"trunk_gbps = {trunk_gbps:.9f}"]
    for role, machines in (("gpu", row["workers"]), ("cpu", row["servers"])):
        if machines:
            gbps = 1e-3 * row["link_goodput_mbit"]
            lines += ["[[machine]]", f'role = "{role}"', 'rack = "rack"']
            lines += [f"count = {machines // racks}", f"bandwidth_gbps = {gbps:.9f}"]
    return "\n".join([*lines, ""])


def _round_of(size_bytes: int) -> Profile:
    """One tensor that is ready at once: a round takes what communication takes."""
    layer, tensor = Layer("all", 1.0, 0.0), Tensor("tensor", 0, size_bytes, "float32", 0.0)
    return Profile("round", "published", None, 1, 1.0, 0.0, (layer,), (tensor,), add=None)


def as_markdown(comparisons: Sequence[Comparison]) -> str:
    """A table, and the distribution of the errors."""
    lines = [
        "| r | N | k | trunk (Mb/s) | system | measured (s) | predicted (s) | error "
        "| over a trunk (MB) | predicted (MB) | error |",
        "|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {one.racks} | {one.workers} | {one.servers * one.racks} | {one.trunk_mbit:g} "
        f"| {one.system} | {one.measured_s:.3f} | {one.predicted_s:.3f} | {one.error:+.1%} "
        f"| {one.measured_trunk_bytes / 1e6:.2f} | {one.predicted_trunk_bytes / 1e6:.2f} "
        f"| {one.bytes_error:+.1%} |"
        for one in comparisons
    ]
    for name, of in (
        ("sumpter", lambda one: one.system == "sumpter"),
        ("gloo", lambda one: one.system == "gloo"),
    ):
        errors = [one.error for one in comparisons if of(one)]
        lines += ["", distribution(name, errors)] if errors else []
    return "\n".join(lines)


def main(paths: Sequence[str]) -> None:
    """Prints the comparisons of some files."""
    try:
        comparisons = [one for path in paths for one in compare(path)]
    except (DocumentError, OSError) as error:
        sys.exit(f"error: {error}")
    if not comparisons:
        sys.exit("usage: python -m sumpter_lab.whatif.racks emulate.csv ...")
    print(as_markdown(comparisons))


if __name__ == "__main__":
    main(sys.argv[1:])
