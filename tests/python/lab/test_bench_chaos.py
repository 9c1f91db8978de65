"""`sumpter bench chaos`: its schedule and its judgement, and one small run of real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumpter._failure import Failure, UsageError
from sumpter.cli import main
from sumpter_lab.chaos import connections, faults, outcome, run
from sumpter_lab.chaos.faults import EMULATED, LOCAL, Kind
from sumpter_lab.chaos.inject import Injected
from sumpter_lab.chaos.job import TrainingJob
from sumpter_lab.chaos.outcome import Run, Trained
from sumpter_lab.chaos.watch import Round, Rounds, parse_round
from sumpter_lab.scaffold.jobs.processes import Process, first_error

ROOT = Path(__file__).resolve().parents[3]
# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 600.0
DIGEST, OTHER = "a" * 64, "b" * 64


# --- the schedule ---


def test_a_seed_says_it_all_and_another_says_something_else() -> None:
    first, again, other = (list(faults.schedule(seed, 60, EMULATED, 2)) for seed in (7, 7, 8))
    assert first == again != other


@given(seed=st.integers(), seconds=st.floats(0, 300), timeout_s=st.floats(0.5, 10))
def test_faults_come_every_one_to_two_seconds_and_every_kind_in_turn(
    seed: int, seconds: float, timeout_s: float
) -> None:
    planned = list(faults.schedule(seed, seconds, EMULATED, timeout_s))
    times = [0.0, *(fault.at_s for fault in planned)]
    gaps = [b - a for a, b in zip(times, times[1:], strict=False)]
    assert all(0.999 < gap < 2.001 for gap in gaps)
    assert seconds - 2.001 < times[-1] <= seconds or not planned
    for start in range(0, len(planned) - len(EMULATED) + 1, len(EMULATED)):
        turn = planned[start : start + len(EMULATED)]
        assert {fault.kind for fault in turn} == set(EMULATED)
    for fault in planned:
        assert 0 <= fault.choice <= 1 and 0 <= fault.twist <= 1 and fault.duration_s >= 0
        if fault.kind is Kind.STALL:
            assert fault.duration_s < timeout_s
        if fault.kind is Kind.FREEZE:
            assert fault.duration_s > timeout_s


def test_no_kinds_are_no_faults() -> None:
    assert list(faults.schedule(1, 60, (), 2)) == []


@given(kind=st.sampled_from(list(Kind)), servers=st.integers(0, 4), stalled=st.integers(0, 4))
def test_a_fault_always_has_a_victim_or_a_place(kind: Kind, servers: int, stalled: int) -> None:
    slots = 4
    free = max(0, slots - servers - stalled)
    became = faults.resolve(kind, servers, free)
    assert servers or became not in (Kind.KILL, Kind.DRAIN, Kind.STALL, Kind.FREEZE)
    assert free or became is not Kind.JOIN


@given(choice=st.floats(0, 1), count=st.integers(1, 9))
def test_a_choice_is_one_of_those_there(choice: float, count: int) -> None:
    assert 0 <= faults.pick(choice, count) < count


def test_kinds_are_chosen_by_name() -> None:
    assert run.kinds_of(None, False, False) == EMULATED
    assert run.kinds_of(None, True, True) == (*LOCAL, Kind.COORDINATOR)
    assert run.kinds_of(["kill", "cut", "kill"], True, False) == (Kind.KILL, Kind.CUT)
    assert run.kinds_of(["none"], True, False) == ()
    with pytest.raises(UsageError, match=r"no 'unplug' with --local.*kill"):
        run.kinds_of(["unplug"], True, False)


# --- the judgement ---


def test_what_a_rank_says_at_its_end_is_found() -> None:
    text = f"noise\ntrained 12 epochs, parameters {DIGEST}\naccuracy 98%\n"
    assert outcome.trained(text) == Trained(12, DIGEST)
    assert outcome.trained("trained 12 epochs, parameters cut-off") is None


def test_equal_parameters_are_no_difference_and_any_other_is_one() -> None:
    same = [Trained(3, DIGEST)] * 2
    assert outcome.differences(same, same) == []
    (one,) = outcome.differences(same, [Trained(3, DIGEST), Trained(3, OTHER)])
    assert "rank 1 undisturbed" in one and OTHER[:12] in one
    (early,) = outcome.differences([Trained(3, DIGEST)], [Trained(2, DIGEST)])
    assert "2 epochs" in early
    assert "rank 1 with faults printed no digest" in outcome.differences([*same[:1], None], same)
    assert outcome.differences([], []) != []


def test_a_fault_stops_progress_until_the_next_round() -> None:
    rounds = [0.5, 1.0, 3.0, 3.1, 3.2, 9.0]
    # From 1.0 to 3.0 nothing; the last one goes on until the end.
    assert outcome.pauses([1.5, 3.05, 9.5], rounds, 12.0) == pytest.approx([1.5, 5.8, 2.5])
    # A fault that only slows what goes on.
    assert outcome.pauses([0.6], rounds[:2], 1.0) == pytest.approx([0.4])
    # One that outlasts the next fault counts for both.
    assert outcome.pauses([1.1, 2.0], rounds, 12.0)[0] == pytest.approx(1.9)
    # One that comes when all is done stops nothing.
    assert outcome.pauses([9.5], rounds, 9.0) == [0.0]
    assert outcome.pauses([], rounds, 12.0) == []


def test_a_run_that_lost_bytes_or_broke_does_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    fine = Run(rounds=[Round(1.0, 4096, False)], trained=[Trained(1, DIGEST)] * 2, seconds=2.0)
    assert outcome.verdict(fine, fine) == []
    lost = Run(rounds=[Round(1.0, 4096, True)], trained=fine.trained)
    assert "4096 bytes" in outcome.verdict(lost, fine)[0]
    broken = Run(
        rounds=fine.rounds,
        trained=[None, None],
        faults=[Injected(0.5, Kind.KILL, "server-cpu-1", 1.0)],
        seconds=2.0,
        problems=["worker-0 ended with exit code 1: PeerLostError: server 1 died"],
        errors={"worker-0": "exit code 1; PeerLostError"},
    )
    found = outcome.document({"seed": 3}, broken, Run(), {})
    assert not found["passed"] and found["bytes_lost"] == 0 and found["seed"] == 3
    assert found["faults"]["kill"]["count"] == 1
    assert json.loads(json.dumps(found)) == found
    outcome.print_outcome(Console(width=150, markup=False), found)
    said = capsys.readouterr().out
    for text in ("kill of server-cpu-1", "server 1 died", "worker-0: exit code 1"):
        assert text in said
    assert "equal to those" not in said


@dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    name: str
    code: int
    said: str

    def output(self) -> str:
        return self.said


@pytest.mark.parametrize("said", ["ValueError: no", ""])
@pytest.mark.parametrize("code", [0, 143, 1, -signal.SIGSEGV])
def test_a_drained_server_must_leave_in_good_order(code: int, said: str) -> None:
    server = Ended("server-cpu-1", code, said)
    told = SimpleNamespace(
        servers={0: server}, draining={server: 0.0}, stopped=set(), gone=[], problems=[]
    )
    TrainingJob.look(told)  # type: ignore[arg-type]
    assert not told.servers and told.gone == [server]
    died = [f"server-cpu-1 ended after SIGTERM with exit code {code}: ValueError: no"]
    assert told.problems == ([] if code in (0, 143) or not said else died)


# --- processes ---


@pytest.mark.parametrize(
    ("log", "error"),
    [
        ("fine\n[rank0]: sumpter.PeerLostError: rank 1 died\nmore", "PeerLostError: rank 1 died"),
        ("thread 'lane' panicked at src/x.rs:1:2:\n", "panicked"),
        ("2026 ERROR node: no\nValueError: later", "ERROR node: no"),
        ("error: lost the coordinator", "lost the coordinator"),
        ("no error_count here\nINFO all is well", ""),
    ],
)
def test_the_first_error_of_a_log_is_found(log: str, error: str) -> None:
    found = first_error(log)
    assert error in found and bool(found) == bool(error)


def test_a_process_ends_with_what_it_started(tmp_path: Path) -> None:
    script = "sleep 600 & echo $!; wait"
    process = Process("shell", ["sh", "-c", script], {"PATH": os.defpath}, tmp_path / "log")
    deadline = time.monotonic() + HANG_S
    while not process.output().strip() and time.monotonic() < deadline:
        time.sleep(0.01)
    child = int(process.output())
    process.end()
    assert process.code == -signal.SIGKILL
    while _is_running(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _is_running(child)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_connections_are_reset_from_outside_but_for_the_spared(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as spared,
        socket.create_server(("127.0.0.1", 0)) as struck,
    ):
        ports = [end.getsockname()[1] for end in (spared, struck)]
        script = (
            "import socket, time\n"
            f"held = [socket.create_connection(('127.0.0.1', p)) for p in {ports}]\n"
            "time.sleep(600)\n"
        )
        process = Process("python", [sys.executable, "-c", script], {}, tmp_path / "log")
        try:
            (kept, _), (cut, _) = spared.accept(), struck.accept()
            try:
                count = connections.reset(process.pid, {ports[0]}, 1.0)
            except OSError as error:
                pytest.skip(f"this system does not let us take sockets of a child: {error}")
            assert count == 1
            with pytest.raises(ConnectionResetError):
                cut.recv(1)
            kept.setblocking(False)
            with pytest.raises(BlockingIOError):
                kept.recv(1)
        finally:
            process.end()


# --- rounds ---


def test_rounds_are_read_from_the_timeline_while_it_is_written(tmp_path: Path) -> None:
    span = '{{"ph":"X","name":"{}","ts":1,"dur":2,"args":{}}}'
    lines = [
        "[",
        '{"ph":"M","name":"process_name","args":{"name":"rank 0"}},',
        span.format("NEGOTIATE_ALLREDUCE", "{}") + ",",
        span.format("ALLREDUCE", '{"bytes":64,"round":1}') + ",",
        span.format("ALLREDUCE", '{"bytes":8,"round":2,"failed":true}'),
    ]
    assert [parse_round(line.encode(), 1.0) for line in lines[:3]] == [None] * 3
    with Rounds(tmp_path / "rounds") as rounds:
        with open(tmp_path / "rounds", "w") as pipe:
            pipe.write("\n".join(lines) + "\n]\n")
        deadline = time.monotonic() + HANG_S
        while len(rounds.seen) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert [(item.bytes, item.failed) for item in rounds.seen] == [(64, False), (8, True)]


# --- the command ---


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--faults", "rain"), "no 'rain'"),
        (("--slots", "2"), "--slots 2"),
        (("--set", "token=abc"), "--set token"),
        (("--set", "no_such=1"), "no_such"),
    ],
)
def test_wrong_usage_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "chaos", "--local", *arguments, "--", "true"])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_without_root_there_is_a_way(monkeypatch: pytest.MonkeyPatch) -> None:
    from sumpter_lab.chaos import site

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Failure, match="--local"), site.emulated(2, 1, 100):
        pass


@pytest.mark.parametrize(
    ("example", "faults"),
    [("digits.py", "cut,stall"), ("server_optimizer_digits.py", "kill,join")],
)
def test_a_small_run_with_faults_ends_with_the_same_bytes(
    tmp_path: Path, example: str, faults: str
) -> None:
    if not hasattr(os, "pidfd_open"):
        pytest.skip("pidfd_open is missing: no connection can be cut here")
    figures = tmp_path / "figures.json"
    command = (
        *(sys.executable, "-m", "sumpter", "bench", "chaos", "--local", "-n", "2", "-s", "1"),
        *("--slots", "1", "--faults", faults, "--seconds", "4", "--seed", "1"),
        # A loaded machine stops processes for longer than what the test is about.
        *("--set", "peer_timeout_s=120", "-o", str(figures)),
        *("--", sys.executable, f"examples/{example}"),
    )
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    if "does not let us reset connections" in ended.stderr:
        pytest.skip(ended.stderr.strip().splitlines()[-1])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(figures.read_text())
    assert found["passed"] and found["bytes_lost"] == 0
    assert set(faults.split(",")) <= set(found["faults"])
    assert len(set(found["digests"] + found["quiet_digests"])) == 1
    assert found["rounds"] > found["epochs_trained"] > 0
    assert "equal to those of the undisturbed run" in ended.stdout
