"""Speed by partition and credit, as a picture: `--plot`, and of files that a run has written:

python -m sumpter_lab.replay.surface FILE... -o surface.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sumpter._errors import SumpterError
from sumpter._failure import Failure, UsageError, message_of
from sumpter._sizes import parse_size
from sumpter.tuning.points import readable
from sumpter_lab.scaffold.results.document import REPLAY, DocumentError
from sumpter_lab.scaffold.results.output import check_plot, save_picture

AXES = ("partition_bytes", "credit_bytes")


@dataclass(frozen=True)
class Surface:
    """Shares of the upper bound by partition and credit, in bytes."""

    title: str
    shares: dict[tuple[int, int], float]

    def axis(self, which: int) -> list[int]:
        """The sizes that were measured, in order: 0 is partitions, 1 credits."""
        return sorted({sizes[which] for sizes in self.shares})


def of_cells(cells: Sequence[dict[str, Any]]) -> list[Surface]:
    """A surface for each system and each n, k and ratio of a run with --grid over both sizes."""
    found: dict[str, dict[tuple[int, int], float]] = {}
    for cell in cells:
        if not set(AXES) <= set(cell["grid"]):
            continue
        partition, credit = (int(parse_size(cell["grid"][name])) for name in AXES)
        what = f"{cell['profile']}, n = {cell['workers']}, k = {cell['servers']}, {{}}, sizes / "
        for system, figures in cell["systems"].items():
            title = what.format(system) + f"{cell['scale']:g}, comm/comp {cell['ratio']:.2g}"
            found.setdefault(title, {})[partition, credit] = figures["share_of_bound"]
    return [Surface(title, shares) for title, shares in found.items()]


def draw(surfaces: Sequence[Surface], file: Path) -> None:
    """Writes the picture: a panel for each surface, each cell with its share of the bound."""
    from matplotlib.figure import Figure

    columns = min(2, len(surfaces))
    rows = -(-len(surfaces) // columns)
    picture = Figure(figsize=(4.4 * columns, 2.9 * rows), layout="constrained")
    panels = picture.subplots(rows, columns, squeeze=False)
    for panel in panels.flat[len(surfaces) :]:
        panel.set_axis_off()
    for panel, surface in zip(panels.flat, surfaces, strict=False):
        _draw_panel(panel, surface)
    save_picture(picture, file, 80)


def _draw_panel(panel: Any, surface: Surface) -> None:
    partitions, credits = surface.axis(0), surface.axis(1)
    missing = float("nan")
    shares = [[surface.shares.get((p, c), missing) for c in credits] for p in partitions]
    best = max(surface.shares.values())
    # The same colours everywhere: 10 % under the best of its surface is the darkest.
    panel.imshow(shares, vmin=0.9 * best, vmax=best, aspect="auto", origin="lower", cmap="viridis")
    for (p, c), share in surface.shares.items():
        dark = share < 0.96 * best
        panel.text(
            *(credits.index(c), partitions.index(p), f"{share:.1%}"),
            ha="center",
            va="center",
            fontsize=8,
            color="white" if dark else "black",
        )
    panel.set_xticks(range(len(credits)), [readable(c) for c in credits], fontsize=8)
    panel.set_yticks(range(len(partitions)), [readable(p) for p in partitions], fontsize=8)
    panel.set_xlabel("credit", fontsize=8)
    panel.set_ylabel("partition", fontsize=8)
    panel.set_title(surface.title, fontsize=8)


def read(file: Path) -> list[Surface]:
    """The surfaces in a file of `sumpter bench replay -o`."""
    from sumpter_lab.scaffold.results import schema

    try:
        surfaces = of_cells(schema.checked(file, "replay", REPLAY.read(file)))
    except KeyError as error:
        raise DocumentError(f"{file}: expected the field {error}") from None
    if not surfaces:
        raise Failure(f"{file} has no --grid over {' and '.join(AXES)}")
    return surfaces


def main() -> None:
    """Draws the surfaces of files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("-o", "--plot", type=Path, required=True)
    given = parser.parse_args()
    try:
        check_plot(given.plot)
        draw([surface for file in given.files for surface in read(file)], given.plot)
    except (SumpterError, UsageError, Failure) as error:
        raise SystemExit(f"error: {message_of(error)}") from None


if __name__ == "__main__":
    main()
