"""How many GPUs there are for the processes of this machine, found out in milliseconds."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

from sumpter.topology.devices import AMD, GPU, NVIDIA, kind_of
from sumpter.topology.sysfs import Sysfs

# The files by which a process opens a vendor's GPUs. A container that was given some of the host's
# GPUs, or none, has only theirs, while its sysfs shows all of them.
_FILES = {NVIDIA: ("", r"nvidia\d+"), AMD: ("dri", r"renderD\d+")}


def count_gpus(sysfs: Sysfs | None = None, files: str | os.PathLike[str] = "/dev") -> int:
    """The number of GPUs of NVIDIA or of AMD that processes can open, whichever are more.

    A framework numbers those of one vendor. `files` is the folder of the devices' files.
    """
    found: Counter[int] = Counter()
    reader = Sysfs() if sysfs is None else sysfs
    for address in reader.names("bus/pci/devices", "PCI devices"):
        path = f"bus/pci/devices/{address}"
        number = reader.integer(f"{path}/class", f"class of {address}", 16)
        vendor = reader.integer(f"{path}/vendor", f"vendor id of {address}", 16)
        # A virtual function is another machine's.
        if number is None or vendor not in _FILES or reader.exists(f"{path}/physfn"):
            continue
        if kind_of(number >> 8, vendor, on_root_bus=True) == GPU:
            found[vendor] += 1
    return max((min(count, _files_of(vendor, files)) for vendor, count in found.items()), default=0)


def _files_of(vendor: int, files: str | os.PathLike[str]) -> int:
    folder, pattern = _FILES[vendor]
    try:
        names = os.listdir(Path(files) / folder)
    except OSError:
        return 0
    return sum(re.fullmatch(pattern, name) is not None for name in names)
