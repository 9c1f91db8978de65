"""Order logs of asynchronous training: written, and replayed to the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs import Job

RANKS = 3
SCRIPT = "order_log.py"


def results(job: Job) -> list[list[str]]:
    """What each rank got in each step."""
    return [job.result(rank).decode().split("\n") for rank in range(RANKS)]


def record(make_job: Callable[..., Job], log: Path, *arguments: str) -> Job:
    """A run that was recorded."""
    job = make_job(RANKS, 1, partition_bytes="4KiB", record_order=log).start(SCRIPT, *arguments)
    job.finish()
    return job


def logged(log: Path) -> list[list[dict[str, object]]]:
    """The lines of each rank."""
    files = [log / f"rank-{rank}.jsonl" for rank in range(RANKS)]
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def without_heads(log: list[list[dict[str, object]]]) -> list[list[dict[str, object]]]:
    return [lines[1:] for lines in log]


@pytest.mark.parametrize("staleness", [(), ("--staleness", "2")], ids=["unbounded", "bounded"])
def test_a_replay_gives_each_rank_the_same_bytes_in_every_step(
    make_job: Callable[..., Job], tmp_path: Path, staleness: tuple[str, ...]
) -> None:
    log, again = tmp_path / "log", tmp_path / "again"
    recorded = record(make_job, log, *staleness)
    assert len({lines[-1] for lines in results(recorded)}) == 1
    # On the same machines, and on others that divide the parameters otherwise.
    for servers, settings in [
        (1, {"partition_bytes": "4KiB", "record_order": again}),
        (2, {"partition_bytes": "8KiB", "chunk_bytes": "4KiB"}),
    ]:
        job = make_job(RANKS, servers, replay_order=log, **settings)
        job.start(SCRIPT, *staleness).finish()
        assert results(job) == results(recorded)
    assert without_heads(logged(again)) == without_heads(logged(log))


def test_a_run_on_a_device_is_replayed_on_the_cpu_and_the_other_way_round(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    for recorded, replayed in ((["--on-device"], []), ([], ["--on-device"])):
        log = tmp_path / f"log{len(recorded)}"
        first = record(make_job, log, *recorded)
        job = make_job(RANKS, 1, partition_bytes="4KiB", replay_order=log)
        job.start(SCRIPT, *replayed).finish()
        assert results(job) == results(first)


def test_a_run_whose_servers_died_is_replayed(make_job: Callable[..., Job], tmp_path: Path) -> None:
    log = tmp_path / "log"
    job = make_job(RANKS, 2, partition_bytes="4KiB", record_order=log)
    pids = [str(job.server_pid(index)) for index in range(2)]
    job.start(SCRIPT, "--kill", *pids).finish()
    replay = make_job(RANKS, 1, replay_order=log).start(SCRIPT)
    replay.finish()
    assert results(replay) == results(job)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--staleness", "3"], ["rank 0", "rank 2", "staleness None", "this has 3"]),
        (["--width", "151"], ["parameter 0.weight of 3000 elements", "0.weight of 3020"]),
        # The first rank that is past the end has the others fail, too.
        (["--more", "1", "3"], ["rank 1", "step()", "order log has synchronize()"]),
        (["--more", "1", "-3"], ["rank 1", "synchronize()", "order log has step()"]),
        (["--steps", "12"], ["step()", "order log has synchronize()"]),
    ],
)
def test_a_script_that_is_not_the_recorded_one_fails_on_all_ranks(
    make_job: Callable[..., Job], tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    log = tmp_path / "log"
    record(make_job, log)
    job = make_job(RANKS, 1, partition_bytes="4KiB", replay_order=log)
    job.start(SCRIPT, *arguments, "--fails", *words).finish()


def test_logs_that_cannot_be_written_or_read_are_refused_on_all_ranks(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.mkdir()
    (log / "rank-1.jsonl").write_text("")
    for settings, words in [
        ({"record_order": log}, ["rank 1", "exists", "new directory"]),
        ({"replay_order": log}, ["rank 0", "No such file", "rank 1", "no optimizer number 0"]),
    ]:
        make_job(RANKS, 0, **settings).start(SCRIPT, "--fails", *words).finish()
    job = make_job(RANKS, 0)
    for rank in range(RANKS):
        variables = {"SUMPTER_REPLAY_ORDER": str(log)} if rank == 1 else {}
        job.start_rank(rank, SCRIPT, "--fails", "replay_order", "ranks [0, 2]", **variables)
    job.finish()


def test_logs_of_two_runs_are_not_mixed(make_job: Callable[..., Job], tmp_path: Path) -> None:
    logs = [tmp_path / "one", tmp_path / "two"]
    record(make_job, logs[0], "--steps", "6")
    record(make_job, logs[1], "--steps", "14")
    # The ranks of one run, and one of the other.
    (logs[0] / "rank-2.jsonl").write_text((logs[1] / "rank-2.jsonl").read_text())
    job = make_job(RANKS, 1, replay_order=logs[0])
    job.start(SCRIPT, "--steps", "6", "--fails", "ranks [2]", "another run").finish()


@pytest.mark.parametrize("order", ["[]", "[[[1, -1, 0]]]", "7", "[[[1, 2]]]"])
def test_a_log_with_a_damaged_order_fails_on_all_ranks(
    make_job: Callable[..., Job], tmp_path: Path, order: str
) -> None:
    log = tmp_path / "log"
    record(make_job, log, "--steps", "6")
    lines = (log / "rank-1.jsonl").read_text().splitlines()
    lines[3] = f'{{"optimizer": 0, "kind": "step", "order": {order}}}'
    (log / "rank-1.jsonl").write_text("\n".join(lines))
    job = make_job(RANKS, 1, replay_order=log)
    job.start(SCRIPT, "--steps", "6", "--fails", "rank-1.jsonl").finish()
