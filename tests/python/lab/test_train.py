"""Training AutoByte's network: on what the replay bench measured, and on simulated surfaces."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from sumpter.tuning.network import MetaNetwork
from sumpter.tuning.points import GRID, KIB, Point
from sumpter_lab import profiles
from sumpter_lab.autobyte import train
from sumpter_lab.autobyte.surface import Network, iteration_s
from sumpter_lab.scaffold.results.document import REPLAY, DocumentError

ROOT = Path(__file__).parents[3]
# Measured after the shipped weights were trained (docs/measurements/tuning.md).
RECORDS = [
    *sorted(ROOT.glob("lab/records/scheduling/*.json")),
    *sorted(ROOT.glob("lab/records/partition-credit/*.json")),
]


def cell(**changes: object) -> dict[str, object]:
    """A line of a replay, as the bench writes it."""
    systems = {
        name: {"seconds": seconds, "cores_steal": 0.0}
        for name, seconds in (("off", 1.5), ("paced", 1.4), ("overlap", 1.2), ("ddp-gloo", 1.6))
    }
    return {
        "profile": "vgg16",
        "workers": 4,
        "servers": 2,
        "link_goodput_mbit": 190.0,
        "bytes": 12_000_000,
        "compute_seconds": 0.8,
        "settings": {"partition_bytes": "16KiB", "credit_bytes": "131072"},
        "systems": systems,
    } | changes


def test_measurements_are_samples_of_what_a_job_does(tmp_path: Path) -> None:
    stolen = cell(systems={"paced": {"seconds": 9.0, "cores_steal": 0.3}})
    file = tmp_path / "replay.json"
    REPLAY.write(file, [cell(), cell(profile="mine"), stolen])
    samples = train.measured([file])
    assert [one.seconds for one in samples] == [1.4, 1.2], "off and DDP are none of a job's"
    assert [one.job.overlaps for one in samples] == [False, True]
    one = samples[0]
    assert one.point == Point(16 * KIB, 128 * KIB, 16 * KIB)
    assert (one.job.workers, one.job.servers, one.job.up_gbps) == (4, 2, 0.19)
    assert one.job.compute_s == pytest.approx(0.8)
    assert one.job.layers[:, 2].sum() == pytest.approx(12_000_000)
    assert one.y == pytest.approx(np.log(1.4 / 0.8))


def test_what_is_no_replay_is_named(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text("{}")
    with pytest.raises(DocumentError, match=r"other.json"):
        train.measured([file])
    lacking = cell()
    del lacking["link_goodput_mbit"]
    for broken in (lacking, cell(systems=[1])):
        REPLAY.write(file, [broken])
        with pytest.raises(DocumentError, match=r"other.json: a cell is not as"):
            train.measured([file])


def test_the_records_have_every_profile_that_was_replayed() -> None:
    samples = train.measured(RECORDS)
    assert {one.profile for one in samples} <= set(profiles.NAMES)
    assert len({one.profile for one in samples}) >= 5 and len(samples) > 100
    # No iteration is faster than its compute, but for what clocks and rounding give.
    assert min(one.y for one in samples) > -0.01


def test_a_file_that_was_trained_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="needs torch")
    out, file = tmp_path / "new.npz", tmp_path / "replay.json"
    REPLAY.write(file, [cell()])
    words = ["train", "--replay", str(file), "--samples", "120", "--steps", "20"]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(out)])
    train.main()
    assert "120 simulated and 2 measured samples" in capsys.readouterr().out
    network, (one, _) = MetaNetwork(out), train.measured([file])
    # NumPy's network is torch's: what was learned by heart is about what it predicts.
    assert network.speeds(one.job, [one.point])[0] == pytest.approx(1 / 1.4, rel=0.5)
    monkeypatch.setattr(sys, "argv", [*words, "--leave-out", "vgg16"])
    train.main()
    assert "vgg16: median error" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*words, "--leave-out", "gpt2"])
    with pytest.raises(SystemExit):
        train.main()
    assert "--leave-out gpt2: nothing of that" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["train", "--samples", "5"])
    with pytest.raises(SystemExit):
        train.main()
    assert "give --samples 60 at least" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["train", "--out", str(tmp_path / "none" / "new.npz")])
    with pytest.raises(SystemExit):
        train.main()
    assert "there is no folder" in capsys.readouterr().err


def test_what_is_shipped_predicts_what_was_measured() -> None:
    samples = train.measured(RECORDS)
    network = MetaNetwork()
    errors = [abs(network.speeds(one.job, [one.point])[0] * one.seconds - 1) for one in samples]
    assert np.median(errors) < 0.05, np.quantile(errors, (0.5, 0.9, 1))
    assert np.quantile(errors, 0.9) < 0.15, np.quantile(errors, (0.5, 0.9, 1))


def test_simulated_surfaces_are_of_all_kinds() -> None:
    samples = train.simulated(120, seed=1)
    assert {one.job.overlaps for one in samples} == {False, True}
    assert {one.point for one in samples} == set(GRID)
    # Never faster than the compute.
    assert min(one.y for one in samples) > -1e-9
    # The same again from the same seed.
    assert [one.seconds for one in train.simulated(120, seed=1)] == [one.seconds for one in samples]
    job = samples[0].job
    assert iteration_s(job, GRID[0], Network(0.0, 1e-9)) >= job.compute_s * 0.999
