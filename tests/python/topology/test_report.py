"""`sumpter doctor --topology` on recorded machines, and the command on this one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from documents import ROOT
from recorded_machines import FOLDER, MACHINES, load, report, topology, write
from sumpter.cli import main
from sumpter.topology import read_nvlink, read_topology


@pytest.mark.parametrize("name", MACHINES)
def test_the_report_of_a_machine_is_the_recorded_one(name: str, tmp_path: Path) -> None:
    assert report(topology(name, tmp_path)) == (FOLDER / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", MACHINES)
def test_a_report_fits_into_80_columns(name: str, tmp_path: Path) -> None:
    lines = report(topology(name, tmp_path)).splitlines()
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", ["dgx1", "cloud_vm"])
def test_the_guide_shows_what_is_printed(name: str) -> None:
    page = ROOT / "docs" / "user" / "doctor.md"
    assert (FOLDER / f"{name}.txt").read_text() in page.read_text()


def flat(devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for each in devices for one in [each, *flat(each.get("children", []))]]


@pytest.mark.parametrize("name", MACHINES)
def test_the_json_has_every_device_of_interest_once(name: str, tmp_path: Path) -> None:
    found = json.loads(json.dumps(topology(name, tmp_path).as_dict(), allow_nan=False))
    devices = flat([one for bridge in found["host_bridges"] for one in bridge["children"]])
    addresses = [each["address"] for each in devices]
    assert len(addresses) == len(set(addresses))
    gpus = [each["address"] for each in devices if each["kind"] == "gpu"]
    assert len(gpus) == found["facts"]["gpus"]
    recorded = load(name).get("nvml", {}).get("gpus", gpus)
    assert gpus == recorded
    assert [each["name"] for each in devices if each["kind"] == "gpu"] == [
        f"GPU{number}" for number in range(len(gpus))
    ]


def test_the_json_has_links_nodes_and_domains(tmp_path: Path) -> None:
    found = topology("pcie", tmp_path).as_dict()
    bridges: Any = found["host_bridges"]
    assert [(each["domain"], each["numa_node"]) for each in bridges] == [(0, 0), (0, 0), (0, 1)]
    devices = {each["address"]: each for bridge in bridges for each in flat(bridge["children"])}
    full = {
        "generation": 3,
        "gigatransfers_per_s": 8.0,
        "lanes": 16,
        "gigabytes_per_s": 15.754,
    }
    assert devices["0000:1a:00.0"]["link"] == {"current": full, "highest": full, "reduced": False}
    assert devices["0000:1f:00.0"]["link"]["current"]["gigabytes_per_s"] == 4.0
    assert devices["0000:1f:00.0"]["link"]["reduced"]
    # The slot has 8 lanes and the device 16.
    assert devices["0000:8b:00.0"]["link"]["highest"]["lanes"] == 8
    nic = devices["0000:20:00.0"]
    assert nic["virtual_functions"] == 2
    assert [each["name"] for each in nic["interfaces"]] == ["ens5f0"]
    assert nic["rdma"][0]["layer"] == "Ethernet"
    assert "0000:20:00.1" not in devices


def test_a_machine_without_anything_is_unknown_throughout(tmp_path: Path) -> None:
    found = read_topology(tmp_path / "nothing", read_nvlink(None))
    assert found.facts.rule is None
    paths = {each.path for each in found.unknown}
    for path in ("bus/pci/devices", "class/net", "devices/system/node"):
        assert str(tmp_path / "nothing" / path) in paths
    text = report(found)
    assert "no GPU is seen" in text
    # The paths may be long enough to wrap it.
    assert "no such file or directory" in " ".join(text.split())


def test_names_are_printed_as_they_are(tmp_path: Path) -> None:
    """Brackets and colons are no markup of the terminal."""
    write(tmp_path, "class/net/[red]:ab:/device/")
    write(tmp_path, "class/net/[red]:ab:/speed", "1000")
    text = report(read_topology(tmp_path, read_nvlink(None)))
    assert "interface [red]:ab:" in text


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_info:
        main(["doctor", "--topology", *arguments])
    output = capsys.readouterr()
    return int(exit_info.value.code or 0), output.out, output.err


def test_the_command_shows_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, text, _ = run(capsys)
    assert code == 0
    assert "\x1b" not in text
    for title in ("NUMA nodes", "PCIe", "Local reduction"):
        assert title in text.splitlines()
    code, document, _ = run(capsys, "--json")
    assert code == 0
    found = json.loads(document)
    assert found["sysfs"] == "/sys"
    for node in found["numa_nodes"]:
        path = Path(f"/sys/devices/system/node/node{node['number']}/cpulist")
        assert node["cores"] is None or node["cores"] == path.read_text().strip()
    for each in found["unknown"]:
        assert each["path"].startswith("/sys/") and each["why"]


def test_the_tree_and_a_coordinator_exclude_each_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, error = run(capsys, "--coordinator", "10.0.0.1:7700")
    assert code == 2
    assert "--topology and --coordinator" in error
