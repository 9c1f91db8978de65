"""Jobs that are to place bytes by libfabric, over a network that lets no provider connect."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings

import pytest

from sumpter import _native

# A rank on a machine of its own, with ports that the test knows, sums.
WORKER = """
import os

RANK = int(os.environ["RANK"])
os.environ |= {"SUMPTER_MACHINE": f"machine-{RANK}", "SUMPTER_PORT": str(7900 + 10 * RANK)}

import numpy as np

import sumpter

sumpter.init()
for step in range(5):
    mine = np.full(300_000, step + RANK, dtype=np.float32)
    assert (sumpter.push_pull(mine, average=False, name="t") == 2 * step + 1).all(), step
print(f"rank {RANK}: right")
sumpter.shutdown()
"""

# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 120.0

# All ports that the system chooses are in one block of 256, to which no connection can be opened:
# the packet that opens one goes to a queue that holds nothing.
SILENCE = """
ip link set lo up
sysctl -qw net.ipv4.ip_local_port_range="51200 51455"
tc qdisc add dev lo root handle 1: htb default 10
tc class add dev lo parent 1: classid 1:10 htb rate 10gbit quantum 60000
tc class add dev lo parent 1: classid 1:30 htb rate 8bit quantum 1514
tc qdisc add dev lo parent 1:30 handle 30: tbf rate 8bit burst 8 limit 8
tc filter add dev lo parent 1: protocol ip prio 1 u32 match ip protocol 6 0xff \
    match u8 0x02 0x12 at 33 match ip dport 51200 0xff00 flowid 1:30
"""


def run(fabric: str, silence: str) -> subprocess.CompletedProcess[str]:
    """Two ranks over libfabric's `tcp`, which needs no hardware, in a network of their own."""
    job = (
        *(sys.executable, "-m", "sumpter", "run", "-n", "2", "--listen", "127.0.0.1:7890"),
        *("--set", "log=info", "--set", f"fabric={fabric}", "--set", "fabric_provider=tcp"),
        *("--set", "peer_timeout_s=20", "--", sys.executable, "-c", WORKER),
    )
    shell = f'set -e\n{silence}\nexec "$@"'
    return subprocess.run(
        ["unshare", "--net", "sh", "-c", shell, "sh", *job],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


@pytest.fixture(autouse=True)
def has_what_it_takes() -> None:
    missing = _native.fabric_networks("tcp", None)[2]
    if missing is None and not (os.geteuid() == 0 and all(map(shutil.which, ("unshare", "tc")))):
        missing = "needs root, unshare and tc"
    if missing is not None:
        warnings.warn(f"SKIPPED placed writes: {missing}", stacklevel=1)
        pytest.skip(missing)


def test_bytes_are_placed_where_the_network_lets_the_provider_connect() -> None:
    done = run("libfabric", "ip link set lo up")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    # One to each other's lane, which both ends report.
    assert said.count("INFO bytes are placed") == 4, said
    assert "rank 0: right" in said and "rank 1: right" in said


def test_a_provider_that_cannot_connect_within_five_seconds_is_given_up_for_tcp() -> None:
    done = run("auto", SILENCE)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "going on over TCP" in said
    assert "INFO bytes are placed" not in said
    assert "rank 0: right" in said and "rank 1: right" in said


def test_a_job_that_demands_placed_bytes_ends_with_the_reason() -> None:
    done = run("libfabric", SILENCE)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert "fabric = libfabric:" in said, said
