"""`sumpter run` on several machines: over a remote shell of the tests' own, and over real ssh."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launched import ANNOUNCE, HANG_S, IGNORE_SIGTERM, SLEEP_FOR_EVER, Launched, wait_until_gone
from sumpter._failure import UsageError
from sumpter.launch.attendant import free_port
from sumpter.launch.layout import HERE, Host, on_hosts, parse_hostfile, parse_hosts
from sumpter.launch.remote import RemoteShell, unreachable

# Like sshd: another session and folder, hardly any environment, the user's shell.
FAKE_SSH = """\
#!/bin/sh
host=$1
shift
echo "$host $*" >> {folder}/calls
case $host in
    down) echo "ssh: connect to host down port 22: Connection refused" >&2; exit 255 ;;
    stranger) echo "Host key verification failed." >&2; exit 255 ;;
    silent) exec sleep 1000 ;;
esac
client=127.0.0.1
[ "$host" = ::1 ] && client=::1
cd /
echo "Welcome to $host"
exec setsid --wait env -i HOME={folder} PATH=/usr/bin:/bin SUMPTER_TEST_HOST=$host \\
    SSH_CONNECTION="$client 50000 $client 22" sh -c "$*"
"""

SUM = """\
import os
import numpy as np
import sumpter
sumpter.init()
print(sumpter.push_pull(np.arange(3.0) + sumpter.rank(), average=False, name="x"))
sumpter.shutdown()
"""

PLACE = """\
import os
names = "SUMPTER_TEST_HOST RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE HOROVOD_RANK HOROVOD_SIZE"
names += " HOROVOD_LOCAL_RANK HOROVOD_LOCAL_SIZE HOROVOD_CROSS_RANK HOROVOD_CROSS_SIZE MASTER_ADDR"
print(*(os.environ[name] for name in names.split()), os.getcwd())
print("secret", os.environ.get("A_SECRET"), os.environ.get("NCCL_DEBUG"), os.environ.get("GIVEN"))
"""

# Whether the token shows up where others on the machine could read it.
LEAK = """\
import os, pathlib
token = os.environ["SUMPTER_TOKEN"].encode()
lines = []
for process in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        lines.append(process.read_bytes())
    except OSError:
        pass
print("command lines", len(lines) > 3, any(token in line for line in lines))
print("TOKEN", token.decode())
"""


@pytest.fixture
def shell(tmp_path: Path) -> str:
    script = tmp_path / "fake-ssh"
    script.write_text(FAKE_SSH.format(folder=tmp_path))
    script.chmod(0o755)
    return str(script)


def run(
    shell: str, *options: str, worker: str, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sumpter", "run", "--ssh", shell, *options, "--"]
    return subprocess.run(
        [*command, sys.executable, "-c", worker],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        cwd=cwd,
        env={**os.environ, **variables},
    )


def shown(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.startswith("[worker"))


def test_ranks_fill_the_hosts_in_order(shell: str, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    variables = {"A_SECRET": "s", "NCCL_DEBUG": "INFO"}
    result = run(
        shell, "-H", "host1:2,host2:1", "-x", "GIVEN=g", worker=PLACE, cwd=there, **variables
    )
    assert result.returncode == 0, result.stderr
    assert shown(result.stdout) == [
        f"[worker 0] host1 0 3 0 2 0 3 0 2 0 2 127.0.0.1 {there}",
        "[worker 0] secret None INFO g",
        f"[worker 1] host1 1 3 1 2 1 3 1 2 0 1 127.0.0.1 {there}",
        "[worker 1] secret None INFO g",
        f"[worker 2] host2 2 3 0 1 2 3 0 1 1 2 127.0.0.1 {there}",
        "[worker 2] secret None INFO g",
    ]


def test_a_job_sums_across_hosts_with_a_server_of_its_own(shell: str, tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# here and there\nlocalhost slots=1\n\nhost1 slots=2  # large\n")
    options = ("--hostfile", str(hostfile), "--server-hosts", "host3", "--python", sys.executable)
    result = run(shell, *options, worker=SUM)
    assert result.returncode == 0, result.stderr
    assert shown(result.stdout) == [f"[worker {rank}] [3. 6. 9.]" for rank in range(3)]
    calls = (tmp_path / "calls").read_text().splitlines()
    started = sorted(call.split()[0] for call in calls)
    assert started == ["host1", "host3"], "this machine needs no remote shell"


@pytest.mark.parametrize("address", [(), ("--address", "::1"), ("--address", "[::1]")])
def test_a_host_that_is_reached_by_ipv6_only_takes_part(
    shell: str, address: tuple[str, ...]
) -> None:
    if not _has_ipv6_loopback():
        pytest.skip("this machine has no ::1, so this checks nothing")
    hosts = ("-H", "localhost:1,[::1]:1", "--python", sys.executable, *address)
    said = "import os\nprint(os.environ['MASTER_ADDR'])\n"
    result = run(shell, *hosts, worker=said + SUM)
    assert result.returncode == 0, result.stderr
    assert shown(result.stdout)[1::2] == [f"[worker {rank}] [1. 3. 5.]" for rank in range(2)]
    if address:
        assert shown(result.stdout)[::2] == [f"[worker {rank}] ::1" for rank in range(2)]


def _has_ipv6_loopback() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


def test_processes_have_the_settings_of_their_machine(shell: str, tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    lines = ("host1 slots=1 rack=a trunk_gbps=0.1", "host2 rack=b trunk_gbps=0.1")
    lines += ("host3 slots=0 rack=b bandwidth_gbps=2",)
    hostfile.write_text("".join(f"{line}\n" for line in lines))
    options = ("--hostfile", str(hostfile), "--server-hosts", "host3", "--bandwidth-gbps", "1")
    options += ("--python", sys.executable)
    names = "('SUMPTER_RACK', 'SUMPTER_TRUNK_GBPS', 'SUMPTER_BANDWIDTH_GBPS')"
    said = f"import os\nprint(*map(os.environ.get, {names}))\n"
    result = run(shell, *options, worker=said + SUM, SUMPTER_RACK="here")
    assert result.returncode == 0, result.stderr
    assert shown(result.stdout)[1::2] == ["[worker 0] a 0.1 1.0", "[worker 1] b 0.1 1.0"]
    assert re.search(r"server 0 .*\bb\b", result.stdout), result.stdout
    # This machine's own are not theirs.
    here = {"SUMPTER_RACK": "here", "SUMPTER_TRUNK_GBPS": "7", "SUMPTER_BANDWIDTH_GBPS": "1"}
    result = run(shell, "-H", "host1:1", "--python", sys.executable, worker=said + SUM, **here)
    assert result.returncode == 0, result.stderr
    assert shown(result.stdout)[0] == "[worker 0] None None 1"
    hostfile.write_text("host1 slots=2 trunk_gbps=wide\n")
    refused = run(shell, *options, worker="pass")
    assert refused.returncode == 2
    assert "host1" in refused.stderr and "trunk_gbps" in refused.stderr, refused.stderr


def test_the_token_is_on_no_command_line_and_in_no_log(shell: str, tmp_path: Path) -> None:
    log_dir = tmp_path / "logs"
    options = ("-H", "host1:1", "--server-hosts", "host2", "--log-dir", str(log_dir))
    result = run(shell, *options, worker=SUM + LEAK, SUMPTER_LOG="debug")
    assert "[worker 0] command lines True False\n" in result.stdout
    token = result.stdout.partition("TOKEN ")[2].split()[0]
    assert token not in (tmp_path / "calls").read_text()
    assert token not in result.stderr
    assert token not in (log_dir / "server-0.log").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("host1:1,down:1",), ("cannot reach down", "Connection refused", "sshd")),
        (("stranger:1",), ("cannot reach stranger", "Host key", "known_hosts")),
        (
            ("silent:1", "--start-timeout", "3"),
            ("silent did not answer within 3 s", "--start-timeout"),
        ),
    ],
)
def test_a_host_that_cannot_be_reached_is_named(
    shell: str, options: tuple[str, ...], said: tuple[str, ...]
) -> None:
    result = run(shell, "-H", *options, worker="pass")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert all(words in result.stderr for words in said), result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--python", "/nonexistent/python"), "host1: there is no /nonexistent/python"),
        (("--python", "/usr/bin/env"), "cannot reach host1"),
        (("--chdir", "/nonexistent"), "host1: cannot enter the folder /nonexistent"),
        (("--ssh", "no-such-shell"), "cannot run 'no-such-shell'"),
    ],
)
def test_what_is_missing_over_there_is_named(
    shell: str, options: tuple[str, ...], said: str
) -> None:
    result = run(shell, "-H", "host1:1", *options, worker="pass")
    assert result.returncode == 1
    assert said in result.stderr


def test_a_python_without_sumpter_is_named(shell: str, tmp_path: Path) -> None:
    python = tmp_path / "bare-python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    options = ("-H", "host1:1", "--python", str(python), "-x", "PYTHONPATH=")
    result = run(shell, *options, worker="pass")
    assert result.returncode == 1
    assert "has no package sumpter" in result.stderr


def test_a_command_that_is_not_there_names_the_host(shell: str) -> None:
    command = [sys.executable, "-m", "sumpter", "run", "--ssh", shell, "-H", "host1:1", "--"]
    result = subprocess.run([*command, "no-such"], capture_output=True, text=True, timeout=HANG_S)
    assert result.returncode == 127
    assert result.stderr == "error: cannot run 'no-such' on host1: no such command\n"


def test_a_failing_rank_ends_the_others_everywhere(shell: str) -> None:
    worker = f"{ANNOUNCE}import os, sys\nif os.environ['RANK'] == '1': sys.exit(7)\n"
    result = run(shell, "-H", "host1:1,host2:1", worker=worker + SLEEP_FOR_EVER)
    assert result.returncode == 7
    assert " on host2) ended with code 7" in result.stderr


CHILD = f"{ANNOUNCE}{IGNORE_SIGTERM}{SLEEP_FOR_EVER}"
FAMILY = (
    f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {CHILD!r}])\n"
    + ANNOUNCE
    + SLEEP_FOR_EVER
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_remains_over_there(shell: str, number: signal.Signals) -> None:
    launched = Launched("--ssh", shell, "-H", "host1:1,host2:1", worker=FAMILY, expected=4)
    launched.process.send_signal(number)
    assert launched.finish() == (130 if number == signal.SIGINT else -signal.SIGKILL)


def test_ctrl_c_ends_the_wait_for_a_host(shell: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "calls")
    command = [sys.executable, "-m", "sumpter", "run", "--ssh", shell, "-H", "silent:1", "--"]
    process = subprocess.Popen([*command, "true"], stderr=subprocess.PIPE, text=True)
    # The remote shell says here that it is there.
    (tmp_path / "calls").read_text()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=HANG_S)
    assert (process.returncode, said) == (130, "")


def test_a_connection_that_breaks_ends_the_job(shell: str, tmp_path: Path) -> None:
    # As with ssh, the attendant's pipes end at a process between it and the launcher.
    relay = tmp_path / "relay-ssh"
    relay.write_text(f'#!/bin/sh\necho $$ > {tmp_path}/$1.pid\ncat | {shell} "$@" | cat\n')
    relay.chmod(0o755)
    launched = Launched(
        "--ssh", str(relay), "-H", "host1:1,host2:1", worker=ANNOUNCE + SLEEP_FOR_EVER, expected=2
    )
    os.killpg(int((tmp_path / "host2.pid").read_text()), signal.SIGKILL)
    assert launched.finish() == 255


def test_an_elastic_job_goes_on_when_a_machine_is_lost(shell: str, tmp_path: Path) -> None:
    relay = tmp_path / "relay-ssh"
    relay.write_text(f'#!/bin/sh\necho $$ > {tmp_path}/$1.pid\ncat | {shell} "$@" | cat\n')
    relay.chmod(0o755)
    os.mkfifo(tmp_path / "end")
    # The second one fails again and again, so that it waits to be started.
    worker = f"""
import os, sys
folder = {str(tmp_path)!r}
if os.environ["RANK"] == "1":
    with open(folder + "/failures", "a") as file:
        print(file=file)
    sys.exit(7)
open(folder + "/end").read()
"""
    command = [sys.executable, "-m", "sumpter", "run", "--ssh", str(relay), "-H", "host1:1,host2:1"]
    command += ["--min-workers", "1", "--restarts", "5", "--", sys.executable, "-c", worker]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = ""
            while "starting it again in 4 s" not in said:
                line = process.stderr.readline()
                assert line, said
                said += line
            os.killpg(int((tmp_path / "host2.pid").read_text()), signal.SIGKILL)
            while "cannot be started again" not in said:
                line = process.stderr.readline()
                assert line, said
                said += line
            (tmp_path / "end").open("w").close()
            said += process.communicate(timeout=HANG_S)[1]
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert "worker 1 cannot be started again: lost host2; going on with 1 worker" in said


class Sshd:
    """A real sshd of this user on a free port of the loopback interface."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.identity = folder / "identity"
        self.host_key = folder / "host_key"
        for key in (self.identity, self.host_key):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True
            )
        authorized = folder / "authorized_keys"
        shutil.copy(f"{self.identity}.pub", authorized)
        config = folder / "sshd_config"
        config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.host_key}\n"
            f"AuthorizedKeysFile {authorized}\nPidFile none\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nAuthenticationMethods publickey\nPermitRootLogin yes\n"
        )
        sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin:" + os.environ["PATH"])
        assert sshd is not None
        if os.geteuid() == 0:
            # An sshd of root gives up its rights in this folder.
            Path("/run/sshd").mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [sshd, "-D", "-e", "-f", str(config)], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert "listening" in line, line + self.process.stderr.read()

    def shell(self, known_hosts: Path) -> str:
        options = f"BatchMode=yes UserKnownHostsFile={known_hosts} GlobalKnownHostsFile=/dev/null"
        return shlex.join(["ssh", "-F", "none", *(f"-o{option}" for option in options.split())])

    def know(self, folder: Path) -> Path:
        """A known_hosts file with this sshd's key."""
        known = folder / "known_hosts"
        kind, key = Path(f"{self.host_key}.pub").read_text().split()[:2]
        known.write_text(f"[127.0.0.1]:{self.port} {kind} {key}\n")
        return known


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    for name in ("ssh", "sshd", "ssh-keygen"):
        if shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None:
            pytest.skip(f"there is no {name} on this machine (Debian: openssh-server)")
    server = Sshd(tmp_path)
    yield server
    server.process.terminate()
    server.process.communicate()


def test_over_real_ssh(sshd: Sshd, tmp_path: Path) -> None:
    host = f"{getpass.getuser()}@127.0.0.1"
    login = ("--ssh-port", str(sshd.port), "--ssh-identity", str(sshd.identity))
    unknown = run(sshd.shell(tmp_path / "nobody"), *login, "-H", host, worker="pass")
    assert "Host key verification failed" in unknown.stderr
    shell = sshd.shell(sshd.know(tmp_path))
    summed = run(shell, *login, "-H", f"{host}:2", "--server-hosts", host, worker=SUM)
    assert summed.returncode == 0, summed.stderr
    assert shown(summed.stdout) == [f"[worker {rank}] [1. 3. 5.]" for rank in range(2)]
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        launched = Launched("--ssh", shell, *login, "-H", f"{host}:2", worker=FAMILY, expected=4)
        launched.process.send_signal(number)
        assert launched.finish() == code
        for pid in launched.pids:
            wait_until_gone(pid)


class TestHosts:
    def test_names_and_slots(self) -> None:
        hosts = parse_hosts("a:2, me@b.c:1,d,[fe80::1%eth0]:3", "-H", ())
        assert hosts == [Host("a", 2), Host("me@b.c", 1), Host("d", 1), Host("fe80::1%eth0", 3)]

    def test_this_machine_needs_no_ssh(self) -> None:
        assert parse_hosts("localhost:2", "-H", ("localhost",)) == [Host(HERE, 2)]

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("a:2,a:2", "a is given twice"),
            ("a:0", "no slot"),
            ("a:x", "'a:x'"),
            ("a:-1", "'a:-1'"),
            ("", "''"),
            ("-oProxyCommand=x", "'-oProxyCommand=x'"),
            ("a b", "'a b'"),
        ],
    )
    def test_what_is_no_list_of_hosts_is_refused(self, text: str, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            parse_hosts(text, "-H", ())

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("a slots=2\nb slot=2\n", "line 2"),
            ("a slots=2\na slots=2\n", "twice"),
            ("# nobody\n", "no host"),
            ("a slots=0\n", "line 1: a has no slot"),
            ("a slots=x\n", "slots=x is no number"),
            ("a slots=1 rack=r rack=s\n", "twice"),
            ("a slots=1 rack=\n", "line 1"),
            ("a slots=1 partition_bytes=4KiB\n", "neither slots nor one of .*rack"),
            ("a slots=0 rack=r\n", "names no host"),
        ],
    )
    def test_what_is_no_hostfile_is_refused(self, text: str, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            parse_hostfile(text, "hosts", ())

    def test_a_line_of_a_hostfile_may_have_settings_of_its_machine(self) -> None:
        text = "a slots = 2 rack=r  trunk_gbps = 25\nb\nc slots=0 rack=s\n"
        a, c = (("rack", "r"), ("trunk_gbps", "25")), (("rack", "s"),)
        hosts = parse_hostfile(text, "hosts", ())
        assert hosts == [Host("a", 2, a), Host("b", 1), Host("c", 0, c)]
        layout = on_hosts(hosts, None, [Host("c", 1), Host("d", 1), Host("a", 1)])
        assert [(seat.host, seat.settings) for seat in layout.workers] == [
            *[("a", a)] * 2,
            ("b", ()),
        ]
        assert [seat.settings for seat in layout.servers] == [c, (), a]

    def test_fewer_workers_than_slots_fill_the_first_hosts(self) -> None:
        layout = on_hosts([Host("a", 2), Host("b", 2), Host("c", 1)], 3, [Host("d", 2)])
        assert [seat.host for seat in layout.workers] == ["a", "a", "b"]
        assert layout.hosts == ["a", "b", "d"]
        assert layout.all_servers == 2

    def test_more_workers_than_slots_are_refused(self) -> None:
        with pytest.raises(UsageError, match="only 4 slots"):
            on_hosts([Host("a", 2), Host("b", 2)], 5, [])


class TestRemoteShell:
    def test_options_come_before_the_host(self) -> None:
        shell = RemoteShell("ssh -v", 2222, Path("key"))
        arguments = shell.arguments("host", "/opt/a python")
        assert arguments[:7] == ["ssh", "-v", "-p", "2222", "-i", "key", "host"]
        assert arguments[7].startswith("exec '/opt/a python' -I -c ")
        assert len(arguments) == 8

    @pytest.mark.parametrize(
        ("words", "advice"),
        [
            ("user@h: Permission denied (publickey).", "--ssh-identity"),
            ("ssh: Could not resolve hostname h: Name or service not known", "check the name"),
            ("ssh: connect to host h port 22: Connection timed out", "up and reachable"),
            ("nobody has seen this before", "nobody has seen this before"),
        ],
    )
    def test_complaints_of_ssh_come_with_advice(self, words: str, advice: str) -> None:
        assert advice in str(unreachable("h", "python", 255, [words]))
