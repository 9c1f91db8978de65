"""sumpter.jax: collectives inside and outside of jit, their gradients, and failures."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jobs import FINDS_MISMATCHES_S, TOKEN, Job
from launched import Started
from sumpter.launch.attendant import free_port

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'sumpter[jax]'")


@pytest.mark.parametrize("ranks", [2, 4])
def test_collectives_are_numpys(make_job: Callable[..., Job], ranks: int) -> None:
    make_job(ranks, 1, deterministic=True).start("jax_collectives.py").finish()


def test_collectives_through_callbacks_are_the_same(make_job: Callable[..., Job]) -> None:
    make_job(2, 1, deterministic=True).start("jax_collectives.py", "callbacks").finish()


@pytest.mark.parametrize("how", ["calls", "exits"])
def test_programs_that_were_begun_end_before_a_rank_leaves(
    make_job: Callable[..., Job], how: str
) -> None:
    job = make_job(2)
    job.start("jax_shutdown.py", how).finish()
    assert [job.result(rank) for rank in range(2)] == [b"done"] * 2


@pytest.mark.parametrize("ranks", [2, 4])
def test_gradients_are_those_of_the_whole_jobs_loss(
    make_job: Callable[..., Job], ranks: int
) -> None:
    # Deterministic: compiled gradients are compared bit by bit with those of eager calls.
    make_job(ranks, deterministic=True).start("jax_gradients.py").finish()


def trained(job: Job, killed: tuple[str, ...] = ()) -> np.ndarray:
    """The parameters after training, the same on all ranks."""
    job.start("jax_training.py", *killed).finish()
    results = [job.result(rank) for rank in range(job.ranks)]
    assert results == results[:1] * job.ranks, "ranks have other parameters"
    return np.frombuffer(results[0])


def test_ranks_train_as_one_process_does(make_job: Callable[..., Job]) -> None:
    alone, two = trained(make_job(1)), trained(make_job(2, 1))
    four = trained(make_job(4, deterministic=True))
    for found in (two, four):
        np.testing.assert_allclose(found, alone, rtol=1e-9, atol=1e-11)
    # The same bytes with servers, which are killed meanwhile.
    job = make_job(4, 2, deterministic=True)
    killed = trained(job, tuple(str(job.server_pid(index)) for index in range(2)))
    assert killed.tobytes() == four.tobytes()


@pytest.mark.parametrize("ranks", [2, 4])
def test_deterministic_averages_have_the_bytes_of_torchs_front(
    make_job: Callable[..., Job], ranks: int
) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed, so this compares nothing")
    found = set()
    for front in ("jax", "torch"):
        job = make_job(ranks, 1, deterministic=True)
        for rank in range(job.ranks):
            job.start_rank(rank, "same_bytes.py", TEST_FRONT=front)
        job.finish()
        found |= {job.result(rank) for rank in range(job.ranks)}
    assert len(found) == 1


SUM = """\
import jax
import sumpter.jax as sj
sj.init()
total = jax.jit(lambda x: sj.all_reduce(x, sj.Sum))(jax.numpy.array([1.0 + sj.rank()]))
print(sj.rank(), sj.size(), total.tolist())
sj.shutdown()
"""


def test_torchrun_starts_a_job() -> None:
    port = str(free_port())
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "SUMPTER_TOKEN": TOKEN}
    sizes = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    ranks = [
        Started("-c", SUM, RANK=str(rank), LOCAL_RANK=str(rank), **sizes, **places)
        for rank in range(2)
    ]
    assert [started.output() for started in ranks] == ["0 2 [3.0]\n", "1 2 [3.0]\n"]


def test_programs_compute_while_rounds_are_under_way(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    if jax.__version_info__ < (0, 5, 1):
        # What XLA does by default from 0.5.1 on: a call runs as soon as it can, not as late as
        # the least memory needs.
        monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_concurrency_optimized_scheduler=true")
    make_job(2, 1).start("jax_overlap.py").finish()


def test_a_kept_program_calls_as_before(make_job: Callable[..., Job], tmp_path: Path) -> None:
    for is_kept in (False, True):
        job = make_job(3).start("jax_cached.py", str(tmp_path / "cache"))
        job.finish()
        assert bool(json.loads(job.result(0))) == is_kept, "whether the program was kept"


def test_a_rank_killed_inside_jit_is_named_to_the_others(make_job: Callable[..., Job]) -> None:
    job = make_job(3, 1).start("jax_peer_dies.py")
    assert job.exit_code(2) == -signal.SIGKILL
    assert [job.exit_code(rank) for rank in (0, 1)] == [0, 0], job.report("a survivor failed")


def test_arrays_of_a_gpu_come_back_to_it(make_job: Callable[..., Job]) -> None:
    try:
        jax.devices("gpu")
    except RuntimeError as error:
        pytest.skip(f"JAX sees no GPU, so this checks nothing: {error}")
    make_job(2, 1).start("jax_gpu.py").finish()


def test_calls_that_differ_inside_jit_are_named_on_all_ranks(make_job: Callable[..., Job]) -> None:
    make_job(2, peer_timeout_s=FINDS_MISMATCHES_S).start("jax_mismatch.py").finish()


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_one_rank_refuses_is_an_error_on_all_ranks(
    make_job: Callable[..., Job], ranks: int
) -> None:
    make_job(ranks).start("jax_refused.py", "named").finish()


def test_calls_without_a_name_that_one_rank_refuses_are_found(make_job: Callable[..., Job]) -> None:
    make_job(3, peer_timeout_s=FINDS_MISMATCHES_S).start("jax_refused.py", "unnamed").finish()


@pytest.mark.parametrize(
    ("without", "said"),
    [
        (
            "import sys; sys.modules['jax'] = None",
            "sumpter.jax needs jax, which is not installed: pip install 'sumpter[jax]'",
        ),
        (
            "import jax; jax.__version__, jax.__version_info__ = '0.4.20', (0, 4, 20)",
            "sumpter.jax needs jax 0.4.35 or newer, and 0.4.20 is installed: "
            "pip install --upgrade 'sumpter[jax]'",
        ),
    ],
    ids=["none", "old"],
)
def test_without_a_jax_that_fits_the_import_says_what_to_install(without: str, said: str) -> None:
    script = f"{without}; import sumpter.jax"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == f"ImportError: {said}"
