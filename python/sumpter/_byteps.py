"""What the DMLC_* variables say about a BytePS job: its size, this process' role, where to meet.

Pure functions of an environment; BytePS' own rules decide what is needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sumpter._errors import ConfigError

ROLES = ("scheduler", "server", "worker")


@dataclass(frozen=True)
class Cluster:
    """A BytePS job. A worker machine runs `local_size` processes, the same on each."""

    role: str
    workers: int  # machines
    worker_id: int
    local_size: int
    servers: int
    root: str  # HOST:PORT of the scheduler, or ""
    distributed: bool

    @property
    def world_size(self) -> int:
        return self.workers * self.local_size


def read_cluster(environment: Mapping[str, str]) -> Cluster:
    """The job that an environment describes; ConfigError names a variable that is amiss."""
    role = environment.get("DMLC_ROLE", "").strip() or "worker"
    if role not in ROLES:
        raise ConfigError(f"DMLC_ROLE is {role!r}: it must be scheduler, server or worker")
    workers = number(environment, "DMLC_NUM_WORKER", 1, 1 if role == "worker" else None)
    # BytePS trains on one machine without servers, whatever DMLC_NUM_SERVER says.
    forced = environment.get("BYTEPS_FORCE_DISTRIBUTED", "").strip() not in ("", "0")
    distributed = workers > 1 or forced or role != "worker"
    worker_id = 0
    if role == "worker":
        worker_id = number(environment, "DMLC_WORKER_ID", 0, None if workers > 1 else 0)
        if worker_id >= workers:
            raise ConfigError(
                f"DMLC_WORKER_ID is {worker_id} and DMLC_NUM_WORKER is {workers}: "
                "worker machines count from 0"
            )
    return Cluster(
        role=role,
        workers=workers,
        worker_id=worker_id,
        local_size=number(environment, "BYTEPS_LOCAL_SIZE", 1, 1),
        servers=number(environment, "DMLC_NUM_SERVER", 0, 0) if distributed else 0,
        root=_root(environment) if distributed else "",
        distributed=distributed,
    )


def makes_worker(environment: Mapping[str, str]) -> bool:
    """Whether an environment makes its process a BytePS worker (or at least begins to)."""
    if environment.get("DMLC_ROLE", "").strip() not in ("", "worker"):
        return False
    return any(environment.get(name) for name in ("DMLC_NUM_WORKER", "DMLC_WORKER_ID"))


def check_worker(environment: Mapping[str, str]) -> None:
    """Raises ConfigError if the environment makes its process another role than a worker."""
    role = environment.get("DMLC_ROLE", "").strip()
    if role not in ("", "worker"):
        raise ConfigError(
            f"DMLC_ROLE is {role!r}, but only workers call init(): start that role with "
            "`sumpter bpslaunch` or `python -c 'import sumpter.server'`"
        )


def devices(environment: Mapping[str, str]) -> int:
    """The processes that `bpslaunch` runs on a worker machine: BYTEPS_LOCAL_SIZE, else by devices.

    Without NVIDIA_VISIBLE_DEVICES there is one; its `all` cannot be counted.
    """
    listed = environment.get("NVIDIA_VISIBLE_DEVICES", "").strip()
    if listed == "all" and not environment.get("BYTEPS_LOCAL_SIZE"):
        raise ConfigError(
            "NVIDIA_VISIBLE_DEVICES is 'all': set BYTEPS_LOCAL_SIZE to the number of processes"
        )
    none = listed in ("", "none", "void")
    return number(environment, "BYTEPS_LOCAL_SIZE", 1, 1 if none else listed.count(",") + 1)


def number(environment: Mapping[str, str], name: str, least: int, default: int | None) -> int:
    """A whole number of at least `least`; without a default the variable has to be set."""
    text = environment.get(name, "").strip()
    if not text and default is not None:
        return default
    if not text.isdigit() or int(text) < least:
        found = f"is {text!r}" if text else "is not set"
        raise ConfigError(f"{name} {found}: it must be a whole number of at least {least}")
    return int(text)


def _root(environment: Mapping[str, str]) -> str:
    host = environment.get("DMLC_PS_ROOT_URI", "").strip()
    if not host:
        raise ConfigError(
            "DMLC_PS_ROOT_URI is not set: it must be the address of the machine with the scheduler"
        )
    port = number(environment, "DMLC_PS_ROOT_PORT", 1, None)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
