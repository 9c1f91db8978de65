"""NVLink from NVML, and which rule of local reduction a machine gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recorded_machines import FakeNvml, expand, load, report, topology
from sumpter.topology import NvLink, Topology, nvlink, read_nvlink, read_topology

PORT = "060400 8086:6f04"
PLX = "060400 10b5:8764"
GPU = "030200 10de:1db5 8x16"
NIC = "020000 15b3:1017 8x16"
GPUS = ["0000:03:00.0", "0000:04:00.0", "0000:08:00.0", "0000:09:00.0"]
RING = ["0 1 1", "1 2 1", "2 3 1", "3 0 1"]


def nvml(*pairs: str, gpus: list[str] = GPUS) -> NvLink:
    return read_nvlink(FakeNvml({"name": "V100", "gpus": gpus, "direct": list(pairs)}))


def two_switches(root: Path, links: NvLink, *below: tuple[int, str]) -> Topology:
    """Two switches with two GPUs each, and further devices below the first, second or none."""
    lines = ["host 0000:00 numa 0"]
    for number, base in ((0, 1), (1, 6)):
        lines += [f" 00:0{number + 1}.0 {PORT}", f"  0{base}:00.0 {PLX} 8x16"]
        cards = [GPU, GPU, *(line for where, line in below if where == number)]
        for slot, card in enumerate(cards):
            lines += [f"   0{base + 1}:0{slot}.0 {PLX}", f"    {base + 2 + slot:02x}:00.0 {card}"]
    for number, (_, line) in enumerate(one for one in below if one[0] < 0):
        lines += [f" 00:1{number}.0 {PORT}", f"  1{number}:00.0 {line}"]
    return read_topology(expand({"pci": "\n".join(lines)}, root), links)


# NVLink, where there are NICs (-1 is a root port), and the rule.
@pytest.mark.parametrize(
    ("pairs", "nics", "with_nic", "without_nic", "rule"),
    [
        (RING, (0,), 1, 1, "reduce-broadcast"),
        (RING, (0, 1), 2, 0, "reduce-scatter"),
        (RING, (), 0, 2, "reduce-scatter"),
        (RING, (-1,), 0, 2, "reduce-scatter"),
        (RING[:3], (0,), 1, 1, "reduce-broadcast"),
        ((), (0,), 1, 1, "cpu-assisted"),
        ((), (0, 1), 2, 0, "cpu-assisted"),
        ((), (-1,), 0, 2, "cpu-assisted"),
        (("0 1 2", "2 3 2"), (0,), 1, 1, "cpu-assisted"),
        (("0 1 2",), (), 0, 2, "cpu-assisted"),
    ],
)
def test_the_rule_follows_from_nvlink_and_the_switches_of_nics(
    tmp_path: Path,
    pairs: tuple[str, ...],
    nics: tuple[int, ...],
    with_nic: int,
    without_nic: int,
    rule: str,
) -> None:
    facts = two_switches(tmp_path, nvml(*pairs), *((where, NIC) for where in nics)).facts
    assert (facts.with_nic, facts.without_nic) == (with_nic, without_nic)
    assert facts.shares_switch == (with_nic > 0)
    assert facts.gpus_per_switch == (2, 2)
    assert (facts.rule, facts.why) == (rule, "")


def test_there_is_no_rule_without_nvml_or_for_gpus_that_it_does_not_see(tmp_path: Path) -> None:
    facts = two_switches(tmp_path / "a", read_nvlink(None), (0, NIC)).facts
    assert (facts.nvlink, facts.rule) == (None, None)
    assert "NVLink" in facts.why
    facts = two_switches(tmp_path / "b", nvml(gpus=GPUS[:3]), (0, NIC)).facts
    assert (facts.nvlink, facts.rule) == (None, None)


def test_gpus_that_only_nvml_sees_are_counted_and_have_no_place(tmp_path: Path) -> None:
    found = two_switches(tmp_path, nvml(*RING, gpus=[*GPUS, "0000:99:00.0"]), (0, NIC))
    assert found.facts.gpus == 5
    assert not found.facts.placed and found.facts.rule is None
    assert "0000:99:00.0" in report(found)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (("01:00.0 030200 10de:1db5",), "no port"),
        (("00:1e.0 060400 1b36:000c", " 01:00.0 030200 10de:1db5"), "emulates"),
        (("00:1e.0 060400 15ad:07a0", " 01:00.0 030200 10de:1db5"), "emulates"),
    ],
)
def test_a_place_that_a_hypervisor_made_up_is_not_believed(
    tmp_path: Path, lines: tuple[str, ...], why: str
) -> None:
    pci = "\n".join(["host 0000:00 numa 0", *(f" {line}" for line in lines)])
    found = read_topology(expand({"pci": pci}, tmp_path), read_nvlink(None))
    (unknown,) = [each for each in found.unknown if each.what == "PCIe switch above 0000:01:00.0"]
    assert why in unknown.why
    assert found.facts.shares_switch is None and found.facts.with_nic is None


def test_a_nic_of_the_chipset_is_below_no_switch(tmp_path: Path) -> None:
    pci = f"host 0000:00 numa 0\n 00:01.0 {PORT}\n  01:00.0 {GPU}\n 00:1f.6 020000 8086:15b8"
    facts = read_topology(expand({"pci": pci}, tmp_path), read_nvlink(None)).facts
    assert facts.placed and facts.shares_switch is False
    assert facts.gpus_without_switch == 1
    assert facts.why == "there is only one GPU"


def test_a_gpu_with_a_root_port_of_its_own_shares_its_link_with_no_nic(tmp_path: Path) -> None:
    links = nvml(*RING, "0 4 1", gpus=[*GPUS, "0000:10:00.0"])
    facts = two_switches(tmp_path / "one", links, (0, NIC), (1, NIC), (-1, GPU)).facts
    assert (facts.nvlink, facts.gpus_without_switch, facts.with_nic) == ("all", 1, 2)
    assert facts.rule == "reduce-broadcast"
    facts = two_switches(tmp_path / "none", links, (-1, GPU), (-1, NIC)).facts
    assert (facts.gpus_without_switch, facts.with_nic) == (1, 0)
    assert facts.rule == "reduce-scatter"


def test_the_links_of_a_cube_mesh_are_those_of_both_ends(tmp_path: Path) -> None:
    recorded = load("dgx1")["nvml"]
    found = topology("dgx1", tmp_path).nvlink
    for number, gpu in enumerate(recorded["gpus"]):
        assert sum(found.between(gpu, other) for other in recorded["gpus"]) == 6
        assert found.gpus[number].links == 6
    assert found.between(recorded["gpus"][0], recorded["gpus"][4]) == 2
    assert found.between(recorded["gpus"][0], recorded["gpus"][5]) == 0
    assert found.islands() == [set(recorded["gpus"])]
    assert found.gpus[0].gigabytes_per_s == 25.781


def test_gpus_on_nvswitches_reach_those_that_the_driver_allows() -> None:
    library = FakeNvml(load("hgx_h100")["nvml"])
    # A virtual machine in a partition of four: the switches' addresses are hidden from it.
    library.links = [["ffff:ff:ff.0"] * 18 for _ in library.gpus]
    halves = [range(4), range(4, 8)]
    library.hidden = {frozenset((one, other)) for one in halves[0] for other in halves[1]}
    found = read_nvlink(library)
    assert [len(island) for island in found.islands()] == [4, 4]
    assert found.between(library.gpus[0], library.gpus[3]) == 18
    assert found.between(library.gpus[0], library.gpus[4]) == 0
    assert library.running == 0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("nvmlInit", "does not start: NVML error 9"),
        ("nvmlDeviceGetCount", "fails: NVML error 9"),
        ("nvmlDeviceGetNvLinkState", "fails: NVML error 9"),
    ],
)
def test_an_nvml_that_fails_leaves_nvlink_unknown(tmp_path: Path, call: str, said: str) -> None:
    library = FakeNvml(load("dgx1")["nvml"])
    library.failing[call] = library.NVML_ERROR_DRIVER_NOT_LOADED
    links = read_nvlink(library)
    assert library.running == 0
    assert said in links.unknown
    found = read_topology(expand(load("dgx1"), tmp_path), links)
    assert found.facts.rule is None
    assert said in " ".join(report(found).split())


def test_a_binding_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml(load("hgx_h100")["nvml"])
    monkeypatch.delattr(FakeNvml, "nvmlDeviceGetP2PStatus")
    assert "nvmlDeviceGetP2PStatus: install a newer one" in read_nvlink(library).unknown
    assert library.running == 0


def test_a_missing_binding_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(nvlink.importlib, "import_module", absent)
    assert "nvidia-ml-py" in read_nvlink(nvlink.load_nvml()).unknown
