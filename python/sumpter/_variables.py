"""Variables of other launchers and libraries, and what becomes of each: one table.

`_environment` applies it, `sumpter config --markdown` prints it. Rows of one launcher stand
together; where two rows of a launcher name one setting, the first that is set counts. A setting's
own variable (see `sumpter config`) always counts before those here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sumpter import _byteps, _slurm

_PAGE = 4096
_LARGEST_PARTITION = 2**30
_LARGEST_CREDIT = 2**40
# BytePS' own default; its credit counts partitions.
_BYTEPS_PARTITION = 4_096_000

_LEVELS = {
    "trace": "trace",
    "debug": "debug",
    "info": "info",
    "warning": "warn,notice=info",
    "warn": "warn,notice=info",
    "error": "error",
    "fatal": "error",
}

Environment = Mapping[str, str]


@dataclass(frozen=True)
class Variable:
    """One variable: the setting it becomes, or why it becomes none.

    `value` makes the setting's text of the environment (None: leave the setting alone) and raises
    ValueError with what is wrong; without it the text is taken as it is. `note` says what is
    particular, or why the variable has no effect.
    """

    name: str
    setting: str = ""
    note: str = ""
    value: Callable[[Environment], str | None] | None = None

    def read(self, environment: Environment) -> str | None:
        """The setting's text, or None if the variable says nothing."""
        text = environment.get(self.name, "").strip()
        if not text:
            return None
        return text if self.value is None else self.value(environment)


@dataclass(frozen=True)
class Launcher:
    """A launcher's variables for a process' place in the job."""

    name: str
    variables: tuple[Variable, ...]
    # Whether this launcher started the process at all; some variables are set in other cases too.
    started: Callable[[Environment], bool] = lambda environment: True


def _partition_bytes(environment: Environment) -> str:
    text = environment["BYTEPS_PARTITION_BYTES"].strip()
    if not text.isdigit() or int(text) < 1:
        raise ValueError("must be a number of bytes")
    pages = -(-int(text) // _PAGE)
    return str(min(pages * _PAGE, _LARGEST_PARTITION))


def _credit_bytes(environment: Environment) -> str | None:
    text = environment["BYTEPS_SCHEDULING_CREDIT"].strip()
    if not text.isdigit():
        raise ValueError("must be a number of partitions")
    known = environment.get("BYTEPS_PARTITION_BYTES", "").strip()
    partition = int(_partition_bytes(environment)) if known else _BYTEPS_PARTITION
    return str(min(int(text) * partition, _LARGEST_CREDIT)) if int(text) else None


def _level(name: str) -> Callable[[Environment], str]:
    def read(environment: Environment) -> str:
        level = environment[name].strip().lower()
        if level not in _LEVELS:
            raise ValueError(f"must be one of {', '.join(_LEVELS)}")
        return _LEVELS[level]

    return read


def _timeline(environment: Environment) -> str | None:
    text = environment["HOROVOD_TIMELINE"].strip()
    return None if text == "DYNAMIC" else text


def _switch(name: str) -> Callable[[Environment], str]:
    def value(environment: Environment) -> str:
        text = environment[name]
        if text not in ("0", "1"):
            raise ValueError("it is 0 or 1")
        return "true" if text == "1" else "false"

    return value


def _seconds(name: str) -> Callable[[Environment], str]:
    def read(environment: Environment) -> str:
        text = environment[name].strip()
        if not text.isdigit() or not 0 < int(text) <= 86_400:
            raise ValueError("must be a number of seconds from 1 to 86400")
        return text

    return read


def _stall(name: str) -> Callable[[Environment], str]:
    def read(environment: Environment) -> str:
        text = environment[name].strip()
        if not text.isdigit() or int(text) > 86_400:
            raise ValueError("must be a number of seconds from 0, for never, to 86400")
        return text

    return read


def _no_stall_check(environment: Environment) -> str | None:
    return "0" if environment["HOROVOD_STALL_CHECK_DISABLE"].strip() == "1" else None


def _autotune(environment: Environment) -> str | None:
    return "bayes" if environment["HOROVOD_AUTOTUNE"].strip() == "1" else None


def _lanes(environment: Environment) -> str:
    text = environment["BYTEPS_SERVER_ENGINE_THREAD"].strip()
    if not text.isdigit() or not 0 < int(text) <= 1024:
        raise ValueError("must be a number of threads from 1 to 1024")
    return text


def in_slurm_step(environment: Environment) -> bool:
    """Whether srun started this process, or one above it.

    A batch script and an allocation's shell have a rank too, but are no tasks.
    """
    return bool(environment.get("SLURM_STEP_ID") or environment.get("SLURM_STEPID"))


def _slurm_tasks(environment: Environment) -> str:
    node = environment.get("SLURM_NODEID", "0").strip()
    return str(_slurm.tasks_on(int(node or 0), environment["SLURM_STEP_TASKS_PER_NODE"]))


def _slurm_rack(environment: Environment) -> str | None:
    if not in_slurm_step(environment):
        # Of the machine where the script runs that starts the job elsewhere.
        return None
    address = environment["SLURM_TOPOLOGY_ADDR"]
    pattern = environment.get("SLURM_TOPOLOGY_ADDR_PATTERN", "node")
    return _slurm.rack_of(address, pattern, environment.get("SLURMD_NODENAME", "").strip())


def _first_host(name: str) -> Callable[[Environment], str | None]:
    def read(environment: Environment) -> str | None:
        if environment.get("SLURM_STEP_NUM_NODES", "").strip() == "1":
            # All tasks are here, and what Slurm calls this node need not be a name to look up.
            return None
        return _slurm.first_host(environment[name])

    return read


def _byteps_rank(environment: Environment) -> str:
    cluster = _byteps.read_cluster(environment)
    local = _byteps.number(environment, "BYTEPS_LOCAL_RANK", 0, 0)
    return str(cluster.worker_id * cluster.local_size + local)


def _byteps_size(environment: Environment) -> str:
    return str(_byteps.read_cluster(environment).world_size)


def _byteps_servers(environment: Environment) -> str | None:
    cluster = _byteps.read_cluster(environment)
    return str(cluster.servers) if cluster.distributed else None


def _byteps_root(environment: Environment) -> str | None:
    return _byteps.read_cluster(environment).root or None


# In order of precedence: the first that states both rank and world_size decides.
LAUNCHERS = (
    Launcher(
        "torchrun",
        (
            Variable("RANK", "rank"),
            Variable("WORLD_SIZE", "world_size"),
            Variable("LOCAL_RANK", "local_rank"),
            Variable("LOCAL_WORLD_SIZE", "local_size"),
            Variable("MASTER_ADDR", "master_host"),
            Variable("MASTER_PORT", "master_port"),
        ),
    ),
    Launcher(
        "Horovod",
        (
            Variable("HOROVOD_RANK", "rank"),
            Variable("HOROVOD_SIZE", "world_size"),
            Variable("HOROVOD_LOCAL_RANK", "local_rank"),
            Variable("HOROVOD_LOCAL_SIZE", "local_size"),
            Variable("HOROVOD_CROSS_RANK", note="follows from the ranks"),
            Variable("HOROVOD_CROSS_SIZE", note="follows from the ranks"),
            Variable("HOROVOD_HOSTNAME", note="follows from the machine"),
            Variable(
                "HOROVOD_GLOO_RENDEZVOUS_ADDR",
                "master_host",
                "rank 0 has to run on the machine that this names",
            ),
            Variable("HOROVOD_GLOO_RENDEZVOUS_PORT", note="horovodrun itself listens there"),
        ),
    ),
    Launcher(
        "Open MPI",
        (
            Variable("OMPI_COMM_WORLD_RANK", "rank"),
            Variable("OMPI_COMM_WORLD_SIZE", "world_size"),
            Variable("OMPI_COMM_WORLD_LOCAL_RANK", "local_rank"),
            Variable("OMPI_COMM_WORLD_LOCAL_SIZE", "local_size"),
        ),
    ),
    Launcher(
        "MPI",
        (
            Variable("PMI_RANK", "rank", "MPICH, Intel MPI and others"),
            Variable("PMI_SIZE", "world_size", "MPICH, Intel MPI and others"),
            Variable("MPI_LOCALRANKID", "local_rank", "MPICH, Intel MPI and others"),
            Variable("MPI_LOCALNRANKS", "local_size", "MPICH, Intel MPI and others"),
        ),
    ),
    Launcher(
        "Slurm",
        (
            Variable("SLURM_PROCID", "rank", "only in a step of `srun`"),
            Variable("SLURM_STEP_NUM_TASKS", "world_size"),
            Variable("SLURM_NTASKS", "world_size", "where SLURM_STEP_NUM_TASKS is absent"),
            Variable("SLURM_LOCALID", "local_rank"),
            Variable(
                "SLURM_STEP_TASKS_PER_NODE", "local_size", "that of SLURM_NODEID", _slurm_tasks
            ),
            Variable("SLURM_NTASKS_PER_NODE", "local_size"),
            Variable(
                "SLURM_STEP_NODELIST",
                "master_host",
                "its first host",
                _first_host("SLURM_STEP_NODELIST"),
            ),
            Variable(
                "SLURM_JOB_NODELIST",
                "master_host",
                "its first host, where SLURM_STEP_NODELIST is absent",
                _first_host("SLURM_JOB_NODELIST"),
            ),
        ),
        in_slurm_step,
    ),
    Launcher(
        "BytePS",
        (
            Variable("DMLC_ROLE", note="`scheduler`, `server` or `worker`: what `bpslaunch` runs"),
            Variable("BYTEPS_GLOBAL_RANK", "rank"),
            Variable(
                "DMLC_WORKER_ID",
                "rank",
                "times BYTEPS_LOCAL_SIZE, plus BYTEPS_LOCAL_RANK",
                _byteps_rank,
            ),
            Variable("DMLC_NUM_WORKER", "world_size", "times BYTEPS_LOCAL_SIZE", _byteps_size),
            Variable("BYTEPS_LOCAL_RANK", "local_rank"),
            Variable("BYTEPS_LOCAL_SIZE", "local_size", "the same on every machine"),
            Variable("DMLC_NUM_SERVER", "servers", "with more than one machine", _byteps_servers),
            Variable("DMLC_PS_ROOT_URI", "coordinator", "with more than one machine", _byteps_root),
            Variable("DMLC_PS_ROOT_PORT", note="the port of DMLC_PS_ROOT_URI"),
            Variable(
                "BYTEPS_FORCE_DISTRIBUTED",
                note="1: use scheduler and servers with one machine too",
            ),
        ),
        _byteps.makes_worker,
    ),
)

_TUNED_BY_PLAN = "tensors are cut and scheduled in order of need, not fused"
_NO_TRACE = "SUMPTER_TIMELINE, or start_timeline(), writes a timeline"
_OF_DEVICE_GROUPS = "the setting device_group says which GPUs reduce among themselves"

TUNING = (
    # Of the node, hence the same for whatever a task of srun starts there.
    Variable(
        "SLURM_TOPOLOGY_ADDR",
        "rack",
        "the switch above the node, with the plugin topology/tree or topology/block; only in a "
        "step of `srun`",
        _slurm_rack,
    ),
    Variable("HOROVOD_GLOO_IFACE", "interfaces"),
    Variable(
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        "start_timeout_s",
        value=_seconds("HOROVOD_GLOO_TIMEOUT_SECONDS"),
    ),
    Variable("HOROVOD_LOG_LEVEL", "log", value=_level("HOROVOD_LOG_LEVEL")),
    Variable("HOROVOD_FUSION_THRESHOLD", note=_TUNED_BY_PLAN),
    Variable("HOROVOD_CYCLE_TIME", note="a tensor goes when it is ready, not at the next cycle"),
    Variable("HOROVOD_CACHE_CAPACITY", note="the table of tensors has no limit to set"),
    Variable("HOROVOD_HIERARCHICAL_ALLREDUCE", note="the plan follows the machines by itself"),
    Variable("HOROVOD_HIERARCHICAL_ALLGATHER", note="the plan follows the machines by itself"),
    Variable("HOROVOD_AUTOTUNE", "tuner", "1 is bayes: see tuning.md", _autotune),
    Variable("HOROVOD_AUTOTUNE_LOG", note="rank 0 logs what the tuner chooses"),
    Variable(
        "HOROVOD_STALL_CHECK_DISABLE",
        "stall_warning_s",
        "1 is 0 s: never; the first of these two counts",
        _no_stall_check,
    ),
    Variable(
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        "stall_warning_s",
        value=_stall("HOROVOD_STALL_CHECK_TIME_SECONDS"),
    ),
    Variable(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        "stall_shutdown_s",
        value=_stall("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"),
    ),
    Variable(
        "HOROVOD_TIMELINE",
        "timeline",
        "DYNAMIC waits for start_timeline()",
        _timeline,
    ),
    Variable("HOROVOD_TIMELINE_MARK_CYCLES", note="there are no cycles"),
    Variable("HOROVOD_DYNAMIC_PROCESS_SETS", note="process sets can always be added"),
    Variable("HOROVOD_ELASTIC", note="min_workers makes a job elastic"),
    Variable("HOROVOD_CONTROLLER", note="Sumpter's coordinator takes its place"),
    Variable("HOROVOD_CPU_OPERATIONS", note="Sumpter carries the tensors itself"),
    Variable("HOROVOD_GPU_OPERATIONS", note="Sumpter carries the tensors itself"),
    Variable("HOROVOD_NUM_NCCL_STREAMS", note=_OF_DEVICE_GROUPS),
    Variable("HOROVOD_THREAD_AFFINITY", note="lanes run near their interface: pin_lanes"),
    Variable("DMLC_NODE_HOST", "interfaces", "an address of this machine"),
    Variable("DMLC_INTERFACE", "interfaces"),
    Variable("DMLC_ENABLE_RDMA", note="RDMA is used where fabric_provider names it"),
    Variable("PS_VERBOSE", note="SUMPTER_LOG says what is logged"),
    Variable(
        "BYTEPS_PARTITION_BYTES",
        "partition_bytes",
        "rounded up to a multiple of 4 KiB, at most 1 GiB",
        _partition_bytes,
    ),
    Variable(
        "BYTEPS_SCHEDULING_CREDIT",
        "credit_bytes",
        "times the partition size; 0 leaves Sumpter's own",
        _credit_bytes,
    ),
    Variable("BYTEPS_SERVER_ENGINE_THREAD", "lanes", value=_lanes),
    Variable("BYTEPS_LOG_LEVEL", "log", value=_level("BYTEPS_LOG_LEVEL")),
    Variable("BYTEPS_ENABLE_ASYNC", "asynchronous", value=_switch("BYTEPS_ENABLE_ASYNC")),
    Variable("BYTEPS_ENABLE_MIXED_MODE", note="CPU machines and workers always sum together"),
    Variable("BYTEPS_KEY_HASH_FN", note="partitions are dealt in proportion, not hashed"),
    Variable("BYTEPS_MIN_COMPRESS_BYTES", "compression_min_bytes"),
    Variable("BYTEPS_SERVER_ENABLE_SCHEDULE", note="servers always follow the order of need"),
    Variable("BYTEPS_PCIE_SWITCH_SIZE", note=_OF_DEVICE_GROUPS),
    Variable("BYTEPS_REDUCE_ROOTS", note=_OF_DEVICE_GROUPS),
    Variable("BYTEPS_NCCL_NUM_RINGS", note=_OF_DEVICE_GROUPS),
    Variable("BYTEPS_NCCL_GROUP_SIZE", note=_OF_DEVICE_GROUPS),
    Variable("BYTEPS_ENABLE_IPC", note="processes of one machine always use shared memory"),
    Variable("BYTEPS_TRACE_ON", note=_NO_TRACE),
    Variable("BYTEPS_TRACE_START_STEP", note=_NO_TRACE),
    Variable("BYTEPS_TRACE_END_STEP", note=_NO_TRACE),
    Variable("BYTEPS_TRACE_DIR", note=_NO_TRACE),
    Variable("BYTEPS_NUMA_ON", "pin_lanes"),
    Variable("BYTEPS_VISIBLE_CPU_CORES", note="lanes run near their interface: pin_lanes"),
    Variable("BYTEPS_TELEMETRY_ON", note="`sumpter status` shows bytes and waiting at any time"),
    Variable("BYTEPS_ENABLE_GDB", note="put the debugger into the command yourself"),
)
