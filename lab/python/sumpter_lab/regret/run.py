"""All tuners on all cells, on all cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from sumpter_lab.regret.cells import Cell, Surface
from sumpter_lab.regret.play import CHANGE_S, Played, play
from sumpter_lab.scaffold.signals import orderly


@dataclass(frozen=True)
class Spec:
    """One evaluation."""

    cells: tuple[Cell, ...]
    tuners: tuple[str, ...]
    iterations: int
    every: int = 0  # iterations of each bandwidth of a cell that has two
    profiled: bool = True  # also let autobyte know the times of the layers
    change_s: float = CHANGE_S


def cells(
    models: Sequence[str],
    workers: Sequence[int],
    shares: Sequence[float],
    gbps: Sequence[float],
    switched_gbps: float | None = None,
) -> tuple[Cell, ...]:
    """Every combination, with and without overlap; `shares` are k over n, rounded."""
    found = [
        Cell(model, n, k, rate, overlaps, switched_gbps)
        for model in models
        for n in workers
        for k in dict.fromkeys(round(share * n) for share in shares)
        for rate in gbps
        for overlaps in (False, True)
    ]
    return tuple(dict.fromkeys(found))


def run(asked: Spec) -> Iterator[list[Played]]:
    """What all tuners did on each cell, as cells are done."""
    # Forked processes would inherit the threads of numpy.
    context = multiprocessing.get_context("spawn")
    # A signal must reach the `finally`, since a pool's processes do not end with their parent.
    with orderly(), ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        futures = [pool.submit(_played, asked, cell) for cell in asked.cells]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _played(asked: Spec, cell: Cell) -> list[Played]:
    surface = Surface(cell)
    profiled = [False] * len(asked.tuners)
    names = list(asked.tuners)
    if asked.profiled and "autobyte" in names:
        names.append("autobyte")
        profiled.append(True)
    return [
        play(
            name,
            surface,
            asked.iterations,
            profiled=knows,
            every=asked.every,
            change_s=asked.change_s,
        )
        for name, knows in zip(names, profiled, strict=True)
    ]
