"""Sizes that change while a job runs."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from jobs import TOKEN, Job
from sumpter.cli import main


@pytest.mark.parametrize(("ranks", "servers"), [(3, 2), (3, 0)])
def test_sizes_change_amid_rounds_and_no_result_does(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    tuned, still = (make_job(ranks, servers, deterministic=True) for _ in range(2))
    tuned.start("tunes.py").finish()
    still.start("tunes.py", "still").finish()
    for rank in range(ranks):
        assert tuned.result(rank) == still.result(0), "the bytes depend on the sizes"
    assert "from now on" in tuned.output(0)


def sumpter(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and all output of a command, on one line."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    captured = capsys.readouterr()
    code = ended.value.code
    assert isinstance(code, int)
    return code, " ".join((captured.out + captured.err).split())


def test_a_command_changes_a_running_job(
    make_job: Callable[..., Job],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = make_job(2)
    monkeypatch.setenv("SUMPTER_COORDINATOR", job.address)
    monkeypatch.setenv("SUMPTER_TOKEN", TOKEN)
    assert sumpter("tune", "--reset", capsys=capsys) == (2, "error: there is no job")
    for pipe in ("runs", "may end"):
        job.make_pipe(pipe)
    job.start("is_tuned.py")
    job.wait_for("runs")
    code, text = sumpter("tune", "--set", "partition=2MiB,credit=4MiB", capsys=capsys)
    assert code == 0 and "partition_bytes=2097152" in text and "epoch 2" in text, text
    refused = {
        "partition=0": "multiple of 4KiB",
        "partition=8MiB": "a credit under a partition",
        "chunk=4MiB": "a chunk over a partition",
        "colour=blue": "'colour'",
        "partition": "write NAME=VALUE",
    }
    for change, words in refused.items():
        code, text = sumpter("tune", "--set", change, capsys=capsys)
        assert code == 2 and words in text.replace('"', "'"), text
        assert "Traceback" not in text
    code, text = sumpter("tune", "--tuner", "magic", capsys=capsys)
    assert code == 2 and "autobyte" in text, text
    code, text = sumpter("tune", "--set", "chunk=64KiB", "--job", "other", capsys=capsys)
    assert code == 2 and "no job 'other'; jobs there are: default" in text, text
    code, text = sumpter("status", "--json", capsys=capsys)
    (status,) = json.loads(text)["jobs"]
    assert status["epoch"] == 2, "what was refused must leave the job as it was"
    assert status["settings"]["credit_bytes"] == str(4 << 20)
    assert status["last_change"] == "settings change to credit_bytes=4MiB, partition_bytes=2MiB"
    with (job.folder / "may end").open("wb"):
        pass
    job.finish()


@pytest.mark.parametrize("tuner", ["grid", "bayes"])
def test_a_tuner_works_on_a_running_job(make_job: Callable[..., Job], tuner: str) -> None:
    if tuner == "bayes":
        pytest.importorskip("bayes_opt", reason="needs bayesian-optimization")
    job = make_job(2)
    job.start("is_searched.py", tuner).finish()
    said = job.output(0)
    assert f"tuner: {tuner} begins: groups of 10 steps" in said, said
    assert f"tuner: {tuner} tries partition" in said, said
    assert "tuner: autobyte begins" in said, said
    assert "Traceback" not in said, said
    assert "tuner:" not in job.output(1)
