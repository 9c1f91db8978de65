"""`sumpter bench allreduce`: run on a small launched job, and what it refuses."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from sumpter._failure import UsageError  # noqa: E402
from sumpter.cli import main  # noqa: E402
from sumpter_lab import allreduce  # noqa: E402
from sumpter_lab.cli import bench  # noqa: E402

SUMPTER = (sys.executable, "-m", "sumpter")
# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 600
WAYS = ["core", "numpy", "numpy-out", "push_pull", "backend", "gloo"]


def test_sizes_grow_by_four_up_to_the_largest() -> None:
    assert bench._range("4", "1KiB") == [4, 16, 64, 256, 1024]
    assert bench._range("4", "1KB") == [4, 16, 64, 256]
    with pytest.raises(UsageError, match="larger than"):
        bench._range("1MiB", "1KiB")


def test_small_sizes_are_repeated_more_often() -> None:
    assert allreduce.repetitions(4, None) == allreduce.MOST
    assert allreduce.repetitions(1 << 30, None) == allreduce.FEWEST
    assert allreduce.repetitions(4, 3) == 3


def test_outside_of_a_job_one_line_says_how_to_start_one(unlaunched, capsys) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["bench", "allreduce", "--sizes", "4"])
    assert exit_info.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "sumpter run -n 2 -- sumpter bench allreduce" in said


def test_every_way_is_measured_and_checked_in_a_job(unlaunched, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    measure = (*SUMPTER, "bench", "allreduce", "--sizes", "4,60KiB,2MiB", "--rounds", "12")
    command = [*SUMPTER, "run", "-n", "2", "--", *measure, "--csv", str(table)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[worker 1]" not in done.stdout, "only rank 0 reports"
    with table.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(int(row["bytes"]), row["way"]) for row in rows] == [
        (size, way) for size in (4, 60 << 10, 2 << 20) for way in WAYS
    ]
    for row in rows:
        low, median, high = (float(row[f"{name}seconds"]) for name in ("p10_", "", "p90_"))
        assert 0 < low <= median <= high
        assert int(row["rounds"]) == 12
        assert float(row["goodput_gbps"]) == pytest.approx(int(row["bytes"]) * 8e-9 / median)
        assert float(row["gain_over_gloo"]) > 0
        # Some rank has to wait for the others' part of it.
        assert 0 < float(row["call_seconds"]) <= high
        assert 0 < float(row["cpu_seconds"]) and 0 < float(row["context_switches"])
        assert row["workers"] == "2"


def test_programs_of_jax_are_measured_beside_jaxs_own_collectives(
    unlaunched, tmp_path: Path
) -> None:
    pytest.importorskip("jax", reason="jax is not installed: pip install 'sumpter[jax]'")
    table = tmp_path / "rows.csv"
    measure = (*SUMPTER, "bench", "allreduce", "--jax", "--sizes", "4,2MiB", "--rounds", "3")
    command = [*SUMPTER, "run", "-n", "2", "--", *measure, "--csv", str(table)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stdout + done.stderr
    with table.open(newline="") as stream:
        found = [(int(row["bytes"]), row["way"]) for row in csv.DictReader(stream)]
    ways = (*WAYS, "jax", "jax-cb", "jax-gloo")
    assert found == [(size, way) for size in (4, 2 << 20) for way in ways]


def test_the_gradients_of_a_model_are_summed_by_push_pull_and_by_ddp(
    unlaunched, tmp_path: Path
) -> None:
    table = tmp_path / "rows.csv"
    measure = (*SUMPTER, "bench", "allreduce", "--model", "resnet18", "--rounds", "2")
    command = [*SUMPTER, "run", "-n", "2", "--", *measure, "--csv", str(table)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stdout + done.stderr
    with table.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["model"], row["way"]) for row in rows] == [
        ("resnet18", way) for way in ("push_pull", "ddp", "gloo-ddp")
    ]
    assert {int(row["bytes"]) for row in rows} == {4 * 11_689_512}
    for row in rows:
        assert float(row["seconds"]) > 0 and int(row["rounds"]) == 2
        assert float(row["gain_over_gloo"]) == pytest.approx(
            float(rows[-1]["seconds"]) / float(row["seconds"])
        )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--sizes", "4", "--model", "resnet18"), "--sizes and --model exclude each other"),
        (("--model", "resnet19"), "--model: "),
        (("--device", "tpu"), "--device tpu: cpu or cuda"),
        (("--jax", "--model", "resnet18"), "--jax: programs of JAX sum one tensor on the CPU"),
    ],
)
def test_what_cannot_be_measured_is_refused(words, expected: str, unlaunched, capsys) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["bench", "allreduce", *words])
    assert exit_info.value.code == 2
    assert expected in " ".join(capsys.readouterr().err.split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_a_device_that_is_not_there_is_refused(unlaunched, capsys) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["bench", "allreduce", "--device", "cuda"])
    assert exit_info.value.code == 2
    assert "--device cuda: torch sees no such device" in capsys.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none is visible")
@pytest.mark.parametrize(
    ("words", "ways"),
    [
        (("--sizes", "4,9MiB"), ["push_pull", "backend", "gloo"]),
        (("--model", "resnet18"), ["push_pull", "ddp", "gloo-ddp"]),
    ],
)
def test_tensors_of_a_gpu_are_summed(
    words: tuple[str, str], ways: list[str], unlaunched, tmp_path: Path
) -> None:
    table = tmp_path / "rows.csv"
    measure = (*SUMPTER, "bench", "allreduce", "--device", "cuda", *words, "--rounds", "3")
    command = [*SUMPTER, "run", "-n", "2", "--", *measure, "--csv", str(table)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stdout + done.stderr
    with table.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["way"] for row in rows] == ways * (len(rows) // len(ways))
    assert {row["device"] for row in rows} == {"cuda"}
