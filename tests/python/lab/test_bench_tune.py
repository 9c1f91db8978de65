"""`sumpter bench tune`: what a tuner sees, what comes out, what is refused, and one small run."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.testing

from sumpter._failure import Failure, UsageError
from sumpter.profiles import Layer, Profile, Tensor, save
from sumpter.tuning.points import GRID, KIB, MIB, Choice, Job, Point, point
from sumpter.tuning.search import Fixed, Grid
from sumpter_lab.cli import tune as command
from sumpter_lab.replay import spec as replay
from sumpter_lab.scaffold.network import namespaces
from sumpter_lab.scaffold.results.document import TUNE
from sumpter_lab.tune import figures, report
from sumpter_lab.tune.scaled import Model, Scaled
from sumpter_lab.tune.spec import SYSTEM, Spec, check

# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 600.0


def small() -> Profile:
    """Two layers of 5 ms."""
    return Profile(
        name="small",
        source="recorded",
        device=None,
        batch_size=None,
        iteration_s=0.02,
        backward_s=0.01,
        layers=(Layer("in", 0.005, 0.005), Layer("out", 0.005, 0.005)),
        tensors=(
            Tensor("in.weight", 0, 80_000, "float32", 0.01),
            Tensor("out.weight", 1, 80_000, "float32", 0.005),
        ),
    )


def asked(**changes: Any) -> Spec:
    job = replay.Spec(
        profile=small(),
        workers=changes.pop("workers", [2]),
        servers=[0],
        bandwidth_mbps=200.0,
        scale=1.0,
        network_gbps=10.0,
        ratios=[],
        systems=(SYSTEM,),
        iterations=40,
        turns=1,
    )
    return Spec(**({"job": job, "tuners": ("fixed",)} | changes))


# --- what a tuner sees ---


def test_a_tuner_sees_the_cluster_that_the_model_stands_for() -> None:
    model, seen = Model(scale=16, slowdown=2), []

    class Spy(Fixed):
        def observe(self, at: Point, speed: float, job: Job) -> Choice:
            seen.append((at, speed, job))
            return Choice(at)

    layers = np.tile([0.2, 0.4, 1000.0], (16, 1))
    at = Point(16 * KIB, 32 * KIB, 16 * KIB)
    choice = Scaled(Spy(), model).observe(at, 3.0, Job(4, 2, 0.2, 0.1, True, layers))
    assert choice.point == at, "who stays must not be told to change"
    ((point_seen, speed, job),) = seen
    assert point_seen == Point(256 * KIB, 512 * KIB, 256 * KIB)
    assert speed == 6.0
    assert (job.workers, job.servers) == (4, 2)
    assert (job.up_gbps, job.down_gbps) == pytest.approx((6.4, 3.2))
    np.testing.assert_allclose(job.layers[0], [0.1, 0.2, 16_000.0])


@pytest.mark.parametrize("scale", [1, 16, 43, 105, 1000])
def test_a_search_ends_however_much_rounding_makes_equal(scale: int) -> None:
    noted: list[dict[str, Any]] = []
    tuner, at = Scaled(Grid(), Model(scale, 1.0), noted.append), point(MIB // scale, MIB // scale)
    for _ in range(len(GRID) + 2):
        at = tuner.observe(at, 1.0, Job(4)).point
        assert 4096 <= at.chunk <= at.partition <= at.credit
        assert at.partition % 4096 == 0
    assert "keeps" in noted[len(GRID)]["said"] or "keeps" in noted[len(GRID) - 1]["said"]


# --- figures ---


def run(tuner: str, periods: list[float], changed_at: int = 0, **changes: Any) -> dict[str, Any]:
    sizes = {"partition_bytes": 8192, "credit_bytes": 8192}
    steps = [{"iteration": at, **sizes} for at in sorted({0, changed_at})]
    figures_ = {"cores_idle": 0.5, "cores_steal": 0.0, "workers": 2, "servers": 0}
    still = {"rates_mbit": [], "second_job": None, "every": 20}
    return {"tuner": tuner, "periods_s": periods, "sizes": steps, **figures_, **still, **changes}


def test_the_best_is_what_the_grid_settled_at() -> None:
    grid = run("grid", [2.0] * 30 + [1.0] * 20, changed_at=29)
    late = run("bayes", [2.0] * 20 + [1.01] * 30)
    fixed = run("fixed", [2.0] * 50)
    runs = [fixed, grid, late]
    assert figures.best_period_s(runs) == 1.0
    rows = {row["tuner"]: row for row in (figures.row(one, runs) for one in runs)}
    assert [rows[name]["near_from"] for name in ("fixed", "grid", "bayes")] == [None, 30, 20]
    assert rows["grid"]["lost_iterations"] == pytest.approx(30)
    assert rows["bayes"]["lost_iterations"] == pytest.approx(20 + 0.3)
    assert rows["grid"]["over_fixed"] == pytest.approx(100 / 80)


def test_a_lucky_group_is_not_near_the_best() -> None:
    lucky = run("bayes", [1.0] * 10 + [1.5] * 40)
    assert figures.near_from(lucky, 1.0) is None
    # Single iterations jump; medians do not.
    jumps = run("bayes", [1.0, 1.0, 1.0, 3.0] * 10)
    assert figures.near_from(jumps, 1.0) == 0


def test_without_a_settled_grid_on_a_still_cluster_there_is_no_best() -> None:
    assert figures.best_period_s([run("fixed", [1.0] * 50)]) is None
    assert figures.best_period_s([run("grid", [1.0] * 50, changed_at=45)]) is None
    assert figures.best_period_s([run("grid", [1.0] * 50, rates_mbit=[100.0, 200.0])]) is None


def test_speed_over_time_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    assert report.speeds([1.0, 1.0, 9.0, 1.0, 0.5]) == pytest.approx([1, 1, 1, 1, 1])
    picture = tmp_path / "speed.png"
    panels = [
        ("a", [run("fixed", [1.0] * 50, rates_mbit=[100.0, 200.0])]),
        ("b", [run("bayes", [1.0] * 50, second_job=(10, 20))]),
    ]
    report.draw(panels, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_files_of_one_cluster_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    named = {"profile": "small", "scale": 2}
    first = [run("fixed", [2.0] * 50, **named), run("bayes", [1.0] * 50, **named)]
    report.write(tmp_path / "first.json", first, [])
    report.write(tmp_path / "second.json", [run("grid", [1.0] * 50, **named)], [])
    files = [str(tmp_path / name) for name in ("first.json", "second.json")]
    monkeypatch.setattr(sys, "argv", ["report", *files, "--plot", str(tmp_path / "both.png")])
    report.main()
    out = capsys.readouterr().out
    assert "small, n = 2, k = 0, sizes / 2" in out
    # Against the other file's grid.
    (line,) = (line for line in out.splitlines() if line.split()[:1] == ["bayes"])
    assert line.split()[:7] == ["bayes", "50", "1.000", "2.000", "1.000", "0", "0.0"]
    assert (tmp_path / "both.png").exists()
    (tmp_path / "second.json").write_text('{"format": "other"}')
    with pytest.raises(SystemExit, match="expected 'sumpter-bench-tune', as `sumpter bench tune"):
        report.main()


# --- refusals ---


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"tuners": ()}, "nothing is left to measure; choose from fixed, grid"),
        ({"second_job": (30, 20)}, "--second-job 30:20: give two of the 40 iterations"),
        ({"second_job": (0, 41)}, "--second-job 0:41"),
        ({"workers": [2, 4]}, "measures one job"),
        ({"tuners": ("fixed", "magic")}, "no tuner 'magic'"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Exception, match=complaint) as refused:
        check(asked(**changes))
    assert type(refused.value).__name__ in ("UsageError", "ConfigError")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--ratio", "1", "--network-gbps", "10"), "exclude each other"),
        (("--second-job", "soon"), "--second-job soon: give two iterations"),
        (("--switch", "100,x"), "--switch: 'x' is not a rate"),
        (("--plot", "speed.doc"), "must end in .png"),
    ],
)
def test_wrong_options_are_named(arguments: tuple[str, ...], complaint: str) -> None:
    app = typer.Typer()
    app.command()(command.tune)
    result = typer.testing.CliRunner().invoke(app, ["--profile", "vgg16", *arguments])
    assert isinstance(result.exception, UsageError)
    assert complaint in str(result.exception)


def test_links_take_their_rates_in_turn() -> None:
    switched = replace(asked(), rates_mbit=(200.0, 100.0), every=20)
    assert [switched.rate_at(at) for at in (-1, 0, 19, 20, 39, 40)] == [
        200,
        200,
        200,
        100,
        100,
        200,
    ]
    assert asked().rate_at(7) == 200.0


# --- a run ---


@pytest.mark.exclusive
def test_a_small_run_tunes_beside_a_second_job_and_cleans_up(tmp_path: Path) -> None:
    try:
        namespaces.check_tools()
    except Failure as failure:
        pytest.skip(f"cannot emulate a network here: {str(failure)}")
    save(small(), tmp_path / "small.json")
    output = tmp_path / "tune.json"
    call = [sys.executable, "-m", "sumpter", "bench", "tune"]
    call += ["--profile", str(tmp_path / "small.json"), "-n", "2", "--scale", "1"]
    call += ["--bandwidth-mbps", "100", "--ratio", "1", "--iterations", "60", "--profiled"]
    call += ["--tuner", "fixed,grid", "--switch", "100,50", "--second-job", "25:40"]
    process = subprocess.Popen(
        [*call, "-o", str(output)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        out, err = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    if "too busy to emulate" in err:
        pytest.skip(err.strip().splitlines()[-1])
    assert process.returncode == 0, err
    assert not namespaces.of_run(f"{namespaces.PREFIX}-{process.pid}-")
    document = json.loads(output.read_text())
    assert (document["format"], document["version"]) == (TUNE.format, TUNE.version)
    fixed, grid = document["runs"]
    assert [len(one["periods_s"]) for one in (fixed, grid)] == [60, 60]
    assert len(fixed["sizes"]) == 1 and not fixed["groups"]
    assert len(grid["sizes"]) > 2 and grid["sizes"][1]["tuner"] == "grid"
    assert grid["groups"] and "tries partition" in grid["groups"][0]["said"]
    for one in (fixed, grid):
        rates = [event["rate_mbit"] for event in one["events"] if "rate_mbit" in event]
        assert rates == [100, 50, 100]
        seconds = [event["second_job"] for event in one["events"] if "second_job" in event]
        assert seconds[0] is True
        # Compute is waited for, so no iteration can be shorter.
        assert min(one["periods_s"]) >= 0.99 * one["compute_seconds"]
    assert "grid" in out and "lost" in out
