"""The rows of `sumpter bench convergence`: each codec beside no codec, seed by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from sumpter_lab.convergence.spec import REFERENCE
from sumpter_lab.scaffold.results.table import Column, Row, figure

# How much higher than without a codec a loss may be.
TOLERANCE = 0.01


def _range(name: str) -> Any:
    def text(row: Row) -> str:
        low, high = row[name]
        return f"{low:+.2%} to {high:+.2%}"

    return text


COLUMNS = (
    Column("model", 7, figure("model", "{}")),
    Column("codec", 25, figure("codec", "{}")),
    Column("loss", 7, figure("loss", "{:.4f}")),
    Column("difference", 10, figure("difference", "{:+.2%}")),
    Column("of each seed", 20, _range("difference_range")),
    Column("held out", 8, figure("held_out_loss", "{:.4f}")),
    Column("difference", 10, figure("held_out_difference", "{:+.2%}")),
    Column("kB sent a step", 14, lambda row: f"{row['sent_bytes_per_step'] / 1e3:.1f}"),
    Column("of off", 7, figure("sent_part", "{:.3f}")),
    Column("within 1 %", 10, lambda row: "yes" if row["within"] else "no"),
)


def rows(trainings: Sequence[dict[str, Any]]) -> list[Row]:
    """A row for each model and codec: means over the seeds.

    A difference is relative to the training without a codec of the same seed, which began with the
    same parameters and saw the same batches.
    """
    found = []
    for model, codec in dict.fromkeys((one["model"], one["codec"]) for one in trainings):
        reference = _by_seed(trainings, model, REFERENCE.name)
        own = _by_seed(trainings, model, codec)
        differences = _differences(own, reference, "loss")
        held_out = _differences(own, reference, "held_out_loss")
        sent, of_reference = (
            statistics.fmean(one["sent_bytes_per_step"] for one in each.values())
            for each in (own, reference)
        )
        difference = statistics.fmean(differences)
        found.append(
            {
                "model": model,
                "codec": codec,
                "momentum_of": next(iter(own.values()))["momentum_of"],
                "seeds": len(own),
                "loss": statistics.fmean(one["loss"] for one in own.values()),
                "difference": difference,
                "difference_range": [min(differences), max(differences)],
                "held_out_loss": statistics.fmean(one["held_out_loss"] for one in own.values()),
                "held_out_difference": statistics.fmean(held_out),
                "held_out_difference_range": [min(held_out), max(held_out)],
                "sent_bytes_per_step": sent,
                "sent_part": sent / of_reference,
                # Of a loss that is no number nothing is true.
                "within": difference <= TOLERANCE,
            }
        )
    return found


def spread_line(trainings: Sequence[dict[str, Any]], model: str) -> str:
    """How much the losses without a codec differ from seed to seed."""
    losses = [one["loss"] for one in _by_seed(trainings, model, REFERENCE.name).values()]
    mean = statistics.fmean(losses)
    low, high = min(losses) / mean - 1, max(losses) / mean - 1
    return f"{model}: without a codec the loss of a seed is {low:+.2%} to {high:+.2%} of their mean"


def _by_seed(
    trainings: Sequence[dict[str, Any]], model: str, codec: str
) -> dict[int, dict[str, Any]]:
    return {one["seed"]: one for one in trainings if (one["model"], one["codec"]) == (model, codec)}


def _differences(
    own: dict[int, dict[str, Any]], reference: dict[int, dict[str, Any]], name: str
) -> list[float]:
    found = [one[name] / reference[seed][name] - 1 for seed, one in own.items()]
    return found if all(map(math.isfinite, found)) else [math.nan] * len(found)
