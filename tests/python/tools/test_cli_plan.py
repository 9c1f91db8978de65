"""`sumpter plan` for racks, interfaces, devices, the time of computing and prices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sumpter.cli import main

CLUSTERS = Path(__file__).resolve().parents[3] / "examples" / "clusters"


class Command:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_info:
            main(["plan", *arguments])
        captured = self._capsys.readouterr()
        return int(exit_info.value.code or 0), captured.out, captured.err


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("COLUMNS", "200")
    return Command(capsys)


def of_json(plan: Command, *arguments: str) -> dict:
    code, out, err = plan(*arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_racks_show_trees_trunks_interfaces_and_the_papers_decision(plan: Command) -> None:
    listed = ("--machines", str(CLUSTERS / "racks.toml"))
    report = of_json(plan, *listed)
    assert report["trees"]["parts"][-1]["shape"] == "rack hubs, sharded exchange"
    assert [rack["name"] for rack in report["trees"]["racks"]] == ["rack-1", "rack-2"]
    code, out, _ = plan(*listed)
    assert code == 0
    expected = (
        "rack-1/trainer-1 and 7 like it (gpu)",
        "eth1, NUMA node 1",
        "4:1",
        "rack hubs, ring",
    )
    for text in (*expected, "as printed, sharded", "N exchanged, ring"):
        assert text in out, text


def test_a_thousand_machines_are_shown_by_kind(plan: Command) -> None:
    listed = ("--machines", str(CLUSTERS / "large.toml"))
    report = of_json(plan, *listed)
    assert (report["workers"], report["servers"]) == (960, 64)
    assert sum(machine["share"] for machine in report["machines"]) == pytest.approx(1)
    assert report["trees"]["core_bytes"] > 0
    _, out, _ = plan(*listed)
    assert "rack-1/trainer-1 and 959 like it (gpu)" in out
    assert "rack-1 and 31 like it" in out
    assert len(out.splitlines()) < 40


def test_devices_show_the_links_inside_a_machine(plan: Command) -> None:
    listed = ("--machines", str(CLUSTERS / "devices.toml"))
    (inside,) = of_json(plan, *listed)["inside"]
    assert (inside["machine"], inside["count"]) == ("trainer-1", 4)
    assert inside["report"]["reduction"] == "cpu-assisted"
    assert {link["device"] for link in inside["report"]["links"]} >= {"switch-a", "mlx0", "cpu-b"}
    _, out, _ = plan(*listed)
    assert "reduce-scatter below each switch, then the CPU adds" in out
    assert "gpu-a-1 to gpu-a-4 - switch-a" in out


def test_the_time_of_computing_gives_the_bandwidth_of_table_2(plan: Command) -> None:
    arguments = ("-n", "8", "--bytes", "1100000000", "--compute-s", "0.1")
    found = of_json(plan, *arguments)["minimum_bandwidth"]
    assert [round(gbps) for gbps in found.values()] == [1232, 308, 1408, 176]
    _, out, _ = plan(*arguments)
    assert "1408 Gb/s" in out and "704 Gb/s" in out


def test_prices_compare_what_else_could_be_bought(plan: Command) -> None:
    arguments = ("-n", "8", "--bandwidth-gbps", "25", "--compute-s", "0.1")
    prices = ("--prices", str(CLUSTERS / "prices.toml"))
    offers = of_json(plan, *arguments, *prices)["offers"]
    assert [offer["change"] for offer in offers][-1] == "links of 100 Gb/s"
    assert all(offer["price_as_printed"] > offer["price"] for offer in offers)
    _, out, _ = plan(*arguments, *prices)
    assert "gained per 1000 more" in out and "1 more GPU machine" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[rack]]\nname = 'a'\ntrunk_gbps = 1\n", 'machines of rack "a" is 0'),
        (
            "[[machine]]\nrole = 'gpu'\nnics = [{ name = 'eth0' }]\n",
            'machine 1 ("machine-1"): nic 1 ("eth0"): gbps is missing',
        ),
        (
            "[[machine]]\nrole = 'gpu'\nbandwidth_gbps = 9\nnics = [{ gbps = 10 }]\n",
            "bandwidth_gbps is 9; expected 10, the sum of its nics",
        ),
        ("[[rack]]\ntrunk = 1\n", "unknown field `trunk`"),
        (
            "[[machine]]\nrole = 'gpu'\nnics = [{ gbps = 1, device = 's' }]\n"
            "devices = [{ name = 's', kind = 'switch', parent = 's', gbps = 1 }]\n",
            "devices is a cycle, s -> s",
        ),
    ],
)
def test_a_bad_list_is_an_error_that_names_the_place(
    plan: Command, tmp_path: Path, text: str, said: str
) -> None:
    listed = tmp_path / "machines.toml"
    listed.write_text(text)
    code, out, err = plan("--machines", str(listed))
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and said in err


def test_prices_need_the_time_of_computing(plan: Command) -> None:
    code, _, err = plan("-n", "4", "--prices", str(CLUSTERS / "prices.toml"))
    assert code == 2 and "--prices needs --compute-s" in err


@pytest.mark.parametrize("columns", ["40", "80"])
def test_tables_are_whole_where_the_output_is_no_terminal(
    plan: Command, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    arguments = ("-n", "8", "--bandwidth-gbps", "25", "--compute-s", "0.1")
    prices = ("--prices", str(CLUSTERS / "prices.toml"))
    listed = ("--machines", str(CLUSTERS / "racks.toml"))
    for given in ((*arguments, *prices), listed):
        monkeypatch.setenv("COLUMNS", "200")
        _, whole, _ = plan(*given)
        monkeypatch.setenv("COLUMNS", columns)
        _, out, _ = plan(*given)
        assert "…" not in out
        assert out == whole


def test_a_job_s_trees_are_shown_beside_the_plan(plan: Command) -> None:
    listed = ("--machines", str(CLUSTERS / "racks.toml"))
    report = of_json(plan, *listed)
    job = report["trees"]["job"]
    assert job["shape"] == "rack hubs, sharded exchange"
    assert job["time_s"] > report["time_s"]
    _, out, _ = plan(*listed)
    assert "a job: rack hubs, sharded exchange" in out
    assert "all-reduce, a ring from rack to rack" in out
