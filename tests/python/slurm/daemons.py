"""A Slurm cluster on this machine: the real daemons, each node in a namespace of its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import pods
from pods import Pod, Resource, eventually

_DAEMONS = ("munged", "slurmctld", "slurmd")
_COMMANDS = ("sbatch", "scontrol", "sinfo", "squeue")
_SHELL = "bash"
_CONTROLLER = "ctl"

# Of the nodes nothing is known but their addresses: no control groups, no accounting.
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={controller}({address})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
"""


@dataclass
class Slurm:
    """A cluster that runs."""

    folder: Path
    pods: pods.Cluster
    environment: Mapping[str, str]
    _login: Pod | None = None
    _submitted: int = 0

    def run(self, *command: str) -> str:
        """What a command prints, run beside the controller."""
        code, said = self._tried(*command)
        assert code == 0, f"{' '.join(command)}: code {code}: {said}"
        return said

    def _tried(self, *command: str) -> tuple[int, str]:
        """The exit code of a command, and what it prints: while the daemons start, a failure."""
        if self._login is None:
            self._login = self._start("login", *command)
        else:
            self.pods.run_again(self._login, *command)
        return self._login.wait(), self._login.log()

    def is_idle(self) -> bool:
        """Whether all nodes wait for jobs."""
        code, said = self._tried("sinfo", "--noheader", "--format=%T")
        return code == 0 and said.split() == ["idle"]

    def _is_empty(self) -> bool:
        """Whether no job is left."""
        code, said = self._tried("squeue", "--noheader")
        return code == 0 and not said.strip()

    def submit(self, *arguments: str) -> Path:
        """Submits a job; the file of its output."""
        self._submitted += 1
        output = self.folder / f"job-{self._submitted}.log"
        output.touch()
        self.run("sbatch", "--output", str(output), "--chdir", str(self.folder), *arguments)
        return output

    def submitted(self, commands: str) -> Path:
        """The output of the job that a shell's commands submit, in the file that it names."""
        before = set(self.folder.glob("*.log"))
        said = self.run("bash", "-euc", f"cd {self.folder}\n{commands}")
        eventually(lambda: set(self.folder.glob("*.log")) > before, lambda: said)
        (output,) = set(self.folder.glob("*.log")) - before
        return output

    def wait(self, output: Path) -> str:
        """Waits until no job is left; the output of one."""
        queue = ("squeue", "--format=%i %T %r %N")
        eventually(self._is_empty, lambda: output.read_text() + self._tried(*queue)[1])
        return output.read_text()

    def report(self) -> str:
        """What all daemons have said."""
        return self.pods.report()

    def _start(self, name: str, *command: str) -> Pod:
        template: Resource = {
            "spec": {
                "containers": [
                    {
                        "name": name,
                        "command": list(command),
                        "env": [{"name": n, "value": t} for n, t in self.environment.items()],
                    }
                ]
            }
        }
        return self.pods.start(template, name)


@contextlib.contextmanager
def slurm(folder: Path, partitions: Mapping[str, Sequence[str]]) -> Iterator[Slurm]:
    """A cluster with these partitions, as names of nodes; skips a test where there is no Slurm."""
    pods.needs_namespaces()
    missing = [tool for tool in (*_DAEMONS, *_COMMANDS) if shutil.which(tool) is None]
    if missing:
        pytest.skip(
            f"{', '.join(missing)} not found, so this checks nothing: apt-get install slurmctld "
            "slurmd slurm-client munge"
        )
    folder.mkdir()
    nodes = [node for named in partitions.values() for node in named]
    _configure(folder, partitions, nodes)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}
    programs = {name: (shutil.which(name) or name,) for name in (*_DAEMONS, *_COMMANDS, _SHELL)}
    with _alone(), _munge(folder), pods.cluster(folder / "pods", programs) as made:
        cluster = Slurm(folder, made, environment)
        cluster._start(_CONTROLLER, "slurmctld", "-D")
        for node in nodes:
            cluster._start(node, "slurmd", "-D", "-N", node)
        eventually(
            cluster.is_idle,
            cluster.report,
        )
        yield cluster


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One cluster at a time: the daemons of two disturb each other."""
    with (Path(tempfile.gettempdir()) / "sumpter-tests-slurm.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _configure(folder: Path, partitions: Mapping[str, Sequence[str]], nodes: Sequence[str]) -> None:
    (folder / "state").mkdir()
    # Without control groups: an empty folder is all that the plugin needs.
    (folder / "cgroup").mkdir()
    (folder / "cgroup.conf").write_text(
        f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={folder}/cgroup\n"
    )
    controller, *addresses = (pods.address_of(number) for number in range(1, len(nodes) + 2))
    lines = [_CONFIGURATION.format(controller=_CONTROLLER, address=controller, folder=folder)]
    for node, address in zip(nodes, addresses, strict=True):
        (folder / f"spool-{node}").mkdir()
        lines.append(f"NodeName={node} NodeAddr={address} CPUs=2 RealMemory=1000\n")
    for name, named in partitions.items():
        lines.append(f"PartitionName={name} Nodes={','.join(named)}\n")
    (folder / "slurm.conf").write_text("".join(lines))


@contextlib.contextmanager
def _munge(folder: Path) -> Iterator[None]:
    """The daemon by which Slurm's own know each other."""
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    files = {"socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{name}={folder}/munge.{suffix}" for name, suffix in files.items()]
    command = ["munged", "--foreground", "--force", f"--key-file={key}", *options]
    with (folder / "munged.err").open("wb") as errors:
        process = subprocess.Popen(command, stderr=errors)
    try:
        eventually((folder / "munge.sock").exists, (folder / "munged.err").read_text)
        yield
    finally:
        process.terminate()
        process.wait()
