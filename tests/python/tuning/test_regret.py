"""Regret of tuners: what they lose against the best sizes, in virtual time."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from sumpter.cli import main
from sumpter.tuning import tuners
from sumpter.tuning.driver import Driver, bandwidths_gbps
from sumpter.tuning.network import layer_features, numbers
from sumpter.tuning.points import Choice
from sumpter_lab import profiles
from sumpter_lab.autobyte import train
from sumpter_lab.regret import Cell, Surface, play
from sumpter_lab.regret.run import Spec, cells, run

CELL = Cell("alexnet", 4, 2, 10.0, overlaps=False)


@pytest.fixture(scope="module")
def surface() -> Surface:
    return Surface(CELL)


class Oracle:
    """Goes to the best sizes at once."""

    name = "oracle"

    def __init__(self, surface: Surface) -> None:
        self._surface = surface

    def observe(self, at, speed, job) -> Choice:
        return Choice(self._surface.best(job.up_gbps))


def test_no_sizes_are_faster_than_the_best(surface: Surface) -> None:
    best = surface.seconds(surface.best())
    played = [play(name, surface, 240) for name in ("fixed", "grid", "autobyte")]
    assert all(one.best_s == best for one in played)
    assert all(one.settled_regret >= 0 and one.regret >= 0 for one in played)
    assert surface.seconds(CELL.start) >= best


def test_a_job_begins_with_the_defaults_of_its_links() -> None:
    credits = {rate: Cell("alexnet", 4, 2, rate, False).start.credit for rate in (1.0, 100.0)}
    assert credits == {1.0: 128 << 10, 100.0: 1 << 20}


def test_fixed_stays_at_the_default_and_loses_its_distance(surface: Surface) -> None:
    found = play("fixed", surface, 100)
    assert found.changes == 0 and found.settled == CELL.start
    lost = surface.seconds(CELL.start) / surface.seconds(surface.best()) - 1
    assert found.regret == pytest.approx(lost)
    assert found.settled_regret == pytest.approx(lost)


def test_a_search_pays_for_what_it_tries(surface: Surface) -> None:
    short, long = play("grid", surface, 240), play("grid", surface, 2400)
    assert short.changes >= 18
    assert short.regret > long.regret > long.settled_regret
    free = play("grid", surface, 240, change_s=0.0)
    assert free.regret < short.regret


def test_a_tuner_that_knows_the_best_has_no_regret(
    surface: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tuners.TUNERS, "fixed", lambda: Oracle(surface))
    found = play("fixed", surface, 1200, change_s=0.0)
    assert found.settled_regret == 0
    # Only the first group was at the default.
    lost = surface.seconds(CELL.start) / surface.seconds(surface.best()) - 1
    assert found.regret == pytest.approx(lost / 100)


def test_the_best_follows_a_bandwidth_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("alexnet", 4, 2, 3.0, overlaps=True, switched_gbps=10.0)
    surface = Surface(cell)
    monkeypatch.setitem(tuners.TUNERS, "fixed", lambda: Oracle(surface))
    found = play("fixed", surface, 96, every=24, change_s=0.0)
    assert found.best_s == surface.seconds(surface.best(10.0), 10.0)
    assert found.best_s < surface.seconds(surface.best(3.0), 3.0)


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("profiled", [False, True])
def test_a_running_job_has_the_features_of_the_evaluation(overlaps: bool, profiled: bool) -> None:
    surface = Surface(Cell("resnet50", 4, 2, 10.0, overlaps))
    profile = surface.profile if profiled else None
    job = Driver(SimpleNamespace(worker=None, profile=profile))  # type: ignore[arg-type]
    plan = {"machines": {"gpu": 4, "cpu": 2}, "architecture": "sumpter"}
    # A send queue that was never empty, and drained at 10 Gb/s.
    sent = 1.25e9
    moved = {
        "busy_s": 1.0,
        "wait_send_s": 1.0,
        "bytes_sent_away": sent,
        "drained_bytes": sent,
        "bytes_received_away": sent,
    }
    tensors = surface.tensors if overlaps else surface.tensors[::-1]
    gbps = bandwidths_gbps({}, {("a", 0): moved})
    served = job._job(plan, 5.0, gbps, tensors)
    evaluated = surface.job(10.0, 5.0, profiled)
    at = surface.cell.start
    np.testing.assert_allclose(layer_features(served), layer_features(evaluated))
    np.testing.assert_allclose(numbers(served, at), numbers(evaluated, at))


def test_training_has_the_features_of_a_job_with_a_profile() -> None:
    profile = profiles.published("vgg16", 32)
    cell = {
        "profile": "vgg16",
        "compute_seconds": profile.iteration_s,
        "link_goodput_mbit": 10_000,
        "bytes": profile.bytes,
        "workers": 4,
        "servers": 2,
    }
    trained = train.job_of(cell, overlaps=True)
    surface = Surface(Cell("vgg16", 4, 2, 10.0, overlaps=True))
    evaluated = surface.job(10.0, 1.0, profiled=True)
    at = surface.cell.start
    np.testing.assert_allclose(layer_features(trained), layer_features(evaluated), rtol=1e-5)
    np.testing.assert_allclose(numbers(trained, at), numbers(evaluated, at), rtol=1e-5)


def test_cells_are_every_combination() -> None:
    found = cells(["alexnet", "vgg16"], [2, 4], [0, 0.5, 1], [1.0, 10.0])
    assert len(found) == 2 * 2 * 3 * 2 * 2
    assert {one.servers for one in found if one.workers == 4} == {0, 2, 4}
    (played,) = run(Spec((CELL,), ("fixed",), 24))
    assert [one.tuner for one in played] == ["fixed"]


def test_the_command_prints_and_writes_regrets(tmp_path, capsys) -> None:
    file = tmp_path / "regret.json"
    words = "bench regret --models alexnet --workers 2 --server-shares 0 --bandwidth-gbps 10"
    with pytest.raises(SystemExit) as exit_info:
        main([*words.split(), "--tuner", "fixed", "-o", str(file)])
    assert not exit_info.value.code
    assert "fixed" in capsys.readouterr().out
    document = json.loads(file.read_text())
    assert [row["cells"] for row in document["rows"]] == [2]
    assert {one["cell"]["overlaps"] for one in document["played"]} == {False, True}


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--models lenet", "lenet"),
        ("--workers 1", "--workers 1"),
        ("--workers two", "--workers two"),
        ("--server-shares 2", "--server-shares 2"),
        ("--bandwidth-gbps 0", "--bandwidth-gbps 0"),
        ("--tuner magic", "magic"),
    ],
)
def test_impossible_options_are_refused(option: str, said: str, capsys) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["bench", "regret", *option.split()])
    assert exit_info.value.code
    assert said in capsys.readouterr().err
