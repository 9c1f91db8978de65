"""The rows of `sumpter bench diloco`: what each mode took, medians over the turns."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from sumpter_lab.scaffold.results.table import Column, Row, figure, head_line, row_line

Turn = dict[str, Any]


def _seconds(name: str) -> Any:
    return figure(name, "{:.1f}")


COLUMNS = (
    Column("mode", 30, figure("mode", "{}")),
    Column("seconds", 8, _seconds("seconds")),
    Column("waiting s", 9, _seconds("waiting_s")),
    Column("MB on the link", 14, figure("link_megabytes", "{:.1f}")),
    Column("rounds", 6, figure("rounds", "{}")),
    Column("loss", 6, figure("final_loss", "{:.3f}")),
    Column("to target s", 11, _seconds("target_s")),
    Column("steps", 6, figure("target_steps", "{:.0f}")),
    Column("range s", 13, lambda row: _range(row["target_range_s"])),
)


def reached(turn: Turn, target: float) -> tuple[int, float] | None:
    """The steps and seconds after which rank 0's loss was the target or less; None if never."""
    curve = turn["ranks"][0]["curve"]
    return next(((step, seconds) for step, seconds, loss in curve if loss <= target), None)


def rows(turns: Sequence[Turn], target: float) -> list[Row]:
    """A row for each mode. What some turn did not reach has no figure."""
    found = []
    for mode in dict.fromkeys(turn["mode"] for turn in turns):
        of_mode = [turn for turn in turns if turn["mode"] == mode]
        firsts = [turn["ranks"][0] for turn in of_mode]
        reaching = [at for turn in of_mode if (at := reached(turn, target)) is not None]
        all_reach = len(reaching) == len(of_mode)
        times = sorted(seconds for _, seconds in reaching)
        found.append(
            {
                "mode": mode,
                "seconds": statistics.median(rank["seconds"] for rank in firsts),
                "waiting_s": statistics.median(_waiting_s(turn) for turn in of_mode),
                "link_megabytes": statistics.median(_megabytes(turn) for turn in of_mode),
                "dropped": sum(turn["dropped"] for turn in of_mode),
                "rounds": firsts[0]["rounds"],
                "final_loss": statistics.median(rank["final_loss"] for rank in firsts),
                "target_s": statistics.median(times) if all_reach else None,
                "target_steps": statistics.median(s for s, _ in reaching) if all_reach else None,
                "target_range_s": [times[0], times[-1]] if all_reach else None,
            }
        )
    return found


def show(found: Sequence[Row], target: float) -> None:
    """Prints the table."""
    print(f"target: a loss of {target:g} nats per character")
    print(head_line(COLUMNS))
    for row in found:
        print(row_line(COLUMNS, row), flush=True)


def link_line(link: dict[str, float]) -> str:
    """What the link was found to be."""
    return (
        f"round trip {link['round_trip_s'] * 1e3:.1f} ms; plain TCP {link['plain_tcp_mbit']:.2f} "
        f"Mb/s each way; sums {link['sums_mbit']:.2f} Mb/s, the first {link['first_sum_mbit']:.2f}"
    )


def turn_line(turn: Turn, target: float) -> str:
    """What one turn of one mode took."""
    first, at = turn["ranks"][0], reached(turn, target)
    where = "target not reached" if at is None else f"target after {at[0]} steps, {at[1]:.1f} s"
    return (
        f"turn {turn['turn'] + 1}, {turn['mode']}: {first['seconds']:.1f} s, waiting "
        f"{_waiting_s(turn):.1f} s, {_megabytes(turn):.1f} MB, loss {first['final_loss']:.3f}, "
        f"{where}, {turn['dropped']} packets dropped"
    )


def _waiting_s(turn: Turn) -> float:
    return statistics.fmean(rank["waiting_s"] for rank in turn["ranks"])


def _megabytes(turn: Turn) -> float:
    """What both directions carried, headers included."""
    return sum(turn["link_bytes"]) / 1e6


def _range(span: Sequence[float] | None) -> str:
    return "-" if span is None else f"{span[0]:.1f}-{span[1]:.1f}"
