"""Claims about one machine: the instruments of `sumpter bench` and what their rows say of a paper.

The same judgement reads a fresh run and a kept record.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from sumpter_lab.reproduce.case import (
    BYTEPS,
    NOT_AT_HAND,
    PHUB,
    Case,
    Found,
    How,
    Line,
    Measurement,
    Plot,
    judged,
    undecided,
)
from sumpter_lab.scaffold.results.table import Row

Tables = Sequence[Sequence[Row]]

_CORES = 3.0  # of BytePS, for 100 Gb/s of summation
_WIDE, _AFFINITY = 20.0, 1.43
_AGGREGATION = 0.99  # of the goodput without aggregation
_OPTIMIZING = 71.6 / 72.1
_CHUNK_KIB = 32
_ABLATIONS = "[Ablations](design-choices.md)"
_SERVER = "[Server](server.md)"
# What two rates of one machine may differ by and still be one.
_SAME = 0.02


def fig9(tables: Tables) -> Found:
    """Optimizers beside summation, and the cores that 100 Gb/s of summation takes."""
    of = {row["server_runs"]: row["of_summation"] for row in tables[0] if row["threads"] == 1}
    best: dict[str, float] = {}
    for name, share in of.items():
        if name != "sum":
            kind = name.split()[0]
            best[kind] = max(best.get(kind, 0.0), share)
    cycle = [row for row in tables[1] if row["table"] == "cycle"]
    cores = [row["cores_for_100_gb_per_s"] for row in cycle]
    fan_in = {kind: 1 + 1 / (7 * share) for kind, share in best.items()}
    names = list(dict.fromkeys(row["server_runs"] for row in tables[0]))
    rates = {row["server_runs"]: row["gb_per_s"] for row in tables[0] if row["threads"] == 1}
    return Found(
        setup="torch's optimizers on parameters of 64 MiB beside summation, a core each; all "
        "additions of a lane, 2 and 8 contributions, in cache and in memory",
        claims=[
            judged(
                "cores for the summation of 100 Gb/s, without the transport",
                f"under {_CORES:g}",
                f"{min(cores):.1f} to {max(cores):.1f}",
                max(cores) < _CORES,
            ),
            *(
                judged(
                    f"{kind} on a server is slower than summation",
                    f"slower ({NOT_AT_HAND})",
                    f"{best[kind]:.2f} of its rate at best; with a fan-in of 8 an update adds "
                    f"{fan_in[kind] - 1:.0%} to the additions",
                    best[kind] < 1 - _SAME,
                )
                for kind in best
            ),
        ],
        why="SGD reads and writes as much as an addition, so that it is about as fast. A sum of n "
        "contributions is n - 1 additions and the optimizer comes once after them, so that a "
        f"large fan-in hides more of it ({_ABLATIONS}).",
        plots=(
            Plot(
                "Fig. 9: optimizers beside summation, one thread",
                "",
                "GB/s",
                [Line("rate", names, [rates.get(name) for name in names])],
                bars=True,
            ),
        ),
        rows=[*tables[0], *cycle],
    )


def tall(tables: Tables) -> Found:
    """Tall aggregation beside wide."""
    (rows,) = tables
    gains = [row["gain"] for row in rows]
    threads = [str(row["threads"]) for row in rows]
    return Found(
        setup="8 contributions to 64 MiB in chunks of 256 KiB, by cores that own their chunks "
        "(tall) and by cores that gang on one buffer after the other (wide)",
        claims=[
            judged(
                "tall aggregation is faster than wide",
                "faster",
                f"{min(gains):.2f} to {max(gains):.2f} times as fast",
                min(gains) > 1 + _SAME,
            ),
            undecided(
                "by a factor of 20",
                f"{_WIDE:g}",
                f"{max(gains):.2f} with {threads[-1]} cores",
            ),
        ],
        why="With two cores little coordination can be saved, and most of the gain is that a chunk "
        f"is still in cache. Two cores are too few to try a factor of 20 ({_ABLATIONS}).",
        plots=(_pair("Figs. 5 and 6: aggregation", rows, "tall", "wide"),),
        rows=rows,
    )


# The steps of BytePS' Table 2 in Gb/s, and those of `sumpter bench ablate datapath` that have them.
_LADDER = {
    "placed, loopback by the network": 41,
    "+ shared memory": 52,
    "+ page alignment": 76,
    "+ one segment": 89,
}


def ladder(tables: Tables) -> Found:
    """Placed writes with one rule more at each step, over a provider without hardware."""
    (rows,) = tables
    goodput = {row["step"]: row["goodput_gb_per_s"] for row in rows}
    claims = []
    for before, step in itertools.pairwise(_LADDER):
        text = f"{step.removeprefix('+ ')} adds goodput"
        paper = f"{_LADDER[step] / _LADDER[before]:.2f} times ({_LADDER[step]} Gb/s)"
        if step not in goodput:
            claims.append(undecided(text, paper))
            continue
        gain = goodput[step] / goodput[before]
        ours = f"{gain:.2f} times"
        # The others are about how a network card reads memory.
        is_of_card = step != "+ shared memory"
        is_gain = judged(text, paper, ours, gain > 1 + _SAME)
        claims.append(undecided(text, paper, ours) if is_of_card else is_gain)
    return Found(
        setup="256 MiB there and back between two threads, half to the other machine and half to "
        "the lane of the own one; libfabric's provider `tcp`, which needs no network card",
        claims=claims,
        why="The provider copies bytes by the processor, to which alignment and segments matter "
        "little; what a card gains by them is not to be had without one. Processor time and "
        "plain TCP beside it are in "
        "[Ablations](design-choices.md#the-data-path-of-placed-writes).",
        plots=(
            Plot(
                "Table 2: the data path, one rule more at each step",
                "",
                "GB/s",
                [Line("goodput", list(goodput), list(goodput.values()))],
                bars=True,
            ),
        ),
        rows=rows,
    )


def affinity(tables: Tables) -> Found:
    """A key belongs to a core, beside a worker belongs to a core."""
    (rows,) = tables
    gains = [row["gain"] for row in rows]
    # On one core there is nothing to be near to: what differs there is noise.
    several = [row["gain"] for row in rows if row["threads"] > 1]
    return Found(
        setup="8 contributions to 64 MiB; chunks belong to lanes by key, or by worker",
        claims=[
            judged(
                "a key that belongs to one core is faster",
                f"{_AFFINITY}",
                f"{min(gains):.2f} to {max(gains):.2f} with 1 and 2 cores",
                max(several, default=0.0) > 1 + _SAME,
            )
        ],
        why="It is little at best, likely since two cores of one socket share their last-level "
        "cache, so that a chunk to which another core has added is near. More cores and a second "
        f"socket have not been tried ({_ABLATIONS}).",
        plots=(_pair("Key affinity", rows, "key_to_lane", "worker_to_lane"),),
        rows=rows,
    )


def _pair(title: str, rows: Sequence[Row], one: str, other: str) -> Plot:
    threads = [str(row["threads"]) for row in rows]
    return Plot(
        title,
        "threads",
        "GB/s of contributions",
        [
            Line(name.replace("_", " "), threads, [row[f"{name}_gb_per_s"] for row in rows])
            for name in (one, other)
        ],
        bars=True,
    )


def zero_compute(tables: Tables) -> Found:
    """A server under workers that compute nothing, beside itself without summation."""
    (rows,) = tables
    ratios = [row["goodput_ratio"] for row in rows]
    bare = [row["goodput_ratio_to_summing_tcp"] for row in rows]
    workers = [str(row["workers"]) for row in rows if row["lanes"] == 1]
    fields = {
        "server": "goodput_gb_per_s",
        "without summation": "without_summation_goodput_gb_per_s",
        "raw TCP": "raw_tcp_goodput_gb_per_s",
        "raw TCP that sums": "summing_tcp_goodput_gb_per_s",
    }
    return Found(
        setup="one server over loopback, tensors of ResNet-18, workers that compute nothing; "
        "interleaved",
        claims=[
            judged(
                "aggregation costs 1 % of the goodput of communication alone",
                f"{_AGGREGATION} of it",
                f"{min(ratios):.2f} to {max(ratios):.2f} of it",
                min(ratios) >= _AGGREGATION - _SAME,
            ),
            undecided(
                "97 % of the limit of PCIe",
                "97 %",
                f"{min(bare):.2f} to {max(bare):.2f} of raw TCP that makes the same additions",
            ),
        ],
        why="Workers and server share two cores and TCP takes most of them, so that every addition "
        "costs goodput; PHub's network cards write to memory by themselves. Beside the least "
        f"server that makes the same additions it has {min(bare):.2f} to {max(bare):.2f} of the "
        f"goodput ({_SERVER}).",
        plots=(
            Plot(
                "Fig. 15: ZeroCompute, one lane",
                "workers",
                "GB/s",
                [
                    Line(words, workers, [row[name] for row in rows if row["lanes"] == 1])
                    for words, name in fields.items()
                ],
                bars=True,
            ),
        ),
        rows=rows,
    )


def chunks(tables: Tables) -> Found:
    """A server by the size of chunks."""
    rows = [
        {"chunk_kib": size, **row}
        for size, table in zip(CHUNKS_KIB, tables, strict=True)
        for row in table
    ]
    best = min(rows, key=lambda row: row["cpu_s_per_gb"])
    (theirs,) = (row for row in rows if row["chunk_kib"] == _CHUNK_KIB)
    return Found(
        setup="one server with one lane over loopback, 4 workers that compute nothing, tensors of "
        "ResNet-18; partitions are as large as chunks; both cores are saturated, so that CPU time "
        "decides",
        claims=[
            judged(
                "chunks of 32 KiB are the best of 4 KiB to 4 MiB",
                f"{_CHUNK_KIB} KiB",
                f"{best['chunk_kib']} KiB: {best['cpu_s_per_gb']:.2f} CPU s/GB, where "
                f"{_CHUNK_KIB} KiB take {theirs['cpu_s_per_gb']:.2f}",
                _CHUNK_KIB / 2 <= best["chunk_kib"] <= _CHUNK_KIB * 2,
            )
        ],
        why="A chunk costs system calls and wake-ups over TCP, which PHub's RDMA does not have, so "
        "that larger ones take less. Sizes below 32 KiB are compared "
        "on emulated links in [Emulated cluster](emulated-cluster.md"
        "#choices-of-placement-link-and-size).",
        declared=("The load on the cores is that of workers and server; no other was added.",),
        plots=(
            Plot(
                "Fig. 16: chunk size",
                "KiB",
                "CPU s/GB",
                [
                    Line(
                        words,
                        [row["chunk_kib"] for row in rows],
                        [row[name] for row in rows],
                    )
                    for words, name in (
                        ("server and workers", "cpu_s_per_gb"),
                        ("server", "server_cpu_s_per_gb"),
                    )
                ],
                log_x=True,
            ),
        ),
        rows=rows,
    )


def optimizing(tables: Tables) -> Found:
    """A server that updates beside one that only sums."""
    (rows,) = tables
    names = {"SGD": "sgd", "SGD with momentum": "sgd_nesterov", "Adam": "adam"}
    spans = {words: [row[f"{name}_goodput_ratio"] for row in rows] for words, name in names.items()}
    eight = [row["sgd_goodput_ratio"] for row in rows if row["workers"] == 8 and row["lanes"] == 1]
    listed = "; ".join(
        f"{words} {min(span):.2f} to {max(span):.2f}" for words, span in spans.items()
    )
    cells = [f"{row['workers']} workers, {row['lanes']} lanes" for row in rows]
    return Found(
        setup="one server over loopback, tensors of ResNet-18, 2, 4 and 8 workers, 1 and 2 lanes; "
        "rounds that update beside rounds that only sum",
        claims=[
            judged(
                "the optimizer on the server costs less than 1 % (71.6 against 72.1)",
                f"{_OPTIMIZING:.3f} of the goodput",
                listed,
                min(spans["SGD"]) >= _OPTIMIZING - _SAME,
            ),
            judged(
                "the same with 8 workers and one lane",
                f"{_OPTIMIZING:.3f}",
                ", ".join(f"{ratio:.2f}" for ratio in eight),
                bool(eight) and min(eight) >= _OPTIMIZING - _SAME,
            ),
        ],
        why="The two cores are saturated by TCP, so that the update's reads and writes cost "
        "goodput; they are hidden where a sum has many contributions. On emulated links, which are "
        "the limit there, they cost nothing ([Update rules](update-rules.md)).",
        plots=(
            Plot(
                "Goodput with an optimizer over that without",
                "",
                "goodput ratio",
                [Line(words, cells, span) for words, span in spans.items()],
                bars=True,
            ),
        ),
        rows=rows,
    )


def _bench(*words: str) -> tuple[str, ...]:
    return ("bench", *words)


CHUNKS_KIB = (4, 16, 32, 128, 512, 4096)

CASES = (
    Case(
        "byteps-fig9",
        BYTEPS,
        "Fig. 9",
        "summation is cheap on CPUs, optimizers are not",
        How.MEASURED,
        measurements=(
            Measurement(_bench("ablate", "optimizers"), "--csv", "ablations/*-optimizers.csv"),
            Measurement(_bench("sum"), "--csv", "sum/*.csv"),
        ),
        judge=fig9,
        needs="torch",
    ),
    Case(
        "byteps-table2",
        BYTEPS,
        "Table 2",
        "each step of the RDMA transport adds goodput",
        How.MEASURED,
        measurements=(
            Measurement(
                _bench("ablate", "datapath", "--bytes", "256MiB", "--rounds", "15"),
                "--csv",
                "ablations/*-datapath.csv",
            ),
        ),
        judge=ladder,
    ),
    Case(
        "phub-fig5",
        PHUB,
        "Figs. 5 and 6",
        "tall aggregation is 20 times as fast as wide",
        How.MEASURED,
        measurements=(
            Measurement(_bench("ablate", "aggregation"), "--csv", "ablations/*-aggregation.csv"),
        ),
        judge=tall,
    ),
    Case(
        "phub-affinity",
        PHUB,
        "key affinity",
        "a key that belongs to one core makes a server faster",
        How.MEASURED,
        measurements=(
            Measurement(_bench("ablate", "affinity"), "--csv", "ablations/*-affinity.csv"),
        ),
        judge=affinity,
    ),
    Case(
        "phub-fig15",
        PHUB,
        "Fig. 15",
        "aggregation costs a server 1 % of its goodput",
        How.MEASURED,
        measurements=(
            Measurement(
                _bench("server", "--workers", "2,4,8", "--lanes", "1,2", "--rounds", "75"),
                "--csv",
                "server/*-75-rounds.csv",
            ),
        ),
        judge=zero_compute,
    ),
    Case(
        "phub-fig16",
        PHUB,
        "Fig. 16",
        "chunks of 32 KiB are the best",
        How.MEASURED,
        measurements=tuple(
            Measurement(
                _bench(
                    *("server", "--workers", "4", "--lanes", "1", "--rounds", "7"),
                    *("--chunk-bytes", f"{size}KiB", "--partition-bytes", f"{size}KiB"),
                ),
                "--csv",
            )
            for size in CHUNKS_KIB
        ),
        judge=chunks,
    ),
    Case(
        "phub-optimizer",
        PHUB,
        "optimization overhead",
        "the optimizer costs a server less than 1 %",
        How.MEASURED,
        measurements=(
            Measurement(
                _bench(
                    *("server", "--workers", "2,4,8", "--lanes", "1,2", "--rounds", "75"),
                    *("--rules", "sgd,sgd_nesterov,adam"),
                ),
                "--csv",
                "update-rules/*-server-resnet18.csv",
            ),
        ),
        judge=optimizing,
    ),
)
