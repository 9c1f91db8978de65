"""BytePS by formulas and the planner: Table 1, Theorem 1, section 4.2.1, Fig. 4."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

from sumpter_lab.reproduce.case import (
    BYTEPS,
    NOT_AT_HAND,
    Asked,
    Case,
    Found,
    How,
    Line,
    Plot,
    judged,
)
from sumpter_lab.reproduce.plan import GIB, listed, plan, transfer_s
from sumpter_lab.scaffold.results.table import Row

_GBPS = 100.0
_SAME = 1e-9  # relative, of what is equal but for rounding
# Copies inside a switch, and what GPUs reached across sockets, in Gb/s: 13.1 GB/s, and 80.
_PCIE_GBPS, _ACROSS_GBPS = 8 * 13.1, 80.0
_PRINTED_S = (0.129, 0.141)  # at x = 1/5 and at x = 0
_PRINTED_RATIO, _PRINTED_SAVING = 1.094, 0.237
_GPUS = 4  # below a switch


def _clusters(most: int) -> Iterator[tuple[int, int]]:
    return ((n, k) for n in range(2, most + 1) for k in range(n + 1))


def _busiest(gpu: Sequence[float], cpu: Sequence[float]) -> float:
    """What the busiest link carries each way, as a fraction of the model, where each machine sums
    its share: a GPU machine sends its gradient but for its own share, and the sums of that to all
    others; a CPU machine sends its sums to all."""
    n = len(gpu)
    return max([1 - x + (n - 1) * x for x in gpu] + [n * y for y in cpu])


def _some_split(draw: random.Random, shares: Sequence[float]) -> list[float]:
    """Shares near the given ones or far from them, in equal numbers."""
    spread = 1.0 if draw.random() < 0.5 else 0.05
    drawn = [draw.expovariate(1.0) for _ in shares]
    total = sum(drawn)
    return [
        (1 - spread) * share + spread * one / total
        for share, one in zip(shares, drawn, strict=True)
    ]


def theorem1(asked: Asked) -> Found:
    """The planner beside Table 1, and no split of the sums beats it."""
    most, splits = (8, 100) if asked.quick else (16, 1000)
    draw, rows = random.Random(1), []
    unit_s = transfer_s(GIB, _GBPS)
    for n, k in _clusters(most):
        report = plan(workers=n, servers=k, bytes=GIB, bandwidth_gbps=_GBPS)
        filled = plan(bytes=GIB, machines=listed(n, k, _GBPS))
        shares = [report["share_gpu"]] * n + [report["share_cpu"]] * k
        tried = [_some_split(draw, shares) for _ in range(splits)]
        rows.append(
            {
                "workers": n,
                "servers": k,
                "optimum": report["time_s"] / unit_s,
                "water_filling": filled["time_s"] / unit_s,
                "busiest_link": _busiest(shares[:n], shares[n:]),
                "colocated": _busiest([1 / n] * n, [0.0] * k),
                "allreduce": report["allreduce_time_s"] / unit_s,
                "ps": report["ps_time_s"] / unit_s if k else None,
                "best_of_random": min(_busiest(one[:n], one[n:]) for one in tried),
            }
        )
    count = len(rows)
    return Found(
        setup=f"all {count} clusters of n = 2 to {most} GPU machines and k = 0 to n CPU machines; "
        f"{splits} other splits of the sums for each, drawn at random, far from the plan and "
        "near it",
        claims=_claims_of_theorem1(rows, count * splits),
        declared=(
            "Equation 4 is printed without a factor n, with which both kinds of link carry the "
            "same; all figures here have it.",
        ),
        plots=(_time_by_servers(most, [row for row in rows if row["workers"] == most]),),
        rows=rows,
    )


def _agreement(found: Sequence[bool]) -> str:
    return f"the same in {sum(found)} of {len(found)} clusters"


def _claims_of_theorem1(rows: Sequence[Row], splits: int) -> list:
    def same(one: str, other) -> list[bool]:
        return [_close(row[one], other(row["workers"], row["servers"])) for row in rows]

    ring = same("allreduce", lambda n, k: 2 * (n - 1) / n)
    colocated = same("colocated", lambda n, k: 2 * (n - 1) / n)
    apart = [
        _close(row["ps"], max(1, row["workers"] / row["servers"])) for row in rows if row["servers"]
    ]
    theorem = same("optimum", lambda n, k: 2 * n * (n - 1) / _d(n, k))
    best = min(row["best_of_random"] / row["optimum"] for row in rows)
    agree = all(
        _close(row["optimum"], row[other])
        for row in rows
        for other in ("water_filling", "busiest_link")
    )
    return [
        judged(
            "all-reduce takes 2(n-1)M/(nB)",
            "Table 1",
            _agreement(ring),
            all(ring),
        ),
        judged(
            "a colocated PS takes 2(n-1)M/(nB)",
            "Table 1",
            _agreement(colocated),
            all(colocated),
        ),
        judged(
            "a non-colocated PS takes max(M/B, nM/(kB))",
            "Table 1",
            f"{_agreement(apart)} with k > 0",
            all(apart),
        ),
        judged(
            "shares of Theorem 1 take 2n(n-1)M/((n^2+kn-2k)B)",
            "Theorem 1",
            f"{_agreement(theorem)}, by water-filling {'too' if agree else 'not'}",
            agree and all(theorem),
        ),
        judged(
            "no other split takes less",
            "Theorem 1",
            f"none of {splits:,} did; the best took {best:.4f} of the time",
            best >= 1 - _SAME,
        ),
    ]


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_SAME)


def _d(n: int, k: int) -> int:
    return n * n + k * n - 2 * k


def _time_by_servers(n: int, rows: Sequence[Row]) -> Plot:
    servers = [row["servers"] for row in rows]
    lines = [
        Line("optimum", servers, [row["optimum"] for row in rows]),
        Line("all-reduce, colocated PS", servers, [row["allreduce"] for row in rows]),
        Line("non-colocated PS", servers[1:], [row["ps"] for row in rows[1:]]),
    ]
    return Plot(f"Table 1, n = {n}", "CPU machines (k)", "time of a round in M/B", lines)


def section421(asked: Asked) -> Found:
    """CPU-assisted aggregation inside a machine without NVLink."""
    steps = 1000
    rows = [
        {
            "x": at / steps,
            "switch_to_cpu": _GPUS * at / steps + 1 - at / steps,
            "gpu_to_switch": (2 * _GPUS - 1) / _GPUS * (1 - at / steps) + at / steps,
        }
        for at in range(steps + 1)
    ]
    time = [max(row["switch_to_cpu"], row["gpu_to_switch"]) for row in rows]
    best = rows[time.index(min(time))]["x"]
    report = plan(bytes=GIB, machines=_machine_of_one_switch())["inside"][0]["report"]
    ratio, whole = time[0] / min(time), time[-1] / min(time)
    planned = report["without_local_step_s"] / report["time_s"]
    assisted = transfer_s(GIB, _PCIE_GBPS) * time[0]
    ring = transfer_s(GIB, _ACROSS_GBPS) * 2 * (2 * _GPUS - 1) / (2 * _GPUS)
    saving = 1 - assisted / ring
    printed = _PRINTED_S[1] / _PRINTED_S[0]
    implied = _PRINTED_S[0] * 13.1 / min(time)
    drawn = rows[:: steps // 20]
    return Found(
        setup=f"{_GPUS} GPUs below a PCIe switch, links of 13.1 GB/s; the fraction x of the model "
        "is copied to the CPU from each GPU as it is; for J_ar and J_ca two such switches",
        claims=[
            judged(
                "the best x is 1/5",
                "1/5",
                f"{best:g} by equations (8) and (9), {report['direct']:g} by the planner",
                abs(best - 0.2) <= 1 / steps and abs(report["direct"] - 0.2) < 1e-6,
            ),
            judged(
                "x = 0 takes longer, by",
                f"{_PRINTED_RATIO} ({_PRINTED_S[1]} s over {_PRINTED_S[0]} s)",
                f"{ratio:.3f}",
                abs(ratio - _PRINTED_RATIO) < 1e-3 and abs(ratio - printed) < 2e-3,
            ),
            judged(
                "J_ca is below J_ar by",
                f"{_PRINTED_SAVING:.1%}",
                f"{saving:.1%}",
                abs(saving - _PRINTED_SAVING) < 1e-3,
            ),
        ],
        declared=(
            f"The seconds that the paper prints follow from 13.1 GB/s for a model of {implied:.2f} "
            "GB only; their ratio does not depend on it.",
            f"x = 1, no local step, takes {whole:.2f} times as long as the best x by the "
            f"equations, {planned:.2f} times by the planner.",
        ),
        plots=(
            Plot(
                "Section 4.2.1: the fraction that is copied as it is",
                "x",
                "time of a reduction in M/B",
                [
                    Line(words, [row["x"] for row in drawn], [row[name] for row in drawn])
                    for words, name in (
                        ("switch to CPU, (8)", "switch_to_cpu"),
                        ("GPU to switch, (9)", "gpu_to_switch"),
                    )
                ],
            ),
        ),
        rows=drawn,
    )


def _machine_of_one_switch() -> str:
    return "\n".join(
        [
            "[[machine]]",
            'role = "gpu"',
            'nics = [{ name = "nic", gbps = 100, device = "cpu" }]',
            "devices = [",
            '{ name = "cpu", kind = "cpu" },',
            f'{{ name = "switch", kind = "switch", parent = "cpu", gbps = {_PCIE_GBPS} }},',
            f'{{ name = "gpu", kind = "gpu", parent = "switch", gbps = {_PCIE_GBPS}, '
            f"count = {_GPUS} }},",
            "]",
            "",
        ]
    )


def fig4(asked: Asked) -> Found:
    """The gains over all-reduce and over a parameter server by the number of CPU machines."""
    counts = (8, 32) if asked.quick else (8, 16, 32, 64)
    rows = []
    for n in counts:
        for k in range(n + 1):
            report = plan(bytes=GIB, machines=listed(n, k, _GBPS))
            rows.append(
                {
                    "workers": n,
                    "servers": k,
                    "gain_over_allreduce": report["gain_over_allreduce"],
                    "gain_over_ps": report["gain_over_ps"] if k else None,
                }
            )
    helped = [row for row in rows if row["servers"]]
    rises, falls, ends = [], [], []
    for n in counts:
        of_n = [row for row in rows if row["workers"] == n]
        over = [row["gain_over_allreduce"] for row in of_n]
        over_ps = [row["gain_over_ps"] for row in of_n[1:]]
        rises.append(all(one < next_one for one, next_one in zip(over, over[1:], strict=False)))
        falls.append(
            all(one > next_one for one, next_one in zip(over_ps, over_ps[1:], strict=False))
        )
        ends.append((n, over[-1], over_ps[-1]))
    formula = [
        abs(row["gain_over_allreduce"] - _d(n, k) / n**2) < 1e-6
        and abs(row["gain_over_ps"] - _d(n, k) / (2 * k * (n - 1))) < 1e-6
        for row in helped
        for n, k in [(row["workers"], row["servers"])]
    ]
    last = counts[-1]
    return Found(
        setup=f"the planner's water-filling for n = {', '.join(map(str, counts))} and every k",
        claims=[
            judged(
                "gains are (n^2+kn-2k)/n^2 over all-reduce, (n^2+kn-2k)/(2k(n-1)) over a PS",
                "the formulas",
                _agreement(formula),
                all(formula),
            ),
            judged(
                "the gain over all-reduce grows with every CPU machine, up to 2(n-1)/n",
                f"{2 * (last - 1) / last:.3f} at n = k = {last}",
                f"{ends[-1][1]:.3f}",
                all(rises) and all(abs(gain - 2 * (n - 1) / n) < 1e-6 for n, gain, _ in ends),
            ),
            judged(
                "the gain over a PS falls with every CPU machine, down to 1",
                f"1 at n = k = {last}",
                f"{ends[-1][2]:.3f}",
                all(falls) and all(abs(gain - 1) < 1e-6 for *_, gain in ends),
            ),
        ],
        declared=(f"Only the formulas are compared: of the curves {NOT_AT_HAND}.",),
        plots=[
            Plot(
                f"Fig. 4: gain over {words}",
                "k / n",
                "times as fast",
                [
                    Line(
                        f"n = {n}",
                        [row["servers"] / n for row in helped if row["workers"] == n],
                        [row[name] for row in helped if row["workers"] == n],
                    )
                    for n in counts
                ],
            )
            for words, name in (
                ("all-reduce", "gain_over_allreduce"),
                ("a parameter server", "gain_over_ps"),
            )
        ],
        rows=rows,
    )


CASES = (
    Case(
        "byteps-theorem1",
        BYTEPS,
        "Table 1, Theorem 1",
        "one split of the sums is optimal for every number of CPU machines",
        How.MODEL,
        theorem1,
    ),
    Case(
        "byteps-section421",
        BYTEPS,
        "section 4.2.1",
        "inside a machine without NVLink, 1/5 of the model is best copied as it is",
        How.MODEL,
        section421,
    ),
    Case(
        "byteps-fig4",
        BYTEPS,
        "Fig. 4",
        "the gains over all-reduce and a parameter server by k",
        How.MODEL,
        fig4,
    ),
)
