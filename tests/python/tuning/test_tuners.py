"""Tuners on simulated surfaces: how near they come to the grid's best, and how soon."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sumpter import ConfigError, _native
from sumpter.tuning.autobyte import AutoByte
from sumpter.tuning.network import FILE, MetaNetwork
from sumpter.tuning.points import (
    BUCKETS,
    GRID,
    KIB,
    MIB,
    Job,
    Point,
    Tuner,
    acts_as,
    embedded,
    point,
)
from sumpter.tuning.search import Bayes, Fixed, Grid
from sumpter.tuning.tuners import TUNERS, make
from sumpter_lab.autobyte.surface import Network, iteration_s

START = point(32 * KIB, 2 * MIB)


def layers(seed: int, mebibytes: float = 60.0) -> np.ndarray:
    """Random layers of 0.1 s of compute."""
    rows = np.random.default_rng(seed).lognormal(0, 0.8, (BUCKETS, 3))
    rows[:, :2] *= 0.1 / rows[:, :2].sum()
    rows[:, 2] *= mebibytes * MIB / rows[:, 2].sum()
    return rows


def job(seed: int, gbps: float = 10.0) -> Job:
    return Job(4, 2, gbps, gbps, True, layers(seed))


NETWORK = Network(partition_s=50e-6, answer_s=1e-3)


def speed(job: Job, at: Point) -> float:
    return 1 / iteration_s(job, at, NETWORK)


def best(job: Job) -> float:
    return max(speed(job, at) for at in GRID)


def run(tuner: Tuner, job: Job, groups: int, at: Point = START) -> tuple[Point, list[str]]:
    """Where a tuner is after so many groups, and what it said."""
    said = []
    for _ in range(groups):
        choice = tuner.observe(at, speed(job, at), job)
        said += [choice.why] if choice.why else []
        assert choice.point.chunk <= choice.point.partition <= choice.point.credit
        at = choice.point
    return at, said


def test_the_surface_trades_overhead_for_overtaking() -> None:
    slow, fast = job(1, 3.0), job(1, 30.0)
    # A slow link waits for nothing but bytes; each partition costs the same time anywhere.
    assert iteration_s(slow, GRID[0], NETWORK) > iteration_s(slow, GRID[-1], NETWORK)
    free = replace(NETWORK, partition_s=0.0, answer_s=1e-9)
    fine, coarse = (iteration_s(slow, at, free) for at in (GRID[0], GRID[-1]))
    assert fine <= coarse
    # No more than compute where links are endless; never less than either bound.
    assert iteration_s(replace(fast, up_gbps=1e6, down_gbps=1e6), GRID[-1], free) == pytest.approx(
        fast.compute_s, rel=0.01
    )
    for at in GRID:
        bound = 60 * MIB * 2 * 12 / (16 + 8 - 4) / (3e9 / 8)
        assert iteration_s(slow, at, NETWORK) >= max(slow.compute_s, bound) * 0.999


def test_any_number_of_layers_is_embedded_with_equal_sums() -> None:
    for count in (1, 3, BUCKETS, 53):
        rows = np.random.default_rng(count).random((count, 3))
        assert embedded(rows).shape == (BUCKETS, 3)
        np.testing.assert_allclose(embedded(rows).sum(0), rows.sum(0))


def test_a_point_has_sizes_that_people_can_read() -> None:
    odd = point(1_800_000, 2_521_000)
    assert str(odd) == "partition 1756KiB, credit 2460KiB"
    assert point(1, 0) == Point(4096, 4096, 4096)


def test_the_grid_has_no_point_that_acts_as_another_one() -> None:
    assert len(set(GRID)) == len(GRID)
    acts = {(_native.cut_bytes(at.partition, at.credit), at.credit) for at in GRID}
    assert len(acts) == len(GRID)
    # Tensors of many MiB tell all of them apart, those of a few only what is under 32 KiB.
    for size, partitions in ((2048 * MIB, 4), (16 * MIB, 2)):
        cut = {_native.cut_bytes(at.partition, at.credit, size, 6) for at in GRID}
        assert len(cut) == partitions, (size, cut)


def test_fixed_changes_nothing() -> None:
    assert run(Fixed(), job(1), 5) == (START, [])


def test_the_grid_finds_its_best_and_says_what_it_gave() -> None:
    one = job(2)
    at, said = run(Grid(), one, len(GRID) + 2)
    assert speed(one, at) >= best(one) * 0.99
    assert len(said) >= len(GRID) - 1 and said[-1].startswith("keeps partition"), said


def test_the_grid_measures_nothing_twice() -> None:
    # A plan makes of the defaults what one of the grid's points is.
    default = point(256 * KIB, 256 * KIB)
    assert default not in GRID and acts_as(default) in GRID
    for tuner in (Grid(), Bayes()):
        _, said = run(tuner, job(2), len(GRID) + 1, default)
        assert not any(f"tries {acts_as(default)} " in line for line in said), said
        if tuner.name == "grid":
            assert f"the fastest of {len(GRID)}" in said[-1], said


def test_a_search_that_finds_nothing_better_goes_back() -> None:
    tuner, at = Grid(), START
    for _ in range(len(GRID) + 1):
        # All others are slower.
        at = tuner.observe(at, 10.0 if at == START else 9.0, job(1)).point
    assert at == START


@pytest.mark.parametrize("seed", range(4))
def test_bayes_comes_within_2_percent_of_the_grid(seed: int) -> None:
    pytest.importorskip("bayes_opt", reason="needs bayesian-optimization")
    one = job(seed)
    at, said = run(Bayes(), one, Bayes.trials + 2)
    assert speed(one, at) >= 0.98 * best(one), said


@pytest.mark.parametrize("name", ["bayes", "grid"])
def test_a_search_begins_anew_when_the_bandwidth_changes(name: str) -> None:
    if name == "bayes":
        pytest.importorskip("bayes_opt", reason="needs bayesian-optimization")
    tuner, before, after = make(name), job(3, 20.0), job(3, 3.0)
    groups = len(GRID) + 2
    at, _ = run(tuner, before, groups)
    # Noise is no change.
    for factor in (0.97, 1.03, 0.9, 1.0):
        assert tuner.observe(at, factor * speed(before, at), before).point == at
    at, said = run(tuner, after, groups + 2, at)
    assert any("anew" in words for words in said), said
    assert speed(after, at) >= 0.98 * best(after)


def test_autobyte_is_near_the_grids_best_in_few_groups_and_follows_the_bandwidth() -> None:
    parts = []
    for seed in range(8):
        # The worst that one may begin with.
        tuner, at = AutoByte(), GRID[0]
        for gbps in (10.0, 3.0, 25.0):
            one = job(seed, gbps)
            at, _ = run(tuner, one, 4, at)
            parts.append(speed(one, at) / best(one))
    assert statistics.median(parts) >= 0.98, sorted(parts)
    assert min(parts) >= 0.9, sorted(parts)


def test_autobyte_learns_what_it_was_not_told() -> None:
    """Its job says 10 Gb/s and even layers, where the truth is neither."""
    parts = []
    for seed in range(6):
        truth, told = job(seed, 5.0), Job(4, 2, overlaps=True)
        tuner, at, start = AutoByte(), START, speed(job(seed, 5.0), START)
        for _ in range(15):
            at = tuner.observe(at, speed(truth, at), told).point
        parts.append(speed(truth, at) / best(truth))
        assert speed(truth, at) >= 0.98 * start, "slower than it began"
    assert statistics.median(parts) >= 0.95, sorted(parts)


def test_adapting_makes_a_wrong_prediction_nearly_right() -> None:
    network, one = MetaNetwork(), job(5)
    seen = [(one, at, 2.0 * speed(one, at)) for at in GRID[::5]]

    def errors() -> list[float]:
        return [abs(network.speeds(one, [at])[0] / measured - 1) for _, at, measured in seen]

    before = errors()
    network.adapt(seen)
    assert max(errors()) < 0.4 * max(before), (before, errors())
    assert statistics.median(errors()) < 0.1


def test_bandwidth_that_limits_nothing_is_not_faster_than_the_compute() -> None:
    network, at = MetaNetwork(), point(256 * KIB, 256 * KIB)
    for seed in range(5):
        predicted = [network.speeds(job(seed, gbps), [at])[0] for gbps in (1e3, 1e4, 1e6)]
        assert len(set(predicted)) == 1
        assert predicted[0] < 1.1 / job(seed).compute_s


def test_a_prediction_costs_little() -> None:
    tuner = AutoByte()
    run(tuner, job(1), 3)
    took = []
    for _ in range(20):
        began = time.process_time()
        tuner.observe(START, 9.0, job(1))
        took.append(time.process_time() - began)
    # Of a group of ten iterations of 0.1 s, far less than 1 %, on any machine.
    assert statistics.median(took) < 0.01


def test_a_file_of_another_version_is_named(tmp_path: Path) -> None:
    with np.load(FILE) as file:
        weights = {name: file[name] for name in file.files}
    other = tmp_path / "other.npz"
    np.savez(other, **weights | {"version": np.array(99)})
    with pytest.raises(ConfigError, match="is of version 99, this is version 2"):
        MetaNetwork(other)
    for broken in (b"no network", b"", b"PK\x03\x04 cut short"):
        other.write_bytes(broken)
        with pytest.raises(ConfigError, match="cannot read"):
            MetaNetwork(other)
    for changes, complaint in (
        ({"format": np.array("other")}, "is no file of a tuner"),
        ({"version": np.array("new")}, "is of version new"),
        ({"last.weight": np.zeros((1, 3))}, r"has no last.weight of shape \(1, 32\)"),
    ):
        np.savez(other, **weights | changes)
        with pytest.raises(ConfigError, match=complaint):
            MetaNetwork(other)
    del weights["lstm.bias_l1"]
    np.savez(other, **weights)
    with pytest.raises(ConfigError, match=r"has no lstm.bias_l1 of shape \(96,\)"):
        MetaNetwork(other)


def test_tuners_are_those_of_the_setting() -> None:
    from sumpter import _native

    (row,) = (row for row in _native.settings() if row["name"] == "tuner")
    assert row["range"].replace(" or ", ", ").split(", ") == list(TUNERS)
    with pytest.raises(ConfigError, match="no tuner 'magic': give fixed, grid"):
        make("magic")
