"""The `sumpter` command: its figures, its help, and one clear line for every wrong use."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import HANG_S
from sumpter import _native
from sumpter._assignments import parse_assignments, setting_text
from sumpter._failure import UsageError
from sumpter._sizes import parse_size
from sumpter.cli import main

COMMANDS = (
    "plan",
    "report",
    "whatif",
    "run",
    "bpslaunch",
    "record",
    "serve",
    "coordinator",
    "status",
    "jobs",
    "top",
    "console",
    "drain",
    "tune",
    "doctor",
    "bug-report",
    "config",
    "token",
)
INSTRUMENTS = ("emulate", "replay", "allreduce", "sum", "server", "ablate")
TOKEN = "a-token-for-tests-only"


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


class Command:
    """Runs the command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Result:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            main(list(arguments))
        captured = self._capsys.readouterr()
        return Result(int(exit_info.value.code or 0), captured.out, captured.err)


@pytest.fixture
def sumpter(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    for name in ("SUMPTER_TOKEN", "SUMPTER_TOKEN_FILE", "SUMPTER_COORDINATOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return Command(capsys)


def plan(sumpter: Command, *arguments: str) -> dict:
    result = sumpter("plan", *arguments, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_plan_gives_the_papers_gains(sumpter: Command) -> None:
    report = plan(sumpter, "--workers", "32", "--servers", "16")
    assert report["gain_over_allreduce"] == pytest.approx(1.46875, abs=1e-12)
    assert report["gain_over_ps"] == pytest.approx(1.5161, abs=5e-5)
    assert 32 * report["share_gpu"] + 16 * report["share_cpu"] == pytest.approx(1)
    assert report["bytes"] == 2**30
    assert report["bandwidth_gbps"] == 100
    assert report["allreduce_time_s"] / report["time_s"] == pytest.approx(1.46875)


@pytest.mark.parametrize(("workers", "servers"), [(1, 0), (1, 3), (2, 0), (2, 2), (5, 3), (4, 9)])
def test_plan_shares_add_up(sumpter: Command, workers: int, servers: int) -> None:
    report = plan(sumpter, "-n", str(workers), "-s", str(servers))
    total = workers * report["share_gpu"] + servers * report["share_cpu"]
    assert total == pytest.approx(1)


def test_plan_has_no_parameter_server_without_cpu_machines(sumpter: Command) -> None:
    report = plan(sumpter, "-n", "4")
    assert report["ps_time_s"] is None
    assert report["gain_over_ps"] is None
    assert report["gain_over_allreduce"] == pytest.approx(1)


def test_plan_shows_people_shares_times_and_gains(sumpter: Command) -> None:
    result = sumpter("plan", "-n", "32", "-s", "16", "--bytes", "100MB", "--bandwidth-gbps", "25")
    assert result.code == 0
    for expected in ("32 GPU machines", "25 Gb/s", "1.064%", "4.122%", "1.469 x", "1.516 x"):
        assert expected in result.out


def test_plan_reads_a_list_of_machines(sumpter: Command, tmp_path: Path) -> None:
    listed = tmp_path / "machines.toml"
    listed.write_text(
        '[[machine]]\nname = "train"\nrole = "gpu"\nbandwidth_gbps = 100\ncount = 3\n'
        '[[machine]]\nname = "idle"\nrole = "cpu"\nbandwidth_gbps = 25\n'
    )
    report = plan(sumpter, "--machines", str(listed))
    names = [machine["name"] for machine in report["machines"]]
    assert names == ["train-1", "train-2", "train-3", "idle"]
    assert sum(machine["share"] for machine in report["machines"]) == pytest.approx(1)
    assert "train-3 (gpu)" in sumpter("plan", "--machines", str(listed)).out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("plan",), "--workers"),
        (("plan", "-n", "0"), "workers is 0"),
        (("plan", "-n", "-3"), "workers is -3"),
        (("plan", "-n", "4", "--bytes", "1XB"), "--bytes: '1XB' is not a size"),
        (("plan", "-n", "4", "--bytes", "0"), "at least one byte"),
        (("plan", "-n", "4", "--bandwidth-gbps", "0"), "bandwidth_gbps is 0"),
        (("plan", "-n", "many"), "--workers"),
        (("plan", "-n", "4", "--machines", "x", "--bandwidth-gbps", "1"), "exclude each other"),
        (("run", "-n", "2"), "COMMAND"),
        (("run", "--", "true"), "--workers"),
        (("run", "-n", "0", "--", "true"), "--workers"),
        (("run", "-n", "2", "--machines", "3", "--", "true"), "only 2 workers"),
        (("run", "-n", "2", "--set", "rank=1", "--", "true"), "decides this"),
        (("run", "-n", "2", "--set", "credit", "--", "true"), "NAME=VALUE"),
        (("run", "-n", "2", "--set", "no_such=1", "--", "true"), "no_such"),
        (("run", "-n", "2", "--set", "lanes=many", "--", "true"), "lanes"),
        (("run", "-H", "a:2", "-n", "3", "--", "true"), "only 2 slots"),
        (("run", "-H", "a,a", "--", "true"), "a is given twice"),
        (("run", "-H", "a", "--hostfile", "b", "--", "true"), "exclude each other"),
        (("run", "-H", "a", "--machines", "1", "--", "true"), "pretends"),
        (("run", "-H", "a", "-s", "1", "--server-hosts", "b", "--", "true"), "exclude each other"),
        (("run", "-n", "1", "-x", "NOT_SET_HERE", "--", "true"), "NOT_SET_HERE=VALUE"),
        (("run", "-H", "a", "--ssh", "ssh -i 'key", "--", "true"), "no closing quotation"),
        (("run", "-H", "a", "--ssh", " ", "--", "true"), "--ssh names no command"),
        (("doctor", "-H", "a,b", "--ssh", "ssh '"), "no closing quotation"),
        (("serve", "--token", TOKEN, "--token-file", "x"), "exclude each other"),
        (("serve", "--join", "nowhere", "--token", TOKEN), "nowhere"),
        (("serve", "--join", "127.0.0.1:1", "--token", "short"), "token"),
        (("no-such-command",), "no-such-command"),
        (("statsu",), "Did you mean 'status'"),
        (("bug-reprot",), "Did you mean 'bug-report'"),
        (("--no-such-option",), "--no-such-option"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(
    sumpter: Command, arguments: tuple[str, ...], said: str
) -> None:
    result = sumpter(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert said in result.err


def test_a_file_that_cannot_be_read_is_named(sumpter: Command, tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    result = sumpter("plan", "--machines", str(missing))
    assert result.code == 1
    assert f"cannot read {missing}" in result.err


def test_a_hostfile_that_is_no_text_is_named(sumpter: Command, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_bytes("# S\u00fcd\na\n".encode("latin-1"))
    result = sumpter("run", "--hostfile", str(hosts), "--", "true")
    assert result.code == 1
    assert f"cannot read {hosts}: it is no text in UTF-8" in result.err


def test_a_server_without_a_coordinator_gives_up_with_one_line() -> None:
    command = (sys.executable, "-m", "sumpter", "serve", "--join", "127.0.0.1:1")
    arguments = ("--token", TOKEN, "--set", "start_timeout_s=0.2", "--set", "log=off")
    result = subprocess.run((*command, *arguments), capture_output=True, text=True, timeout=HANG_S)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "127.0.0.1:1" in result.stderr


def test_known_errors_never_show_a_traceback(
    sumpter: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(settings: dict[str, str], job: str | None = None) -> str:
        raise _native.PeerLostError("the coordinator\nwent away")

    monkeypatch.setattr(_native, "status", refuse)
    result = sumpter("status")
    assert (result.code, result.err) == (1, "error: the coordinator went away\n")


def test_a_running_coordinator_shows_its_status_and_knows_its_servers(sumpter: Command) -> None:
    coordinator = _native.Coordinator("127.0.0.1:0", {"token": TOKEN})
    try:
        options = ("--coordinator", coordinator.address, "--token", TOKEN)
        assert sumpter("status", *options).code == 0
        assert isinstance(json.loads(sumpter("status", *options, "--json").out)["jobs"], list)
        absent = sumpter("drain", "cpu-3", *options)
        assert (absent.code, absent.err) == (
            1,
            "error: no server is called cpu-3; servers there are: none\n",
        )
        wrong = sumpter("status", "--coordinator", coordinator.address, "--token", TOKEN[::-1])
        assert wrong.code == 1
        assert "token" in wrong.err
    finally:
        coordinator.stop()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(sumpter: Command, command: str) -> None:
    result = sumpter(command, "--help")
    assert result.code == 0
    assert f"Example: sumpter {command}" in result.out


@pytest.mark.parametrize("command", INSTRUMENTS)
def test_every_instrument_has_help_with_an_example(sumpter: Command, command: str) -> None:
    result = sumpter("bench", command, "--help")
    assert result.code == 0
    # The example of allreduce launches it.
    assert f"sumpter bench {command}" in " ".join(result.out.partition("Example:")[2].split())


def test_help_lists_every_command(sumpter: Command) -> None:
    result = sumpter("--help")
    assert result.code == 0
    for command in COMMANDS:
        assert f" {command} " in result.out


def test_the_command_line_does_not_import_torch() -> None:
    script = "import sys; import sumpter.cli.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=HANG_S).returncode == 0


def test_version(sumpter: Command) -> None:
    assert sumpter("--version").out == f"sumpter {_native.__version__}\n"


def test_config_lists_every_setting(sumpter: Command) -> None:
    table, rows = sumpter("config").out, json.loads(sumpter("config", "--json").out)
    assert rows == _native.settings()
    for row in rows:
        assert row["name"] in table
        assert row["env"] in table


def test_tokens_are_fresh_and_their_file_is_private(sumpter: Command, tmp_path: Path) -> None:
    assert sumpter("token").out != sumpter("token").out
    file = tmp_path / "job.token"
    assert sumpter("token", "--file", str(file)).code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(file.read_text().strip()) >= 16
    again = sumpter("token", "--file", str(file))
    assert (again.code, again.err) == (1, f"error: cannot write {file}: File exists\n")


@pytest.mark.parametrize(
    ("text", "size"), [("65536", 65536), ("1.5KiB", 1536), ("4MB", 4_000_000), ("1 gib", 2**30)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@given(st.text(max_size=8))
def test_any_text_is_a_size_or_a_usage_error(text: str) -> None:
    try:
        assert parse_size(text) >= 1
    except UsageError as error:
        assert text in str(error)


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (4096, "4096"), (["eth0", "eth1"], "eth0,eth1"), (("eth0",), "eth0")],
)
def test_settings_may_be_values_of_python(value: object, text: str) -> None:
    assert setting_text(value) == text


def test_assignments_may_hold_equal_signs() -> None:
    assert parse_assignments(["log=a=info", " b = 1 "]) == {"log": "a=info", "b": "1"}
