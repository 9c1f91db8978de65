"""Ray Train over Sumpter on a real cluster: results, lost helpers, lost workers, bad input."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from pods import eventually
from sumpter import _native
from sumpter.launch.running import last_settings
from sumpter.launch.status import read_servers

ray = pytest.importorskip(
    "ray",
    reason="Ray is not installed, so this checks nothing: make ray-check installs it and runs this",
)
from ray.train import FailureConfig, RunConfig, ScalingConfig  # noqa: E402
from ray.train.torch import TorchTrainer  # noqa: E402

from sumpter.ray import SumpterConfig  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 600

# Workers cannot import this file.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(autouse=True)
def clean(cluster: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Whatever a test does, it leaves no helper, no job and no place reserved."""
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
    yield
    eventually(lambda: not helpers() and not reserved(), lambda: f"{helpers()}, {reserved()}")


def helpers() -> list[int]:
    """The processes of helpers."""
    found = psutil.process_iter(["cmdline"])
    return [p.pid for p in found if (p.info["cmdline"] or [""])[0].startswith("ray::Helper")]


def reserved() -> list[str]:
    """The placement groups that are not removed."""
    groups = ray.util.placement_group_table().values()
    return [group["placement_group_id"] for group in groups if group["state"] != "REMOVED"]


def members() -> list[int]:
    """The servers of the job that runs, by their numbers."""
    return [server.number for server in read_servers(_native.status(last_settings()))]


def trainer(
    train: Callable,
    folder: Path,
    failures: int = 0,
    scaling: ScalingConfig | None = None,
    **config: object,
) -> TorchTrainer:
    return TorchTrainer(
        train,
        train_loop_config={"folder": str(folder)},
        torch_config=SumpterConfig(**config),
        scaling_config=scaling or ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=str(folder / "ray"), failure_config=FailureConfig(max_failures=failures)
        ),
    )


def run(*command: str, **variables: str) -> str:
    ended = subprocess.run(
        (sys.executable, *command),
        cwd=ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_S,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def test_training_ends_with_the_bytes_of_sumpter_run(cluster: str, tmp_path: Path) -> None:
    options = ("--epochs", "3", "--digest")
    ours = run("-m", "sumpter", "run", "-n2", "-s1", "--", sys.executable, "examples/digits.py",
               *options)  # fmt: skip
    rays = run("examples/ray_digits.py", "--helpers", "1", "--storage", str(tmp_path), *options,
               RAY_ADDRESS=cluster)  # fmt: skip
    digests = [re.findall(r"trained 3 epochs, parameters (\w{64})", said) for said in (ours, rays)]
    assert digests[0] and digests[0][:1] == digests[1], rays


def test_the_example_makes_a_cluster_and_ray_complains_of_nothing(tmp_path: Path) -> None:
    said = run("examples/ray_digits.py", "--nodes", "3", "--helpers", "1", "--epochs", "1",
               "--storage", str(tmp_path))  # fmt: skip
    assert "accuracy on 360 held-out digits" in said
    # Of Ray without its state API, which cannot clean up after a controller that has died.
    assert "Failed to query Ray Train Controller" not in said


@dataclass
class Run:
    """A run in the background that ends when it is told to, and what its ranks write down."""

    folder: Path
    results: list[Any] = field(default_factory=list)

    def steps(self) -> int:
        """How many steps the first two ranks have taken in their group."""
        written = [self.folder / f"step.{rank}" for rank in range(2)]
        return min(int((file.read_text() if file.exists() else "") or 0) for file in written)

    def goes_on(self) -> None:
        before = self.steps()
        eventually(lambda: self.steps() > before + 20, lambda: str(self.results))

    def groups(self) -> list[str]:
        """The coordinator, and how many servers and ranks rank 0 of each group found."""
        return (self.folder / "groups").read_text().splitlines()


@contextmanager
def running(
    folder: Path, failures: int = 0, scaling: ScalingConfig | None = None, **config: object
) -> Iterator[Run]:
    """A run of `until_enough`; when the block is left, it is over, and its result is there."""
    run = Run(folder)
    made = trainer(until_enough, folder, failures, scaling, **config)
    thread = threading.Thread(target=lambda: run.results.append(made.fit()))
    thread.start()
    try:
        run.goes_on()
        yield run
    finally:
        (folder / "enough").touch()
        thread.join(HANG_S)
    assert run.results and run.results[0].return_value == "trained"


def until_enough(config: dict) -> str:
    """Checks the sum of each step; a rank that finds a file of its number dies, once."""
    import torch
    import torch.distributed as dist

    folder, step, over = Path(config["folder"]), 0, torch.zeros(1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    fatal = folder / f"kill.{rank}"
    if rank == 0:
        with (folder / "groups").open("a") as groups:
            coordinator, servers = (os.environ[f"SUMPTER_{x}"] for x in ("COORDINATOR", "SERVERS"))
            groups.write(f"{coordinator} {servers} {ranks}\n")
    while not over.item():
        if fatal.exists():
            fatal.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        gradient = torch.full((1 << 16,), float(step + rank))
        dist.all_reduce(gradient)
        total = ranks * step + ranks * (ranks - 1) / 2
        assert (gradient == total).all(), f"step {step} of {ranks} ranks: {gradient}"
        over[0] = rank == 0 and (folder / "enough").exists()
        dist.broadcast(over, 0)
        step += 1
        (folder / f"step.{rank}").write_text(str(step))
    return "trained"


def test_a_lost_helper_is_replaced_while_the_same_workers_train(tmp_path: Path) -> None:
    with running(tmp_path, helpers=1) as run:
        (first,), (number,) = helpers(), members()
        os.kill(first, signal.SIGKILL)
        run.goes_on()
        eventually(lambda: members() not in ([number], []), lambda: str(members()))
        assert helpers() != [first]
        run.goes_on()
    assert len(run.groups()) == 1


def test_after_a_lost_worker_a_new_group_trains_and_helpers_join_when_they_can(
    tmp_path: Path,
) -> None:
    @ray.remote(num_cpus=1)
    class Blocker:
        """Takes the helper's place while the workers are started anew."""

    with running(tmp_path, 1, helpers=1, settings={"start_timeout_s": 30}) as run:
        blocker = Blocker.remote()
        (tmp_path / "kill.1").touch()
        eventually(lambda: len(run.groups()) == 2, lambda: str(run.groups()))
        run.goes_on()
        assert not members()
        ray.kill(blocker)
        eventually(members, lambda: str(reserved()))
        run.goes_on()
    (first, *before), (second, *later) = (group.split() for group in run.groups())
    assert (before, later) == (["1", "2"], ["0", "2"]) and first != second


def test_nodes_that_come_and_go_change_the_number_of_workers_and_helpers_stay(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ray learns of a lost node within 20 s, and until then waits for a place there.
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "20")
    # Of helpers Ray Train knows nothing, and would count their CPUs as places of workers.
    elastic = ScalingConfig(
        num_workers=(2, 3),
        resources_per_worker={"CPU": 1, "seat": 1},
        elastic_resize_monitor_interval_s=1,
    )
    added = [nodes.add_node(resources={"seat": 1}) for _ in range(2)]

    def resized(group: int, ranks: int) -> None:
        eventually(lambda: len(run.groups()) > group, lambda: f"{run.groups()}, {run.results}")
        assert run.groups()[group].split()[1:] == ["1", str(ranks)]
        run.goes_on()
        assert len(members()) == 1

    try:
        with running(tmp_path, 1, elastic, helpers=1) as run:
            resized(0, 2)
            added.append(nodes.add_node(resources={"seat": 1}))
            resized(1, 3)
            nodes.remove_node(added.pop(), allow_graceful=False)
            resized(2, 2)
        assert len(run.groups()) == 3
    finally:
        for node in added:
            nodes.remove_node(node)


DRIVER = """
import select
import sys
from pathlib import Path
import ray
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from sumpter.ray import SumpterConfig

def train(config):
    import torch
    import torch.distributed as dist
    while True:
        dist.all_reduce(torch.ones(1000))
        Path(config["folder"], "trains").touch()

ray.init()
try:
    TorchTrainer(
        train,
        train_loop_config={"folder": FOLDER},
        torch_config=SumpterConfig(helpers=1),
        scaling_config=ScalingConfig(num_workers=2),
    ).fit()
finally:
    Path(FOLDER, "ended").touch()
    # Lives until the test closes its input or ends.
    select.select([sys.stdin], [], [], 120)
"""


def test_an_aborted_run_leaves_nothing_while_its_driver_lives(cluster: str, tmp_path: Path) -> None:
    driver = subprocess.Popen(
        (sys.executable, "-c", DRIVER.replace("FOLDER", repr(str(tmp_path)))),
        env={**os.environ, "RAY_ADDRESS": cluster, "HOME": str(tmp_path)},
        stdin=subprocess.PIPE,
    )
    try:
        eventually((tmp_path / "trains").exists, lambda: f"code {driver.poll()}")
        assert helpers() and len(reserved()) == 2
        driver.send_signal(signal.SIGINT)
        eventually((tmp_path / "ended").exists, lambda: f"code {driver.poll()}")
        eventually(lambda: not helpers() and not reserved(), lambda: f"{helpers()}, {reserved()}")
        assert driver.poll() is None
    finally:
        driver.kill()
        driver.communicate()  # closes its input


def by_horovods_interface(config: dict) -> list:
    import torch
    import torch.distributed as dist

    import sumpter.torch as hvd

    assert not dist.is_initialized()
    hvd.init()
    total = hvd.allreduce(torch.ones(1000) * hvd.rank(), op=hvd.Sum, name="gradient")
    size = hvd.size()
    hvd.shutdown()
    return [size, total[0].item()]


def by_torchs_interface(config: dict) -> list:
    import torch
    import torch.distributed as dist

    dist.init_process_group("sumpter")
    total = torch.ones(1000) * dist.get_rank()
    dist.all_reduce(total)
    dist.destroy_process_group()
    return [int(os.environ["WORLD_SIZE"]), total[0].item()]


@pytest.mark.parametrize("train", [by_horovods_interface, by_torchs_interface])
def test_a_script_of_other_launchers_joins_by_itself(train: Callable, tmp_path: Path) -> None:
    made = trainer(train, tmp_path, process_group=False)
    assert made.fit().return_value == [2, 1.0]


def test_more_helpers_than_nodes_are_refused_with_the_nodes(tmp_path: Path) -> None:
    made = trainer(print, tmp_path, helpers=2, settings={"start_timeout_s": 1})
    with pytest.raises(ray.train.ControllerError) as error:
        made.fit()
    said = str(error.value)
    assert "no place for 2 helpers of 1 CPU, each on a node of its own, within 1 s" in said
    assert "The cluster has 3 nodes" in said
    assert said.count("runs ranks of this job") == 2
    assert said.count("has the resources, unless they are in use") == 1


def test_a_helper_that_cannot_start_is_named_with_its_reason(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        made = trainer(print, tmp_path, helpers=1, settings={"port": port})
        with pytest.raises(ray.train.ControllerError, match=r"helper 0 on [\d.]+ cannot") as error:
            made.fit()
    assert str(port) in str(error.value) and "in use" in str(error.value)


def test_a_coordinator_without_its_port_says_so(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        made = trainer(print, tmp_path, listen=f"0.0.0.0:{port}")
        with pytest.raises(ray.train.ControllerError, match=f"{port}.*in use"):
            made.fit()
