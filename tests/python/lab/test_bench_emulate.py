"""`sumpter bench emulate`: its arithmetic, what it refuses, and small runs that leave nothing."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumpter._failure import Failure, UsageError
from sumpter.cli import main
from sumpter_lab.cli.bench import _emulate as emulate_cells
from sumpter_lab.emulate import cell, report
from sumpter_lab.scaffold import spec, units
from sumpter_lab.scaffold.jobs import emulated
from sumpter_lab.scaffold.network import cluster, counters, mesh, namespaces
from sumpter_lab.scaffold.network.cluster import Machine
from sumpter_lab.scaffold.network.probe import Exchanged
from sumpter_lab.scaffold.network.tournament import Links, schedule, summarize
from sumpter_lab.scaffold.optimum import optimum
from sumpter_lab.scaffold.results.figures import fraction, ratio
from sumpter_lab.scaffold.results.output import write_csv
from sumpter_lab.scaffold.results.table import head_line, row_line

# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 600.0
# A shell may run tests with SIGINT ignored, which programs respect.
INTERRUPTIBLE = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from sumpter.cli import main; main(sys.argv[1:])"
)
CERTIFICATES = Path(__file__).parents[3] / "crates" / "coordinator" / "tests" / "certificates"
# In a process of its own, as a rank is: what it sets up stays.
RANK = """
import json, sys
from sumpter import _native
from sumpter_lab.scaffold.jobs.rank import (Worker)
settings = json.loads(sys.argv[1])
worker = Worker(0, 1, "127.0.0.1", {**settings, "token": _native.generate_token()}, [(8,)])
worker.join(worker.host(), ["sumpter"])
print(worker.status())
worker.stop()
worker.stop_hosting()
"""
# One rank alone: its sums are its own contributions.
UPDATING_RANK = """
import sys
from sumpter import _native
from sumpter_lab.scaffold.jobs.rank import (Worker)
from sumpter_lab.scaffold.spec import RULES
from sumpter_lab.scaffold.jobs.updates import (OPTIMIZERS)
assert set(OPTIMIZERS) == set(RULES)
shapes = [(3, 5), (2000,)]
worker = Worker(0, 1, "127.0.0.1", {"token": _native.generate_token()}, shapes)
worker.join(worker.host(), ["sumpter", *RULES])
for number in range(3):
    for system in ("sumpter", *RULES):
        worker.prepare(system, number)
        worker.run(system)
        worker.check(system, number)
for system in RULES:
    worker.prepare(system, 3)
    of = worker._systems[system]
    of._coefficients = (2.0, *of._coefficients[1:])
    # Beyond what Adam and its relatives make of a gradient that is twice as large.
    of._coefficients = (*of._coefficients[:-1], 2 * of._coefficients[-1])
    worker.run(system)
    try:
        worker.check(system, 3)
    except ArithmeticError as error:
        print(system, error)
worker.stop()
worker.stop_hosting()
"""
CONGESTION_FILE = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def asked(**changes: object) -> spec.Spec:
    given: dict = {
        "workers": [2],
        "servers": [0, 1],
        "gpu_rates_mbit": [200.0, 200.0],
        "cpu_rates_mbit": [200.0],
        "loads": [spec.tensor(1 << 20)],
        "rounds": 1,
        "warmup": 1,
    }
    return spec.Spec(**(given | changes))


def machines(role: str, *rates_mbit: float) -> list[Machine]:
    return [Machine(role, i, f"ns{i}", f"10.0.0.{i}", rate) for i, rate in enumerate(rates_mbit)]


# --- texts ---


def test_lists_of_counts_keep_their_order_and_lose_repetitions() -> None:
    assert units.parse_counts("0, 4,1,4", "--servers", 0) == [0, 4, 1]


@pytest.mark.parametrize("text", ["", "1,,2", "-1", "1.5", "two", "0", "²"])
def test_a_wrong_count_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="--workers"):
        units.parse_counts(text, "--workers", 1)


def test_sizes_hold_whole_elements() -> None:
    assert units.parse_sizes("64MiB,4", "--bytes") == [64 << 20, 4]
    with pytest.raises(UsageError, match="multiple of 4"):
        units.parse_sizes("4,6", "--bytes")


@pytest.mark.parametrize("text", ["0", "0.5", "10001", "nan", "inf", "fast"])
def test_a_rate_the_emulation_cannot_keep_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--worker-rates"):
        units.parse_rates(f"200,{text}", "--worker-rates")


def test_rates_by_machine_replace_the_common_one() -> None:
    assert units.rates_of(3, None, 200, "--worker-rates") == [200, 200, 200]
    assert units.rates_of(2, [100, 50, 25], 200, "--worker-rates") == [100, 50]
    with pytest.raises(UsageError, match="2 rates for 3 machines"):
        units.rates_of(3, [100, 50], 200, "--worker-rates")


# --- models ---


def test_a_model_is_a_load_of_all_its_tensors() -> None:
    load = spec.model("resnet18")
    assert (load.name, len(load.shapes), load.bytes) == ("resnet18", 62, 4 * 11_689_512)


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="resnet18, resnet50, resnet101, vgg16"):
        spec.model("lenet")


# --- the tournament ---


@given(count=st.integers(1, 24))
def test_every_pair_meets_once_and_a_machine_has_one_peer_at_a_time(count: int) -> None:
    rounds = schedule(count)
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == [(a, b) for a in range(count) for b in range(a + 1, count)]
    for pairs in rounds:
        busy = [index for pair in pairs for index in pair]
        assert len(busy) == len(set(busy))
    assert len(rounds) <= count


def test_a_slow_opponent_does_not_make_a_link_look_slow() -> None:
    players = machines("gpu", 200, 200, 100)
    exchanges = [Exchanged(0, 1e9, 0.25)] * 6
    links = summarize(players, {0: [0.95, 0.95], 1: [0.95, 0.31], 2: [0.94, 0.94]}, exchanges)
    assert links.goodput_mbit == pytest.approx({"gpu-0": 190, "gpu-1": 190, "gpu-2": 94})
    assert links.median_mbit == pytest.approx(190)
    assert links.raw_cpu_s_per_gb_moved == pytest.approx(0.25)


def test_links_far_below_their_rate_are_refused() -> None:
    players = machines("gpu", 200, 200)
    Links({"gpu-0": 190, "gpu-1": 188}, {}, 1.0).check(players)
    with pytest.raises(Failure, match="200 Mb/s carry only 24.1 Mb/s"):
        Links({"gpu-0": 190, "gpu-1": 24.1}, {}, 1.0).check(players)


# --- the optimum ---


def test_the_optimum_follows_the_links() -> None:
    gpu, cpu = machines("gpu", *[200] * 4), machines("cpu", 200, 200)
    names = [machine.name for machine in (*gpu, *cpu)]
    links = Links(dict.fromkeys(names, 190.0), dict.fromkeys(names, 190.0), 1.0)
    times = optimum(gpu, cpu, 10**8, links)
    alone_s = 2 * 3 / 4 * 8e8 / 190e6
    assert times.allreduce_seconds == pytest.approx(alone_s)
    # Theorem 1: 2n(n-1) / (n^2 + kn - 2k) of the bytes cross each link.
    assert times.seconds == pytest.approx(24 / 20 * 8e8 / 190e6)
    assert times.gain_over_allreduce == pytest.approx(alone_s / times.seconds)
    assert sum(times.shares.values()) == pytest.approx(1)


def test_fractions_exist_only_where_both_figures_do() -> None:
    assert fraction(1.0, 1.25) == pytest.approx(0.8)
    assert fraction(0.0, 1.0) is None
    assert ratio(None, 1.0) is None
    assert ratio(1.0, None) is None
    assert ratio(3.0, 2.0) == pytest.approx(1.5)


def test_busy_cores_and_idle_links_make_a_cell_cpu_bound() -> None:
    assert cell.cpu_bound(0.05, 0.2)
    assert not cell.cpu_bound(0.05, 0.01), "the links were full: they set the time"
    assert not cell.cpu_bound(0.5, 0.2), "cores had time: the software is to blame"
    assert cell.suggested_rate_mbit(200, 0.5) == 80


def test_rounds_that_update_are_set_beside_those_of_the_same_turn() -> None:
    def one(seconds: float, cpu_s: float, sent: int) -> emulated.Round:
        links = {"gpu-0": counters.LinkCounts(sent, 7, 0)}
        return emulated.Round(seconds, cpu_s, 0.0, links, counters.NO_TICKS)

    rounds = {"sumpter": [one(1.0, 2.0, 100), one(4.0, 2.0, 100)]}
    rounds["sgd"] = [one(1.25, 3.0, 101), one(4.0, 3.0, 101)]
    found = cell._rule("sgd", cell.Measured(rounds), spec.tensor(1 << 20))
    assert found["goodput_ratios"] == [0.8, 1.0] and found["goodput_ratio"] == 0.9
    assert found["link_bytes_ratio"] == pytest.approx(1.01)
    assert found["cpu_ratio"] == pytest.approx(1.5)
    (line,) = report._rules(row(rules={"sgd": found}))
    assert line == (
        "sgd at n=4, k=0, 1 MiB: 0.9000 (0.8000 to 1.0000) of the goodput of sums, 1.0100 of their "
        "bytes on the links, 1.500 of the CPU time"
    )


def test_turns_that_others_disturbed_are_left_out_whatever_their_times() -> None:
    def turn(seconds: float, steal: int) -> cell.Turn:
        cores = counters.CoreTicks(total=100, idle=50, steal=steal)
        return {"sumpter": emulated.Round(seconds, 0.0, 0.0, {}, cores)}

    turns = [turn(1.0, 30), turn(2.0, 0), turn(9.0, 1), turn(1.5, 7)]
    kept = cell.select(turns, 2)
    assert [item.seconds for item in kept.rounds["sumpter"]] == [2.0, 9.0]
    assert (kept.disturbed, kept.repeated) == (0, 2)
    kept = cell.select(turns, 3)
    assert [item.seconds for item in kept.rounds["sumpter"]] == [2.0, 9.0, 1.5]
    assert (kept.disturbed, kept.repeated) == (1, 1)


# --- what the kernel counts ---


def test_counters_are_found_in_the_kernels_tables() -> None:
    table = "head|\n lo: 1 0 0 0 0 0 0 0 2 0\nnet0:  70 1 0 0 0 0 0 0 90 1 0\n"
    assert counters.interface_bytes(table, "net0") == (70, 90)
    with pytest.raises(ValueError, match="no interface net1"):
        counters.interface_bytes(table, "net1")
    assert counters.tcp_retransmits("Ip: X\nIp: 1\nTcp: A RetransSegs\nTcp: 5 7\n") == 7
    ticks = counters.parse_core_ticks("cpu  10 0 20 60 5 0 1 4 9 9\ncpu0 1\n")
    assert (ticks.total, ticks.idle, ticks.steal) == (100, 65, 4)


def test_the_clock_of_a_process_is_read_by_its_number() -> None:
    before = counters.process_cpu_s(os.getpid())
    sum(range(10**5))
    assert before < counters.process_cpu_s(os.getpid())


# --- refusals ---


def test_without_root_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Failure, match="needs root"):
        namespaces.check_tools("linux")


def test_other_systems_are_refused() -> None:
    with pytest.raises(Failure, match="needs Linux, not darwin"):
        namespaces.check_tools("darwin")


def test_missing_tools_name_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(namespaces.shutil, "which", lambda _: None)
    with pytest.raises(Failure, match="ip and tc not found.*iproute2"):
        namespaces.check_tools("linux")


def test_tensors_beyond_the_memory_are_refused() -> None:
    large = asked(loads=[spec.tensor(1 << 30)])
    with pytest.raises(Failure, match="2 workers and 0 servers needs about"):
        spec.check_memory(large, 4 << 30)
    spec.check_memory(large, 64 << 30)


def test_peers_and_models_need_memory_of_their_own() -> None:
    load = spec.model("resnet18")
    plain = spec.memory_bytes(asked(peers=()), load, 2, 1)
    assert plain < spec.memory_bytes(asked(peers=("gloo",)), load, 2, 1)
    assert plain < spec.memory_bytes(asked(peers=("ps",)), load, 2, 1)
    # Two workers' values; two copies of value and two moments.
    with_adam = spec.memory_bytes(asked(peers=(), rules=("adam",)), load, 2, 1)
    assert with_adam - plain == (2 + 2 * 3) * load.bytes


def test_each_load_has_its_systems() -> None:
    both = asked(peers=("gloo", "ps"))
    assert both.systems(both.loads[0], 1) == ("sumpter", "gloo", "ps")
    assert both.systems(both.loads[0], 0) == ("sumpter", "gloo")
    plain = asked(peers=("plain",))
    assert plain.systems(plain.loads[0], 1) == ("sumpter", "plain")
    replay = ("sumpter", "sumpter_ddp", "gloo_ddp")
    assert both.systems(spec.model("vgg16"), 0) == replay
    updating = asked(peers=("gloo", "plain"), rules=("sgd", "adam"))
    assert updating.systems(updating.loads[0], 1) == ("sumpter", "gloo", "sgd", "adam", "plain")
    varied = asked(peers=("ps", "deterministic=true"))
    assert varied.systems(varied.loads[0], 0) == ("sumpter", "deterministic=true")
    assert varied.own_jobs(1) == {
        "ps": {"architecture": "ps"},
        "deterministic=true": {"deterministic": "true"},
    }


def test_a_model_is_divided_by_a_scale() -> None:
    whole, small = spec.model("bert-large"), spec.model("bert-large", 16)
    assert len(small.shapes) == len(whole.shapes)
    assert small.bytes == pytest.approx(whole.bytes / 16, rel=1e-4)
    assert min(small.shapes) >= (1,)


@pytest.mark.parametrize(
    ("option", "given", "said"),
    [
        ("--peers", "lanes=2", "--peers lanes: the emulated cluster decides this"),
        ("--peers", "credit", "is unknown"),
        ("--scale", "16", "--scale divides the sizes of a --model"),
        ("--rules", "sgd,lion", "--rules 'lion': known are sgd, sgd_momentum"),
    ],
)
def test_what_to_compare_with_is_checked_first(
    option: str,
    given: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(namespaces, "check_tools", lambda: None)
    with pytest.raises(SystemExit):
        main(["bench", "emulate", "-n", "2", "-s", "0", option, given])
    assert said in " ".join(capsys.readouterr().err.split())


# --- plain sockets ---


@given(
    st.lists(st.integers(0, 100), min_size=2, max_size=6).filter(sum),
    st.integers(1, 6),
    st.integers(1, 1 << 30),
)
def test_plain_sockets_move_what_the_plan_makes_machines_exchange(
    weights: list[int], workers: int, size: int
) -> None:
    workers = min(workers, len(weights))
    shares = [weight / sum(weights) for weight in weights]
    moved = mesh.volumes(shares, workers, size)
    for one, volumes in enumerate(moved):
        for other, volume in volumes.items():
            assert volume == moved[other][one], "as much comes back as goes"
        # A worker sends all but its own share away, and the sums of its own share to the others;
        # a CPU machine sends its share to every worker.
        is_worker = one < workers
        own = shares[one] * (workers - is_worker)
        expected = (own + is_worker * (1 - shares[one])) * size
        assert abs(sum(volumes.values()) - expected) <= len(weights), (one, volumes)


def test_a_mesh_moves_exactly_its_volumes_round_after_round() -> None:
    nodes = [mesh.Mesh(index, "127.0.0.1") for index in range(3)]
    sizes = [{1: 3_000_000, 2: 1}, {0: 3_000_000, 2: 70_000}, {0: 1, 1: 70_000}]
    try:
        ports = [node.port() for node in nodes]
        with ThreadPoolExecutor(3) as pool:

            def everywhere(call: Callable[[int], object]) -> list:
                return [job.result(HANG_S) for job in [pool.submit(call, i) for i in range(3)]]

            others = [{to: ("127.0.0.1", ports[to]) for to in range(i + 1, 3)} for i in range(3)]
            everywhere(lambda i: nodes[i].join(others[i], i))
            for _ in range(2):
                assert all(
                    s > 0 and cpu >= 0 for s, cpu in everywhere(lambda i: nodes[i].run(sizes[i]))
                )
        for node in nodes:
            for link in node._links.values():
                assert (link.to_send, link.to_receive) == (0, 0)
                with pytest.raises(BlockingIOError):
                    link.socket.recv(1)
    finally:
        for node in nodes:
            node.close()


# --- leftovers ---


def test_namespaces_of_dead_runs_are_leftovers(tmp_path: Path) -> None:
    own = namespaces.run_prefix()
    pid, start = own.split("-")[1:3]
    reused = f"{namespaces.PREFIX}-{pid}-{int(start) + 1}-gpu0"
    gone = f"{namespaces.PREFIX}-{2**22 + 1}-77-switch"
    for name in (f"{own}gpu0", reused, gone, "smpe-other", "blue", "smpx-1-1-gpu0"):
        (tmp_path / name).touch()
    assert namespaces.leftovers(tmp_path) == sorted([reused, gone])
    assert namespaces.of_run(own, tmp_path) == [f"{own}gpu0"]
    assert namespaces.living_runs(tmp_path) == set()
    assert namespaces.leftovers(tmp_path / "absent") == []


# --- reports ---


def row(**changes: object) -> dict:
    given: dict = {"workers": 4, "servers": 0, "bytes": 1 << 20, "model": None}
    given |= {"optimum_fraction": 0.9, "gain_ratio": None, "gloo_seconds": None, "seconds": 1.0}
    return given | changes


def test_the_summary_names_the_worst_cell_of_each_kind() -> None:
    rows = [row(), row(workers=8, optimum_fraction=0.8), row(servers=2, optimum_fraction=0.7)]
    lines = report.summary(rows)
    assert lines == [
        "worst fraction of t_opt at k = 0: 0.8000 (n=8, k=0, 1 MiB)",
        "worst fraction of t_opt at k > 0: 0.7000 (n=4, k=2, 1 MiB)",
    ]


def test_rows_stand_under_their_heads() -> None:
    head = head_line(report.COLUMNS)
    line = row_line(report.COLUMNS, row())
    assert len(head) == len(line)
    assert line.split()[:3] == ["4", "0", "1"]
    assert "-" in line.split(), "what was not measured is a dash"


def test_csv_keeps_every_figure(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    write_csv(file, [row(link_idle={"gpu-0": 0.5}), row(extra=1)])
    with file.open(newline="") as stream:
        first, second = csv.DictReader(stream)
    assert json.loads(first["link_idle"]) == {"gpu-0": 0.5}
    assert second["extra"] == "1"
    assert first["gloo_seconds"] == ""


def test_a_run_that_is_cut_off_leaves_the_rows_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: object) -> Iterator[dict]:
        yield row()
        yield row(servers=2)
        raise KeyboardInterrupt

    monkeypatch.setattr("sumpter_lab.emulate.run.run", cut_off)
    with pytest.raises(KeyboardInterrupt):
        emulate_cells(asked(), False, tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="") as stream:
        assert [found["servers"] for found in csv.DictReader(stream)] == ["0", "2"]


# --- runs ---


def _why_not() -> str:
    """Why this machine cannot emulate a network; empty if it can."""
    try:
        namespaces.check_tools()
        name = f"{namespaces.run_prefix()}try"
        namespaces.ip("netns", "add", name)
        namespaces.remove([name])
    except Failure as failure:
        return str(failure)
    return ""


@pytest.fixture
def emulate() -> Iterator[object]:
    """Starts runs; afterwards none of their processes and namespaces may be left."""
    reason = _why_not()
    if reason:
        pytest.skip(f"cannot emulate a network here: {reason}")
    control = CONGESTION_FILE.read_text()
    started: list[subprocess.Popen] = []

    def start(*arguments: str) -> subprocess.Popen:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", INTERRUPTIBLE, "bench", "emulate", *arguments]
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
    assert not [name for name in namespaces.leftovers() if _pid(name) in _pids(started)]
    assert CONGESTION_FILE.read_text() == control


@pytest.mark.emulates
@pytest.mark.parametrize("restarts", [True, False])
def test_machines_have_the_kernel_settings_that_were_asked_for(
    emulate: object, restarts: bool
) -> None:
    with cluster.emulated(
        [100.0], [], receive_window="4096 5000 6000", idle_restart=restarts
    ) as built:
        (machine,) = built.machines
        names = ("tcp_rmem", "tcp_slow_start_after_idle")
        files = [f"/proc/sys/net/ipv4/{name}" for name in names]
        command = ["ip", "netns", "exec", machine.namespace, "cat", *files]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [line.split() for line in said.splitlines()] == [
        ["4096", "5000", "6000"],
        [str(int(restarts))],
    ]


def _pids(processes: list[subprocess.Popen]) -> set[int]:
    return {process.pid for process in processes}


def _pid(namespace: str) -> int:
    return int(namespace.split("-")[1])


def read_until(process: subprocess.Popen, text: str) -> list[psutil.Process]:
    """Waits for a line on standard error; the processes that the run has by then."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return psutil.Process(process.pid).children(recursive=True)
    skip_if_too_busy("".join(lines))
    raise AssertionError(f"ended without '{text}':\n{''.join(lines)}")


def finished(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=HANG_S)
    skip_if_too_busy(err)
    return process.returncode, out, err


def skip_if_too_busy(err: str) -> None:
    """The instrument may refuse, and rightly: nothing about its figures can be tested then."""
    if "too busy to emulate" in err:
        pytest.skip(err.strip().splitlines()[-1])


@pytest.mark.exclusive
def test_a_small_run_measures_checks_and_cleans_up(emulate, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    # A rate that even a busy machine keeps.
    small = ("-n", "2", "-s", "0,1", "--bytes", "1MiB", "--rounds", "1", "--rate-mbit", "50")
    peers = ("--peers", "gloo,plain,deterministic=true")
    rules = ("--rules", "sgd,adam")
    code, out, err = finished(emulate(*small, *peers, *rules, "--json", "--csv", str(table)))
    assert code == 0, err
    rows = json.loads(out)
    assert [(row["workers"], row["servers"]) for row in rows] == [(2, 0), (2, 1)]
    for row in rows:
        assert row["bytes"] == 1 << 20
        assert row["rate_mbit"] == 50
        # TCP over MTU 1500 cannot carry more.
        assert 0 < row["link_goodput_mbit"] < 0.97 * 50
        assert row["seconds"] == row["rounds_s"]["sumpter"][0] > 0
        assert row["optimum_fraction"] == row["optimum_seconds"] / row["seconds"]
        assert row["gain_over_gloo"] == row["gloo_seconds"] / row["seconds"]
        assert row["cpu_s_per_gb"] > 0
        assert row["ps_seconds"] is None
        assert row["checked_rounds"] == 6
        assert list(row["rules"]) == ["sgd", "adam"]
        for found in row["rules"].values():
            assert found["goodput_ratio"] == row["seconds"] / found["seconds"]
            # A mirror receives a gradient instead of a value.
            assert 0.9 < found["link_bytes_ratio"] < 1.1
        variant = row["variants"]["deterministic=true"]
        assert variant["seconds_ratio"] == variant["seconds"] / row["seconds"]
        assert variant["cpu_ratio"] > 0 and variant["lane_memory_bytes"] >= 0
        assert row["plain_fraction"] == row["plain_seconds"] / row["seconds"]
        assert row["plain_seconds"] > 0.5 * row["optimum_seconds"]
        # Each worker's link carries the tensor at least once each way.
        idle = row["link_idle"]["gpu-0"]
        carried = row["link_goodput_mbit"] * 1e6 / 8 * row["seconds"]
        assert carried * (1 - idle["sent"]) > 0.9 * 2**20 or idle["sent"] == 0
    assert set(rows[1]["link_idle"]) == {"gpu-0", "gpu-1", "cpu-0"}
    assert len(rows[1]["lane_memory_bytes"]) == 1
    assert max(rows[1]["lane_memory_bytes"]) <= max(rows[1]["lane_memory_bound_bytes"])
    assert len(table.read_text().splitlines()) == 3


def test_every_rule_gives_what_torch_does_and_a_wrong_step_is_found() -> None:
    command = [sys.executable, "-c", UPDATING_RANK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    found = [line.split()[0] for line in done.stdout.splitlines()]
    assert found == list(spec.RULES), done.stdout


def test_the_status_of_an_encrypted_cell_can_be_read() -> None:
    files = {f"tls_{name}": str(CERTIFICATES / f"{name}.pem") for name in ("cert", "key", "ca")}
    command = [sys.executable, "-c", RANK, json.dumps(files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["jobs"]) == 1


@pytest.mark.exclusive
@pytest.mark.parametrize(
    ("number", "line"),
    [(signal.SIGINT, "this takes about"), (signal.SIGTERM, "links carry")],
)
def test_a_signal_ends_everything(emulate, number: signal.Signals, line: str) -> None:
    endless = ("--bytes", "64MiB", "--rounds", "100", "--rate-mbit", "50")
    process = emulate("-n", "2", "-s", "1", *endless)
    family = read_until(process, line)
    process.send_signal(number)
    code, _, err = finished(process)
    assert code == 128 + number, err
    assert not namespaces.of_run(f"{namespaces.PREFIX}-{process.pid}-")
    _, alive = psutil.wait_procs(family, timeout=HANG_S)
    assert not alive


@pytest.mark.exclusive
def test_a_failing_worker_ends_everything_with_its_name(emulate) -> None:
    too_small = ("--set", "max_job_bytes=1MiB", "--bytes", "16MiB")
    process = emulate("-n", "2", "-s", "0", "--rate-mbit", "50", "--peers", "none", *too_small)
    code, _, err = finished(process)
    assert code == 1
    assert "the worker on gpu-" in err and "max_job_bytes" in err
    assert "Traceback" not in err
    assert not namespaces.of_run(f"{namespaces.PREFIX}-{process.pid}-")


@pytest.mark.exclusive
def test_what_a_killed_run_leaves_is_found_and_removed(emulate) -> None:
    killed = emulate("-n", "2", "-s", "0", "--bytes", "64MiB")
    family = read_until(killed, "this takes about")
    killed.kill()
    killed.wait()
    prefix = f"{namespaces.PREFIX}-{killed.pid}-"
    assert len(namespaces.of_run(prefix)) == 3
    _, alive = psutil.wait_procs(family, timeout=HANG_S)
    assert not alive, "its processes must end by themselves"
    # The next run removes it. It is killed too, when its cluster stands.
    again = emulate("-n", "2", "-s", "0", "--bytes", "64MiB")
    read_until(again, "removed 3 network namespace(s) of a run that was killed")
    read_until(again, "this takes about")
    assert not namespaces.of_run(prefix)
    again.kill()
    again.wait()
    code, out, err = finished(emulate("--clean"))
    assert code == 0, err
    assert "removed" in out
    assert not namespaces.of_run(f"{namespaces.PREFIX}-{again.pid}-")
