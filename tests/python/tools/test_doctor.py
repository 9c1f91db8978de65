"""`sumpter doctor`: each check on machines that do not exist, then the command on this one."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from jobs import HANG_S
from sumpter import ConfigError, _native
from sumpter.cli import main
from sumpter.doctor import (
    ERROR,
    NOTE,
    OK,
    WARNING,
    Finding,
    fabric,
    gpu,
    limits,
    network,
    processor,
    selftest,
    settings,
    versions,
)
from sumpter.doctor.probe import Installed, Interface, Probe
from sumpter.doctor.selftest_rank import COUNTS, DTYPES

LOOPBACK = Interface("lo", ("127.0.0.1", "::1"), True)
SLOW = Interface("eth0", ("10.0.0.1",), True, 1_000)
FAST = Interface("eth1", ("10.1.0.1", "fd00::1"), True, 100_000)
HERE = Installed(_native.__version__, "/site-packages")
NEW_TORCH: dict[str, Any] = {
    "version": "2.15.0",
    "cuda": None,
    "cuda_devices": 0,
    "streams_wait": True,
    "gloo": True,
    "new_enough": True,
    "backend_error": "",
    "devices": ["cpu"],
    "coverage": [
        {"call": "all_reduce", "carrier": "sumpter", "why": "", "otherwise": "odd ones"},
        {"call": "gather", "carrier": "gloo", "why": "no sum", "otherwise": ""},
    ],
}


Networks = tuple[str | None, list[tuple[str, str, int | None, bool]], str | None, int]


class Machine(Probe):
    """A machine in good order that a test changes."""

    def __init__(self, **environment: str) -> None:
        super().__init__()
        self.environment = environment
        self.files: dict[str, str] = {}
        self.folders: dict[str, list[str]] = {}
        self.limits: dict[str, tuple[int, int]] = {}
        self.libfabric: Networks = (None, [], "libfabric is not installed", 1)
        self.spaces: dict[str, tuple[int, int]] = {}
        self.hosts: dict[str, list[str]] = {"here": ["10.0.0.1"], "far": ["10.0.0.9"]}
        self.routes: dict[str, str] = {"10.0.0.9": "10.0.0.1"}
        self.links = [LOOPBACK, SLOW]
        self.listeners: dict[int, str | None] = {}
        self.copies: dict[str, list[Installed]] = {"sumpter": [HERE], "numpy": [HERE]}
        self.points = [versions.REGISTRAR]
        self.libraries: tuple[str, ...] = ()
        self.core_counts = (8, 8)
        self.memory_error: str | None = None
        self.connecting: OSError | None = None

    def package_folder(self) -> str:
        return "/site-packages/sumpter"

    def installed(self, distribution: str) -> list[Installed]:
        return self.copies.get(distribution, [])

    def entry_points(self, group: str, name: str) -> list[str]:
        return self.points

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def entries(self, folder: str) -> list[str]:
        return self.folders.get(folder, [])

    def networks(self, provider: str | None, device: str | None) -> Networks:
        version, networks, reason, registered = self.libfabric
        wanted = [n for n in networks if provider in (None, n[0]) and device in (None, n[1])]
        missing = None if wanted else reason or f"no provider `{provider}`"
        return version, wanted, missing, registered

    def device_memory_networks(self) -> list[str]:
        return ["verbs;ofi_rxm"] if self.libfabric[1] else []

    def limit(self, name: str) -> tuple[int, int] | None:
        return self.limits.get(name)

    def space(self, path: str) -> tuple[int, int] | None:
        return self.spaces.get(path)

    def shared_memory_error(self, size: int) -> str | None:
        return self.memory_error

    def cores(self) -> tuple[int, int]:
        return self.core_counts

    def library_error(self, name: str) -> str | None:
        return None if name in self.libraries else f"{name}: not found"

    def host_name(self) -> str:
        return "here"

    def resolve(self, host: str) -> list[str]:
        return self.hosts.get(host, [])

    def own_address(self, address: str) -> str | None:
        return self.routes.get(address)

    def interfaces(self) -> list[Interface]:
        return self.links

    def port_in_use(self, port: int) -> bool:
        return port in self.listeners

    def listener(self, port: int) -> str | None:
        return self.listeners[port]

    def connect_error(self, host: str, port: int, timeout_s: float) -> OSError | None:
        return self.connecting


def only(findings: list[Finding], check: str) -> Finding:
    (found,) = [finding for finding in findings if finding.check == check]
    return found


def says(finding: Finding, state: str, *words: str) -> None:
    assert finding.state == state, finding
    for word in words:
        assert word in finding.found + finding.remedy, finding


def test_what_is_not_ok_must_say_how_to_mend_it() -> None:
    with pytest.raises(ValueError, match="remedy"):
        Finding("a check", ERROR, "broken")
    with pytest.raises(ValueError, match="bad"):
        Finding("a check", "bad", "broken", "remedy it")


def test_one_installed_copy_is_right() -> None:
    assert [f.state for f in versions.check_copies(Machine())] == [OK]


@pytest.mark.parametrize(
    ("copies", "word"),
    [
        ([], "make setup"),
        ([HERE, replace(HERE, folder="/older", version="0.0.1")], "uninstall"),
        ([replace(HERE, folder="/elsewhere")], "PYTHONPATH"),
    ],
)
def test_copies_that_hide_each_other_are_named(copies: list[Installed], word: str) -> None:
    machine = Machine()
    machine.copies["sumpter"] = copies
    (finding,) = versions.check_copies(machine)
    says(finding, WARNING, word, *(copy.folder for copy in copies))


@pytest.mark.parametrize(
    ("torch", "points", "check", "state", "word"),
    [
        (NEW_TORCH, [versions.REGISTRAR], "backend", OK, "cpu tensors"),
        (None, [], "torch", NOTE, "sumpter[torch]"),
        ({"error": "libcudart is missing"}, [], "torch", ERROR, "libcudart is missing"),
        (NEW_TORCH, [], "backend", ERROR, "entry point is missing"),
        (NEW_TORCH, ["other:register"], "backend", ERROR, "other:register"),
        (
            NEW_TORCH | {"new_enough": False, "backend_error": "needs torch 2.14"},
            [],
            "backend",
            NOTE,
            "torch>=2.14",
        ),
        (
            NEW_TORCH | {"backend_error": "no such symbol"},
            [versions.REGISTRAR],
            "backend",
            ERROR,
            "no such symbol",
        ),
        (NEW_TORCH | {"gloo": False}, [versions.REGISTRAR], "gloo", WARNING, "delegates"),
    ],
)
def test_the_backend_is_found_or_the_reason_given(
    torch: dict[str, Any] | None, points: list[str], check: str, state: str, word: str
) -> None:
    machine = Machine()
    machine.points = points
    says(only(versions.check_backend(machine, torch), check), state, word)


def test_what_is_carried_and_what_is_not_is_listed() -> None:
    found = [(f.check, f.found) for f in versions.check_coverage(NEW_TORCH)]
    expected = [("carried", "all_reduce"), ("to Gloo", "gather: no sum"), ("to Gloo", "odd ones")]
    assert found == expected
    assert versions.check_coverage(None) == []


def test_a_machine_with_loopback_only_is_noted() -> None:
    machine = Machine()
    machine.links = [LOOPBACK]
    (finding,) = network.check_interfaces(machine)
    says(finding, NOTE, "loopback")


def test_interfaces_show_addresses_and_speed() -> None:
    machine = Machine()
    machine.links = [LOOPBACK, FAST, replace(SLOW, up=False, speed_mbit=None)]
    fast, slow = network.check_interfaces(machine)
    says(fast, OK, "10.1.0.1, fd00::1", "up", "100 Gb/s")
    says(slow, OK, "down", "speed unknown")


FAR = {"SUMPTER_COORDINATOR": "far:7700"}


@pytest.mark.parametrize(
    ("environment", "state", "words"),
    [
        ({}, OK, ("default route",)),
        (FAR, OK, ("10.0.0.9", "routing table", "10.0.0.1 (eth0)")),
        ({"MASTER_ADDR": "far"}, OK, ("MASTER_ADDR", "eth0")),
        ({"MASTER_ADDR": "unknown"}, ERROR, ("unknown", "/etc/hosts")),
        (FAR | {"SUMPTER_INTERFACES": "eth0"}, OK, ("10.0.0.1", "SUMPTER_INTERFACES")),
        ({"SUMPTER_INTERFACES": "10.0.0.1"}, OK, ("eth0",)),
        ({"SUMPTER_INTERFACES": "ib0"}, ERROR, ("'ib0'", "lo, eth0")),
    ],
)
def test_the_way_to_the_others_is_explained(
    environment: Mapping[str, str], state: str, words: tuple[str, ...]
) -> None:
    machine = Machine(**environment)
    (finding,) = network.check_route(machine)
    says(finding, state, *words)


def test_every_interface_of_a_list_is_explained() -> None:
    machine = Machine(SUMPTER_INTERFACES="eth0, eth1,ib0")
    machine.links = [LOOPBACK, SLOW, replace(FAST, up=False)]
    first, second, third = network.check_route(machine)
    says(first, OK, "eth0")
    says(second, ERROR, "eth1, which is down", "ip link set eth1 up")
    says(third, ERROR, "'ib0'", "lo, eth0, eth1")


def test_any_address_of_loopback_is_one_of_this_machine() -> None:
    machine = Machine(SUMPTER_INTERFACES="127.0.0.1,127.0.0.2")
    one, other = network.check_route(machine)
    says(one, OK, "127.0.0.1 (lo)")
    says(other, OK, "127.0.0.2 (lo)")


def test_a_missing_route_is_an_error() -> None:
    machine = Machine(**FAR)
    machine.routes = {}
    says(network.check_route(machine)[0], ERROR, "ip route get 10.0.0.9")


def test_a_faster_interface_than_the_routed_one_is_pointed_out() -> None:
    machine = Machine(**FAR)
    machine.links = [LOOPBACK, SLOW, FAST]
    says(network.check_route(machine)[0], WARNING, "SUMPTER_INTERFACES=eth1")
    machine.links = [LOOPBACK, SLOW, replace(FAST, up=False)]
    says(network.check_route(machine)[0], OK, "eth0")


@pytest.mark.parametrize(
    ("job", "state"),
    [
        ({}, NOTE),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, OK),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, ERROR),
    ],
)
def test_a_job_of_several_machines_cannot_meet_on_loopback(job: dict[str, str], state: str) -> None:
    machine = Machine(SUMPTER_COORDINATOR="localhost:7700", **job)
    machine.hosts["localhost"] = ["127.0.0.1"]
    machine.routes["127.0.0.1"] = "127.0.0.1"
    says(network.check_route(machine)[0], state, "lo)")


def test_a_host_name_that_is_loopback_is_debians_pitfall() -> None:
    machine = Machine()
    says(network.check_host_name(machine)[0], OK, "10.0.0.1")
    machine.hosts["here"] = ["127.0.1.1"]
    says(network.check_host_name(machine)[0], WARNING, "127.0.1.1", "/etc/hosts")
    machine.hosts.clear()
    says(network.check_host_name(machine)[0], WARNING, "no address")


@pytest.mark.parametrize(
    ("failure", "state", "word"),
    [
        (None, OK, "accepts"),
        (ConnectionRefusedError(111, "refused"), WARNING, "sumpter coordinator --listen"),
        (TimeoutError("timed out"), ERROR, "firewall"),
    ],
)
def test_a_coordinator_that_is_given_is_called(
    failure: OSError | None, state: str, word: str
) -> None:
    machine = Machine(**FAR)
    machine.connecting = failure
    says(network.check_coordinator(machine)[0], state, word)
    assert network.check_coordinator(Machine()) == []


def test_ports_in_use_are_errors_only_where_they_are_needed() -> None:
    machine = Machine(MASTER_PORT="4000", WORLD_SIZE="2", SUMPTER_PORT="7800", SUMPTER_LANES="4")
    assert {finding.state for finding in network.check_ports(machine)} == {OK}
    machine.listeners = {7700: "sshd (pid 7)", 4001: None, 7803: "sumpter (pid 9)"}
    findings = network.check_ports(machine)
    says(only(findings, "coordinator's port"), NOTE, "sshd (pid 7)", "--listen")
    says(only(findings, "MASTER_PORT + 1"), ERROR, "4001", "cannot see")
    says(only(findings, "lanes' ports"), ERROR, "7803", "sumpter (pid 9)", "SUMPTER_PORT")


def test_a_port_that_is_really_in_use_is_seen_with_its_owner() -> None:
    probe = Probe()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert probe.port_in_use(port)
        assert "pid" in (probe.listener(port) or "")
        assert probe.connect_error("127.0.0.1", port, 1) is None
    assert not probe.port_in_use(port)
    assert probe.listener(port) is None
    assert isinstance(probe.connect_error("127.0.0.1", port, 1), ConnectionRefusedError)


@pytest.mark.parametrize(
    ("limit", "environment", "state", "words"),
    [
        ((-1, -1), {}, OK, ("unlimited",)),
        ((65536, 65536), {}, OK, ("65536",)),
        ((1024, 2048), {"SUMPTER_LANES": "32"}, NOTE, ("ulimit -n",)),
        ((1024, 4096), {"WORLD_SIZE": "512"}, OK, ("raised as needed to 4096",)),
        ((1024, 4096), {"WORLD_SIZE": "2048"}, ERROR, ("2,048 workers", "LimitNOFILE")),
        ((256, 256), {}, ERROR, ("hard limit, which is 256",)),
    ],
)
def test_open_files_must_suffice_for_the_job(
    limit: tuple[int, int], environment: dict[str, str], state: str, words: tuple[str, ...]
) -> None:
    machine = Machine(**environment)
    machine.limits["RLIMIT_NOFILE"] = limit
    says(limits.check_descriptors(machine)[0], state, *words)


def test_placed_writes_are_what_the_settings_and_the_hardware_allow() -> None:
    verbs, tcp = ("verbs;ofi_rxm", "mlx5_0", int(1e11), True), ("tcp", "eth0", None, False)
    machine = Machine()
    says(fabric.check_fabric(machine)[0], OK, "no RDMA device here", "over TCP")
    machine.folders["/sys/class/infiniband"] = ["mlx5_0"]
    says(fabric.check_fabric(machine)[0], NOTE, "mlx5_0", "not installed", "fabric = tcp")
    machine.libfabric = ("1.17", [verbs, tcp], None, 1)
    words = ("verbs;ofi_rxm (mlx5_0, 100 Gb/s, RDMA), tcp (eth0)", "fabric_provider = verbs")
    says(fabric.check_fabric(machine)[0], NOTE, "libfabric 1.17 has", *words)
    machine.libfabric = ("1.17", [tcp], None, 1)
    says(fabric.check_fabric(machine)[0], OK, "none is RDMA", "over TCP")
    machine.environment["SUMPTER_FABRIC"] = "libfabric"
    says(fabric.check_fabric(machine)[0], OK, "jobs take tcp (eth0)")
    machine.environment["SUMPTER_FABRIC_PROVIDER"] = "efa"
    says(fabric.check_fabric(machine)[0], ERROR, "no provider `efa`", "fabric = auto")
    machine.environment["SUMPTER_FABRIC"] = "auto"
    says(fabric.check_fabric(machine)[0], NOTE, "no provider `efa`")
    machine.environment["SUMPTER_FABRIC"] = "tcp"
    says(fabric.check_fabric(machine)[0], OK, "fabric = tcp")
    assert len(fabric.check_fabric(machine)) == 1
    machine.folders["/dev"] = ["nvidia0"]
    says(only(fabric.check_fabric(machine), "GPU memory"), OK, "verbs;ofi_rxm", "host memory")


def test_the_probe_asks_libfabric_itself() -> None:
    # What there is depends on the machine; that it answers does not.
    version, networks, reason, registered = Probe().networks(None, None)
    assert (reason is None) == bool(networks) and registered > 0
    assert version is not None or not Probe().device_memory_networks()


def test_locked_memory_matters_only_beside_rdma() -> None:
    machine = Machine()
    machine.limits["RLIMIT_MEMLOCK"] = (64 << 10, 64 << 10)
    says(limits.check_locked_memory(machine)[0], OK, "64 KiB")
    machine.folders["/sys/class/infiniband"] = ["mlx5_0"]
    machine.libfabric = ("1.17", [("verbs", "mlx5_0", int(1e11), True)], None, 16 << 10)
    words = ("mlx5_0", "enough for 4 connections", "ulimit -l unlimited")
    says(limits.check_locked_memory(machine)[0], WARNING, *words)
    machine.folders = {"/sys/class/cxi": ["cxi0"]}
    says(limits.check_locked_memory(machine)[0], WARNING, "cxi0", "enough for 4 connections")
    machine.environment["SUMPTER_FABRIC"] = "tcp"
    says(limits.check_locked_memory(machine)[0], OK, "lock none")
    del machine.environment["SUMPTER_FABRIC"]
    machine.limits["RLIMIT_MEMLOCK"] = (-1, -1)
    says(limits.check_locked_memory(machine)[0], OK, "any amount")


def test_shared_memory_that_cannot_be_had_is_an_error() -> None:
    machine = Machine()
    machine.spaces["/dev/shm"] = (64 << 20, 64 << 20)
    memory, files = limits.check_shared_memory(machine)
    says(memory, OK, "2 MiB")
    says(files, NOTE, "64 MiB", "--shm-size")
    machine.memory_error = "Operation not permitted"
    says(limits.check_shared_memory(machine)[0], ERROR, "Operation not permitted", "memfd_create")
    machine.environment = {"SUMPTER_LOCAL_LINK": "tcp"}
    says(limits.check_shared_memory(machine)[0], OK, "not used")


def test_socket_buffers_are_held_against_the_bandwidth() -> None:
    machine = Machine(SUMPTER_BANDWIDTH_GBPS="100")
    machine.files["/proc/sys/net/ipv4/tcp_rmem"] = "4096\t131072\t6291456"
    machine.files["/proc/sys/net/ipv4/tcp_wmem"] = "4096\t16384\t67108864"
    findings = limits.check_buffers(machine)
    says(only(findings, "net.tcp_rmem"), WARNING, "100 Gb/s", "5.96 MiB", "sysctl -w")
    says(only(findings, "net.tcp_wmem"), OK, "64 MiB")
    machine.environment = {}
    says(only(limits.check_buffers(machine), "net.tcp_rmem"), OK, "1 Gb/s", "interface")


def test_connections_that_start_slowly_after_a_pause_are_pointed_out() -> None:
    machine = Machine()
    machine.files["/proc/sys/net/ipv4/tcp_slow_start_after_idle"] = "1"
    machine.files["/proc/sys/net/ipv4/tcp_congestion_control"] = "cubic"
    says(only(limits.check_buffers(machine), "pauses"), NOTE, "tcp_slow_start_after_idle=0")
    machine.files["/proc/sys/net/ipv4/tcp_congestion_control"] = "bbr"
    says(only(limits.check_buffers(machine), "pauses"), OK, "as before")
    machine.files["/proc/sys/net/ipv4/tcp_congestion_control"] = "cubic"
    machine.files["/proc/sys/net/ipv4/tcp_slow_start_after_idle"] = "0"
    says(only(limits.check_buffers(machine), "pauses"), OK, "as before")


def test_a_processor_without_vector_units_is_pointed_out() -> None:
    machine = Machine()
    machine.files["/proc/cpuinfo"] = "processor\t: 0\nmodel name\t: QEMU\nflags\t\t: sse2 avx2 f16c"
    model, *kernels = processor.check_kernels(machine, "avx2+f16c")
    says(model, OK, "QEMU", "avx2 f16c")
    assert {finding.state for finding in kernels} == {OK}
    says(only(processor.check_kernels(machine, "portable"), "kernels"), WARNING, "-cpu host")
    assert _native.instruction_set() in processor.check_kernels(machine)[-1].found


def test_codecs_are_measured_on_a_core_each_on_one_line() -> None:
    findings = processor.check_codecs(Machine())
    assert [finding.check for finding in findings] == [f"codec {name}" for name in processor.CODECS]
    says(only(findings, "codec int8"), OK, "3.98 times fewer bytes", "encodes", "GB/s of float32")
    # The second time nothing is measured.
    assert processor.check_codecs(Machine()) == findings
    encode, decode, add, smaller = _native.codec_rates("topk:k=0.25")
    assert min(encode, decode, add) > 1e6 and 2 < smaller < 3
    with pytest.raises(ConfigError, match="codec topk: k=: give a part of all elements"):
        _native.codec_rates("topk")


def test_a_link_that_the_cores_cannot_fill_is_pointed_out() -> None:
    machine = Machine()
    machine.core_counts = (8, 2)
    machine.links = [LOOPBACK, replace(FAST, speed_mbit=400_000)]
    link = processor.check_link(machine)
    says(only(link, "cores and link"), NOTE, "400 Gb/s", "2 core(s)", "SUMPTER_BANDWIDTH_GBPS=24")
    machine.environment["SUMPTER_BANDWIDTH_GBPS"] = "24"
    says(only(processor.check_link(machine), "cores and link"), OK, "24 Gb/s")


def test_cores_quotas_and_lanes_must_agree() -> None:
    machine = Machine(SUMPTER_LANES="16")
    says(processor.check_cores(machine)[0], WARNING, "8 of 8", "SUMPTER_LANES=8")
    machine = Machine(WORLD_SIZE="16", LOCAL_WORLD_SIZE="16")
    says(processor.check_cores(machine)[0], WARNING, "LOCAL_WORLD_SIZE is 16")
    machine = Machine()
    machine.folders["/sys/devices/system/node"] = ["node0", "node1", "online"]
    says(processor.check_cores(machine)[0], OK, "2 memory node(s)")
    machine.files["/proc/self/cgroup"] = "0::/a/b"
    machine.files["/sys/fs/cgroup/a/b/cpu.max"] = "max 100000"
    machine.files["/sys/fs/cgroup/a/cpu.max"] = "250000 100000"
    says(only(processor.check_cores(machine), "quota"), WARNING, "2.5 cores", "OMP_NUM_THREADS=2")


def test_stolen_time_is_reported() -> None:
    machine = Machine()
    machine.files["/proc/stat"] = "cpu 800 0 100 5000 0 0 0 100 0 0\ncpu0 1 2"
    says(processor.check_steal(machine)[0], NOTE, "10.0%")
    machine.files["/proc/stat"] = "cpu 800 0 100 5000 0 0 0 1 0 0"
    says(processor.check_steal(machine)[0], OK, "0.1%")


def test_without_a_gpu_nothing_is_wrong() -> None:
    says(gpu.check_gpu(Machine(), NEW_TORCH)[0], OK, "no CUDA driver")


def test_a_gpu_that_torch_cannot_use_is_explained() -> None:
    machine = Machine()
    machine.folders["/dev"] = ["nvidia0", "nvidia1", "nvidiactl"]
    says(gpu.check_gpu(machine, NEW_TORCH)[0], WARNING, "2 device(s)", "--gpus all")
    machine.libraries = ("libcuda.so.1",)
    says(gpu.check_gpu(machine, NEW_TORCH)[1], NOTE, "without CUDA")
    blind = NEW_TORCH | {"cuda": "13.2"}
    says(gpu.check_gpu(machine, blind)[1], WARNING, "13.2", "CUDA_VISIBLE_DEVICES")
    seeing = blind | {"cuda_devices": 2}
    says(gpu.check_gpu(machine, seeing | {"devices": []})[1], NOTE, "the backend does not", "2.14")
    both = seeing | {"devices": ["cpu", "cuda"]}
    says(gpu.check_gpu(machine, both)[1], OK, "2 device(s)", "pinned host memory")
    says(gpu.check_gpu(machine, both)[1], OK, "streams wait for the network")
    old = both | {"streams_wait": False}
    says(gpu.check_gpu(machine, old)[1], NOTE, "the thread that calls wait()", "CUDA 11.7")
    assert len(gpu.check_gpu(machine, None)) == 1


def test_settings_of_the_environment_are_shown_without_secrets() -> None:
    says(settings.check_settings(Machine())[0], OK, "defaults")
    machine = Machine(SUMPTER_CREDIT_BYTES="1MiB", SUMPTER_TOKEN="a secret of many letters")
    findings = settings.check_settings(machine)
    says(only(findings, "SUMPTER_CREDIT_BYTES"), OK, "1MiB", "default auto")
    assert not any("secret" in finding.found for finding in findings)


@pytest.mark.parametrize(
    ("environment", "check", "state", "words"),
    [
        ({"SUMPTER_LANES": "many"}, "SUMPTER_LANES", ERROR, ("many", "0 to 1024")),
        ({"SUMPTER_TOKEN": "short"}, "SUMPTER_TOKEN", ERROR, ("16",)),
        ({"RANK": "3", "WORLD_SIZE": "2"}, "settings", ERROR, ("rank", "world_size")),
        (
            {"SUMPTER_TOKEN": "a secret of many letters", "SUMPTER_TOKEN_FILE": "job.token"},
            "settings",
            ERROR,
            ("token_file",),
        ),
        ({"SUMPTER_CREDITS": "1MiB"}, "SUMPTER_CREDITS", WARNING, ("SUMPTER_CREDIT_BYTES",)),
        ({"SUMPTER_ZZZ": "1"}, "SUMPTER_ZZZ", WARNING, ("sumpter config",)),
    ],
)
def test_settings_that_cannot_be_right_are_named(
    environment: dict[str, str], check: str, state: str, words: tuple[str, ...]
) -> None:
    finding = only(settings.check_settings(Machine(**environment)), check)
    says(finding, state, *words)
    assert "many letters" not in finding.found


def test_the_self_test_compares_sums_over_both_kinds_of_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selftest, "_LIMIT_S", HANG_S)
    tcp, shared = selftest.check_sums(Probe())
    for finding in (tcp, shared):
        says(finding, OK, f"{len(DTYPES) * len(COUNTS)} sums", "bit for bit", "GB/s")
    assert "1 server" in tcp.found


def test_a_self_test_that_fails_says_with_what_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "_LIMIT_S", HANG_S)
    probe = Probe()
    probe.environment = {**probe.environment, "SUMPTER_LOCAL_LINK": "tcp"}
    monkeypatch.setattr(selftest, "_RANK_MODULE", "sumpter.doctor.no_such_module")
    (finding,) = selftest.check_sums(probe)
    says(finding, ERROR, "no_such_module")


def test_sums_that_differ_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    result = {"wrong": ["float32 x 1"], "checked": 1, "bytes_per_s": 1e9}
    monkeypatch.setattr(selftest, "_job", lambda *_: [result, result])
    for finding in selftest.check_sums(Probe()):
        says(finding, ERROR, "float32 x 1", "report this")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as exit_info:
        main(["doctor", *arguments])
    return int(exit_info.value.code or 0), capsys.readouterr().out


def test_the_command_examines_this_machine(
    capsys: pytest.CaptureFixture[str], unlaunched: pytest.MonkeyPatch
) -> None:
    """Torch is asked in earnest, the numbers are those of this machine, errors are the code."""
    unlaunched.setattr("sumpter.doctor.probe._TORCH_S", HANG_S)
    unlaunched.setenv("SUMPTER_LANES", "many")
    code, out = run(capsys, "--no-self-test", "--json")
    findings = [Finding(**each) for each in json.loads(out)]
    assert code == 1
    says(only(findings, "SUMPTER_LANES"), ERROR)
    says(only(findings, "backend"), OK, "cpu")
    says(only(findings, "carried"), OK, "all_reduce")
    assert not any("self-test" in finding.check for finding in findings)
    for check in ("sumpter", "python", "host name", "open files", "kernels", "cores"):
        assert any(finding.check == check for finding in findings), check


def test_the_report_reads_without_colour(
    capsys: pytest.CaptureFixture[str], unlaunched: pytest.MonkeyPatch
) -> None:
    unlaunched.setattr(Probe, "torch", lambda self: None)
    unlaunched.setenv("COLUMNS", "100")
    code, out = run(capsys, "--no-self-test")
    assert code == 0
    assert "\x1b" not in out
    lines = out.splitlines()
    assert lines[0] == "Versions"
    assert lines[1].startswith("ok       sumpter ")
    assert any(line.startswith("note     torch ") for line in lines)
    assert any(line.startswith("         remedy ") for line in lines)
    assert lines[-1].endswith("0 error")


@pytest.mark.parametrize("text", ["nowhere", ":7700", "host:", "host:0", "host:65536"])
def test_a_malformed_coordinator_is_wrong_use(
    capsys: pytest.CaptureFixture[str], text: str
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["doctor", "--coordinator", text])
    assert exit_info.value.code == 2
    assert "HOST:PORT" in capsys.readouterr().err
