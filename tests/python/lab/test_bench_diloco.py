"""`sumpter bench diloco`: the link without time, its rows, and runs that leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sumpter._failure import Failure, UsageError
from sumpter_lab.diloco import main, report, wide_area
from sumpter_lab.diloco.path import Path as OneWay
from sumpter_lab.diloco.path import Shape
from sumpter_lab.scaffold.network import namespaces

# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 600.0
SMALL = (
    *("--rate-mbit", "50", "--delay-ms", "20", "--compute-s", "0", "--turns", "1", "--steps", "4"),
    *("--sync-every", "2", "--sync-delay", "1", "--fragments", "2", "--every", "2", "--batch", "2"),
)

# 8 Mb/s are a byte in a microsecond.
SHAPE = Shape(rate_mbit=8.0, delay_s=0.05, queue_bytes=3000)


def packet(size: int, mark: int = 0) -> bytes:
    return bytes([mark]) * size


def test_a_packet_takes_its_own_length_at_the_rate_and_the_delay() -> None:
    path = OneWay(SHAPE)
    assert path.next_s is None
    assert path.push(packet(1000), 2.0)
    assert path.next_s == pytest.approx(2.051)
    assert path.arrived(2.0509) == []
    assert path.arrived(2.0511) == [packet(1000)]
    assert path.next_s is None


def test_packets_wait_for_those_before_them_and_keep_their_order() -> None:
    path = OneWay(SHAPE)
    for mark in range(3):
        assert path.push(packet(1000, mark), 0.0)
    assert path.arrived(0.0515) == [packet(1000, 0)]
    assert path.next_s == pytest.approx(0.052)
    assert path.arrived(9.0) == [packet(1000, 1), packet(1000, 2)]
    # An idle link has saved nothing up.
    assert path.push(packet(1000), 10.0)
    assert path.next_s == pytest.approx(10.051)


def test_a_full_queue_drops_what_comes_and_takes_more_when_it_has_room() -> None:
    path = OneWay(SHAPE)
    assert all(path.push(packet(1000), 0.0) for _ in range(3))
    assert not path.push(packet(1), 0.0)
    # What has left the queue is on its way, and takes no room.
    assert path.push(packet(1000), 0.001)
    assert not path.push(packet(1000), 0.001)
    assert (path.carried_bytes, path.dropped) == (4000, 2)


def turn(mode: str, curve: list[tuple[int, float, float]], **changes: Any) -> dict[str, Any]:
    first = {"seconds": curve[-1][1], "waiting_s": 2.0, "rounds": 5, "final_loss": 1.5}
    other = {**first, "waiting_s": 4.0}
    given = {"mode": mode, "turn": 0, "link_bytes": [3_000_000, 1_000_000], "dropped": 7}
    return given | {"ranks": [{**first, "curve": curve}, other]} | changes


def test_the_time_to_a_loss_is_that_of_the_first_that_is_low_enough() -> None:
    one = turn("a", [(10, 1.0, 3.0), (20, 2.0, 1.9), (30, 3.0, 2.2), (40, 4.0, 1.0)])
    assert report.reached(one, 2.0) == (20, 2.0)
    assert report.reached(one, 0.5) is None


def test_a_row_has_medians_and_no_time_to_a_loss_that_some_turn_missed() -> None:
    turns = [turn("a", [(10, seconds, 1.0)]) for seconds in (5.0, 1.0, 2.0)]
    turns += [turn("b", [(10, 1.0, 1.0)]), turn("b", [(10, 1.0, 3.0)])]
    first, second = report.rows(turns, 2.0)
    assert (first["mode"], first["target_s"], first["target_range_s"]) == ("a", 2.0, [1.0, 5.0])
    # The mean over the ranks; both directions.
    assert (first["waiting_s"], first["link_megabytes"], first["dropped"]) == (3.0, 4.0, 21)
    assert second["target_s"] is second["target_steps"] is second["target_range_s"] is None


def test_the_table_shows_a_dash_for_what_was_not_reached(capsys) -> None:
    report.show(report.rows([turn("b", [(10, 1.0, 3.0)])], 2.0), 2.0)
    assert capsys.readouterr().out.split()[-3:] == ["-", "-", "-"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--rate-mbit", "0"), "--rate-mbit: 0 Mb/s"),
        (("--delay-ms", "-1"), "--delay-ms -1"),
        (("--queue-bytes", "100"), "--queue-bytes 100"),
        (("--sync-every", "5", "--sync-delay", "5"), "--sync-delay 5 is not from 0 and below"),
        (("--fragments", "0"), "--fragments 0"),
        (("--per-site", "0"), "--per-site 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments, complaint) -> None:
    with pytest.raises(UsageError, match=complaint):
        main(arguments)


def test_without_root_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Failure, match="needs root"):
        main([])


def test_a_machine_without_tun_devices_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(namespaces, "check_tools", lambda: None)
    monkeypatch.setattr(wide_area, "TUN_DEVICE", str(tmp_path / "tun"))
    with pytest.raises(Failure, match="load the module tun"):
        wide_area.check_host()


# --- runs ---


@pytest.fixture
def diloco() -> Iterator[Any]:
    """Starts runs; afterwards none of their namespaces may be left."""
    try:
        wide_area.check_host()
    except Failure as failure:
        pytest.skip(f"cannot emulate a network here: {failure}")
    started: list[subprocess.Popen] = []

    def start(*arguments: str) -> subprocess.Popen:
        call = [sys.executable, "-m", "sumpter", "bench", "diloco", *arguments]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(call, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert not namespaces.of_run(f"{namespaces.PREFIX}-{process.pid}-")


@pytest.mark.emulates
@pytest.mark.parametrize("per_site", [1, 2])
def test_a_small_run_trains_in_every_mode_over_the_link(
    diloco, tmp_path: Path, per_site: int
) -> None:
    output = tmp_path / "diloco.json"
    process = diloco(*SMALL, "--per-site", str(per_site), "-o", str(output))
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    found = json.loads(output.read_text())
    link = found["link"]
    assert link["round_trip_s"] >= 0.04
    assert 0 < link["plain_tcp_mbit"] < 50 and 0 < link["sums_mbit"] < 50
    synchronous, *others = found["rows"]
    assert synchronous["mode"] == "synchronous" and len(others) == 4
    assert synchronous["rounds"] == 4
    for row in others:
        assert row["mode"] in out
        assert row["rounds"] == 2
        assert row["link_megabytes"] < synchronous["link_megabytes"]
    for one in found["turns"]:
        assert len(one["ranks"]) == 2 * per_site
        assert [step for step, _, _ in one["ranks"][0]["curve"]] == [2, 4]
        # Each exchange crosses the link.
        least = 2 * link["round_trip_s"] if one["mode"] == "synchronous" else 0.0
        assert one["ranks"][0]["seconds"] > least


@pytest.mark.emulates
def test_a_signal_ends_everything(diloco) -> None:
    process = diloco(*SMALL, "--steps", "1000000")
    assert "round trip" in process.stdout.readline()
    prefix = f"{namespaces.PREFIX}-{process.pid}-"
    assert len(namespaces.of_run(prefix)) == 2
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=HANG_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert not namespaces.of_run(prefix)


@pytest.mark.emulates
def test_what_a_killed_run_leaves_is_removed_when_asked(diloco) -> None:
    process = diloco(*SMALL, "--steps", "1000000")
    assert "round trip" in process.stdout.readline()
    process.kill()
    process.communicate(timeout=HANG_S)
    assert len(namespaces.of_run(f"{namespaces.PREFIX}-{process.pid}-")) == 2
    again = diloco("--clean")
    out, err = again.communicate(timeout=HANG_S)
    assert again.returncode == 0, err
    assert "removed" in out
