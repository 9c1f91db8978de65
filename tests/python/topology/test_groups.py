"""Which group `device_group=auto` finds for each GPU of a machine."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import sumpter.torch  # noqa: F401 - finds groups
from recorded_machines import topology
from sumpter import ConfigError, _native
from sumpter._core import session
from sumpter.topology import Topology
from sumpter.topology.groups import device_group
from sumpter.torch import device_places


def groups(found: Topology) -> list[tuple[str, bool]]:
    names = sorted(found.names().items(), key=lambda each: each[0])
    gpus = {name for switch in found.facts.switches for name in switch.gpus}
    made = [device_group(found, address) for address, name in names if name in gpus]
    return [(group.name, group.shards) for group in made]


def test_gpus_of_a_switch_without_nvlink_are_a_group(tmp_path: Path) -> None:
    found = topology("pcie", tmp_path)
    assert found.facts.rule == "cpu-assisted"
    expected = [
        (f"switch-{switch.address}", True) for switch in found.facts.switches for _ in switch.gpus
    ]
    assert groups(found) == expected
    assert len(set(expected)) > 1


def test_gpus_with_nvlink_are_one_and_all_hold_shards(tmp_path: Path) -> None:
    found = topology("hgx_h100", tmp_path)
    assert found.facts.rule == "reduce-scatter"
    assert groups(found) == [("nvlink", True)] * 8


def test_gpus_beside_a_nic_hold_none_if_others_are_not(tmp_path: Path) -> None:
    found = topology("hgx_h100", tmp_path)
    one, *others = (each for each in found.facts.switches if each.gpus)
    bare = [SimpleNamespace(address=e.address, gpus=e.gpus, nics=()) for e in others]
    facts = SimpleNamespace(rule="reduce-broadcast", switches=[one, *bare], why="")
    found = SimpleNamespace(facts=facts, names=found.names)
    assert groups(found) == [("nvlink", False)] + [("nvlink", True)] * 7


def test_a_machine_that_hides_its_tree_has_none(tmp_path: Path) -> None:
    found = topology("cloud_vm", tmp_path)
    group = device_group(found, next(iter(found.names())))
    assert (group.name, group.why) == ("", found.facts.why)
    assert group.why


class Gpus:
    """A machine's GPUs as torch.cuda shows them."""

    def __init__(self, *addresses: str, chosen: int | None = None) -> None:
        self._addresses = addresses
        self.device_count = lambda: len(addresses)
        self.is_initialized = lambda: chosen is not None
        self.current_device = lambda: chosen

    def get_device_properties(self, index: int) -> SimpleNamespace:
        domain, bus, rest = self._addresses[index].split(":")
        numbers = (int(each, 16) for each in (domain, bus, rest.split(".")[0]))
        return SimpleNamespace(**dict(zip(NUMBERS, numbers, strict=True)))


NUMBERS = ("pci_domain_id", "pci_bus_id", "pci_device_id")


def find(
    monkeypatch: pytest.MonkeyPatch, folder: Path, machine: str, local_rank: int, gpus: Gpus
) -> dict[str, str]:
    monkeypatch.setattr(torch, "cuda", gpus)
    where = folder / f"{local_rank}.{gpus.device_count()}"
    where.mkdir()
    monkeypatch.setattr(device_places, "read_topology", lambda: topology(machine, where))
    given = {"device_group": "auto", "machine": "m", "local_rank": str(local_rank)}
    return session._find_device_group(given)


def test_a_rank_finds_the_group_of_its_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = topology("pcie", tmp_path)
    gpus_of = {name for switch in found.facts.switches for name in switch.gpus}
    addresses = sorted(address for address, name in found.names().items() if name in gpus_of)
    names = [device_group(found, address).name for address in addresses]
    for local_rank in (0, len(names) - 1):
        gpus = Gpus(*addresses)
        chosen = find(monkeypatch, tmp_path, "pcie", local_rank, gpus)
        assert chosen == {"device_group": f"m/{names[local_rank]}", "device_shards": "true"}
    # One that the launcher shows alone, and one that the script has chosen.
    last = f"m/{names[-1]}"
    one, choice = Gpus(addresses[-1]), Gpus(*addresses, chosen=len(names) - 1)
    assert find(monkeypatch, tmp_path, "pcie", 0, one)["device_group"] == last
    assert find(monkeypatch, tmp_path, "pcie", 1, choice)["device_group"] == last
    assert not caplog.text


def test_machines_of_one_host_name_have_groups_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = topology("pcie", tmp_path)
    gpus_of = {name for switch in found.facts.switches for name in switch.gpus}
    address = next(address for address, name in found.names().items() if name in gpus_of)
    monkeypatch.setattr(torch, "cuda", Gpus(address))
    monkeypatch.setattr(device_places, "read_topology", lambda: found)
    group = session._find_device_group({"device_group": "auto"})["device_group"]
    assert group == f"{_native.machine_id()}/{device_group(found, address).name}"


def test_a_rank_that_cannot_tell_is_alone_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = next(iter(topology("cloud_vm", tmp_path).names()))
    with caplog.at_level(logging.WARNING):
        alone = [
            find(monkeypatch, tmp_path, "cloud_vm", 0, Gpus(address)),
            find(monkeypatch, tmp_path, "cloud_vm", 2, Gpus(address, address)),
            find(monkeypatch, tmp_path, "cloud_vm", 0, Gpus()),
        ]
    assert len({each["device_group"] for each in alone}) == 3
    assert all(each["device_group"].startswith("m/alone-") for each in alone)
    for why in ("it is not known", "the local rank is 2, and 2 GPUs", "no GPU is visible"):
        assert why in caplog.text


def test_a_name_is_taken_as_it_is_and_auto_needs_a_front(monkeypatch: pytest.MonkeyPatch) -> None:
    assert session._find_device_group({"device_group": "m/0"}) == {}
    monkeypatch.setattr(session, "group_finders", [])
    with pytest.raises(ConfigError, match="import sumpter.torch before"):
        session._find_device_group({"device_group": "auto"})
