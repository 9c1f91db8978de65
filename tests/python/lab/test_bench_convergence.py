"""`sumpter bench convergence`: its rows, what it refuses, and small trainings."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from sumpter._failure import Failure, UsageError
from sumpter_lab.cli import bench
from sumpter_lab.convergence import report, run
from sumpter_lab.convergence.rank import _nudge
from sumpter_lab.convergence.spec import MOMENTUM, QUICK, TRAININGS, Case, Spec, Training
from sumpter_lab.convergence.tasks import TASKS

# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 600.0


def test_the_rate_rises_in_a_line_and_falls_as_a_cosine_does() -> None:
    rates = [Training("digits", 100, 1, 1.0).rate_at(step) for step in range(100)]
    assert rates[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    assert rates[10] == 1.0 and rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[55] == pytest.approx((1.0 + 0.01) / 2)
    # A rate of 0 would say nothing about what a codec has left out.
    assert 0.01 < rates[99] < 0.02
    assert Training("digits", 2, 1, 1.0).rate_at(0) == 1.0


def test_every_codec_trains_beside_none_and_beside_what_means_nothing() -> None:
    asked = Spec(tuple(TRAININGS.values()), ("int8", "onebit:momentum=0.9"), 3, 4, 0)
    assert [case.name for case in asked.cases] == [
        *("off", "off, nudged", "int8", "onebit:momentum=0.9")
    ]
    assert [case.has_momentum for case in asked.cases] == [False, False, False, True]
    assert asked.total_steps == 4 * 3 * sum(one.steps for one in TRAININGS.values())


def trained(codec: str, seed: int, loss: float, **changes: Any) -> dict[str, Any]:
    sent = 1000.0 if codec == "off" else 250.0
    given = {"model": "gpt", "codec": codec, "momentum_of": "optimizer", "seed": seed}
    more = {"loss": loss, "held_out_loss": 2 * loss, "sent_bytes_per_step": sent}
    return given | more | changes


def test_a_row_compares_each_seed_with_its_own() -> None:
    trainings = [trained("off", 1, 2.0), trained("int8", 1, 2.02)]
    trainings += [trained("off", 2, 1.0), trained("int8", 2, 1.0)]
    off, int8 = report.rows(trainings)
    assert (off["difference"], off["sent_part"], off["within"]) == (0.0, 1.0, True)
    assert int8["loss"] == pytest.approx(1.51)
    assert int8["difference"] == pytest.approx(0.005)
    assert int8["difference_range"] == pytest.approx([0.0, 0.01])
    assert int8["held_out_difference_range"] == pytest.approx([0.0, 0.01])
    assert (int8["sent_part"], int8["within"], int8["seeds"]) == (0.25, True, 2)
    line = report.spread_line(trainings, "gpt")
    assert line == "gpt: without a codec the loss of a seed is -33.33% to +33.33% of their mean"


@pytest.mark.parametrize(("loss", "within"), [(1.0099, True), (1.0101, False), (0.5, True)])
def test_lower_is_within_and_more_than_a_hundredth_higher_is_not(loss, within) -> None:
    rows = report.rows([trained("off", 1, 1.0), trained("topk:k=0.01", 1, loss)])
    assert rows[1]["within"] is within


def test_a_loss_that_is_no_number_is_not_within() -> None:
    rows = report.rows([trained("off", 1, 1.0), trained("int8", 1, math.nan)])
    assert math.isnan(rows[1]["difference"]) and not rows[1]["within"]
    assert [column.text(rows[1]) for column in report.COLUMNS][-1] == "no"


def call(*arguments: str) -> Any:
    return CliRunner().invoke(bench.app, ["convergence", *arguments])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--model", "resnet"), "--model 'resnet': known are digits, gpt"),
        (("--codecs", "zip"), "--codecs: no codec is called 'zip'"),
        (("--codecs", "topk:k=0"), "--codecs: codec topk: k=0: give a part"),
        (("--quick", "--steps", "3"), "--quick and --steps exclude each other"),
        (("--workers", "17", "--quick"), "--workers 17: a batch has 8 examples"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments, complaint) -> None:
    error = call(*arguments).exception
    assert isinstance(error, UsageError) and complaint in str(error)


def test_a_result_that_could_not_be_written_is_refused_at_once(tmp_path: Path) -> None:
    error = call("-o", str(tmp_path / "absent" / "losses.json")).exception
    assert isinstance(error, Failure) and "does not exist" in str(error)


def test_without_the_digits_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.importlib.util, "find_spec", lambda name: None)
    error = call().exception
    assert isinstance(error, Failure) and "pip install scikit-learn" in str(error)


def test_a_nudge_changes_every_parameter_by_its_part_and_by_the_seed() -> None:
    def nudged(seed: int) -> torch.Tensor:
        model = torch.nn.Linear(30, 30)
        torch.nn.init.ones_(model.weight)
        _nudge(model, 1e-3, seed)
        return model.weight.detach() - 1

    found = nudged(1)
    assert found.std().item() == pytest.approx(1e-3, rel=0.1) and found.abs().max() < 5e-3
    assert torch.equal(found, nudged(1)) and not torch.equal(found, nudged(2))


def plainly_trained(model_name: str, seed: int) -> tuple[float, float]:
    """The losses of the same training in one process, on whole batches."""
    training, task = QUICK[model_name], TASKS[model_name]()
    torch.manual_seed(seed)
    model = task.make_model()
    sgd = torch.optim.SGD(model.parameters(), training.rate, MOMENTUM, nesterov=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(sgd, training.rate_at)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(training.steps):
        sgd.zero_grad()
        task.batch_loss(model, training.batch, slice(None), draw).backward()
        sgd.step()
        schedule.step()
    return task.losses(model)


def test_small_trainings_end_where_they_should(tmp_path: Path) -> None:
    codecs = ("fp16:momentum=0.9", "onebit:momentum=0.9", "powersgd:rank=2")
    json_file, csv_file = tmp_path / "losses.json", tmp_path / "losses.csv"
    options = ("--quick", "--seeds", "1", "-n", "2", "-s", "1", "--codecs", ",".join(codecs))
    command = [sys.executable, "-m", "sumpter", "bench", "convergence", *options]
    command += ["--csv", str(csv_file), "-o", str(json_file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    assert "of off" in done.stdout and "gpt: without a codec" in done.stdout
    document = json.loads(json_file.read_text())
    assert document["commit"]
    names = [Case("off").name, "off, nudged", *codecs]
    for model in ("digits", "gpt"):
        of_model = [one for one in document["trainings"] if one["model"] == model]
        assert [one["codec"] for one in of_model] == names
        losses = {one["codec"]: (one["loss"], one["held_out_loss"]) for one in of_model}
        # Two workers' halves of a batch are the batch; one codec's momentum is the optimizer's.
        plain = plainly_trained(model, seed=1)
        assert losses["off"] == pytest.approx(plain, rel=1e-4)
        assert losses["off, nudged"] == pytest.approx(plain, rel=1e-3)
        assert losses["fp16:momentum=0.9"] == pytest.approx(plain, rel=0.02)
        sent = {one["codec"]: one["sent_bytes_per_step"] for one in of_model}
        assert sent["onebit:momentum=0.9"] < sent["fp16:momentum=0.9"] < sent["off"]
        assert sent["powersgd:rank=2"] < sent["off"]
    with csv_file.open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["model"], row["codec"]) for row in rows] == [
        (model, name) for model in ("digits", "gpt") for name in names
    ]
    assert {row["commit"] for row in rows} == {document["commit"]}
