"""Jobs whose processes know of each other only by another launcher's variables."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from jobs import PATIENCE, as_variables
from launched import FOREIGN, HANG_S, Started
from sumpter import _native
from sumpter.launch.attendant import free_port

TOKEN = "a token that only tests use"

SUM = """\
import numpy as np
import sumpter
sumpter.init()
place = (sumpter.rank(), sumpter.size(), sumpter.local_rank(), sumpter.local_size())
print(*place, sumpter.push_pull(np.arange(2) + sumpter.rank(), average=False, name="x"))
sumpter.shutdown()
"""

TORCH_SUM = """\
import torch
import sumpter.torch as hvd
hvd.init()
print(hvd.rank(), hvd.size(), hvd.allreduce(torch.tensor([1.0 + hvd.rank()]), op=hvd.Sum).tolist())
hvd.shutdown()
"""


@pytest.fixture
def port() -> str:
    return str(free_port())


def test_mpirun_on_one_machine_needs_nothing_else() -> None:
    def rank(number: int) -> Started:
        return Started(
            "-c",
            TORCH_SUM,
            OMPI_COMM_WORLD_RANK=str(number),
            OMPI_COMM_WORLD_SIZE="2",
            OMPI_COMM_WORLD_LOCAL_RANK=str(number),
            OMPI_COMM_WORLD_LOCAL_SIZE="2",
            PMIX_NAMESPACE=f"prterun-test-{os.getpid()}@1",
        )

    ranks = [rank(number) for number in range(2)]
    assert [started.output() for started in ranks] == ["0 2 [3.0]\n", "1 2 [3.0]\n"]


@pytest.mark.parametrize("command", ["mpirun.openmpi", "mpiexec.hydra"])
def test_a_real_mpirun_starts_a_job(command: str, port: str) -> None:
    if shutil.which(command) is None:
        pytest.skip(f"{command} is not installed (Debian: openmpi-bin, mpich)")
    # Open MPI refuses to run for root, and more processes than cores, unless it is told.
    allowed = ["--oversubscribe"] if command == "mpirun.openmpi" else []
    allowed += ["--allow-run-as-root"] if allowed and os.geteuid() == 0 else []
    launcher = [command, *allowed, "-n", "2", sys.executable, "-c", TORCH_SUM]
    # MPICH says nothing from which all ranks could derive a port.
    known = {} if allowed else {"MASTER_PORT": port}
    own = {name: text for name, text in os.environ.items() if not name.startswith(FOREIGN)}
    # The ranks share one pipe: each is to write its line at once.
    known["PYTHONUNBUFFERED"] = ""
    environment = {**own, **as_variables(PATIENCE), **known}
    done = subprocess.run(
        launcher, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 2 [3.0]", "1 2 [3.0]"]


def test_srun_tells_where_rank_0_is() -> None:
    def rank(number: int) -> Started:
        return Started(
            "-c",
            SUM,
            SLURM_JOB_ID=str(os.getpid()),
            SLURM_STEP_ID="0",
            SLURM_PROCID=str(number),
            SLURM_NTASKS="2",
            SLURM_STEP_NUM_TASKS="2",
            SLURM_LOCALID=str(number),
            SLURM_NODEID="0",
            SLURM_STEP_TASKS_PER_NODE="2",
            SLURM_STEP_NODELIST="localhost",
            SUMPTER_TOKEN=TOKEN,
        )

    ranks = [rank(number) for number in range(2)]
    assert [started.output() for started in ranks] == ["0 2 0 2 [1 3]\n", "1 2 1 2 [1 3]\n"]


def byteps(port: str, role: str, *command: str, **variables: str) -> Started:
    common = {
        "DMLC_ROLE": role,
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": port,
        "SUMPTER_TOKEN": TOKEN,
    }
    return Started(*command, **{**common, **variables})


def test_a_byteps_job_of_scheduler_server_and_workers(port: str) -> None:
    launcher = ("-m", "sumpter", "bpslaunch")
    others = [
        byteps(port, "scheduler", *launcher),
        byteps(port, "server", "-c", "import sumpter.server", BYTEPS_SERVER_ENGINE_THREAD="1"),
    ]
    # One machine with bpslaunch, the other with a script that was started by hand.
    launched = byteps(
        *(port, "worker", *launcher, sys.executable, "-c", SUM),
        DMLC_WORKER_ID="0",
        NVIDIA_VISIBLE_DEVICES="3",
        SUMPTER_MACHINE="a",
    )
    by_hand = byteps(port, "worker", "-c", SUM, DMLC_WORKER_ID="1", SUMPTER_MACHINE="b")
    assert "[worker 0] 0 2 0 1 [1 3]\n" in launched.output()
    assert by_hand.output() == "1 2 0 1 [1 3]\n"
    for role in others:
        role.output()


def test_one_byteps_machine_needs_no_scheduler_and_no_token(port: str) -> None:
    launched = byteps(
        *(port, "worker", "-m", "sumpter", "bpslaunch", sys.executable, "-c", SUM),
        DMLC_NUM_WORKER="1",
        NVIDIA_VISIBLE_DEVICES="0,1",
        SUMPTER_TOKEN="",
    )
    lines = sorted(line for line in launched.output().splitlines() if line.startswith("[worker"))
    assert lines == ["[worker 0] 0 2 0 2 [1 3]", "[worker 1] 1 2 1 2 [1 3]"]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"SUMPTER_TOKEN": ""}, "sumpter token --file"),
        ({"DMLC_ROLE": "joint"}, "DMLC_ROLE is 'joint'"),
        ({"DMLC_ROLE": "worker"}, "DMLC_WORKER_ID is not set"),
        ({"DMLC_NUM_WORKER": ""}, "DMLC_NUM_WORKER"),
        ({"DMLC_ROLE": "worker", "DMLC_WORKER_ID": "0"}, "needs a COMMAND"),
        (
            {
                "DMLC_ROLE": "worker",
                "DMLC_WORKER_ID": "0",
                "NVIDIA_VISIBLE_DEVICES": "all",
            },
            "BYTEPS_LOCAL_SIZE",
        ),
    ],
)
def test_roles_that_cannot_run_say_why(port: str, variables: dict[str, str], said: str) -> None:
    refused = byteps(port, "scheduler", "-m", "sumpter", "bpslaunch", **variables).refusal()
    assert refused.startswith("error: ") and refused.count("\n") == 1
    assert said in refused


def test_importing_the_server_in_a_worker_is_refused(port: str) -> None:
    refused = byteps(port, "worker", "-c", "import sumpter.server", DMLC_WORKER_ID="0").refusal()
    assert "DMLC_ROLE must be 'server' or 'scheduler'" in refused


def test_a_coordinator_can_be_waited_for() -> None:
    coordinator = _native.Coordinator("127.0.0.1:0", {"token": TOKEN})
    worker = _native.Worker.join({"coordinator": coordinator.address, "token": TOKEN})
    worker.shutdown()
    coordinator.wait()
    coordinator.stop()
    coordinator.wait()
