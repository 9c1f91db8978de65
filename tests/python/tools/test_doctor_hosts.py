"""`sumpter doctor --hosts`: machines behind a stand-in for ssh, and machines that are network
namespaces, joined by a switch whose faults a test chooses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobs import HANG_S
from pods import eventually
from sumpter.doctor import ERROR, OK, WARNING, Finding
from sumpter.doctor.pairs import session
from sumpter.doctor.pairs.session import Listeners, Report, Request, Target
from sumpter.launch.environment import passed_on
from sumpter.launch.place import Access
from sumpter.launch.remote import RemoteShell

# Like sshd: another session and folder, hardly any environment, the user's shell.
FAKE_SSH = """\
#!/bin/sh
host=$1
shift
case $host in
    down) echo "ssh: connect to host down port 22: Connection refused" >&2; exit 255 ;;
    silent) echo $$ > {folder}/silent; exec sleep 1000 ;;
esac
cd /
echo "Welcome to $host"
exec setsid --wait {enter} env -i HOME={folder} PATH=/usr/bin:/bin \\
    SSH_CONNECTION="{client} 50000 {server} 22" sh -c "$*"
"""

# Instead of all checks of a machine, where a test is about what is between machines.
NO_CHECKS = ("-c", "print('[]')")


def shell_script(folder: Path, enter: str, client: str, server: str) -> str:
    script = folder / "fake-ssh"
    text = FAKE_SSH.format(folder=folder, enter=enter, client=client, server=server)
    script.write_text(text)
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def shell(tmp_path: Path) -> str:
    """All hosts are this machine's loopback."""
    return shell_script(tmp_path, "", "127.0.0.1", "127.0.0.1")


def doctor(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sumpter", "doctor", "--no-self-test", *options]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
    )


def examined(shell: str, hosts: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> Report:
    """What is found between machines."""
    monkeypatch.setattr(session, "_CHECKS", NO_CHECKS)
    access = Access(RemoteShell(shell), sys.executable, ".", {}, passed_on(()), HANG_S)
    quiet = Listeners(lambda _: None, lambda _: None, lambda _: None)
    report = session.examine(Request([Target(host) for host in hosts], access), quiet)
    assert isinstance(report, Report)
    return report


def only(findings: Sequence[Finding], check: str) -> Finding:
    (found,) = [finding for finding in findings if finding.check == check]
    return found


def test_a_host_that_does_not_answer_is_named_and_the_others_are_examined(shell: str) -> None:
    process = doctor("-H", "host1,down,host2", "--ssh", shell, "--json")
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 1, err
    assert "2 machines and 1 pair, one at a time" in err
    said = json.loads(out)
    by_name = {host["host"]: host["findings"] for host in said["hosts"]}
    assert list(by_name) == ["host1", "down", "host2"]
    (unreachable,) = by_name["down"]
    assert unreachable["state"] == ERROR
    assert "cannot reach down" in unreachable["found"]
    assert "Connection refused" in unreachable["found"]
    for name in ("host1", "host2"):
        checks = {finding["check"] for finding in by_name[name]}
        assert {"sumpter", "open files", "kernels", "host name"} <= checks
    (pair,) = said["pairs"]
    assert (pair["from"], pair["to"]) == ("host1", "host2")
    assert pair["there"]["speeds"]["to"] > 0
    assert not [each for each in pair["findings"] if each["state"] == ERROR]
    assert {each["check"] for each in said["findings"]} >= {"wire format", "sumpter", "torch"}


def test_a_machine_without_the_check_is_named(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_AGENT", ("-P", "-m", "sumpter.doctor.no_such_module"))
    report = examined(shell, ("host1", "host2"), monkeypatch)
    for host in report.hosts:
        finding = only(host.findings, "between machines")
        assert finding.state == ERROR
        assert "no_such_module" in finding.found
    assert report.pairs == []


@pytest.mark.parametrize("printed", ["Welcome", "[]", "{}", '{"problem": ""}'])
def test_a_machine_that_prints_something_else_is_named(
    shell: str, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_AGENT", ("-c", f"print({printed!r})"))
    report = examined(shell, ("host1", "host2"), monkeypatch)
    for host in report.hosts:
        finding = only(host.findings, "between machines")
        assert finding.state == ERROR
        assert printed in finding.found or "without a word" in finding.found
    assert report.pairs == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-H", "host1"), "two machines"),
        (("-H", "host1,host1"), "given twice"),
        (("-H", "host1,-oX"), "'-oX'"),
        (("-H", "a,b", "--hostfile", "f"), "exclude each other"),
        (("--hostfile", "/nonexistent"), "cannot read /nonexistent"),
        (("-H", "a,b", "--topology"), "exclude each other"),
        (("--ssh-port", "2222"), "--ssh-port is for other machines: give --hosts"),
    ],
)
def test_wrong_use_is_named(options: tuple[str, ...], said: str) -> None:
    process = doctor(*options)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode in (1, 2)
    assert out == ""
    assert said in err and err.count("\n") == 1, err


def agents() -> list[str]:
    """Command lines of agents and their attendants that run as this test's descendants would."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace")
            where = (folder / "environ").read_bytes()
        except OSError:
            continue
        if "sumpter.doctor.pairs.agent" in words and f"HOME={_HOME}".encode() in where:
            found.append(words.replace("\0", " "))
    return found


_HOME = ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_remains_over_there(
    shell: str, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "_HOME", str(tmp_path))
    process = doctor("-H", "host1,host2,host3", "--ssh", shell)
    eventually(lambda: len(agents()) >= 3, lambda: "agents listen")
    assert not any("TOKEN" in words for words in agents())
    process.send_signal(number)
    out, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    assert out == ""
    eventually(lambda: not agents(), lambda: "agents end")


def test_ctrl_c_ends_the_wait_for_a_host(shell: str, tmp_path: Path) -> None:
    process = doctor("-H", "host1,silent", "--ssh", shell)
    eventually((tmp_path / "silent").exists, lambda: "the remote shell has started")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, out) == (130, ""), err


# Machines with a network of their own.

NETWORK = "10.86.0"


@dataclass
class Network:
    """Namespaces `m1`, `m2`.. with addresses 10.86.0.1.., on a bridge in a namespace too."""

    prefix: str
    shell: str
    hosts: list[str]

    def ip(self, machine: int, *words: str) -> None:
        """Runs `ip` in the namespace of a machine; the switch is number 0."""
        call("ip", "-n", f"{self.prefix}-{machine}", *words)

    def run(self, machine: int, *words: str) -> subprocess.CompletedProcess[str]:
        inside = ["ip", "netns", "exec", f"{self.prefix}-{machine}", *words]
        return subprocess.run(inside, capture_output=True, text=True)


def call(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    if os.geteuid() != 0:
        pytest.skip("making network namespaces needs root, so this checks nothing")
    if shutil.which("ip") is None:
        pytest.skip("ip not found, so this checks nothing: install iproute2")
    prefix = f"smpd-{os.getpid()}"
    enter = f"ip netns exec {prefix}-${{host##*.}}"
    shell = shell_script(tmp_path, enter, f"{NETWORK}.254", "$host")
    names = [f"{prefix}-{number}" for number in range(3)]
    made = Network(prefix, shell, [f"{NETWORK}.1", f"{NETWORK}.2"])
    try:
        for name in names:
            call("ip", "netns", "add", name)
            call("ip", "-n", name, "link", "set", "lo", "up")
        made.ip(0, "link", "add", "br0", "type", "bridge")
        made.ip(0, "address", "add", f"{NETWORK}.254/24", "dev", "br0")
        made.ip(0, "link", "set", "br0", "up")
        for number in (1, 2):
            peer = ("peer", "name", f"port{number}")
            made.ip(number, "link", "add", "eth0", "type", "veth", *peer, "netns", names[0])
            made.ip(number, "address", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
            made.ip(number, "link", "set", "eth0", "up")
            made.ip(0, "link", "set", f"port{number}", "master", "br0", "up")
        yield made
    finally:
        for name in names:
            subprocess.run(("ip", "netns", "del", name), capture_output=True)


def test_two_machines_in_good_order(network: Network) -> None:
    process = doctor("-v", "-H", ",".join(network.hosts), "--ssh", network.shell)
    out, err = process.communicate(timeout=HANG_S)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    # What the machine of the tests lacks is no matter here, but is the exit code's.
    assert process.returncode == any(line.startswith("error ") for line in lines), out + err
    together = lines[lines.index("All machines") :]
    assert not [line for line in together if line.startswith("error ")]
    one, two = network.hosts
    for beginning in (
        "ok wire format",
        f"{one} and {two}",
        f"ok ports there {one} to {two}",
        f"ok MTU back {two} to {one}: packets of 1500 bytes arrive whole",
        f"ok clock {two} and {one} agree",
        "ok round trip",
        "Gb/s, from row to column",
        "Round trip, us",
        f"1 {one} - ",
    ):
        assert any(line.startswith(beginning) for line in together), out


def test_an_mtu_mismatch_is_named(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    network.ip(2, "link", "set", "eth0", "mtu", "1400")
    (pair,) = examined(network.shell, network.hosts, monkeypatch).pairs
    finding = only(pair.findings, "MTU")
    assert finding.state == WARNING
    assert f"eth0 of {network.hosts[0]} has 1500" in finding.found
    assert f"eth0 of {network.hosts[1]} has 1400" in finding.found
    assert only(pair.findings, "MTU there").state == OK


def test_a_switch_that_drops_large_packets_is_found(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a tunnel with a smaller MTU and no ICMP does: both machines have 1500."""
    network.ip(0, "link", "set", "port1", "mtu", "1400")
    (pair,) = examined(network.shell, network.hosts, monkeypatch).pairs
    finding = only(pair.findings, "MTU there")
    assert finding.state == ERROR
    # An Ethernet device takes a VLAN tag more than its MTU.
    assert pair.there.figures["mtu"]["largest"] in (1400, 1404)
    assert "black hole" in finding.found
    assert "MTU" not in [each.check for each in pair.findings], "both ends have the same"


@pytest.mark.parametrize(
    ("verdict", "words"),
    [("DROP", "a firewall drops TCP"), ("REJECT", "refused, though a process listens")],
)
def test_ports_behind_a_firewall_are_named(
    network: Network, monkeypatch: pytest.MonkeyPatch, verdict: str, words: str
) -> None:
    if shutil.which("iptables") is None:
        pytest.skip("iptables not found, so this checks nothing: install iptables")
    rule = ("-A", "INPUT", "-p", "tcp", "--syn", "-j", verdict)
    refused = ("--reject-with", "tcp-reset") if verdict == "REJECT" else ()
    done = network.run(2, "iptables", *rule, *refused)
    if done.returncode:
        pytest.skip(f"iptables does not work here, so this checks nothing: {done.stderr}")
    (pair,) = examined(network.shell, network.hosts, monkeypatch).pairs
    finding = only(pair.findings, "ports there")
    assert finding.state == ERROR
    assert words in finding.found, finding
    assert only(pair.findings, "ports back").state == OK
    assert pair.gbps() is not None, "the other end measures the speed"


def test_ports_of_a_setting_are_tried_one_by_one(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUMPTER_PORT", "7801")
    monkeypatch.setenv("SUMPTER_LANES", "3")
    (pair,) = examined(network.shell, network.hosts, monkeypatch).pairs
    finding = only(pair.findings, "ports there")
    assert finding.found.endswith("ports 7801-7803: a connection opens")


def test_a_machine_without_a_way_to_the_others_is_named(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    network.ip(2, "address", "flush", "dev", "eth0")
    report = examined(network.shell, network.hosts, monkeypatch)
    finding = only(report.hosts[1].findings, "between machines")
    assert finding.state == ERROR
    assert "no route to any of" in finding.found
    assert report.pairs == []
