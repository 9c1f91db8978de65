"""Recording, prediction and traces of jobs whose framework is not PyTorch."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import needs
from jobs import HANG_S, TOKEN, WORKERS, Job
from sumpter import trace

GRADIENTS = {"jax": ("/0", "/1"), "tensorflow": (".0", ".1"), "mxnet": (".0", ".1")}


@pytest.fixture(params=GRADIENTS)
def front(request: pytest.FixtureRequest) -> str:
    """A framework that is installed here."""
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed, so this checks nothing")
    if request.param == "tensorflow" and not needs.is_asked_for("tensorflow"):
        pytest.skip(needs.APART)
    return request.param


def run(*arguments: str | Path, **variables: str) -> str:
    """What a command of Sumpter prints."""
    done = subprocess.run(
        [sys.executable, "-m", "sumpter", *map(str, arguments)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_script_is_recorded_and_its_iteration_is_predicted(
    front: str, tmp_path: Path, unlaunched: pytest.MonkeyPatch
) -> None:
    out, script = tmp_path / "run.profile.json", WORKERS["front_steps.py"]
    run("record", "-o", out, "--", "python", script, "10", TEST_FRONT=front)
    profile = json.loads(out.read_text())
    sizes = {tensor["name"]: tensor["bytes"] for tensor in profile["tensors"]}
    first, second = (f"gradients{ending}" for ending in GRADIENTS[front])
    assert sizes == {first: 4000, second: 120}
    # What the script computes for, as far as rounds show it.
    assert profile["iteration_s"] >= 0.004
    case = ("--workers", "4", "--bandwidth-gbps", "1", "--servers", "2", "--json")
    predicted = json.loads(run("whatif", "--profile", out, *case))
    assert predicted, "nothing was predicted"


def test_a_running_job_is_traced(front: str, make_job: Callable[..., Job], tmp_path: Path) -> None:
    job = make_job(2, 1)
    job.make_pipe("busy")
    for rank in range(job.ranks):
        job.start_rank(rank, "front_steps.py", TEST_FRONT=front)
    job.wait_for("busy")
    path = tmp_path / "run.pftrace"
    options = ("--steps", "4", "-o", path, "--token", TOKEN)
    run("trace", *options, "--coordinator", job.address)
    (job.folder / "stop").touch()
    job.finish()
    read = trace.read(path)
    assert len({one.process for one in read.slices if one.process.startswith("rank ")}) == 2
    traced = {one.tensor for one in read.slices if one.tensor}
    expected = {f"allreduce.gradients{ending}" for ending in GRADIENTS[front]}
    assert expected <= traced, traced
    assert trace.explain(read), "no step was explained"
