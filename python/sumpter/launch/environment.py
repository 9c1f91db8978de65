"""What each process of a launched job finds in its environment.

The only module of the launcher that looks at the launcher's own environment.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sumpter import _native
from sumpter._failure import UsageError
from sumpter._variables import LAUNCHERS
from sumpter.launch.layout import Layout, Seat
from sumpter.launch.place import Facts

# What is passed to other machines of this one's environment: where programs and libraries are, and
# how they are tuned. Not more: an environment often holds secrets that have no business over there.
PASSED_NAMES = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "LANG", "TZ")
PASSED_PREFIXES = (
    "BYTEPS_",
    "CONDA_",
    "CUDA_",
    "DMLC_",
    "GLOO_",
    "HOROVOD_",
    "LC_",
    "MKL_",
    "NCCL_",
    "NVIDIA_",
    "OMP_",
    "PYTHON",
    "SUMPTER_",
    "TORCH",
)

# These are true of one machine only, or the job has its own.
_NEVER_PASSED = (
    "SUMPTER_COORDINATOR",
    "SUMPTER_MACHINE",
    "SUMPTER_RACK",
    "SUMPTER_TOKEN",
    "SUMPTER_TOKEN_FILE",
    "SUMPTER_TRUNK_GBPS",
)

# By these, a launcher around this one would give our processes another place in another job.
_PLACE_SETTINGS = ("rank", "world_size", "local_rank", "local_size", "master_host")
_FOREIGN_PLACE = tuple(
    variable.name
    for launcher in LAUNCHERS
    for variable in launcher.variables
    if variable.setting in _PLACE_SETTINGS
)


@dataclass(frozen=True)
class Environment:
    """The environments of one job's processes."""

    layout: Layout
    # What the job has of its own: where its coordinator is for each host, its secret (None: what
    # the processes inherit), where rank 0 may serve, if anybody knows.
    coordinators: Mapping[str, str]
    token: str | None
    master: tuple[str, int] | None
    variables: Mapping[str, str] = field(default_factory=dict)

    def worker(self, index: int, facts: Facts) -> dict[str, str | None]:
        """What a worker needs, for Sumpter, torch's `env://`, Horovod's and BytePS' scripts."""
        seat = self.layout.workers[index]
        ranks: dict[str, object] = {
            "RANK": self.layout.first_rank + index,
            "WORLD_SIZE": self.layout.world_size,
            "LOCAL_RANK": seat.local_rank,
            "LOCAL_WORLD_SIZE": seat.local_size,
            "HOROVOD_RANK": self.layout.first_rank + index,
            "HOROVOD_SIZE": self.layout.world_size,
            "HOROVOD_LOCAL_RANK": seat.local_rank,
            "HOROVOD_LOCAL_SIZE": seat.local_size,
            "HOROVOD_CROSS_RANK": seat.cross_rank,
            "HOROVOD_CROSS_SIZE": seat.cross_size,
            "HOROVOD_HOSTNAME": facts.host_name,
            "BYTEPS_LOCAL_RANK": seat.local_rank,
            "BYTEPS_LOCAL_SIZE": seat.local_size,
        }
        if self.master is not None:
            ranks |= {"MASTER_ADDR": self.master[0], "MASTER_PORT": self.master[1]}
        return self._merge(seat, ranks)

    def worker_defaults(self, index: int, facts: Facts) -> dict[str, str]:
        """What gives way to the user's environment.

        As torchrun does: n processes with a thread pool of all cores each would fight.
        """
        seat = self.layout.workers[index]
        share = facts.cores // self.layout.processes_on(seat.host, self.layout.workers)
        return {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(max(1, share))}

    def server(self, index: int) -> dict[str, str | None]:
        """What a server needs."""
        return self._merge(self.layout.servers[index], {})

    def server_defaults(self, index: int, facts: Facts) -> dict[str, str]:
        """What gives way to the user's environment: a share of the cores."""
        seat = self.layout.servers[index]
        share = facts.cores // self.layout.processes_on(seat.host, self.layout.servers)
        return {"PYTHONUNBUFFERED": "1", "SUMPTER_LANES": str(max(1, share))}

    def _merge(self, seat: Seat, own: Mapping[str, object]) -> dict[str, str | None]:
        """The user's options give way to what the job decides."""
        merged: dict[str, str | None] = dict.fromkeys(_FOREIGN_PLACE)
        if self.token is not None:
            # A file would be a second source of the same token.
            merged |= {"SUMPTER_TOKEN": self.token, "SUMPTER_TOKEN_FILE": None}
            # The coordinator, which is in this process, exports the metrics of all.
            merged["SUMPTER_METRICS_PORT"] = None
        if seat.machine is not None:
            merged["SUMPTER_MACHINE"] = seat.machine
        merged |= self.variables
        merged |= {_variable(name): text for name, text in seat.settings}
        merged["SUMPTER_COORDINATOR"] = self.coordinators[seat.host]
        merged["SUMPTER_SERVERS"] = str(self.layout.all_servers)
        return merged | {name: str(value) for name, value in own.items()}


def _variable(setting: str) -> str:
    return next(row["env"] for row in _native.settings() if row["name"] == setting)


def passed_on(requested: Sequence[str]) -> dict[str, str]:
    """This environment's variables for other machines: the usual ones and those of `-x`.

    `-x NAME` takes the value from here; `-x NAME=VALUE` states it.
    """
    usual = {
        name: text
        for name, text in os.environ.items()
        if name in PASSED_NAMES or name.startswith(PASSED_PREFIXES)
    }
    passed = {name: text for name, text in usual.items() if name not in _NEVER_PASSED}
    return passed | requested_variables(requested)


def inherited(names: Iterable[str]) -> dict[str, str]:
    """Those of these variables that processes on this machine find set."""
    return {name: os.environ[name] for name in names if name in os.environ}


def adopt(defaults: Mapping[str, str], variables: Mapping[str, str | None]) -> None:
    """Has this process find such variables, as one that an attendant starts would find them.

    Those of `defaults` give way to what it has; those of `variables` that are None are removed.
    """
    for name, text in {**defaults, **os.environ, **variables}.items():
        if text is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = text


def requested_variables(requested: Sequence[str]) -> dict[str, str]:
    """The variables of `-x` options."""
    found = {}
    for option in requested:
        name, equals, text = option.partition("=")
        if not equals and name not in os.environ:
            raise UsageError(f"-x {name}: it is not set here; write -x {name}=VALUE")
        found[name] = text if equals else os.environ[name]
    return found


def bandwidth_gbps(settings: Mapping[str, str]) -> float | None:
    """The stated bandwidth of a machine's link, once the settings have been checked."""
    text = settings.get("bandwidth_gbps") or os.environ.get("SUMPTER_BANDWIDTH_GBPS")
    return float(text) if text else None


def runtime_folder() -> Path:
    """Where this user's running jobs are listed, on this machine only."""
    own = os.environ.get("XDG_RUNTIME_DIR")
    if own and Path(own).is_dir():
        return Path(own) / "sumpter"
    return Path(tempfile.gettempdir()) / f"sumpter-{os.getuid()}"


def own_names() -> tuple[str, ...]:
    """The names by which this machine is meant without going over the network."""
    return ("localhost", socket.gethostname())


def job_variables(prefixes: tuple[str, ...]) -> dict[str, str]:
    """This environment's variables of some families."""
    return {name: text for name, text in os.environ.items() if name.startswith(prefixes)}
