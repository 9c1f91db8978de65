"""deploy/slurm/train.sbatch on a real Slurm: two GPU nodes, two CPU nodes, and what they lose."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemons import Slurm, slurm

from documents import fences
from pods import eventually
from sumpter import _native

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "deploy" / "slurm" / "train.sbatch"
WORKER = Path(__file__).with_name("worker.py")


@pytest.fixture
def cluster() -> Iterator[Slurm]:
    partitions = {"gpu": ("gpu0", "gpu1"), "cpu": ("cpu0", "cpu1")}
    # The daemons' sockets lie in it, whose paths are short by the system's rules.
    with (
        tempfile.TemporaryDirectory(prefix="slurm", dir="/tmp") as folder,
        slurm(Path(folder) / "slurm", partitions) as made,
    ):
        yield made


def step(folder: Path) -> int:
    """The last step that both ranks have written down."""
    files = [folder / f"step.{rank}" for rank in range(2)]
    return min(int((file.read_text() if file.exists() else "") or 0) for file in files)


def servers(cluster: Slurm) -> dict[str, int]:
    """The servers of a cluster's jobs, as node and pid."""
    found, own = {}, f"SLURM_CONF={cluster.environment['SLURM_CONF']}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        node = next((v[16:] for v in variables if v.startswith(b"SLURMD_NODENAME=")), b"").decode()
        if own in variables and node and b"serve" in words[-3:] and b"bash" not in words[0]:
            found[node] = int(folder.name)
    return found


def test_a_heterogeneous_job_trains_and_loses_servers_but_no_step(
    cluster: Slurm, tmp_path: Path
) -> None:
    def goes_on() -> None:
        before = step(tmp_path)
        eventually(lambda: step(tmp_path) > before + 40, lambda: output.read_text())

    exported = f"--export=ALL,TEST_FOLDER={tmp_path}"
    # One option for each component: what the second one has of its own is in the script.
    script = tmp_path / "train.sbatch"
    script.write_text(
        SCRIPT.read_text().replace(
            "partition=cpu\n#SBATCH --nodes=1", "partition=cpu\n#SBATCH --nodes=2"
        )
    )
    output = cluster.submit(exported, str(script), sys.executable, str(WORKER))
    goes_on()
    first = servers(cluster)
    assert set(first) == {"cpu0", "cpu1"}
    os.kill(first["cpu0"], signal.SIGKILL)
    goes_on()
    eventually(
        lambda: servers(cluster).get("cpu0", first["cpu0"]) != first["cpu0"], output.read_text
    )
    goes_on()
    cluster.run("scontrol", "update", "NodeName=cpu1", "State=DOWN", "Reason=test")
    eventually(lambda: "cpu1" not in servers(cluster), output.read_text)
    goes_on()
    (tmp_path / "enough").touch()
    said = cluster.wait(output)
    for rank in range(2):
        assert f"rank {rank} of 2 took its steps" in said, said
    assert not servers(cluster)


def test_a_failed_rank_ends_the_job_and_says_so(cluster: Slurm) -> None:
    fails = "import sumpter; sumpter.init(); sumpter.rank() and 1 / 0; sumpter.barrier()"
    said = cluster.wait(cluster.submit(str(SCRIPT), sys.executable, "-c", fails))
    assert "ZeroDivisionError" in said
    assert not servers(cluster)
    said = cluster.wait(cluster.submit(str(SCRIPT)))
    assert "usage: sbatch" in said
    alone = cluster.folder / "alone.sbatch"
    alone.write_text(SCRIPT.read_text().replace("#SBATCH hetjob\n", ""))
    said = cluster.wait(cluster.submit(str(alone), "true"))
    assert "this job has no second component" in said


@pytest.mark.parametrize(
    ("number", "page", "shows"),
    [(0, "docs/user/choose-launcher.md", " of 2: 2"), (1, "README.md", ": ")],
    ids=["own-variables", "torch-distributed"],
)
def test_the_printed_commands_train(cluster: Slurm, number: int, page: str, shows: str) -> None:
    """What docs/user/slurm.md prints, with the `train.py` of another page."""
    commands = [f.text for f in fences(ROOT / "docs" / "user" / "slurm.md") if f.language == "sh"]
    script = next(f.text for f in fences(ROOT / page) if f.marks.get("file") == "train.py")
    (cluster.folder / "train.py").write_text(script)
    (cluster.folder / "deploy").symlink_to(ROOT / "deploy")
    said = cluster.wait(cluster.submitted(commands[number]))
    for rank in range(2):
        assert re.search(f"rank {rank}{shows}", said), said


def test_the_script_names_settings_that_exist() -> None:
    known = {row["env"] for row in _native.settings()}
    used = {word for word in SCRIPT.read_text().replace("=", " ").split() if "SUMPTER_" in word}
    assert used and {word.strip('"$') for word in used} <= known
