"""`sumpter bench interfaces`: what it refuses, and small runs that count bytes by interface."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sumpter._failure import Failure, UsageError
from sumpter_lab import interfaces
from sumpter_lab.scaffold.network import namespaces
from sumpter_lab.scaffold.network.cluster import Machine
from sumpter_lab.scaffold.network.interfaces import address, names

# Only so that a hang fails instead of blocking.
HANG_S = 600.0
# Headers, handshakes and heartbeats beside the tensor: far less than a tenth of a share.
CLOSE = 0.1
SMALL = ("--workers", "2", "--megabytes", "4", "--rounds", "2", "--rate-mbit", "100")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--interfaces", "0"], "--interfaces"),
        (["--workers", "0"], "1 or more"),
        (["--interfaces", "1,2", "--down", "server"], "another way"),
        (["--interfaces", "2", "--down", "worker"], "another way"),
        (["--rate-mbit", "0"], "--rate-mbit"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        interfaces.main(arguments)


def test_without_root_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Failure, match="needs root"):
        interfaces.main([])


def test_every_interface_has_a_network() -> None:
    machine = Machine("cpu", 0, "x-cpu0", "10.83.0.5", 100.0)
    assert [address(machine, number) for number in range(3)] == [
        *("10.83.0.5", "10.83.1.5", "10.83.2.5")
    ]
    assert names(2) == "net0,net1"


def measured(output: Path, *arguments: str) -> list[dict[str, Any]]:
    """The rows of a small run, in which every result was checked."""
    try:
        namespaces.check_tools()
    except Failure as failure:
        pytest.skip(f"cannot emulate a network here: {failure}")
    call = [sys.executable, "-m", "sumpter", "bench", "interfaces", *SMALL, *arguments]
    call += ["-o", str(output)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(output.read_text())["rows"]


def even(moved: list[int]) -> bool:
    return all(abs(each - sum(moved) / len(moved)) < CLOSE * max(moved) for each in moved)


@pytest.mark.exclusive
def test_each_interface_of_a_server_carries_its_share(tmp_path: Path) -> None:
    one, two, three = measured(tmp_path / "rows.json", "--interfaces", "1,2,3")
    for row, count in ((one, 1), (two, 2), (three, 3)):
        for round_ in row["rounds"]:
            for moved in (round_["received_bytes"], round_["sent_bytes"]):
                # What two workers contribute, and what they get.
                assert len(moved) == count and even(moved), row
                assert 8e6 <= sum(moved) < 8e6 * (1 + CLOSE), row


@pytest.mark.exclusive
def test_lanes_of_unequal_number_share_interfaces_evenly(tmp_path: Path) -> None:
    setting = ("--set", "lanes=3")
    (row,) = measured(tmp_path / "rows.json", "--interfaces", "2", *setting)
    for round_ in row["rounds"]:
        assert even(round_["received_bytes"]) and even(round_["sent_bytes"]), row


@pytest.mark.exclusive
@pytest.mark.parametrize("whose", ["server", "worker"])
def test_an_interface_that_goes_down_costs_a_connection_and_no_sum(
    tmp_path: Path, whose: str
) -> None:
    options = ("--interfaces", "2", "--worker-interfaces", "2", "--down", whose)
    (row,) = measured(tmp_path / "rows.json", *options, "--set", "server_timeout_s=1")
    for round_ in row["rounds"]:
        # The connections of workers spread over their interfaces, too.
        assert even(round_["workers_sent_bytes"]) and even(round_["workers_received_bytes"]), row
    broken, following = row["down"], row["down"]["next"]
    # The same plan with the same server, by the other interface.
    assert (broken["epoch"], len(broken["servers"])) == (1, 1), broken
    assert broken["received_bytes"][0] > 1.2 * row["rounds"][0]["received_bytes"][0], broken
    if whose == "server":
        assert following["received_bytes"][1] == 0, following
        assert following["received_bytes"][0] >= 8e6, following
    else:
        # That of the other worker goes on by both.
        assert 1.5e6 < following["received_bytes"][1] < 2.5e6, following
        assert 5.5e6 < following["received_bytes"][0] < 6.9e6, following
