"""Finds the device group of this rank, with `device_group=auto`, from the machine's topology.

It must be known before the rank joins the job. The GPU is the current one of CUDA if the script has
chosen one already, else the only visible one, else that with the number of the local rank.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping

import torch

from sumpter import _native
from sumpter._core import session
from sumpter._environment import own_variable
from sumpter.topology import read_topology
from sumpter.topology.groups import DeviceGroup, device_group

_log = logging.getLogger("sumpter")


def find(given: Mapping[str, str]) -> dict[str, str]:
    """The settings `device_group` and `device_shards` for the GPU of this rank.

    Where it cannot be told, a warning says why, and the rank is a group of one.
    """
    address, why = _address(given)
    group = device_group(read_topology(), address) if address else DeviceGroup("", why=why)
    # As the core tells machines apart: two may have one host name.
    name, machine = group.name, _setting(given, "machine") or _native.machine_id()
    if not name:
        _log.warning(
            "device_group=auto: this rank's GPU reduces with no other: %s (give device_group a "
            "name to group ranks by hand)",
            group.why,
        )
        # Other ranks have groups perhaps: all must declare tensors alike.
        name = f"alone-{secrets.token_hex(4)}"
    return {"device_group": f"{machine}/{name}", "device_shards": str(group.shards).lower()}


def _address(given: Mapping[str, str]) -> tuple[str, str]:
    """The PCI address of this rank's GPU, or "" and why it is not known."""
    count = torch.cuda.device_count()
    if not count:
        return "", "no GPU is visible"
    index = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    if not index and count > 1:
        index = int(_setting(given, "local_rank") or "0")
    if index >= count:
        return "", f"the local rank is {index}, and {count} GPUs are visible"
    properties = torch.cuda.get_device_properties(index)
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if None in numbers:
        return "", "this torch does not tell the PCI address of a GPU"
    domain, bus, device = numbers
    return f"{domain:04x}:{bus:02x}:{device:02x}.0", ""


def _setting(given: Mapping[str, str], name: str) -> str:
    return given.get(name) or own_variable(name)


def install() -> None:
    """Lets sessions ask for it."""
    if find not in session.group_finders:
        session.group_finders.append(find)
