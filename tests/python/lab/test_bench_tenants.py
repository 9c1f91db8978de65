"""`sumpter bench tenants`: its arithmetic, its options, and one small run of real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sumpter.cli import main
from sumpter_lab.scaffold.network.counters import CoreTicks
from sumpter_lab.tenants import figures
from sumpter_lab.tenants.figures import ALONE, BESIDE_GREEDY, GREEDY, TOGETHER, Window
from sumpter_lab.tenants.job import Shape
from sumpter_lab.tenants.run import Spec

# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 600.0


def window(phase: str, number: int, mbit: dict[str, float], steal: int = 0) -> Window:
    return Window(phase, number, 1.0, mbit, CoreTicks(total=100, idle=50, steal=steal))


def test_jains_index_is_one_for_equals_and_one_over_n_for_one_who_has_all() -> None:
    assert figures.jain([3.0] * 5) == pytest.approx(1.0)
    assert figures.jain([0.0, 0.0, 7.0, 0.0]) == pytest.approx(0.25)
    assert figures.jain([0.0, 0.0]) == 0.0


def test_a_part_is_what_a_job_got_over_what_its_weight_gives_it() -> None:
    weights = {"a": 1, "b": 3, "idle": 5}
    even = figures.parts(window(TOGETHER, 0, {"a": 10.0, "b": 30.0}), weights)
    assert even == {"a": pytest.approx(1.0), "b": pytest.approx(1.0)}
    odd = figures.parts(window(TOGETHER, 0, {"a": 20.0, "b": 20.0}), weights)
    assert odd == {"a": pytest.approx(2.0), "b": pytest.approx(2 / 3)}
    assert figures.parts(window(TOGETHER, 0, {"a": 0.0, "b": 0.0}), weights) == {"a": 0, "b": 0}


def test_the_rounds_that_count_are_those_whose_worst_window_was_disturbed_least() -> None:
    windows = [
        window(phase, number, {"a": 1.0}, steal)
        for number, steals in enumerate([(9, 0), (1, 1), (0, 50), (3, 3)])
        for phase, steal in zip((ALONE, TOGETHER), steals, strict=True)
    ]
    assert [w.round for w in figures.select(windows, 2)] == [1, 1, 3, 3]


def test_a_document_tells_shares_parts_and_what_a_greedy_job_takes() -> None:
    windows = [
        window(ALONE, 0, {"a": 100.0}),
        window(TOGETHER, 0, {"a": 40.0, "b": 60.0}),
        window(BESIDE_GREEDY, 0, {"b": 20.0, GREEDY: 60.0}),
        # So disturbed that it does not count.
        window(ALONE, 1, {"b": 1.0}, steal=90),
        window(TOGETHER, 1, {"a": 1.0, "b": 1.0}),
        window(BESIDE_GREEDY, 1, {"b": 1.0, GREEDY: 1.0}),
    ]
    found = figures.document({"a": 1, "b": 1}, True, windows, rounds=1)
    first, second, greedy = found["jobs"]
    assert (first["fair_mbit"], first["of_fair"], first["part"]) == (50.0, 0.8, pytest.approx(0.8))
    assert first["beside_greedy_mbit"] is None
    assert second["part_beside_greedy"] == found["polite_part"] == pytest.approx(0.5)
    assert greedy["together_mbit"] is None
    assert found["greedy_part"] == pytest.approx(1.5)
    assert found["aggregate_beside_greedy_of_together"] == pytest.approx(0.8)
    assert found["rounds_kept"] == [0]
    assert len(found["windows"]) == len(windows)


def test_the_greedy_job_takes_the_place_of_a_polite_one() -> None:
    asked = Spec((1, 2, 1), Shape(2, 64, 1), greedy=True)
    phases = dict(asked.phases(4))
    assert phases[ALONE] == ["job-1"]
    assert phases[TOGETHER] == ["job-0", "job-1", "job-2"]
    assert phases[BESIDE_GREEDY] == ["job-1", "job-2", GREEDY]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--jobs", "3", "--weights", "1,2"), "2 weights for 3 jobs"),
        (("--jobs", "2", "--weights", "1,0"), "whole numbers of 1 to 1000"),
        (("--bytes", "100"), "a multiple of 64 bytes"),
        (("--set", "architecture=colocated"), "this command decides it"),
        (("--set", "nonsense=1"), "no such setting"),
        (("--bandwidth-mbps", "0.1"), "not within"),
        (("--bytes", "64GiB"), "fewer --jobs"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "tenants", *options])
    assert ended.value.code != 0
    assert said in " ".join(capsys.readouterr().err.split())


def test_two_jobs_and_a_greedy_one_share_a_server(tmp_path: Path) -> None:
    # multiprocessing binds a socket in TMPDIR, whose path may have 107 bytes: tmp_path may not fit.
    with tempfile.TemporaryDirectory(prefix="sumpter-") as folder:
        _check_two_jobs_and_a_greedy_one(Path(folder), tmp_path / "found.json")


def _check_two_jobs_and_a_greedy_one(scratch: Path, output: Path) -> None:
    command = (
        "bench",
        "tenants",
        "--jobs",
        "2",
        "--weights",
        "1,2",
        "--greedy",
        "--bytes",
        "64KiB",
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SUMPTER_")}
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "sumpter", *command),
            *("--seconds", "0.2", "--rounds", "1", "-o", str(output)),
        ],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        env={**environment, "TMPDIR": str(scratch)},
    )
    assert ended.returncode == 0, ended.stderr
    assert "job-1" in ended.stdout and "the greedy job's part" in ended.stdout
    found = json.loads(output.read_text())
    assert found["greedy_shape"] == {"workers": 8, "tensor_bytes": 1 << 18, "in_flight": 16}
    # How much is the machine's business; that all took part, and were alone in turn, is ours.
    for measured in found["windows"]:
        jobs = {"job-0"} if measured["phase"] == ALONE else {"job-0", "job-1"}
        if measured["phase"] == ALONE and measured["round"] == 1:
            jobs = {"job-1"}
        if measured["phase"] == BESIDE_GREEDY:
            jobs = {"job-1", GREEDY}
        assert set(measured["mbit"]) == jobs
        assert sum(measured["mbit"].values()) > 0
    assert list(scratch.iterdir()) == [], "tokens and logs are gone"
