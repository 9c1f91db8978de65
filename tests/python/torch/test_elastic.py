"""Elastic jobs: workers die and join, and training ends as if nothing had happened."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import needs
import sumpter.torch as hvd
from jobs import Job
from sumpter import PeerLostError
from sumpter._core import membership
from sumpter.torch import elastic

# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 120


@pytest.mark.parametrize(
    ("optimizer", "fabric"),
    [("in_workers", "tcp"), ("on_servers", "tcp"), ("in_workers", "libfabric")],
)
def test_a_killed_worker_is_replaced_and_the_result_is_that_of_one_process(
    make_job: Callable[..., Job], optimizer: str, fabric: str
) -> None:
    settings = {"redo": False, "start_timeout_s": HANG_S, **needs.fabric(fabric)}
    job = make_job(3, 1, repeated=True, min_workers=2, **settings)
    job.make_pipe("alone")
    for rank in range(3):
        job.start_rank(rank, "elastic_training.py", optimizer, *["doomed"] * (rank == 0))
    assert job.exit_code(0) == -signal.SIGKILL, job.report("no worker was killed")
    job.wait_for("alone")
    job.start_rank(0, "elastic_training.py", optimizer, "newcomer")
    job.finish()
    assert job.result(0) == job.result(1) == job.result(2)
    assert ("bytes are placed" in job.output(0)) == (fabric == "libfabric")


@pytest.mark.parametrize("fabric", needs.FABRICS)
def test_what_a_codec_has_left_out_is_taken_along_when_a_worker_joins(
    make_job: Callable[..., Job], fabric: str
) -> None:
    own = {"compression_min_bytes": 1024, "partition_bytes": "16KiB"}
    settings = {**own, **needs.fabric(fabric), "log": "info"}
    job = make_job(2, 1, repeated=True, min_workers=2, start_timeout_s=HANG_S, **settings)
    job.make_pipe("alone")
    job.start("elastic_compression.py")
    job.wait_for("alone")
    # The environment of a rank of its own, which the job renumbers.
    place = {"RANK": "0", "LOCAL_RANK": "0"}
    job.start_rank(2, "elastic_compression.py", "newcomer", **place)
    job.finish()
    assert job.exit_code(2) == 0, job.report("the newcomer failed")
    assert "was lost" not in job.output(0), job.report("a rank was taken for dead")
    assert ("bytes are placed" in job.output(2)) == (fabric == "libfabric")


@pytest.mark.parametrize("fabric", needs.FABRICS)
def test_what_a_codec_has_left_out_stays_in_the_job_when_a_worker_leaves_in_good_order(
    make_job: Callable[..., Job], fabric: str
) -> None:
    own = {"compression_min_bytes": 1024, "partition_bytes": "16KiB"}
    settings = {**own, **needs.fabric(fabric), "log": "info"}
    job = make_job(3, 1, repeated=True, min_workers=2, start_timeout_s=HANG_S, **settings)
    job.start("elastic_leaves.py")
    assert job.exit_code(0) == 143, job.report("the worker did not leave")
    assert job.exit_code(1) == job.exit_code(2) == 0, job.report("those that stayed failed")
    assert "was lost" not in job.output(1), job.report("it was taken for dead")
    assert ("bytes are placed" in job.output(1)) == (fabric == "libfabric")


@pytest.mark.parametrize(
    ("optimizer", "fabric"),
    [("in_workers", "tcp"), ("on_servers", "tcp"), ("on_servers", "libfabric")],
)
def test_survivors_complete_an_interrupted_step_among_themselves(
    make_job: Callable[..., Job], optimizer: str, fabric: str
) -> None:
    settings = {"start_timeout_s": HANG_S, **needs.fabric(fabric)}
    job = make_job(3, 1, repeated=True, min_workers=2, **settings)
    for rank in range(3):
        job.start_rank(rank, "elastic_redo.py", optimizer, *["doomed"] * (rank == 0))
    assert job.exit_code(0) == -signal.SIGKILL, job.report("no worker was killed")
    assert job.exit_code(1) == job.exit_code(2) == 0, job.report("the survivors failed")
    assert job.result(1) == job.result(2)
    assert ("bytes are placed" in job.output(1)) == (fabric == "libfabric")


def test_too_few_workers_are_an_error_that_says_so(make_job: Callable[..., Job]) -> None:
    job = make_job(2, repeated=True, min_workers=2, start_timeout_s=20)
    job.start("elastic_ends.py")
    assert job.exit_code(1) == -signal.SIGKILL
    assert job.exit_code(0) == 0, job.report("no such error")


@pytest.mark.parametrize(("how", "code"), [("exits", 3), ("seated", -signal.SIGKILL)])
def test_a_worker_that_ends_before_its_work_ends_no_other(
    make_job: Callable[..., Job], how: str, code: int
) -> None:
    job = make_job(3, repeated=True, min_workers=2, start_timeout_s=HANG_S)
    for rank in range(3):
        job.start_rank(rank, "elastic_losses.py", "2", *[how] * (rank == 2))
    assert job.exit_code(2) == code, job.report("the worker did not end")
    assert job.exit_code(0) == job.exit_code(1) == 0, job.report("the others failed")
    # A worker that is seated and dies takes part in no generation.
    sizes = b"[2]" if how == "seated" else b"[3, 2]"
    assert job.result(0) == job.result(1) == sizes, job.report("they did not train")


def test_a_worker_may_die_in_a_reset_callback(make_job: Callable[..., Job]) -> None:
    settings = {"redo": False, "start_timeout_s": HANG_S}
    job = make_job(3, repeated=True, min_workers=1, **settings)
    for rank, how in enumerate(([], ["resets"], ["exits"])):
        job.start_rank(rank, "elastic_losses.py", "1", *how)
    assert job.exit_code(1) == -signal.SIGKILL, job.report("no worker was killed")
    assert job.exit_code(0) == 0, job.report("the survivor failed")
    assert job.result(0) == b"[3, 1]"


def test_a_worker_that_dies_while_the_coordinator_is_away_is_left_out(
    make_job: Callable[..., Job],
) -> None:
    # How long the others wait for it to come back.
    job = make_job(3, repeated=True, returns=True, min_workers=2, start_timeout_s=15)
    job.make_pipe("at_work")
    job.start("elastic_losses.py", "2", "announces")
    job.wait_for("at_work")
    job.stop_coordinator()
    job.signal(2, signal.SIGKILL)
    job.start_coordinator()
    assert job.exit_code(0) == job.exit_code(1) == 0, job.report("the others failed")
    assert job.result(0) == job.result(1) == b"[3, 2]"


def test_elastic_workers_go_on_when_the_coordinator_comes_back(
    make_job: Callable[..., Job],
) -> None:
    job = make_job(2, repeated=True, returns=True, min_workers=2, start_timeout_s=HANG_S)
    job.make_pipe("at_work")
    job.start("elastic_coordinator.py")
    job.wait_for("at_work")
    job.restart_coordinator()
    (job.folder / "back").touch()
    job.finish()


def test_elastic_workers_need_a_coordinator(unlaunched: pytest.MonkeyPatch) -> None:
    with pytest.raises(hvd.StartError, match="coordinator outside the workers"):
        hvd.init(min_workers=1)


def test_ranks_of_elastic_workers_cannot_be_given(unlaunched: pytest.MonkeyPatch) -> None:
    with pytest.raises(hvd.UnsupportedError, match="rank"):
        hvd.init(min_workers=1, rank=0, coordinator="127.0.0.1:9")


def launch(folder: Path, *options: str, worker: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sumpter", "run", *options, "--", sys.executable, "-c", worker]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG_S)


ONCE = """
import os, signal
try:
    open("died", "x").close()
except FileExistsError:
    print("lives")
else:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_launcher_starts_a_dead_worker_again(tmp_path: Path) -> None:
    ended = launch(tmp_path, "-n", "1", "--min-workers", "1", worker=ONCE)
    assert ended.returncode == 0, ended.stderr
    assert "was killed by SIGKILL; starting it again (1 of 3)" in ended.stderr
    assert "[worker 0] lives" in ended.stdout


def test_the_launcher_gives_up_a_worker_that_always_fails(tmp_path: Path) -> None:
    options = ("-n", "2", "--min-workers", "2", "--restarts", "1")
    worker = "import os, sys, time; sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(600)"
    ended = launch(tmp_path, *options, worker=worker)
    assert ended.returncode == 7, ended.stderr
    assert "ended with code 7; starting it again (1 of 1)" in ended.stderr
    assert "ended with code 7; too few workers are left" in ended.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-n", "1", "--min-workers", "2"), "only 1 worker "),
        (("-n", "2", "--restarts", "2"), "--min-workers"),
        (("-n", "2", "--min-workers", "2", "--max-workers", "1"), "max_workers"),
    ],
)
def test_impossible_options_are_refused(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    ended = launch(tmp_path, *options, worker="")
    assert ended.returncode != 0
    assert said in ended.stderr


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Lets this process play a rank of a job."""

    def play(rank: int, size: int) -> None:
        session = SimpleNamespace(rank=rank, world_size=size)
        monkeypatch.setattr(membership, "current", lambda: session)

    return play


AsRank = Callable[[int, int], None]


def test_an_elastic_sampler_deals_out_what_was_not_processed(as_rank: AsRank) -> None:
    samplers = []
    for rank in range(3):
        as_rank(rank, 3)
        samplers.append(elastic.ElasticSampler(range(20)))
    dealt = [list(sampler) for sampler in samplers]
    assert {index for own in dealt for index in own} == set(range(20))
    assert [len(own) for own in dealt] == [7, 7, 7] == [len(sampler) for sampler in samplers]
    for sampler, own in zip(samplers, dealt, strict=True):
        sampler.record_batch(1, 2)
        assert sampler.processed_indices == set(own[2:4])
    merged = elastic.ElasticSampler.merge([sampler.state_dict() for sampler in samplers])
    rest: list[int] = []
    for rank in range(2):
        as_rank(rank, 2)
        samplers[rank].load_state_dict(merged)
        rest += samplers[rank]
    assert sorted(rest) == sorted(set(range(20)) - merged["processed_indices"])
    samplers[0].set_epoch(1)
    assert not samplers[0].processed_indices
    assert list(samplers[0]) != dealt[0][:10]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_a_global_batch_is_the_same_for_any_number_of_ranks(as_rank: AsRank, ranks: int) -> None:
    as_rank(0, 1)
    whole = [sorted(batch) for batch in elastic.GlobalBatchSampler(range(50), 7, seed=4)]
    assert len(whole) == 7
    shares, weights = [], []
    for rank in range(ranks):
        as_rank(rank, ranks)
        sampler = elastic.GlobalBatchSampler(range(50), 7, seed=4)
        shares.append(list(sampler))
        weights.append(sampler.weight)
        assert len(shares[-1][0]) * ranks / 7 == sampler.weight
    assert [sorted(sum(parts, [])) for parts in zip(*shares, strict=True)] == whole
    assert sum(weights) / ranks == pytest.approx(1.0)


def test_a_global_batch_goes_on_where_it_was(as_rank: AsRank) -> None:
    as_rank(0, 1)
    sampler = elastic.GlobalBatchSampler(range(50), 7)
    batches = list(sampler)
    for index, _ in enumerate(sampler):
        sampler.record_batch(index)
        if index == 2:
            break
    state = sampler.state_dict()
    as_rank(1, 2)
    other = elastic.GlobalBatchSampler(range(50), 7)
    other.load_state_dict(state)
    assert len(other) == 4
    assert list(other) == [batch[1::2] for batch in batches[3:]]
    for index, _ in enumerate(other):
        other.record_batch(index)
    assert len(other) == 0


def test_a_global_batch_that_cannot_be_is_refused(as_rank: AsRank) -> None:
    as_rank(0, 3)
    for size in (0, 51, 2):
        with pytest.raises(ValueError, match=f"global_batch is {size}"):
            elastic.GlobalBatchSampler(range(50), size)


def test_a_state_goes_back_to_its_last_commit(alone: None) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    state = elastic.TorchState(model, optimizer, history=[], epoch=3)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.history.append(state.epoch)

    step()
    state.commit()
    kept = (model.weight.clone(), optimizer.state[model.weight]["momentum_buffer"].clone())
    for _ in range(2):
        step()
        state.epoch = 4
        # A step that was interrupted in the middle.
        model(torch.ones(1, 2)).sum().backward()
        state.restore()
        assert torch.equal(model.weight, kept[0])
        assert torch.equal(optimizer.state[model.weight]["momentum_buffer"], kept[1])
        assert (state.epoch, state.history) == (3, [3])
    step()
    state.sync()
    state.restore()
    assert state.history == [3, 3]


def test_nothing_is_kept_of_a_step_that_failed_after_its_wait(alone: None) -> None:
    """As a stream of a device does that waits for a sum when a machine dies."""
    session = membership.current()
    state = elastic.TorchState(model=torch.nn.Linear(1, 1), step=3)
    state.step = 4
    session.late = PeerLostError("rank 1 died")
    with pytest.raises(PeerLostError, match="rank 1 died"):
        state.commit()
    state.restore()
    assert state.step == 3
    state.step = 4
    state.commit()
    state.restore()
    assert state.step == 4


def test_without_min_workers_a_function_runs_once_and_errors_are_raised(alone: None) -> None:
    calls: list[object] = []

    @elastic.run
    def train(state: elastic.State, word: str) -> str:
        calls.append(state)
        if word == "raise":
            raise hvd.HorovodInternalError(word)
        return word

    state = elastic.ObjectState(step=0)
    assert train(state, word="done") == "done"
    with pytest.raises(hvd.HorovodInternalError):
        train(state, "raise")
    assert len(calls) == 2
