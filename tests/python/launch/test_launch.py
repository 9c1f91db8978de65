"""`sumpter run` with workers that are plain Python: what it starts, says, ends and returns."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launched import (
    ANNOUNCE,
    HANG_S,
    IGNORE_SIGTERM,
    SLEEP_FOR_EVER,
    Launched,
    announced_pids,
    run,
    wait_until_gone,
)
from sumpter.launch.environment import Environment
from sumpter.launch.figures import format_bytes, goodput_gbps, optimum_share
from sumpter.launch.layout import on_one_machine
from sumpter.launch.lines import LINE_LIMIT_BYTES, PROGRESS_INTERVAL_S, LineSplitter
from sumpter.launch.links import describe_links, why_no_optimum
from sumpter.launch.output import forgiving
from sumpter.launch.place import HERE, Facts
from sumpter.launch.status import Job, Late, Member, merge, read_status


def test_each_line_says_who_wrote_it_and_to_which_stream() -> None:
    worker = (
        "import os, sys\n"
        "print('out', os.environ['RANK'])\n"
        "print('err', os.environ['RANK'], file=sys.stderr)\n"
    )
    result = run("-n", "2", worker=worker)
    assert result.returncode == 0, result.stderr
    assert "[worker 0] out 0\n" in result.stdout
    assert "[worker 1] out 1\n" in result.stdout
    assert "[worker 0] err 0\n" in result.stderr
    assert "[worker 1] err 1\n" in result.stderr


def test_an_interface_that_is_not_there_ends_the_job_before_it_starts() -> None:
    worker = "import os, sumpter\nprint(os.environ['SUMPTER_INTERFACES'])\nsumpter.init()\n"
    result = run("-n", "1", "-s", "1", "--interfaces", "lo,eth-none", worker=worker)
    assert result.returncode != 0
    assert "lo,eth-none" in result.stdout
    assert "setting interfaces: interface 'eth-none' has no address" in result.stderr


def test_lines_of_different_workers_never_mix() -> None:
    worker = (
        "import os, sys\n"
        "r = os.environ['RANK']\n"
        "for i in range(500):\n"
        "    for part in (r, ' ', str(i), ' ', r * 200, '\\n'):\n"
        "        sys.stdout.write(part); sys.stdout.flush()\n"
    )
    result = run("-n", "3", worker=worker)
    lines = [line for line in result.stdout.splitlines() if line.startswith("[worker")]
    assert len(lines) == 1500
    for rank in range(3):
        own = [line for line in lines if line.startswith(f"[worker {rank}]")]
        assert own == [f"[worker {rank}] {rank} {i} {str(rank) * 200}" for i in range(500)]


def test_workers_get_ranks_and_rendezvous_of_their_pretended_machine() -> None:
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR SUMPTER_MACHINE"
    worker = f"import os; print(*(os.environ[name] for name in '{names}'.split()))"
    result = run("-n", "3", "--machines", "2", worker=worker)
    lines = sorted(line for line in result.stdout.splitlines() if line.startswith("[worker"))
    assert lines == [
        "[worker 0] 0 3 0 2 127.0.0.1 gpu-0",
        "[worker 1] 1 3 1 2 127.0.0.1 gpu-0",
        "[worker 2] 2 3 0 1 127.0.0.1 gpu-1",
    ]


def test_all_workers_share_one_token_and_coordinator_that_answers() -> None:
    worker = (
        "import os, socket\n"
        "host, port = os.environ['SUMPTER_COORDINATOR'].rsplit(':', 1)\n"
        "socket.create_connection((host, int(port))).close()\n"
        "print(host, port, os.environ['SUMPTER_TOKEN'], os.environ['MASTER_PORT'])\n"
    )
    result = run("-n", "2", worker=worker)
    lines = [line for line in result.stdout.splitlines() if line.startswith("[worker")]
    assert result.returncode == 0, result.stderr
    assert len(lines) == 2
    assert lines[0].removeprefix("[worker 0]") == lines[1].removeprefix("[worker 1]") or (
        lines[0].removeprefix("[worker 1]") == lines[1].removeprefix("[worker 0]")
    )


def test_a_server_is_ended_when_the_workers_have_succeeded() -> None:
    result = run("-n", "1", "-s", "1", worker="print('done')")
    assert result.returncode == 0, result.stderr
    assert "[worker 0] done\n" in result.stdout
    assert "No tensor was summed" in result.stdout


@pytest.mark.parametrize(
    ("failure", "code", "said"),
    [
        ("import sys; sys.exit(7)", 7, "ended with code 7"),
        ("import os; os.kill(os.getpid(), 9)", 137, "was killed by SIGKILL"),
    ],
)
def test_a_failing_worker_ends_all_and_gives_its_code(failure: str, code: int, said: str) -> None:
    worker = f"{ANNOUNCE}import os\nif os.environ['RANK'] == '1':\n    {failure}\n{SLEEP_FOR_EVER}"
    result = run("-n", "3", worker=worker)
    assert result.returncode == code
    assert re.search(rf"worker 1 \(pid \d+\) {said}", result.stderr)
    pids = announced_pids(result.stdout)
    assert pids
    for pid in pids:
        wait_until_gone(pid)


def test_the_first_failure_decides_the_code() -> None:
    worker = (
        "import os, sys, signal\n"
        "if os.environ['RANK'] == '0': sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))\n" + SLEEP_FOR_EVER
    )
    assert run("-n", "2", worker=worker).returncode == 3


def test_ctrl_c_ends_everything_with_code_130() -> None:
    launched = Launched("-n", "2", worker=ANNOUNCE + SLEEP_FOR_EVER, expected=2)
    launched.process.send_signal(signal.SIGINT)
    assert launched.finish() == 130


def test_a_worker_that_ignores_sigterm_is_killed() -> None:
    worker = IGNORE_SIGTERM + ANNOUNCE + SLEEP_FOR_EVER
    launched = Launched("-n", "1", worker=worker, expected=1)
    launched.process.send_signal(signal.SIGTERM)
    assert launched.finish() == 143


def test_what_a_worker_started_ends_with_it() -> None:
    child = f"{ANNOUNCE}{IGNORE_SIGTERM}{SLEEP_FOR_EVER}"
    worker = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        + ANNOUNCE
        + SLEEP_FOR_EVER
    )
    launched = Launched("-n", "1", worker=worker, expected=2)
    launched.process.send_signal(signal.SIGINT)
    assert launched.finish() == 130


def test_a_killed_launcher_leaves_no_orphan() -> None:
    child = ANNOUNCE + SLEEP_FOR_EVER
    worker = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        + ANNOUNCE
        + SLEEP_FOR_EVER
    )
    launched = Launched("-n", "2", worker=worker, expected=4)
    launched.process.kill()
    assert launched.finish() == -signal.SIGKILL


def test_a_job_goes_on_when_its_output_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "worker-0.log").mkdir()
    worker = "import sys; print(1); print(2, file=sys.stderr)"
    command = [sys.executable, "-m", "sumpter", "run", "-n", "1", "--log-dir", str(tmp_path), "--"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*command, sys.executable, "-c", worker],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=HANG_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "[worker 0] 2" in done.stderr
    log = tmp_path / "worker-0.log"
    assert f"cannot write {log}: Is a directory; what is missing there is lost" in done.stderr
    assert "cannot write standard output: No space left on device" in done.stderr


def test_a_job_goes_on_when_its_terminal_is_closed(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    os.mkfifo(gone)
    worker = f"print('begun', flush=True); open({str(gone)!r}).read()\n"
    worker += "for i in range(1, 2000): print(i, flush=True)"
    command = [sys.executable, "-m", "sumpter", "run", "-n", "1", "--", sys.executable, "-c"]
    terminal, side = pty.openpty()
    # Of another session, so that it is sent no signal, as after `disown`.
    with subprocess.Popen(
        [*command, worker], stdin=side, stdout=side, stderr=side, start_new_session=True
    ) as process:
        os.close(side)
        try:
            said = b""
            while b"begun" not in said:
                said += os.read(terminal, 4096)
            os.close(terminal)
            gone.open("w").close()
            assert process.wait(HANG_S) == 0
        finally:
            process.kill()


def test_a_job_under_nohup_goes_on_when_its_terminal_hangs_up(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    os.mkfifo(gone)
    worker = f"print('begun', flush=True); open({str(gone)!r}).read()"
    command = [sys.executable, "-m", "sumpter", "run", "-n", "1", "--", sys.executable, "-c"]
    with subprocess.Popen(
        ["nohup", *command, worker],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            while b"begun" not in process.stdout.readline():
                assert process.poll() is None
            os.killpg(process.pid, signal.SIGHUP)
            gone.open("w").close()
            rest = process.communicate(timeout=HANG_S)[0]
            assert process.returncode == 0, rest
        finally:
            process.kill()


def test_letters_that_a_terminal_lacks_are_escaped() -> None:
    written = io.BytesIO()
    stream = forgiving(io.TextIOWrapper(written, "latin-1"))
    stream.write("M\u00fcnchen \u2588")
    stream.flush()
    assert written.getvalue() == b"M\xfcnchen \\u2588"


def test_a_job_goes_on_when_its_output_is_closed(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    os.mkfifo(gone)
    # The rest is said when the reader is gone, and after that once more.
    worker = f"print(0, flush=True); open({str(gone)!r}).read()\n"
    worker += "for i in range(1, 2000): print(i, flush=True)"
    command = [
        sys.executable,
        "-m",
        "sumpter",
        "run",
        "-n",
        "1",
        "--",
        sys.executable,
        "-c",
        worker,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"[worker 0] 0\n"
        process.stdout.close()
        try:
            gone.open("w").close()
            assert process.wait(HANG_S) == 0
        finally:
            process.kill()


def test_logs_keep_the_raw_output_of_each_process(tmp_path: Path) -> None:
    log_dir = tmp_path / "logs"
    run("-n", "2", "--log-dir", str(log_dir), worker="import os; print('rank', os.environ['RANK'])")
    assert (log_dir / "worker-0.log").read_text() == "rank 0\n"
    assert (log_dir / "worker-1.log").read_text() == "rank 1\n"


def test_a_command_that_is_not_there_is_one_line_and_the_shells_code() -> None:
    command = [sys.executable, "-m", "sumpter", "run", "-n", "1", "--", "no-such-command"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert result.returncode == 127
    assert result.stderr == "error: cannot run 'no-such-command': no such command\n"


def test_thread_counts_and_other_choices_give_way_to_the_user() -> None:
    worker = "import os; print(os.environ['OMP_NUM_THREADS'], os.environ['SUMPTER_CREDIT_BYTES'])"
    result = run("-n", "1", worker=worker, OMP_NUM_THREADS="17", SUMPTER_CREDIT_BYTES="1MiB")
    assert "[worker 0] 17 1MiB\n" in result.stdout


def test_a_launcher_around_this_one_gives_no_ranks() -> None:
    worker = "import os; print(os.environ['RANK'], os.environ.get('OMPI_COMM_WORLD_RANK'))"
    result = run("-n", "1", worker=worker, OMPI_COMM_WORLD_RANK="5", OMPI_COMM_WORLD_SIZE="9")
    assert "[worker 0] 0 None\n" in result.stdout


def test_output_after_the_last_newline_is_shown() -> None:
    result = run("-n", "1", worker="import sys; sys.stdout.write('no newline')")
    assert "[worker 0] no newline\n" in result.stdout


class TestLineSplitter:
    def test_lines_come_out_whole_however_they_arrive(self) -> None:
        splitter = LineSplitter()
        pieces = (b"a", b"b\nc", b"", b"d\r", b"\n\ne")
        lines = [line for piece in pieces for line in splitter.feed(piece, 0.0)]
        assert lines + splitter.finish() == [b"ab", b"cd", b"", b"e"]

    @pytest.mark.parametrize("template", [b"\r%d%%", b"%d%%\r"])
    def test_a_progress_bar_becomes_a_line_now_and_then(self, template: bytes) -> None:
        splitter = LineSplitter()
        updates = [(template % percent, percent * 0.1) for percent in range(101)]
        shown = [line for data, now_s in updates for line in splitter.feed(data, now_s)]
        assert 0 < len(shown) <= 10 / PROGRESS_INTERVAL_S
        assert all(re.fullmatch(rb"\d+%", line) for line in shown)
        assert splitter.feed(b"\n", 10.1)[-1] == b"100%"
        assert splitter.finish() == []

    def test_memory_is_bounded(self) -> None:
        splitter = LineSplitter()
        fed = b"x" * (LINE_LIMIT_BYTES + 1)
        lines = splitter.feed(fed, 0.0) + splitter.feed(b"\r" + fed, 0.0)
        assert [len(line) for line in lines] == [len(fed), len(fed)]


class TestEnvironment:
    FACTS = Facts(cores=8, host_name="node", port=5, client="", server="")

    def make(self, **variables: str) -> Environment:
        layout = on_one_machine(4, 2, 2)
        return Environment(layout, {HERE: "127.0.0.1:1"}, "secret", ("127.0.0.1", 5), variables)

    def test_the_job_beats_the_users_options(self) -> None:
        worker = self.make(SUMPTER_CREDIT_BYTES="2MiB", SUMPTER_SERVERS="9").worker(0, self.FACTS)
        assert worker["SUMPTER_CREDIT_BYTES"] == "2MiB"
        assert worker["SUMPTER_SERVERS"] == "2"

    def test_the_job_beats_what_the_launcher_inherited(self) -> None:
        worker, server = self.make().worker(3, self.FACTS), self.make().server(1)
        assert (worker["RANK"], worker["SUMPTER_MACHINE"]) == ("3", "gpu-1")
        assert server["SUMPTER_MACHINE"] == "cpu-1"
        assert worker["SUMPTER_TOKEN"] == server["SUMPTER_TOKEN"] == "secret"
        for taken_away in ("SUMPTER_TOKEN_FILE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
            assert worker[taken_away] is None
        # Only the coordinator exports metrics.
        assert worker["SUMPTER_METRICS_PORT"] is server["SUMPTER_METRICS_PORT"] is None

    def test_cores_are_shared_out(self) -> None:
        assert self.make().worker_defaults(0, self.FACTS)["OMP_NUM_THREADS"] == "2"
        assert self.make().server_defaults(0, self.FACTS)["SUMPTER_LANES"] == "4"

    def test_horovods_names_say_the_same(self) -> None:
        worker = self.make().worker(3, self.FACTS)
        assert {name: text for name, text in worker.items() if name.startswith("HOROVOD_")} == {
            "HOROVOD_RANK": "3",
            "HOROVOD_SIZE": "4",
            "HOROVOD_LOCAL_RANK": "1",
            "HOROVOD_LOCAL_SIZE": "2",
            "HOROVOD_CROSS_RANK": "1",
            "HOROVOD_CROSS_SIZE": "2",
            "HOROVOD_HOSTNAME": "node",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": None,
        }


class TestStatus:
    STATUS = {
        "jobs": [
            {
                "name": "default",
                "workers": [
                    {
                        "rank": rank,
                        "machine": f"gpu-{rank}",
                        "stats": {
                            "counters": {"rounds": 4.0, "tensor_bytes": 1e9, "busy_s": 1.0},
                            "late": [{"rank": 1, "count": 3, "seconds": 0.5}],
                        },
                    }
                    for rank in range(2)
                ],
                "servers": [7],
                "late": [
                    {"run": "0b", "rank": 0, "count": 1, "seconds": 0.25},
                    {"run": "0b", "rank": 1, "count": 6, "seconds": 1.0},
                ],
            }
        ],
        "servers": [
            {
                "member": 7,
                "machine": "cpu-0",
                "stats": {"late": [{"rank": 0, "count": 1, "seconds": 0.25}]},
                "novelty": 1,
            },
            {"member": 8, "machine": "cpu-of-another-job"},
        ],
    }

    def test_absent_and_unknown_fields_are_tolerated(self) -> None:
        [job] = read_status(json.dumps(self.STATUS))
        assert (job.gpu_machines, job.cpu_machines) == (2, 1)
        assert job.servers[0].stats.rounds == 0
        assert read_status("{}") == []

    def test_who_was_waited_for_longest_comes_first(self) -> None:
        [job] = read_status(json.dumps(self.STATUS))
        assert job.waited_for() == [Late(1, 6, 1.0, "0b"), Late(0, 1, 0.25, "0b")]

    def test_members_that_left_keep_their_last_counters(self) -> None:
        [job] = read_status(json.dumps(self.STATUS))
        [empty] = read_status('{"jobs": [{"name": "default", "workers": null}]}')
        assert merge(job, empty).workers == job.workers

    def test_goodput_and_share_of_the_optimum(self) -> None:
        [job] = read_status(json.dumps(self.STATUS))
        # n = 2, k = 1: t_opt = 2n(n-1)M/(DB) with D = 4 is M/B.
        assert goodput_gbps(10**9, 1.0) == pytest.approx(8.0)
        assert optimum_share(job, 10**9, 1.0, 16.0) == pytest.approx(0.5)
        assert optimum_share(job, 10**9, 1.0, None) is None

    def test_each_links_bandwidth_is_shown_with_its_source_and_who_has_none(self) -> None:
        def member(number: int, host: str, gbps: float | None, source: str = "") -> Member:
            return Member("any", number, host, host, bandwidth_gbps=gbps, bandwidth_source=source)

        workers = (
            member(0, "a", 25.0, "configured"),
            member(1, "b", 10.0, "interface"),
            member(2, "c", 25.0, "configured"),
        )
        known = Job("j", workers, (member(7, "s", 10.0, "interface"),))
        assert describe_links(known) == ("a, c 25 Gb/s (configured); b, s 10 Gb/s (interface)")
        assert why_no_optimum(known) == ""
        share = optimum_share(known, 10**9, 1.0, None)
        assert share is not None and share > 0
        part = Job("j", workers, (member(7, "s", None), member(8, "b", None)))
        assert "s assumed 10 Gb/s, as nothing is known" in describe_links(part)
        assert why_no_optimum(part) == "no bandwidth is known of s: set bandwidth_gbps there"
        assert optimum_share(part, 10**9, 1.0, None) is None
        none = Job("j", (member(0, "a", None), member(1, "b", None)))
        assert "all count as equal" in describe_links(none)
        assert "give --bandwidth-gbps" in why_no_optimum(none)
        alone = Job("j", (member(0, "a", None),))
        assert "one machine" in why_no_optimum(alone)

    def test_bytes_are_written_with_a_binary_unit(self) -> None:
        assert [format_bytes(size) for size in (0, 1000, 1536, 1023.4 * 2**20, 2**30, 2**51)] == [
            "0 B",
            "1000 B",
            "1.5 KiB",
            "1023 MiB",
            "1 GiB",
            "2,048 TiB",
        ]


# --- dry runs ---


def dry_run(*options: str, worker: str = "x.py") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sumpter", "run", "--dry-run", *options]
    command += ["--", sys.executable, worker]
    variables = {**os.environ, "SUMPTER_TOKEN": "a-token-for-tests-only"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=HANG_S, env=variables, check=False
    )


def test_a_dry_run_names_every_process_and_starts_none(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"open({str(tmp_path / 'started')!r}, 'w')\n")
    ended = dry_run("-n", "3", "-s", "1", "--set", "compression=int8", worker=str(script))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not (tmp_path / "started").exists()
    lines = ended.stdout.splitlines()
    assert "4 processes on 1 machine" in lines[0]
    started = [line.split()[:2] for line in lines if " this machine (as " in line]
    assert started == [["server", "0"], ["worker", "0"], ["worker", "1"], ["worker", "2"]]
    assert "  SUMPTER_COMPRESSION=int8" in lines and "  WORLD_SIZE=3" in lines
    assert "a-token-for-tests-only" not in ended.stdout


def test_a_dry_run_over_ssh_connects_to_no_machine() -> None:
    ended = dry_run("-H", "nowhere.invalid:2", "--server-hosts", "b.invalid", "--ssh-port", "2222")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "3 processes on 2 machines" in ended.stdout
    ssh = "ssh -o BatchMode=yes -o ServerAliveInterval=10 -o ServerAliveCountMax=3"
    assert f"{ssh} -p 2222 nowhere.invalid" in ended.stdout
    assert "SUMPTER_COORDINATOR=<this machine's address>:<a free port>" in ended.stdout


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["-n", "2", "--set", "partition_bytes=3"], 2, "partition_bytes"),
        (["-n", "2", "--min-workers", "3"], 2, "only 2 workers would be started"),
        (["-n", "2", "--token-file", "/nowhere"], 1, "cannot read the token's file"),
    ],
)
def test_a_dry_run_refuses_what_a_run_refuses(options: list[str], code: int, said: str) -> None:
    tried = dry_run(*options)
    assert tried.returncode == code and said in tried.stderr


def test_a_dry_run_misses_the_command() -> None:
    command = [sys.executable, "-m", "sumpter", "run", "--dry-run", "-n", "1", "--", "no-such"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert ended.returncode == 127 and "cannot run 'no-such': no such command" in ended.stderr
