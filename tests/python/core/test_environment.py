"""What other launchers' variables become: the table, its precedence, and what it refuses."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sumpter import _environment, _native
from sumpter._environment import understand
from sumpter._errors import ConfigError
from sumpter._slurm import first_host, rack_of, tasks_on
from sumpter._variables import LAUNCHERS, TUNING

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "77",
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "9",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2,1(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-09],big1",
}
HOROVOD = {
    "HOROVOD_RANK": "3",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "1",
    "HOROVOD_CROSS_SIZE": "2",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
}
BYTEPS = {
    "DMLC_ROLE": "worker",
    "DMLC_NUM_WORKER": "2",
    "DMLC_WORKER_ID": "1",
    "DMLC_NUM_SERVER": "3",
    "DMLC_PS_ROOT_URI": "10.0.0.2",
    "DMLC_PS_ROOT_PORT": "9000",
    "BYTEPS_LOCAL_RANK": "1",
    "BYTEPS_LOCAL_SIZE": "2",
}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
SHARED = {"rank": "3", "world_size": "4", "local_rank": "1", "local_size": "2"}


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        ({}, {}),
        (TORCHRUN, {}),  # the table of settings reads these itself
        (OPEN_MPI, SHARED),
        (HOROVOD, SHARED),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, {"rank": "3", "world_size": "4"}),
        (
            {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
            SHARED,
        ),
        (SLURM, {"rank": "3", "world_size": "4", "local_rank": "0", "local_size": "1"}),
        (BYTEPS, {**SHARED, "servers": "3", "coordinator": "10.0.0.2:9000"}),
        ({**BYTEPS, "DMLC_PS_ROOT_URI": "fe80::1"}, {"coordinator": "[fe80::1]:9000"}),
        ({**BYTEPS, "BYTEPS_GLOBAL_RANK": "2"}, {"rank": "2"}),
        # One machine needs neither scheduler nor servers, unless it is forced to.
        ({**BYTEPS, "DMLC_NUM_WORKER": "1", "DMLC_WORKER_ID": "0"}, {"world_size": "2"}),
        (
            {
                **BYTEPS,
                "DMLC_NUM_WORKER": "1",
                "DMLC_WORKER_ID": "0",
                "BYTEPS_FORCE_DISTRIBUTED": "1",
            },
            {"servers": "3", "coordinator": "10.0.0.2:9000"},
        ),
        # What agrees fills the gaps.
        ({"PMI_RANK": "3", "PMI_SIZE": "4", **SLURM}, {"local_size": "1"}),
        ({"WORLD_SIZE": "4", **OPEN_MPI}, {"rank": "3", "local_rank": "1"}),
    ],
)
def test_a_launchers_variables_become_settings(
    environment: dict[str, str], settings: dict[str, str]
) -> None:
    understood = understand(environment, {})
    assert {**understood.settings, **settings} == understood.settings
    if not settings:
        assert understood.settings == {}
    assert not understood.warnings


def test_one_byteps_machine_needs_no_coordinator() -> None:
    alone = {**BYTEPS, "DMLC_NUM_WORKER": "1", "DMLC_WORKER_ID": "0"}
    understood = understand(alone, {})
    assert not {"coordinator", "servers"} & understood.settings.keys()
    assert understood.master_host == "127.0.0.1"


def test_an_argument_and_a_settings_own_variable_come_first() -> None:
    tuned = {"BYTEPS_PARTITION_BYTES": "8192", "DMLC_INTERFACE": "eth0"}
    own = {"SUMPTER_PARTITION_BYTES": "4KiB"}
    assert understand({**tuned, **own}, {}).settings == {"interfaces": "eth0"}
    assert understand(tuned, {"interfaces": "eth1"}).settings == {"partition_bytes": "8192"}


def test_horovods_stall_times_are_the_settings_of_the_same_meaning() -> None:
    times = {
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "30",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0",
    }
    settings = {"stall_warning_s": "30", "stall_shutdown_s": "0"}
    assert understand(times, {}).settings == settings
    disabled = {"HOROVOD_STALL_CHECK_DISABLE": "1", **times}
    assert understand(disabled, {}).settings == {**settings, "stall_warning_s": "0"}
    enabled = {"HOROVOD_STALL_CHECK_DISABLE": "0", **times}
    assert understand(enabled, {}).settings == settings
    with pytest.raises(ConfigError, match="HOROVOD_STALL_CHECK_TIME_SECONDS"):
        understand({"HOROVOD_STALL_CHECK_TIME_SECONDS": "soon"}, {})


@pytest.mark.parametrize("launcher", [OPEN_MPI, HOROVOD, SLURM, BYTEPS])
def test_arguments_for_another_rank_drop_the_launchers_place(launcher: dict[str, str]) -> None:
    settings = understand(launcher, {"rank": "0", "world_size": "2"}).settings
    assert not {"rank", "world_size", "local_rank", "local_size"} & settings.keys()


def test_the_first_launcher_in_order_decides() -> None:
    inner = {"HOROVOD_RANK": "7", "HOROVOD_SIZE": "8"}
    understood = understand({**inner, **OPEN_MPI, **SLURM}, {})
    assert (understood.rank, understood.world_size) == ("7", "8")
    assert "local_rank" not in understood.settings
    assert not understood.warnings, "a job within a job's step has more ranks than it has tasks"


@pytest.mark.parametrize(
    ("environment", "first", "second"),
    [
        # Each of four processes would train alone.
        ({"RANK": "0", "WORLD_SIZE": "1", **OPEN_MPI}, "RANK is 0", "OMPI_COMM_WORLD_RANK"),
        ({**TORCHRUN, "HOROVOD_RANK": "1", "HOROVOD_SIZE": "4"}, "RANK is 3", "HOROVOD_RANK"),
    ],
)
def test_launchers_that_hardly_mean_one_job_are_a_warning(
    environment: dict[str, str], first: str, second: str
) -> None:
    [warning] = understand(environment, {}).warnings
    assert first in warning and second in warning


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"WORLD_SIZE": "2", **OPEN_MPI}, ("WORLD_SIZE is 2", "OMPI_COMM_WORLD_SIZE says 4")),
        ({"OMPI_COMM_WORLD_RANK": "1"}, ("OMPI_COMM_WORLD_SIZE is not",)),
        ({"HOROVOD_SIZE": "2"}, ("HOROVOD_RANK is not",)),
        ({"PMI_RANK": "x", "PMI_SIZE": "2"}, ("PMI_RANK", "'x'")),
        ({"PMI_RANK": "2", "PMI_SIZE": "2"}, ("PMI_RANK is 2", "PMI_SIZE is 2")),
        ({**SLURM, "SLURM_STEP_NODELIST": "a[1"}, ("SLURM_STEP_NODELIST",)),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2"}, ("SLURM_STEP_TASKS_PER_NODE", "NODEID")),
        ({**BYTEPS, "DMLC_WORKER_ID": "2"}, ("DMLC_WORKER_ID is 2", "DMLC_NUM_WORKER is 2")),
        ({**BYTEPS, "DMLC_WORKER_ID": ""}, ("DMLC_WORKER_ID is not set",)),
        ({**BYTEPS, "DMLC_PS_ROOT_URI": ""}, ("DMLC_PS_ROOT_URI",)),
        ({**BYTEPS, "DMLC_PS_ROOT_PORT": "none"}, ("DMLC_PS_ROOT_PORT", "'none'")),
        ({**BYTEPS, "BYTEPS_LOCAL_RANK": "2"}, ("BYTEPS_LOCAL_RANK is 2", "BYTEPS_LOCAL_SIZE")),
        ({"DMLC_ROLE": "server", "DMLC_NUM_WORKER": "2"}, ("DMLC_ROLE", "sumpter.server")),
        ({"BYTEPS_ENABLE_ASYNC": "yes"}, ("BYTEPS_ENABLE_ASYNC", "'yes'", "0 or 1")),
        ({"BYTEPS_PARTITION_BYTES": "4MB"}, ("BYTEPS_PARTITION_BYTES", "'4MB'")),
        ({"BYTEPS_SCHEDULING_CREDIT": "-1"}, ("BYTEPS_SCHEDULING_CREDIT",)),
        ({"BYTEPS_LOG_LEVEL": "loud"}, ("BYTEPS_LOG_LEVEL", "'loud'")),
        ({"BYTEPS_SERVER_ENGINE_THREAD": "0"}, ("BYTEPS_SERVER_ENGINE_THREAD",)),
        ({"HOROVOD_GLOO_TIMEOUT_SECONDS": "soon"}, ("HOROVOD_GLOO_TIMEOUT_SECONDS",)),
    ],
)
def test_what_cannot_be_understood_is_refused_by_name(
    environment: dict[str, str], said: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as refused:
        understand(environment, {})
    assert all(words in str(refused.value) for words in said), refused.value


@pytest.mark.parametrize(
    ("name", "text", "settings"),
    [
        ("BYTEPS_PARTITION_BYTES", "4096000", {"partition_bytes": "4096000"}),
        ("BYTEPS_PARTITION_BYTES", "5000", {"partition_bytes": "8192"}),
        ("BYTEPS_PARTITION_BYTES", "9999999999", {"partition_bytes": str(2**30)}),
        ("BYTEPS_SCHEDULING_CREDIT", "4", {"credit_bytes": "16384000"}),
        ("BYTEPS_SCHEDULING_CREDIT", "0", {}),
        ("BYTEPS_SCHEDULING_CREDIT", "8000000", {"credit_bytes": str(2**40)}),
        ("BYTEPS_SERVER_ENGINE_THREAD", "8", {"lanes": "8"}),
        ("BYTEPS_LOG_LEVEL", "INFO", {"log": "info"}),
        ("BYTEPS_ENABLE_ASYNC", "0", {"asynchronous": "false"}),
        ("BYTEPS_ENABLE_ASYNC", "1", {"asynchronous": "true"}),
        ("HOROVOD_LOG_LEVEL", "fatal", {"log": "error"}),
        ("HOROVOD_GLOO_TIMEOUT_SECONDS", "90", {"start_timeout_s": "90"}),
        ("HOROVOD_GLOO_IFACE", "ib0", {"interfaces": "ib0"}),
        ("DMLC_NODE_HOST", "10.0.0.3", {"interfaces": "10.0.0.3"}),
        ("BYTEPS_NUMA_ON", "0", {"pin_lanes": "0"}),
    ],
)
def test_tuning_becomes_settings_that_are_accepted(
    name: str, text: str, settings: dict[str, str]
) -> None:
    understood = understand({name: text}, {})
    assert understood.settings == settings
    assert not understood.remarks
    _native.Coordinator("127.0.0.1:0", {"token": "0123456789abcdef", **settings}).stop()


def test_the_credit_counts_partitions_of_the_size_that_is_set() -> None:
    tuned = {"BYTEPS_SCHEDULING_CREDIT": "2", "BYTEPS_PARTITION_BYTES": "4097"}
    assert understand(tuned, {}).settings["credit_bytes"] == "16384"


def test_every_variable_without_effect_is_said_once(
    unlaunched: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    idle = [row.name for row in TUNING if not row.setting]
    for name in [*idle, "BYTEPS_OF_TOMORROW", "HOROVOD_OF_TOMORROW"]:
        unlaunched.setenv(name, "1")
    unlaunched.setattr(_environment, "_said", set())
    with caplog.at_level(logging.INFO, logger="sumpter"):
        _environment.read({})
        _environment.read({})
    said = [record.getMessage().split()[0] for record in caplog.records]
    assert sorted(said) == sorted([*idle, "BYTEPS_OF_TOMORROW", "HOROVOD_OF_TOMORROW"])
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_where_rank_0_is_comes_from_the_launcher() -> None:
    assert understand(HOROVOD, {}).master_host == "10.0.0.1"
    assert understand(SLURM, {}).master_host == "gpu07"
    assert understand({**SLURM, "MASTER_ADDR": "other"}, {}).master_host == "other"
    assert understand(OPEN_MPI, {}).master_host == ""
    one_machine = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    assert understand(one_machine, {}).master_host == "127.0.0.1"


# What the launchers really set, of that which says where a process is: Open MPI 4.1.4, MPICH 4.0.2
# and Slurm 22.05.8, the last for task 2 of `srun -N2 -n3` and for task 1 of `srun -N1 -n2`.
CAPTURED_OPEN_MPI = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_MCA_ess_base_jobid": "1157431297",
    "OMPI_MCA_orte_num_nodes": "1",
    "OMPI_UNIVERSE_SIZE": "2",
    "PMIX_NAMESPACE": "1157431297",
    "PMIX_RANK": "1",
}
CAPTURED_MPICH = {
    "MPI_LOCALNRANKS": "2",
    "MPI_LOCALRANKID": "1",
    "PMI_FD": "8",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
}
CAPTURED_SLURM = {
    "SLURMD_NODENAME": "n2",
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_NPROCS": "3",
    "SLURM_NTASKS": "3",
    "SLURM_PROCID": "2",
    "SLURM_STEPID": "0",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_TASKS_PER_NODE": "2,1",
}
# As the former, with what a step of one node has in place of it.
SLURM_ON_ONE_NODE = {
    **CAPTURED_SLURM,
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2",
}


@pytest.mark.parametrize(
    ("captured", "place", "host"),
    [
        (CAPTURED_OPEN_MPI, ("1", "2", "1", "2"), "127.0.0.1"),
        (CAPTURED_MPICH, ("1", "2", "1", "2"), "127.0.0.1"),
        (CAPTURED_SLURM, ("2", "3", "0", "1"), "n1"),
        # Slurm's name of the only node is not needed, and may be unknown to everyone else.
        (SLURM_ON_ONE_NODE, ("1", "2", "1", "2"), "127.0.0.1"),
    ],
)
def test_what_launchers_really_set_is_understood(
    captured: dict[str, str], place: tuple[str, ...], host: str
) -> None:
    understood = understand(captured, {})
    names = ("rank", "world_size", "local_rank", "local_size")
    assert tuple(understood.settings[name] for name in names) == place
    assert understood.master_host == host
    assert bool(understood.master_port) == (captured is not CAPTURED_MPICH)


def test_a_port_is_derived_from_what_the_ranks_share() -> None:
    ports = {understand({**SLURM, "SLURM_PROCID": rank}, {}).master_port for rank in "0123"}
    assert len(ports) == 1
    assert ports != {understand({**SLURM, "SLURM_JOB_ID": "78"}, {}).master_port}
    assert understand({**SLURM, "MASTER_PORT": "1234"}, {}).master_port == "1234"


def test_ranks_without_a_mark_of_their_job_derive_no_port() -> None:
    one_machine = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
    understood = understand(one_machine, {})
    assert (understood.master_host, understood.master_port) == ("127.0.0.1", "")


def test_a_batch_script_is_no_task() -> None:
    script = {name: text for name, text in SLURM.items() if "STEP" not in name}
    assert understand(script, {}).settings == {}


def test_every_row_names_a_setting_or_says_why_not() -> None:
    known = {row["name"] for row in _native.settings()} | {"master_host", "master_port"}
    rows = [*TUNING, *(row for launcher in LAUNCHERS for row in launcher.variables)]
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert row.setting in known if row.setting else row.note, row.name


def test_the_documents_tell_every_variable() -> None:
    docs = Path(__file__).resolve().parents[3] / "docs" / "user"
    pages = {"BYTEPS_": "byteps.md", "DMLC_": "byteps.md", "HOROVOD_": "launching.md"}
    rows = [*TUNING, *(row for launcher in LAUNCHERS for row in launcher.variables)]
    for prefix, page in pages.items():
        text = (docs / page).read_text()
        absent = [row.name for row in rows if row.name.startswith(prefix) and row.name not in text]
        assert not absent, page


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node3", "node3"),
        ("node3,node4", "node3"),
        ("node[003-006,9],gpu1", "node003"),
        ("rack[1-2]n[07-08]", "rack1n07"),
        ("a[2,5]-ib,b", "a2-ib"),
    ],
)
def test_the_first_host_of_a_slurm_list(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


@pytest.mark.parametrize(("node", "tasks"), [(0, 4), (1, 4), (2, 3)])
def test_the_tasks_of_a_slurm_node(node: int, tasks: int) -> None:
    assert tasks_on(node, "4(x2),3") == tasks


def test_the_rack_of_a_slurm_node_is_the_switch_above_it() -> None:
    assert rack_of("s0.s2.node7", "switch.switch.node") == "s2"
    assert rack_of("node7", "node") is None
    assert rack_of("b1.node7", "block.node") == "b1"
    with pytest.raises(ValueError, match="each level"):
        rack_of("s2.node7", "switch.switch.node")


def test_names_in_slurms_topology_may_have_dots() -> None:
    """Nodes may have domain names, and switches such as `leaf.3` too."""
    assert rack_of("gpu1.example.com", "node") is None
    assert rack_of("s0.s2.gpu1.example.com", "switch.switch.node") == "s2"
    assert rack_of("s0.s2.gpu1.example.com", "switch.switch.node", "gpu1.example.com") == "s2"
    found = {rack_of(f"leaf.{n}.gpu1", "switch.node", "gpu1") for n in (3, 4)}
    assert found == {"leaf.3", "leaf.4"}
    # What is called otherwise here does not count.
    assert rack_of("s0.s2.node7", "switch.switch.node", "gpu1") == "s2"


SLURM_TREE = {
    "SLURM_TOPOLOGY_ADDR": "s0.s2.n1",
    "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
}
OF_TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    "launched",
    [SLURM, {**SLURM, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", **OF_TORCHRUN}],
)
def test_the_rack_of_a_node_is_that_of_all_that_run_in_its_step(launched: dict[str, str]) -> None:
    """Of tasks of srun and of what these start: torchrun on each node has ranks of its own."""
    assert understand({**launched, **SLURM_TREE}, {}).settings["rack"] == "s2"
    given = {**launched, **SLURM_TREE, "SUMPTER_RACK": "mine"}
    assert "rack" not in understand(given, {}).settings
    assert "rack" not in understand({**launched, **SLURM_TREE}, {"rack": "mine"}).settings
    flat = {"SLURM_TOPOLOGY_ADDR": "n1.example.com", "SLURM_TOPOLOGY_ADDR_PATTERN": "node"}
    assert "rack" not in understand({**launched, **flat}, {}).settings


def test_the_rack_of_a_batch_script_is_not_that_of_what_it_starts_elsewhere() -> None:
    script = {name: text for name, text in SLURM.items() if "STEP" not in name}
    assert understand({**script, **SLURM_TREE, **OF_TORCHRUN}, {}).settings.get("rack") is None


def test_a_server_in_a_step_has_the_rack_of_its_node(unlaunched: pytest.MonkeyPatch) -> None:
    for name, text in {**SLURM, **SLURM_TREE}.items():
        unlaunched.setenv(name, text)
    assert _environment.rack({}) == {"rack": "s2"}
    assert _environment.rack({"rack": "mine"}) == {}
    unlaunched.setenv("SUMPTER_RACK", "mine")
    assert _environment.rack({}) == {}


@pytest.mark.parametrize(
    "environment",
    [
        {"PET_NNODES": "2", "PET_NODE_RANK": "0"},
        {"PET_NNODES": "1:4"},
        {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "8"},
    ],
)
def test_a_job_described_to_torchrun_does_not_run_without_it(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="PET_.*but RANK and WORLD_SIZE.*torchrun SCRIPT"):
        understand(environment, {})
    # What torchrun starts has its variables as well.
    assert understand({**environment, **TORCHRUN}, {}).world_size == "4"
    assert understand(environment, {"rank": "1", "world_size": "2"}).rank == "1"


def test_a_job_of_one_process_needs_no_torchrun() -> None:
    alone = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "auto"}
    assert understand(alone, {}).world_size == "1"
