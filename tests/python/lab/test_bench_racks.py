"""Racks in `sumpter bench emulate`: the rounds that measure links, both plans, a small run."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumpter._failure import Failure, UsageError
from sumpter.cli import main
from sumpter_lab.cli import bench
from sumpter_lab.emulate import report, trunks
from sumpter_lab.report import emulated as shown
from sumpter_lab.scaffold import spec
from sumpter_lab.scaffold.jobs import emulated
from sumpter_lab.scaffold.network import namespaces
from sumpter_lab.scaffold.network.cluster import Cluster, Machine, Racks, Trunk
from sumpter_lab.scaffold.network.counters import NO_TICKS, LinkCounts
from sumpter_lab.scaffold.network.probe import Exchanged
from sumpter_lab.scaffold.network.tournament import (
    Links,
    between_racks,
    trunk_goodputs,
    within_racks,
)
from sumpter_lab.scaffold.optimum import Optimum, optimum
from sumpter_lab.scaffold.results import schema
from sumpter_lab.scaffold.results.output import write_csv
from sumpter_lab.scaffold.results.table import head_line, row_line

# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 600.0
MIB = 1 << 20


def cluster(racks: int, workers: int, servers: int = 0, trunk_mbit: float = 200.0) -> Cluster:
    """So many machines of each role in each rack, with links of 200 Mb/s."""

    def role(name: str, each: int) -> tuple[Machine, ...]:
        return tuple(
            Machine(name, index, "", f"10.0.0.{index}", 200.0, f"rack-{index // each}")
            for index in range(racks * each)
        )

    joined = tuple(Trunk(index, "", trunk_mbit) for index in range(racks))
    return Cluster(role("gpu", workers), role("cpu", servers), joined)


def planned(of: Cluster, size_bytes: int, trunk_mbit: float) -> Optimum:
    """The plan's figures for links that carry 190 Mb/s."""
    links = {machine.name: 190.0 for machine in of.machines}
    carried = {trunk.rack: trunk_mbit for trunk in of.trunks}
    return optimum(of.gpu, of.cpu, size_bytes, Links(links, links, 1.0, carried))


def asked(**changes: object) -> spec.Spec:
    given: dict = {"workers": [4], "servers": [0], "racks": Racks(2, 50.0), "rounds": 1}
    given |= {"gpu_rates_mbit": [200.0] * 8, "cpu_rates_mbit": [200.0] * 8, "warmup": 1}
    return spec.Spec(**(given | {"loads": [spec.tensor(MIB)]} | changes))


# --- machines in racks ---


def test_a_cell_takes_as_many_machines_of_each_rack_one_rack_after_the_other() -> None:
    part = cluster(2, 4, 2).part(4, 2)
    assert [machine.index for machine in part.gpu] == [0, 1, 4, 5]
    assert [machine.index for machine in part.cpu] == [0, 2]
    assert len(part.trunks) == 2
    without = Cluster(part.gpu, part.cpu).part(3, 1)
    assert [machine.index for machine in without.machines] == [0, 1, 4, 0]


@given(st.integers(2, 5), st.integers(1, 4), st.integers(0, 3))
def test_machines_meet_within_their_rack_and_racks_meet_as_a_whole(
    racks: int, workers: int, servers: int
) -> None:
    machines = cluster(racks, workers, servers).machines
    for rounds, same in ((within_racks(machines), True), (between_racks(machines), False)):
        for pairs in rounds:
            busy = [index for pair in pairs for index in pair]
            assert len(busy) == len(set(busy))
            for a, b in pairs:
                assert (machines[a].rack == machines[b].rack) == same
    each = workers + servers
    met = [pair for pairs in within_racks(machines) for pair in pairs]
    assert len(set(met)) == len(met) == racks * each * (each - 1) // 2
    between = [pair for pairs in between_racks(machines) for pair in pairs]
    assert len(set(between)) == len(between) == each * racks * (racks - 1) // 2


def test_without_racks_only_pairs_of_machines_meet() -> None:
    machines = [Machine("gpu", index, "", "", 200.0) for index in range(4)]
    assert len([pair for pairs in within_racks(machines) for pair in pairs]) == 6
    assert between_racks(machines) == []


def seen(*received_mbit: float) -> list:
    """A round in which two racks of two have met."""
    players = [(0, 2), (2, 0), (1, 3), (3, 1)]
    exchanged = [Exchanged(mbit, 1e6, 0.1) for mbit in received_mbit]
    return list(zip(players, exchanged, strict=True))


def test_a_trunk_is_judged_by_its_best_round() -> None:
    narrow = cluster(2, 2, trunk_mbit=100.0)
    goodputs = trunk_goodputs(
        narrow.machines, narrow.trunks, [seen(40, 40, 40, 40), seen(47, 10, 48, 10)], 0.96
    )
    assert goodputs == pytest.approx({"rack-0": 95, "rack-1": 95})
    flattered = trunk_goodputs(narrow.machines, narrow.trunks, [seen(49, 49, 49, 49)], 0.96)
    assert flattered["rack-0"] == pytest.approx(96), "no larger share than that of links"
    # Machines that send no more than the trunk carries limit what can be received.
    wide = cluster(2, 2, trunk_mbit=1000.0)
    goodputs = trunk_goodputs(wide.machines, wide.trunks, [seen(190, 190, 190, 190)], 0.96)
    assert goodputs["rack-0"] == pytest.approx(950)


def test_trunks_far_below_their_rate_are_refused() -> None:
    of = cluster(2, 2, trunk_mbit=100.0)
    links = {machine.name: 190.0 for machine in of.machines}
    Links(links, links, 1.0, {"rack-0": 95.0, "rack-1": 95.0}).check(of.machines, of.trunks)
    with pytest.raises(Failure, match="trunks of 100 Mb/s carry only 60.0 Mb/s"):
        Links(links, links, 1.0, {"rack-0": 60.0, "rack-1": 60.0}).check(of.machines, of.trunks)


# --- the plans ---


def test_narrow_trunks_are_what_flat_trees_wait_for() -> None:
    size = 10**8
    of = cluster(2, 4)
    found = planned(of, size, trunk_mbit=190.0)
    once_s = size * 8e-6 / 190
    # The aggregate of a rack crosses its trunk once; flat trees cross it for each of its workers.
    assert found.trunk_bytes == pytest.approx(dict.fromkeys(("rack-0", "rack-1"), size), rel=1e-5)
    assert found.flat_trunk_bytes == pytest.approx(dict.fromkeys(("rack-0", "rack-1"), 4 * size))
    assert found.seconds == pytest.approx(1.75 * once_s, rel=1e-5)
    assert found.flat_seconds == pytest.approx(4 * once_s)
    # A ring whose ranks are in the order of racks crosses each trunk once.
    assert found.allreduce_seconds == pytest.approx(1.75 * once_s)
    halved = planned(of, size, trunk_mbit=95.0)
    assert halved.allreduce_seconds == pytest.approx(3.5 * once_s)
    assert halved.flat_seconds == pytest.approx(8 * once_s)


def test_trunks_that_are_no_limit_change_no_time() -> None:
    wide, size = cluster(2, 4, 1), 10**8
    found, without = planned(wide, size, 10_000.0), planned(Cluster(wide.gpu, wide.cpu), size, 0.0)
    assert found.seconds == found.flat_seconds == without.seconds == without.flat_seconds
    assert found.shares == without.shares and without.trunk_bytes == {}
    assert found.trunk_bytes == pytest.approx(found.flat_trunk_bytes)
    assert found.gain_over_allreduce == pytest.approx(without.gain_over_allreduce)


# --- a job's settings ---


def test_processes_get_the_rack_and_what_its_trunk_carries() -> None:
    machines, carried = cluster(2, 2).machines, {"rack-0": 0.19, "rack-1": 0.095}
    found = emulated.rack_settings(machines, carried)
    assert found["gpu-2"] == {"rack": "rack-1", "trunk_gbps": "0.095"}
    assert found["gpu-0"]["trunk_gbps"] == "0.19"
    assert emulated.rack_settings([Machine("gpu", 0, "", "", 200.0)], {}) == {}


# --- refusals ---


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"workers": [4, 5]}, "--workers 5: 2 racks have equally many"),
        ({"servers": [0, 1]}, "--servers 1: .* multiples of 2"),
        ({"workers": [2]}, "--workers 2 and --servers 0 a rack has one machine"),
    ],
)
def test_machines_that_do_not_fill_racks_are_refused(changes: dict, said: str) -> None:
    spec.check_racks(asked())
    spec.check_racks(asked(workers=[2], servers=[2]))
    with pytest.raises(UsageError, match=said):
        spec.check_racks(asked(**changes))


def test_flat_trees_are_no_peer_without_racks() -> None:
    both = asked(peers=("flat",))
    assert both.systems(both.loads[0], 0) == ("sumpter", "flat")
    with pytest.raises(UsageError, match="--peers flat: without --racks"):
        spec.check_racks(asked(racks=None, peers=("flat",)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--racks", "2"), "--racks and --trunk-mbit go together"),
        (("--trunk-mbit", "50"), "--racks and --trunk-mbit go together"),
        (("--racks", "2", "--trunk-mbit", "0"), "--trunk-mbit: 0 Mb/s is not within 1 to"),
        (("--racks", "2", "--trunk-mbit", "-5"), "--trunk-mbit: -5 Mb/s is not within 1 to"),
        (
            ("--racks", "1", "--trunk-mbit", "50"),
            "'--racks': Input should be greater than or equal to 2",
        ),
    ],
)
def test_bad_options_are_named_before_anything_is_built(
    options: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(namespaces, "check_tools", lambda: None)
    with pytest.raises(SystemExit):
        main(["bench", "emulate", "-n", "4", "-s", "0", *options])
    assert said in " ".join(capsys.readouterr().err.split())


def test_numbers_of_servers_by_default_fill_the_racks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(namespaces, "check_tools", lambda: None)
    given: list[spec.Spec] = []
    monkeypatch.setattr(bench, "_emulate", lambda asked, *_: given.append(asked) or [])
    for options in ((), ("--racks", "2", "--trunk-mbit", "200")):
        with pytest.raises(SystemExit) as ended:
            main(["bench", "emulate", *options])
        assert not ended.value.code
        spec.check_racks(given[-1])
    assert [asked.servers for asked in given] == [[0, 1, 2, 4], [0, 2, 4]]


# --- figures ---


def rounds() -> dict[str, list[emulated.Round]]:
    def one(seconds: float, sent: int, received: int) -> emulated.Round:
        crossed = {rack: LinkCounts(sent, received, 0) for rack in ("rack-0", "rack-1")}
        return emulated.Round(seconds, 1.0, 0.0, {}, NO_TICKS, crossed)

    return {"sumpter": [one(2.0, 400, 404), one(4.0, 404, 400)], "gloo": [one(1.0, 150, 150)]}


def test_a_row_sets_measured_bytes_beside_both_plans() -> None:
    carried = {"rack-0": 0.002, "rack-1": 0.002}
    expected = {name: dict.fromkeys(carried, value) for name, value in (("p", 100), ("f", 400))}
    times = Optimum(1.0, 1.5, None, 1.5, {}, 2.7, expected["p"], expected["f"])
    found = trunks.figures(Racks(2, 0.0021), rounds(), Links({}, {}, 1.0, carried), times)
    assert found["flat_optimum_fraction"] == pytest.approx(0.9)
    assert found["flat_seconds"] is found["gain_over_flat"] is None
    assert found["trunk_bytes"]["gloo"]["rack-1"] == {"sent": 150, "received": 150}
    assert found["trunk_bytes_mean"] == {"sumpter": 402, "gloo": 150}
    assert found["trunk_bytes_of_flat"] == pytest.approx(1.005)
    assert found["trunk_bytes_of_optimum"] == pytest.approx(4.02)
    # 804 of the 1,500 bytes that a trunk carries in six seconds.
    assert found["trunk_idle"]["rack-0"] == pytest.approx(1 - 804 / 1500)
    assert trunks.figures(None, rounds(), Links({}, {}, 1.0), times) == {}
    row = {"workers": 8, "servers": 0, "bytes": MIB, "model": None, "optimum_seconds": 1.0} | found
    (line,) = report._trunks(row)
    assert line == (
        "trunks of 2 racks at n=8, k=0, 1 MiB: 402 B each way, 1.005 of the bytes of flat trees, "
        "4.020 of those of the plan, gloo 150 B; by the plan flat trees take 2.700 times as long"
    )


def test_rows_with_racks_have_more_columns() -> None:
    row = {"workers": 4, "servers": 0, "bytes": MIB, "model": None, "racks": 2}
    row |= {"trunk_goodput_mbit": {"rack-0": 95.5}, "trunk_bytes_mean": {"sumpter": 4 * MIB}}
    columns = report.columns_of(row)
    assert len(head_line(columns)) == len(row_line(columns, row))
    assert row_line(columns, row).split()[-3:] == ["MiB", "-", "-"]
    assert report.columns_of({**row, "racks": None}) == report.COLUMNS


def test_a_report_tells_cells_of_different_trunks_apart(tmp_path: Path) -> None:
    row = {"workers": 8, "servers": 0, "bytes": MIB, "model": None, "seconds": 2.0}
    row |= {"optimum_seconds": 1.0, "optimum_fraction": 0.5, "link_goodput_mbit": 95.0}
    row |= dict.fromkeys(("gloo_seconds", "ps_seconds", "gain_over_gloo", "gain_optimum"))
    row |= {"link_idle": {}, "rate_mbit": 100.0, "racks": 2, "trunk_mbit": 100.0}
    table = tmp_path / "rows.csv"
    write_csv(table, [row, row | {"trunk_mbit": 200.0}, row | {"racks": None, "trunk_mbit": None}])
    kind, rows = schema.from_csv(table, table.read_text())
    assert kind == "emulate"
    assert list(shown._lines(rows)) == [
        "8 GPU machines, 1 MiB, 2 racks behind 100 Mb/s",
        "8 GPU machines, 1 MiB, 2 racks behind 200 Mb/s",
        "8 GPU machines, 1 MiB",
    ]


# --- a run ---


@pytest.mark.exclusive
def test_a_small_run_counts_the_bytes_over_trunks(tmp_path: Path) -> None:
    try:
        namespaces.check_tools()
    except Failure as failure:
        pytest.skip(f"cannot emulate a network here: {failure}")
    table = tmp_path / "rows.csv"
    # Rates that even a busy machine keeps.
    options = ("-n", "4", "-s", "0,2", "--rate-mbit", "40", "--racks", "2", "--trunk-mbit", "20")
    options += (
        "--bytes",
        "1MiB",
        "--rounds",
        "1",
        "--peers",
        "gloo,plain,flat",
        "--csv",
        str(table),
    )
    call = [sys.executable, "-m", "sumpter", "bench", "emulate", *options, "--json"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(call, stdout=pipe, stderr=pipe, text=True)
    try:
        out, err = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    if "too busy to emulate" in err:
        pytest.skip(err.strip().splitlines()[-1])
    assert process.returncode == 0, err
    assert not namespaces.of_run(f"{namespaces.PREFIX}-{process.pid}-")
    rows = json.loads(out)
    assert [(row["workers"], row["servers"]) for row in rows] == [(4, 0), (4, 2)]
    for row in rows:
        assert (row["racks"], row["trunk_mbit"]) == (2, 20.0)
        assert all(0 < mbit < 0.97 * 20 for mbit in row["trunk_goodput_mbit"].values())
        assert row["trunk_bytes_flat"] == pytest.approx({"rack-0": 2 * MIB, "rack-1": 2 * MIB})
        assert row["optimum_seconds"] <= row["flat_optimum_seconds"] * (1 + 1e-6)
        assert row["gain_over_flat"] == row["flat_seconds"] / row["seconds"]
        crossed = row["trunk_bytes_mean"]
        # The sockets move what flat trees do, a ring 2(n-1)/n of the tensor; headers are counted.
        assert 2 * MIB <= crossed["plain"] < 2.1 * MIB
        assert 2 * MIB <= crossed["flat"] < 2.1 * MIB
        assert 1.5 * MIB <= crossed["gloo"] < 1.6 * MIB
        (least,) = set(map(round, row["trunk_bytes_optimum"].values()))
        assert least <= crossed["sumpter"] < 1.1 * 2 * MIB
        for sent in row["trunk_bytes"]["sumpter"].values():
            assert sent["sent"] == pytest.approx(sent["received"], rel=0.05)
        # What a trunk lets through at once is a small part of it.
        assert row["plain_seconds"] > 0.9 * 2 * MIB * 8e-6 / 20
    with table.open(newline="") as stream:
        (first, _) = csv.DictReader(stream)
    assert json.loads(first["trunk_bytes_flat"]) == rows[0]["trunk_bytes_flat"]
