"""The regrets of all tuners, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from sumpter_lab.regret.play import Played
from sumpter_lab.scaffold.results.table import Column, Row, figure

# Two sizes whose times differ by less are equally good.
SAME = 0.001

COLUMNS = (
    Column("tuner", 24, lambda row: row["tuner"]),
    Column("cells", 6, figure("cells", "{}")),
    Column("median", 8, figure("median", "{:.2%}")),
    Column("p90", 8, figure("p90", "{:.2%}")),
    Column("worst", 8, figure("worst", "{:.2%}")),
    Column("best", 6, figure("best", "{:.0%}")),
    Column("settled", 8, figure("settled_median", "{:.2%}")),
    Column("p90", 8, figure("settled_p90", "{:.2%}")),
    Column("worst", 8, figure("settled_worst", "{:.2%}")),
    Column("changes", 8, figure("changes", "{:.1f}")),
)


def rows(played: Sequence[Played]) -> list[Row]:
    """One row for each tuner, over all cells."""
    cells: dict[Any, float] = {}
    for one in played:
        cells[one.cell] = min(cells.get(one.cell, np.inf), one.regret)
    return [
        _row(name, [one for one in played if one.tuner == name], cells)
        for name in dict.fromkeys(one.tuner for one in played)
    ]


def _row(name: str, played: Sequence[Played], least: dict[Any, float]) -> Row:
    regrets = np.array([one.regret for one in played])
    settled = np.array([one.settled_regret for one in played])
    best = np.mean([one.regret <= least[one.cell] + SAME for one in played])
    return {
        "tuner": name,
        "cells": len(played),
        "median": float(np.median(regrets)),
        "p90": float(np.quantile(regrets, 0.9)),
        "worst": float(regrets.max()),
        "best": float(best),
        "settled_median": float(np.median(settled)),
        "settled_p90": float(np.quantile(settled, 0.9)),
        "settled_worst": float(settled.max()),
        "changes": float(np.mean([one.changes for one in played])),
    }


def described(one: Played) -> dict[str, Any]:
    """What the file holds of one tuner on one cell."""
    return asdict(one)
