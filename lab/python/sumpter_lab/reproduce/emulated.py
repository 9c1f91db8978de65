"""Claims about clusters, by real processes on emulated links: root, minutes each."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from sumpter_lab.reproduce.case import (
    BYTEPS,
    NETAI,
    NOT_AT_HAND,
    PHUB,
    SCHEDULING,
    Case,
    Found,
    How,
    Line,
    Measurement,
    Plot,
    judged,
    undecided,
)
from sumpter_lab.reproduce.scheduling import replayed
from sumpter_lab.scaffold.results.table import Row
from sumpter_lab.tune.figures import row as tuned

Tables = Sequence[Sequence[Row]]

_OF_OPTIMUM = 0.91
_WORST_LOSS = 0.05  # of PHub's tenants
_GAINS = (0.06, 0.23)
_SAME = 0.02
_CLUSTER = "[Emulated cluster](emulated-cluster.md)"


def fig12(tables: Tables) -> Found:
    """Rounds of 64 MiB with 8 workers beside Gloo."""
    rows = [row for row in tables[0] if row["workers"] == 8]
    shares = [row["optimum_fraction"] for row in rows]
    helped = [row["gain_over_gloo"] for row in rows if row["servers"]]
    (alone,) = (row["gain_over_gloo"] for row in rows if row["servers"] == 0)
    servers = [row["servers"] for row in rows]
    goodput = {
        "optimum": ("optimum_seconds", True),
        "Sumpter": ("seconds", False),
        "Gloo": ("gloo_seconds", False),
    }
    return Found(
        setup=f"n = 8, k = {', '.join(map(str, servers))}, emulated links of 200 Mb/s, one tensor "
        "of 64 MiB, Gloo's ring interleaved; shares of the optimum of measured goodput",
        claims=[
            judged(
                "BytePS is within 1 to 9 % of the optimum at every k",
                f"{_OF_OPTIMUM} to 0.99 of it",
                f"{min(shares):.3f} to {max(shares):.3f}",
                min(shares) >= _OF_OPTIMUM,
            ),
            judged(
                "it is faster than all-reduce at every k > 0",
                "faster",
                f"{min(helped):.2f} to {max(helped):.2f} times as fast as Gloo",
                min(helped) > 1,
            ),
            judged(
                "it is faster at k = 0 as well",
                f"faster ({NOT_AT_HAND})",
                f"{alone:.2f} times as fast as Gloo",
                alone > 1 + _SAME,
            ),
        ],
        why="At k = 0 both move the same bytes, and Gloo's ring is at 0.99 of its optimum: there "
        f"is nothing left to gain for one large tensor ({_CLUSTER}). What a negotiation of the "
        "order of tensors would add is the case byteps-section8.",
        declared=("Links carry 200 Mb/s, not 100 Gb/s.",),
        plots=(
            Plot(
                "Fig. 12, n = 8, emulated",
                "CPU machines (k)",
                "goodput in Mb/s of tensor",
                [
                    Line(words, servers, [row["bytes"] * 8e-6 / row[name] for row in rows], bound)
                    for words, (name, bound) in goodput.items()
                ],
            ),
        ),
        rows=rows,
    )


def stragglers(tables: Tables) -> Found:
    """Sumpter beside a ring at k = 0, with ranks that begin late."""
    patterns = tables[0][0]["rows"]
    rows = [
        {
            "pattern": one["pattern"],
            "ring_over_sumpter": statistics.median(
                gloo / own
                for own, gloo in zip(
                    one["after_last_s"]["sumpter"], one["after_last_s"]["gloo"], strict=True
                )
            ),
        }
        for one in patterns
    ]
    ratios = [row["ring_over_sumpter"] for row in rows]
    names = [row["pattern"] for row in rows]
    return Found(
        setup="n = 4, k = 0, emulated links of 200 Mb/s, one tensor of 16 MiB, Gloo's ring "
        "interleaved; ranks begin up to 0.2 s late",
        claims=[
            judged(
                "without CPU machines BytePS is faster, as ranks wait less for each other",
                f"faster ({NOT_AT_HAND})",
                f"a ring takes {min(ratios):.3f} to {max(ratios):.3f} of the time",
                max(ratios) > 1 + _SAME,
            )
        ],
        why="A late rank has 2(n-1)/n of the tensor still to send, whatever the others have done, "
        "so that a ring waits no longer than Sumpter does ([Stragglers](stragglers.md)). A peer "
        "that negotiates the order of tensors was not measured.",
        plots=(
            Plot(
                "Section 8: a ring's time over Sumpter's at k = 0",
                "",
                "ring over Sumpter",
                [Line("ring", names, ratios)],
                bars=True,
            ),
        ),
        rows=rows,
    )


def tenants(tables: Tables) -> Found:
    """Eight jobs on one server."""
    documents = {"a link": tables[0][0], "cores": tables[1][0]}
    rows = [
        {"limit": limit, **{name: job[name] for name in ("job", "weight", "part")}}
        for limit, document in documents.items()
        for job in document["jobs"]
        if job["part"] is not None
    ]
    least = {
        limit: min(row["part"] for row in rows if row["limit"] == limit) for limit in documents
    }
    together = {limit: one["aggregate_of_alone"] for limit, one in documents.items()}
    names = list(dict.fromkeys(row["job"] for row in rows))
    return Found(
        setup="8 equal jobs of two workers on one server: a link of 100 Mb/s is the limit, and "
        "over loopback the cores; a part is a job's share of all traffic over its fair share",
        claims=[
            judged(
                f"a tenant loses at most {_WORST_LOSS:.0%}, by {what}",
                f"{_WORST_LOSS:.0%}",
                f"the least part is {least[limit]:.3f}; all together move "
                f"{together[limit]:.2f} of what one does alone",
                least[limit] >= 1 - _WORST_LOSS and together[limit] >= 1 - _WORST_LOSS,
            )
            for limit, what in (("a link", "its link"), ("cores", "its cores"))
        ],
        declared=(
            "Jobs only communicate, in tensors of one size; AlexNet and ResNet-50 are not trained.",
        ),
        plots=(
            Plot(
                "Fig. 18: tenants",
                "",
                "part of the fair share",
                [
                    Line(
                        f"{limit} is the limit",
                        names,
                        [
                            next(
                                (
                                    row["part"]
                                    for row in rows
                                    if (row["limit"], row["job"]) == (limit, name)
                                ),
                                None,
                            )
                            for name in names
                        ],
                    )
                    for limit in documents
                ],
                bars=True,
            ),
        ),
        rows=rows,
    )


def utilization(tables: Tables) -> Found:
    """What of the links is used."""
    rows = [
        {
            "workers": row["workers"],
            "servers": row["servers"],
            "used": 1 - row["link_idle_median_workers"],
        }
        for table in tables
        for row in table
    ]
    used = [row["used"] for row in rows]
    numbers = list(dict.fromkeys(row["workers"] for row in rows))
    return Found(
        setup=f"n = {', '.join(map(str, numbers))}, emulated links of 200 Mb/s, 64 MiB; what "
        "the median GPU machine uses of its link's measured goodput",
        claims=[
            undecided(
                "peers use a third of a fast network",
                "a third, at up to 100 Gb/s",
                "no link of this speed here",
            ),
            judged(
                "a transport can use a network in full",
                "assumed by its analysis",
                f"{min(used):.0%} to {max(used):.0%} of links of 200 Mb/s",
                min(used) >= 0.9,
            ),
        ],
        why="A link of 100 Gb/s takes more cores than two, so that a share of it would say how "
        f"fast the cores are. What Sumpter takes of them is in [Server](server.md) and {_CLUSTER}.",
        plots=(
            Plot(
                "Utilization of links",
                "CPU machines (k)",
                "share of the link's goodput",
                [
                    Line(
                        f"n = {n}",
                        [row["servers"] for row in rows if row["workers"] == n],
                        [row["used"] for row in rows if row["workers"] == n],
                    )
                    for n in numbers
                ],
            ),
        ),
        rows=rows,
    )


def second_job(tables: Tables) -> Found:
    """Tuners while a second job comes and goes."""
    runs = list(tables[0])
    rows = [tuned(run, runs) for run in runs]
    gains = {row["tuner"]: row["over_fixed"] - 1 for row in rows if row["tuner"] != "fixed"}
    low, high = _GAINS
    return Found(
        setup="ResNet-50, n = 4, k = 2, emulated links of 400 Mb/s that stand for 10 Gb/s; a "
        "second job with the same load for 60 of 160 iterations",
        claims=[
            judged(
                "AutoByte gains over static sizes while a second job runs",
                f"{low:.0%} to {high:.0%}",
                f"{gains['autobyte']:+.1%}",
                gains["autobyte"] >= low,
            )
        ],
        why="It ended at the sizes that it began with, so that the difference is chance and the "
        "time of the points that it tried. The same sizes are best with the second job and without "
        "it ([Tuners](tuning.md)).",
        plots=(
            Plot(
                "Fig. 7: a second job",
                "",
                "iterations/s",
                [
                    Line(
                        "all iterations",
                        [row["tuner"] for row in rows],
                        [row["iterations_per_s"] for row in rows],
                    )
                ],
                bars=True,
            ),
        ),
        rows=rows,
    )


def _replay(model: str, scale: int) -> Measurement:
    return Measurement(
        (
            *("bench", "replay", "--profile", model, "-n", "4", "-s", "0,2,4"),
            *("--bandwidth-mbps", "100", "--scale", str(scale), "--ratio", "0.5,1,2"),
            *("--iterations", "2", "--turns", "1"),
        ),
        "-o",
        f"scheduling/*-{model}.json",
    )


_UNIFORM = ("bench", "emulate", "--rate-mbit", "200", "--bytes", "64MiB", "--rounds", "3")
_EIGHT = Measurement(
    (*_UNIFORM, "--workers", "8", "--servers", "0,1,2,4,8", "--no-idle-restart"),
    "--csv",
    "emulate-uniform/*-n8.csv",
)
_TENANTS = ("bench", "tenants", "--greedy", "--seconds", "4", "--rounds", "4")

CASES = (
    Case(
        "byteps-fig12-emulated",
        BYTEPS,
        "Fig. 12",
        "rounds by k are near the optimum, by real processes",
        How.EMULATED,
        measurements=(_EIGHT,),
        judge=fig12,
        needs="root",
    ),
    Case(
        "byteps-section8-emulated",
        BYTEPS,
        "section 8",
        "why BytePS is faster than all-reduce without CPU machines, by real processes",
        How.EMULATED,
        measurements=(Measurement(("bench", "stragglers"), "-o", "stragglers/*.json"),),
        judge=stragglers,
        needs="root",
    ),
    Case(
        "phub-fig18",
        PHUB,
        "Fig. 18",
        "tenants of one server lose little",
        How.EMULATED,
        measurements=(
            Measurement(
                (*_TENANTS, "--bandwidth-mbps", "100", "--bytes", "64KiB"),
                "-o",
                "tenants/*-shaped.json",
            ),
            Measurement(_TENANTS, "-o", "tenants/*-loopback.json"),
        ),
        judge=tenants,
        needs="root",
    ),
    Case(
        "netai-utilization",
        NETAI,
        "link use, Figs. 1 to 5",
        "peers use a third of a fast network",
        How.EMULATED,
        measurements=(
            Measurement(
                (*_UNIFORM, "--workers", "2,4", "--servers", "0,1,2,4,8"),
                "--csv",
                "emulate-uniform/*-n2-n4.csv",
            ),
            _EIGHT,
        ),
        judge=utilization,
        needs="root",
    ),
    Case(
        "bytescheduler-order-emulated",
        SCHEDULING,
        "priority and credit",
        "the order of layers and a credit make training faster, by real processes",
        How.EMULATED,
        measurements=(_replay("resnet50", 8), _replay("vgg16", 43), _replay("gpt2", 39)),
        judge=replayed,
        needs="root",
    ),
    Case(
        "autobyte-fig7",
        SCHEDULING,
        "Fig. 7",
        "AutoByte adapts to a second job",
        How.EMULATED,
        measurements=(
            Measurement(
                (
                    *("bench", "tune", "--profile", "resnet50", "-n", "4", "-s", "2"),
                    *("--ratio", "1", "--bandwidth-mbps", "400", "--scale", "8"),
                    *("--tuner", "fixed,bayes,autobyte", "--iterations", "160"),
                    *("--second-job", "50:110"),
                ),
                "-o",
                "tune/*-second.json",
            ),
        ),
        judge=second_job,
        needs="root",
    ),
)
