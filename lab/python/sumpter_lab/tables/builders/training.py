"""Tables of experiments that train, and of what training keeps."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median

from sumpter_lab.tables.names import shown
from sumpter_lab.tables.record import Record, rows_of
from sumpter_lab.tables.table import Table, fixed, span, table


def _megabytes(count: float) -> float:
    return count / 1e6


def _compared(mine: float, theirs: float, planned: float) -> list[str]:
    """Megabytes with the optimizer in the workers and on the servers, and the difference."""
    places = [fixed(_megabytes(count), 0) for count in (mine, theirs)]
    return places + [f"{_megabytes(count):+.0f}" for count in (theirs - mine, planned)]


@table("memory-worker")
def memory_worker(records: Sequence[Record]) -> Table:
    """Private megabytes of a worker by the place of the optimizer."""
    rows = []
    for row in rows_of(records):
        mine, theirs = row["worker_bytes_workers"], row["worker_bytes_servers"]
        rows.append(
            [
                str(row["workers"]),
                str(row["servers"]),
                *_compared(mine, theirs, row["worker_difference_planned_bytes"]),
                fixed(_megabytes(row["worker_untrimmed_bytes_workers"]), 0),
                fixed(_megabytes(row["worker_untrimmed_bytes_servers"]), 0),
            ]
        )
    heads = ["n", "k", "state in the worker", "on the servers", "difference", "by the formula"]
    untrimmed = ["untrimmed, state in the worker", "untrimmed, on the servers"]
    return Table([*heads, *untrimmed], rows)


@table("memory-server")
def memory_server(records: Sequence[Record]) -> Table:
    """Private megabytes of a server that sums, and of one with value and state."""
    rows = []
    for row in rows_of(records):
        mine, theirs = row["server_bytes_workers"], row["server_bytes_servers"]
        if mine is not None:
            rows.append(
                [
                    str(row["workers"]),
                    str(row["servers"]),
                    *_compared(mine, theirs, row["server_planned_bytes"]),
                ]
            )
    heads = ["n", "k", "sums", "with value and state", "difference", "by the formula"]
    return Table(heads, rows)


@table("refill")
def refill(records: Sequence[Record]) -> Table:
    """What the death of a server costs a round, beside the planner's figures."""
    rows = []
    for row in rows_of(records):
        sums = row["system"] == "sumpter"
        planned = (f"{row['planned_megabytes']:.1f} MB", f"{row['planned_s']:.2f} s")
        rows.append(
            [
                str(row["workers"]),
                "sums" if sums else shown(row["system"]),
                f"{row['round_s']:.2f} s",
                f"{row['more_s']:.2f} s",
                f"{span(row['more_s_range'], 2)} s",
                f"{row['more_megabytes']:.1f} MB",
                *(("0", "0") if sums else planned),
            ]
        )
    heads = ["n = k", "system", "a round", "more time", "range", "more bytes"]
    return Table([*heads, "planned bytes", "planned time"], rows)


@table("asynchronous")
def asynchronous(records: Sequence[Record]) -> Table:
    """Steps a second of the fast workers and of the slow one, which is last, by staleness."""
    turns = [turn for record in records for turn in record.document["turns"]]
    rows = []
    for mode in dict.fromkeys(turn["mode"] for turn in turns):
        these = [turn for turn in turns if turn["mode"] == mode]
        rates = [[rank["steps"] / rank["seconds"] for rank in turn["ranks"]] for turn in these]
        fast = [mean(turn[:-1]) for turn in rates]
        received = [
            sum(link["received_bytes"] for link in turn["links"])
            / sum(rank["steps"] for rank in turn["ranks"])
            for turn in these
        ]
        rows.append(
            [
                mode,
                f"{median(fast):.2f} ({span(fast, 2)})",
                fixed(median(turn[-1] for turn in rates), 2),
                fixed(_megabytes(median(received)), 2),
            ]
        )
    heads = ["mode", "steps/s of the fast workers (range)", "of the slow one"]
    return Table([*heads, "MB received in a step"], rows)


@table("wide-area")
def wide_area(records: Sequence[Record]) -> Table:
    """Time and bytes to a loss by how often and how the sites exchange."""
    rows = [
        [
            row["mode"],
            fixed(row["seconds"], 1),
            fixed(row["waiting_s"], 1),
            fixed(row["link_megabytes"], 1),
            str(row["rounds"]),
            fixed(row["final_loss"], 3),
            fixed(row["target_s"], 1),
            span(row["target_range_s"], 1),
            str(row["target_steps"]),
        ]
        for record in records
        for row in record.document["rows"]
    ]
    heads = ["mode", "seconds", "waiting, s", "MB on the link", "rounds", "loss at the end"]
    return Table([*heads, "seconds to the loss", "range", "steps to it"], rows)


# From this difference on two decimals of a percent say nothing.
_LARGE = 0.1


def _signed(share: float, large: bool) -> str:
    return f"{100 * share:+.{0 if large else 2}f}"


def _difference(share: float) -> str:
    return f"{_signed(share, abs(share) >= _LARGE)} %"


def _range(shares: Sequence[float]) -> str:
    large = max(map(abs, shares)) >= 2 * _LARGE
    return f"{' to '.join(_signed(share, large) for share in shares)} %"


@table("convergence")
def convergence(records: Sequence[Record]) -> Table:
    """The loss by codec, of the model that the label names, or of all codecs but `off`."""
    rows = []
    for record in records:
        for row in record.document["rows"]:
            plain = row["codec"] == "off"
            if record.label not in ("", row["model"]):
                continue
            codec = row["codec"] if row["codec"].startswith("off") else f"`{row['codec']}`"
            rows.append(
                [
                    codec,
                    fixed(row["loss"], 4),
                    "" if plain else _difference(row["difference"]),
                    "" if plain else _range(row["difference_range"]),
                    fixed(row["held_out_loss"], 4),
                    "" if plain else _difference(row["held_out_difference"]),
                    "1" if codec != f"`{row['codec']}`" else fixed(row["sent_part"], 3),
                ]
            )
    heads = ["codec", "loss", "difference", "range", "held out", "difference"]
    return Table([*heads, "bytes sent, of off"], rows)
