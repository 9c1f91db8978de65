"""Workers that count as machines of their own, where one machine has several GPUs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launched import HANG_S
from recorded_machines import expand, load
from sumpter.topology import Sysfs
from sumpter.topology.gpus import count_gpus

PORT = "060400 8086:6f04"
# A machine with a card of NVIDIA and two GPUs of AMD, one of them in the processor.
MIXED = f"""host 0000:00 numa 0
 00:01.0 {PORT}
  01:00.0 030000 10de:2204
 00:02.0 {PORT}
  02:00.0 038000 1002:740f
 00:03.0 030000 1002:1638
 00:1f.0 030000 8086:9bc5"""


def machine(folder: Path, recorded: dict[str, Any], *files: str) -> tuple[Sysfs, Path]:
    """Its sysfs, and a folder with the files of these devices."""
    for name in files:
        path = folder / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return Sysfs(expand(recorded, folder / "sys")), folder / "dev"


@pytest.mark.parametrize("name", ["dgx1", "hgx_h100", "pcie"])
def test_gpus_are_those_of_the_machine_with_a_file(name: str, tmp_path: Path) -> None:
    recorded = load(name)
    files = [f"nvidia{number}" for number in range(16)]
    expected = len(recorded["nvml"]["gpus"])
    assert count_gpus(*machine(tmp_path / "all", recorded, *files, "nvidiactl")) == expected
    # A container that was given two of them, and one that was given none.
    assert count_gpus(*machine(tmp_path / "two", recorded, *files[3:5], "nvidia-uvm")) == 2
    assert count_gpus(*machine(tmp_path / "none", recorded, "null")) == 0


def test_gpus_of_two_vendors_are_not_added_up(tmp_path: Path) -> None:
    dri = ("dri/card0", "dri/renderD128", "dri/renderD129")
    recorded = {"pci": MIXED}
    assert count_gpus(*machine(tmp_path / "both", recorded, "nvidia0", *dri)) == 2
    assert count_gpus(*machine(tmp_path / "nvidia", recorded, "nvidia0", "dri/card0")) == 1


def test_a_machine_that_cannot_be_read_has_none(tmp_path: Path) -> None:
    assert count_gpus(Sysfs(tmp_path / "nowhere"), tmp_path) == 0


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`sumpter run` on a machine with eight GPUs."""
    sysfs, files = machine(folder, load("dgx1"), *[f"nvidia{number}" for number in range(8)])
    script = (
        "import functools, sys\n"
        "from sumpter import cli, topology\n"
        "from sumpter.topology import gpus\n"
        "root, files = sys.argv[1:3]\n"
        "gpus.count_gpus = functools.partial(gpus.count_gpus, topology.Sysfs(root), files)\n"
        "cli.main(sys.argv[3:])\n"
    )
    worker = "import os; print('LOCAL_RANK', os.environ['LOCAL_RANK'])"
    return subprocess.run(
        [sys.executable, "-c", script, str(sysfs.root), str(files), "run", *options, "--"]
        + [sys.executable, "-c", worker],
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )


def test_workers_that_would_all_use_the_first_gpu_are_warned_of_once(tmp_path: Path) -> None:
    ended = run(tmp_path / "run", "-n", "2")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("LOCAL_RANK 0") == 2
    (line,) = [one for one in ended.stderr.splitlines() if "warning" in one]
    assert line.startswith("[sumpter] ") and "has 8 GPUs: give --machines 1" in line
    assert "has 8 GPUs: give --machines 1" in run(tmp_path / "dry", "-n", "2", "--dry-run").stdout


@pytest.mark.parametrize(
    "options", [("-n", "1"), ("-n", "2", "--machines", "1"), ("-n", "2", "--machines", "2")]
)
def test_who_has_chosen_is_not_warned(tmp_path: Path, options: tuple[str, ...]) -> None:
    ended = run(tmp_path, *options, "--dry-run")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "warning" not in ended.stdout


def test_workers_of_a_host_that_was_named_have_its_devices(tmp_path: Path) -> None:
    ended = run(tmp_path, "-H", "localhost:2", "--dry-run")
    assert ended.returncode == 0 and "warning" not in ended.stdout + ended.stderr
