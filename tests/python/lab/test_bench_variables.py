"""`bench memory`, `refill` and `asynchronous`: their arithmetic, refusals, and small runs."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sumpter._failure import Failure, UsageError
from sumpter_lab import asynchronous, diloco, memory, refill
from sumpter_lab.scaffold import units
from sumpter_lab.scaffold.network import counters, namespaces

# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 600.0

ROLLUP = """\
55d-7ff ---p 00000000 00:00 0                                            [rollup]
Rss:              900 kB
Pss:              500 kB
Private_Clean:     40 kB
Private_Dirty:     60 kB
"""


def test_private_memory_is_clean_and_dirty_pages() -> None:
    found = counters.parse_process_memory(ROLLUP)
    assert (found.private_bytes, found.pss_bytes) == (100 << 10, 500 << 10)
    own = counters.process_memory(os.getpid())
    assert 0 < own.private_bytes <= own.pss_bytes


def by_place() -> dict[str, dict[str, list[int]]]:
    """Two workers and a server, in megabytes."""
    found = {
        "workers": {
            "workers_before": [20, 22],
            "workers_untrimmed": [230, 222],
            "workers": [180, 182],
            "servers_before": [16],
            "servers": [20],
        },
        "servers": {
            "workers_before": [20, 20],
            "workers_untrimmed": [240, 240],
            "workers": [150, 170],
            "servers_before": [16],
            "servers": [76],
        },
    }
    return {
        place: {name: [mb * 10**6 for mb in values] for name, values in of.items()}
        for place, of in found.items()
    }


def test_memory_counts_above_that_of_a_tiny_model_and_beside_the_plan() -> None:
    row = memory.row_of(2, 1, 40 * 10**6, by_place())
    assert row["worker_bytes_workers"] == 160e6
    assert row["worker_untrimmed_bytes_workers"] == 205e6
    assert row["worker_bytes_servers"] == 140e6
    assert row["worker_difference_bytes"] == -20e6
    assert (row["server_bytes_workers"], row["server_difference_bytes"]) == (4e6, 56e6)
    # n = 2, k = 1: x = 1/4, y = 1/2. Mirrors have 12/2 bytes a parameter, lanes 12 of their share.
    assert row["worker_difference_planned_bytes"] == pytest.approx((60 + 30 - 80) * 1e6)
    assert row["server_planned_bytes"] == pytest.approx(60e6)


def test_without_servers_they_have_no_figures() -> None:
    found = by_place()
    for of in found.values():
        of["servers_before"] = of["servers"] = []
    row = memory.row_of(2, 0, 40 * 10**6, found)
    assert row["server_bytes_workers"] is row["server_difference_bytes"] is None
    assert row["worker_difference_planned_bytes"] == pytest.approx((60 + 60 - 80) * 1e6)


def test_n_stands_for_as_many_servers_as_workers() -> None:
    assert units.parse_cells("2,4", "0,n", 0) == [(2, 0), (2, 2), (4, 0), (4, 4)]
    assert units.parse_cells("4", "1,n", 1) == [(4, 1), (4, 4)]
    with pytest.raises(UsageError, match="--servers 0"):
        units.parse_cells("4", "0", 1)


def test_a_model_is_cut_into_tensors_of_4_mib() -> None:
    shapes = memory._shapes(10.0)
    assert shapes == [(1 << 20,), (1 << 20,), (2_500_000 - (2 << 20),)]


def test_mirrors_fill_all_lanes_but_what_lies_beside_them() -> None:
    assert refill.planned_bytes(4, 3, refill.SUMS, 10**6) == (0.0, 0.0)
    # Three parts of each element. n = k: workers sum nothing.
    total, busiest = refill.planned_bytes(4, 4, "adam", 10**6)
    assert (total, busiest) == (pytest.approx(3e6), pytest.approx(3e6 / 4))
    # Without servers each worker's lane has a quarter, and gets it from the three others.
    total, busiest = refill.planned_bytes(4, 0, "adam", 10**6)
    assert (total, busiest) == (pytest.approx(3e6 * 3 / 4), pytest.approx(3e6 * 3 / 16))


def test_what_a_death_costs_is_the_difference_to_the_next_round() -> None:
    def one(killed_s: float, killed: int) -> dict[str, Any]:
        return {
            "killed": {"seconds": killed_s, "sent_bytes": killed},
            "next": {"seconds": 1.0, "sent_bytes": 10_000_000},
        }

    asked = argparse.Namespace(megabytes=4.0, rate_mbit=8.0)
    turns = [one(2.0, 22_000_000), one(4.0, 23_000_000), one(2.5, 22_500_000)]
    row = refill.row_of(2, 2, "adam", turns, asked)
    assert (row["more_s"], row["more_s_range"]) == (1.5, [1.0, 3.0])
    assert row["more_megabytes"] == pytest.approx(12.5)
    # One server and two workers: the server sums half, as each worker a quarter.
    assert row["planned_megabytes"] == pytest.approx(12 * 3 / 4)
    assert row["planned_s"] == pytest.approx(6.0)


@pytest.mark.parametrize("bench", [asynchronous, memory, refill])
def test_without_root_one_line_says_so(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Failure, match="needs root"):
        bench.main([])


@pytest.mark.parametrize("bench", [asynchronous, memory, refill, diloco])
def test_a_result_that_could_not_be_written_is_refused_at_once(bench, tmp_path: Path) -> None:
    with pytest.raises(Failure, match="--output .* does not exist"):
        bench.main(["-o", str(tmp_path / "absent" / "rows.json")])


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(UsageError, match="--rules 'magic': known are sgd"):
        refill.main(["--rules", "magic"])


def run(bench: str, output: Path, *arguments: str) -> dict[str, Any]:
    """What a small run writes, which leaves no namespace."""
    try:
        namespaces.check_tools()
    except Failure as failure:
        pytest.skip(f"cannot emulate a network here: {failure}")
    call = [sys.executable, "-m", "sumpter", "bench", bench, *arguments, "-o", str(output)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(call, stdout=pipe, stderr=pipe, text=True)
    try:
        _, err = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert not namespaces.of_run(f"{namespaces.PREFIX}-{process.pid}-")
    document: dict[str, Any] = json.loads(output.read_text())
    assert document["about"]["commit"]
    return document


@pytest.mark.emulates
def test_a_small_run_finds_the_memory_of_a_model(tmp_path: Path) -> None:
    options = ("-n", "2", "-s", "n", "--megabytes", "16", "--steps", "2")
    (row,) = run("memory", tmp_path / "memory.json", *options)["rows"]
    # Parameters, gradients and, in the workers, two moments.
    assert 64e6 < row["worker_bytes_workers"] < 90e6
    assert 32e6 < row["worker_bytes_servers"] < row["worker_bytes_workers"]
    assert row["server_bytes_servers"] > row["server_planned_bytes"] == pytest.approx(24e6)


@pytest.mark.emulates
def test_a_small_run_fills_the_lanes_with_the_bytes_that_are_planned(tmp_path: Path) -> None:
    options = ("-n", "2", "--megabytes", "4", "--rules", "adam", "--turns", "1")
    sums, adam = run("refill", tmp_path / "refill.json", *options)["rows"]
    assert sums["system"] == refill.SUMS and adam["system"] == "adam"
    # More are headers, and what had been sent to the server that died.
    assert 0.95 < adam["more_megabytes"] / adam["planned_megabytes"] < 2
    assert sums["more_megabytes"] < adam["more_megabytes"]


@pytest.mark.emulates
def test_a_small_run_takes_steps_in_every_mode(tmp_path: Path) -> None:
    options = ("-n", "2", "-k", "1", "--megabytes", "0.1", "--compute-s", "0.02")
    file = tmp_path / "asynchronous.json"
    turns = run("asynchronous", file, *options, "--seconds", "0.3", "--turns", "1")["turns"]
    assert [turn["mode"] for turn in turns] == list(asynchronous.MODES)
    assert all(rank["steps"] > 0 for turn in turns for rank in turn["ranks"])
