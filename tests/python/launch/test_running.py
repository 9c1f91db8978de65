"""A job of `sumpter run` is found by other commands while it runs, and by this user only."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from launched import ANNOUNCE, HANG_S, run, run_command
from sumpter._failure import Failure
from sumpter.launch.running import announced, last_settings

TOKEN = "a-token-for-tests-only"
TRAIN = (
    "import numpy, sumpter\n"
    "sumpter.init()\n"
    "a = numpy.ones(1000, dtype=numpy.float32)\n"
    "sumpter.push_pull(a, name='g')\n" + ANNOUNCE + "import time\n"
    "while True: sumpter.push_pull(a, name='g'); time.sleep(0.01)\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in ("SUMPTER_TOKEN", "SUMPTER_TOKEN_FILE", "SUMPTER_COORDINATOR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "sumpter"


def sumpter(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sumpter", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)


def test_a_running_job_is_observed_by_the_printed_line_and_by_job_last(folder: Path) -> None:
    command = run_command("-n", "2", "-s", "1", worker=TRAIN)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            line = process.stderr.readline()
            while "sumpter top" not in line:
                line = process.stderr.readline()
                assert line
            for _ in range(2):
                assert "pid" in process.stdout.readline()
            printed = shlex.split(line.partition("sumpter top ")[2])
            for arguments in (printed, ["--job", "last"]):
                seen = sumpter("top", "--json", *arguments)
                assert seen.returncode == 0, seen.stderr
                assert json.loads(seen.stdout)["jobs"][0]["workers"] == 2
            for arguments in (["status"], ["jobs"], ["tune", "--set", "partition=1MiB"]):
                seen = sumpter(*arguments, "--job", "last")
                assert (seen.returncode, seen.stderr) == (0, "")
            traced = sumpter("trace", "--job", "last", "-o", str(folder.parent / "t.pftrace"))
            assert traced.returncode == 0, traced.stderr
            drained = sumpter("drain", "no-such-host", "--job", "last")
            assert "no server is called no-such-host" in drained.stderr
        finally:
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert "Interrupted: a worker's counters" in out
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("by", ["environment", "file", "option"])
def test_the_job_has_the_token_that_the_user_chose(
    by: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder.parent / "job.token"
    file.write_text(TOKEN + "\n")
    options = []
    if by == "environment":
        monkeypatch.setenv("SUMPTER_TOKEN", TOKEN)
    elif by == "file":
        monkeypatch.setenv("SUMPTER_TOKEN_FILE", str(file))
    else:
        # The option beats the environment.
        monkeypatch.setenv("SUMPTER_TOKEN", "another-token-for-tests")
        options = ["--token-file", str(file)]
    script = "import os; print(os.environ['SUMPTER_TOKEN'], os.environ.get('SUMPTER_TOKEN_FILE'))"
    result = run("-n", "1", *options, worker=script)
    assert f"[worker 0] {TOKEN} None\n" in result.stdout, result.stderr
    assert TOKEN not in result.stderr


def test_the_coordinator_listens_where_the_user_wants(folder: Path) -> None:
    script = "import os; print(os.environ['SUMPTER_COORDINATOR'])"
    result = run("-n", "1", "--listen", "127.0.0.2:0", worker=script)
    assert re.search(r"\[worker 0\] 127\.0\.0\.2:\d+\n", result.stdout), result.stderr
    assert "--coordinator 127.0.0.2:" in result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-n", "1", "--listen", "nowhere"), "nowhere"),
        (("-H", "elsewhere", "--listen", "127.0.0.1:0"), "cannot reach 127.0.0.1"),
        (("-n", "1", "--token-file", "no-such-file"), "cannot read the token's file no-such-file"),
    ],
)
def test_what_cannot_be_is_one_line(folder: Path, options: tuple[str, ...], said: str) -> None:
    result = run(*options, worker="print('started')")
    assert result.returncode in (1, 2)
    assert "started" not in result.stdout
    assert len(result.stderr.splitlines()) == 1
    assert said in result.stderr


class TestFiles:
    def test_only_this_user_can_read_them_and_they_go_with_the_job(self, folder: Path) -> None:
        with announced("127.0.0.1:1", TOKEN, ["train"]) as token_file:
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
            assert token_file.read_text() == TOKEN + "\n"
            assert last_settings() == {
                "coordinator": "127.0.0.1:1",
                "token_file": str(token_file),
            }
        assert list(folder.iterdir()) == []

    def test_the_job_that_was_started_last_counts(self, folder: Path) -> None:
        with announced("127.0.0.1:1", TOKEN, []):
            with announced("127.0.0.1:2", TOKEN, []):
                assert last_settings()["coordinator"] == "127.0.0.1:2"
            assert last_settings()["coordinator"] == "127.0.0.1:1"

    def test_files_of_a_killed_launcher_are_deleted_and_not_taken_for_a_job(
        self, folder: Path
    ) -> None:
        code = (
            "import os, signal; from sumpter.launch.running import announced\n"
            f"with announced('127.0.0.1:1', '{TOKEN}', []): os.kill(os.getpid(), signal.SIGKILL)"
        )
        subprocess.run([sys.executable, "-c", code], timeout=HANG_S)
        assert len(list(folder.iterdir())) == 2
        with pytest.raises(Failure, match="no `sumpter run` of yours is running"):
            last_settings()
        assert list(folder.iterdir()) == []

    def test_a_folder_that_others_can_enter_is_refused_and_the_job_runs_all_the_same(
        self, folder: Path
    ) -> None:
        folder.mkdir()
        os.chmod(folder, 0o755)
        with pytest.raises(Failure, match="nobody else can enter"):
            last_settings()
        result = run("-n", "1", worker="print('runs')")
        assert (result.returncode, "[worker 0] runs\n" in result.stdout) == (0, True)
        assert "--job last will not find this job" in result.stderr


def test_job_last_excludes_what_it_says_itself(folder: Path) -> None:
    result = sumpter("status", "--job", "last", "--coordinator", "127.0.0.1:1")
    assert result.returncode == 2
    assert "--job last already says which coordinator" in result.stderr
