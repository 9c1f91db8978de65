"""NetAI'20's what-if analysis: Figs. 6 to 8, from the logs that its authors published.

The logs are in a clone of the repository, `tests/data/netai`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sumpter._failure import Failure
from sumpter.profiles import Profile
from sumpter_lab import profiles
from sumpter_lab.reproduce.case import (
    NETAI,
    NOT_AT_HAND,
    Asked,
    Case,
    Found,
    How,
    Line,
    Plot,
    judged,
)
from sumpter_lab.scaffold.results.table import Row
from sumpter_lab.whatif import Case as Cluster
from sumpter_lab.whatif import simulate

_LOGS = Path(__file__).resolve().parents[4] / "tests" / "data" / "netai"
_BATCH_S = 0.12808580219559176  # 32 images of ResNet-50 on one V100
_WORKERS = (16, 32, 64)
# What the scripts of the paper give for ResNet-50, by Gb/s, for _WORKERS.
_BY_BANDWIDTH = {
    1.0: (0.0798, 0.0773, 0.0760),
    10.0: (0.5718, 0.5545, 0.5397),
    25.0: (0.9702, 0.9423, 0.9103),
    40.0: (0.9983, 0.9971, 0.9943),
    100.0: (0.9987, 0.9975, 0.9946),
}
# By compression, for 64 workers at 10 Gb/s.
_BY_COMPRESSION = {1.0: 0.5397, 2.0: 0.8169, 5.0: 0.9944, 10.0: 0.9946, 50.0: 0.9948, 100.0: 0.9948}
_ALMOST_LINEAR = 0.99
_ROUNDED = 2e-4  # of the difference of two figures with four decimals
_DECLARED = (
    "Additions take the time that the authors logged on a V100; links are used in full, and "
    "there is no latency.",
)


def resnet50() -> Profile:
    """The published profile. Raises Failure outside of a clone of the repository."""
    log, additions = _LOGS / "resnet50.bk.log", _LOGS / "cuda_vec_add.log"
    if not (log.is_file() and additions.is_file()):
        raise Failure(
            "this case needs the logs of NetAI'20, which are in the repository: run it in a clone "
            "(tests/data/netai)"
        )
    loaded = profiles.load(log, "netai", iteration_s=_BATCH_S)
    return replace(loaded, add=profiles.additions(additions))


def _factors(profile: Profile, cases: Sequence[Cluster]) -> list[float]:
    return [one.scaling_factor for one in simulate(profile, cases, bottleneck=False)]


def _table() -> list[Row]:
    profile = resnet50()
    cells = [(n, gbps) for gbps in _BY_BANDWIDTH for n in _WORKERS]
    found = _factors(profile, [Cluster(n, bandwidth_gbps=gbps) for n, gbps in cells])
    return [
        {
            "workers": n,
            "bandwidth_gbps": gbps,
            "paper": _BY_BANDWIDTH[gbps][_WORKERS.index(n)],
            "scaling_factor": factor,
        }
        for (n, gbps), factor in zip(cells, found, strict=True)
    ]


def _equal(rows: Sequence[Row]) -> int:
    return sum(f"{row['scaling_factor']:.4f}" == f"{row['paper']:.4f}" for row in rows)


def _lines(rows: Sequence[Row], by: str, of: str, words: str) -> list[Line]:
    lines = []
    for value in dict.fromkeys(row[of] for row in rows):
        mine = sorted((row for row in rows if row[of] == value), key=lambda row: row[by])
        x = [row[by] for row in mine]
        label = words.format(value)
        lines.append(Line(label, x, [row["scaling_factor"] for row in mine]))
        lines.append(Line(f"{label}, the paper's", x, [row["paper"] for row in mine], True))
    return lines


def fig6(asked: Asked) -> Found:
    """The scaling factor by bandwidth, if the network is used in full."""
    rows = _table()
    (fast,) = (
        row["scaling_factor"]
        for row in rows
        if (row["workers"], row["bandwidth_gbps"]) == (64, 100.0)
    )
    others = {
        name: _factors(profiles.published(name), [Cluster(64, bandwidth_gbps=100.0)])[0]
        for name in ("resnet101", "vgg16")
    }
    return Found(
        setup="ResNet-50 on V100s by the authors' logs, all-reduce of fusion buffers (64 MiB or "
        "5 ms), 16, 32 and 64 workers, 1 to 100 Gb/s; ResNet-101 and VGG-16 with times in "
        "proportion to arithmetic, 64 workers at 100 Gb/s",
        claims=[
            judged(
                "the scaling factors of its simulation",
                f"{len(rows)} figures",
                f"{_equal(rows)} of {len(rows)} are equal to four decimals",
                _equal(rows) == len(rows),
            ),
            judged(
                "at 100 Gb/s, used in full, the network is no bottleneck",
                "0.9946 with 64 workers",
                f"{fast:.4f}",
                fast >= _ALMOST_LINEAR,
            ),
            judged(
                "nor for ResNet-101 and VGG-16",
                f"none ({NOT_AT_HAND})",
                " and ".join(f"{factor:.4f}" for factor in others.values()),
                min(others.values()) >= _ALMOST_LINEAR,
            ),
        ],
        declared=_DECLARED,
        plots=(
            Plot(
                "Fig. 6: ResNet-50 by bandwidth",
                "bandwidth (Gb/s)",
                "scaling factor",
                _lines(rows, "bandwidth_gbps", "workers", "{} workers"),
                log_x=True,
            ),
        ),
        rows=rows,
    )


def fig7(asked: Asked) -> Found:
    """The scaling factor by workers."""
    rows = _table()
    losses = [_factor(rows, 16, gbps) - _factor(rows, 64, gbps) for gbps in (10.0, 100.0)]
    printed = [_BY_BANDWIDTH[gbps][0] - _BY_BANDWIDTH[gbps][-1] for gbps in (10.0, 100.0)]
    return Found(
        setup="as netai-fig6, by the number of workers",
        claims=[
            judged(
                "64 workers scale worse than 16 by, at 10 and 100 Gb/s",
                f"{printed[0]:.4f} and {printed[1]:.4f}",
                f"{losses[0]:.4f} and {losses[1]:.4f}",
                all(
                    abs(loss - other) < _ROUNDED
                    for loss, other in zip(losses, printed, strict=True)
                ),
            )
        ],
        declared=_DECLARED,
        plots=(
            Plot(
                "Fig. 7: ResNet-50 by workers",
                "workers",
                "scaling factor",
                _lines(rows, "workers", "bandwidth_gbps", "{:g} Gb/s"),
                log_x=True,
            ),
        ),
        rows=rows,
    )


def _factor(rows: Sequence[Row], workers: int, gbps: float) -> float:
    return next(
        row["scaling_factor"]
        for row in rows
        if (row["workers"], row["bandwidth_gbps"]) == (workers, gbps)
    )


def fig8(asked: Asked) -> Found:
    """The scaling factor by compression at 10 Gb/s."""
    ratios = list(_BY_COMPRESSION)
    cases = [Cluster(64, bandwidth_gbps=10.0, compression=ratio) for ratio in ratios]
    models = {"resnet50": resnet50(), "vgg16": profiles.published("vgg16")}
    rows = [
        {
            "model": name,
            "compression": ratio,
            "scaling_factor": factor,
            "paper": _BY_COMPRESSION[ratio] if name == "resnet50" else None,
        }
        for name, profile in models.items()
        for ratio, factor in zip(ratios, _factors(profile, cases), strict=True)
    ]
    by = {(row["model"], row["compression"]): row["scaling_factor"] for row in rows}
    logged = [row for row in rows if row["paper"] is not None]
    return Found(
        setup="64 workers at 10 Gb/s, ratios of 1 to 100 that divide the bytes and take no time; "
        "ResNet-50 by the authors' logs, VGG-16 with times in proportion to arithmetic",
        claims=[
            judged(
                "the scaling factors of its simulation, ResNet-50",
                f"{len(logged)} figures",
                f"{_equal(logged)} of {len(logged)} are equal to four decimals",
                _equal(logged) == len(logged),
            ),
            judged(
                "2 to 5 times is enough for most models",
                "2 to 5",
                f"ResNet-50 {by['resnet50', 2.0]:.3f} at 2, {by['resnet50', 5.0]:.3f} at 5; "
                f"VGG-16 {by['vgg16', 5.0]:.3f} at 5",
                min(by["resnet50", 5.0], by["vgg16", 5.0]) >= _ALMOST_LINEAR,
            ),
            judged(
                "10 times is enough for VGG-16",
                "10",
                f"{by['vgg16', 10.0]:.4f}",
                by["vgg16", 10.0] >= _ALMOST_LINEAR,
            ),
        ],
        declared=(*_DECLARED, "VGG-16's times are not measured: they follow its arithmetic."),
        plots=(
            Plot(
                "Fig. 8: by compression, 64 workers at 10 Gb/s",
                "compression",
                "scaling factor",
                [Line(name, ratios, [by[name, ratio] for ratio in ratios]) for name in models]
                + [Line("ResNet-50, the paper's", ratios, list(_BY_COMPRESSION.values()), True)],
                log_x=True,
            ),
        ),
        rows=rows,
    )


CASES = (
    Case(
        "netai-fig6",
        NETAI,
        "Fig. 6",
        "with a network that is used in full, training scales almost linearly at 100 Gb/s",
        How.VIRTUAL_TIME,
        fig6,
        needs="a clone of the repository",
    ),
    Case(
        "netai-fig7",
        NETAI,
        "Fig. 7",
        "the same by the number of workers",
        How.VIRTUAL_TIME,
        fig7,
        needs="a clone of the repository",
    ),
    Case(
        "netai-fig8",
        NETAI,
        "Fig. 8",
        "at 10 Gb/s little compression is enough",
        How.VIRTUAL_TIME,
        fig8,
        needs="a clone of the repository",
    ),
)
