"""NVLink from NVML, by the package nvidia-ml-py where it is installed.

A link leads to a GPU or to an NVSwitch. Two GPUs reach each other through NVSwitches if both have
links to some and the driver says that they can (nvmlDeviceGetP2PStatus), which in a virtual machine
depends on the partition that the host gave it.
"""

from __future__ import annotations

import importlib
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

_MODULE = "pynvml"


@dataclass(frozen=True)
class NvmlGpu:
    """A GPU as NVML sees it. `gigabytes_per_s` is one link's rate each way, None if unknown;
    `links` counts the active ones."""

    index: int
    address: str
    name: str
    links: int
    gigabytes_per_s: float | None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class Pair:
    """Two GPUs, by address, with NVLink between them: `links` of them, direct or by NVSwitch."""

    one: str
    other: str
    links: int
    through_switch: bool

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class NvLink:
    """What NVML tells; `unknown` says why it tells nothing or not all, and is empty otherwise."""

    gpus: tuple[NvmlGpu, ...] = ()
    pairs: tuple[Pair, ...] = ()
    unknown: str = ""

    def between(self, one: str, other: str) -> int:
        """How many links two GPUs have between them."""
        ends = {one, other}
        return sum(pair.links for pair in self.pairs if {pair.one, pair.other} == ends)

    def islands(self) -> list[set[str]]:
        """GPUs, by address, that reach each other over NVLink, perhaps through other GPUs."""
        islands = [{gpu.address} for gpu in self.gpus]
        for pair in self.pairs:
            joined = [each for each in islands if each & {pair.one, pair.other}]
            islands = [each for each in islands if each not in joined] + [set().union(*joined)]
        return islands

    def as_dict(self) -> dict[str, object]:
        return {
            "gpus": [gpu.as_dict() for gpu in self.gpus],
            "pairs": [pair.as_dict() for pair in self.pairs],
            "unknown": self.unknown or None,
        }


def load_nvml() -> ModuleType | None:
    """The binding to NVML; None if it is not installed."""
    try:
        return importlib.import_module(_MODULE)
    except ImportError:
        return None


def read_nvlink(nvml: Any) -> NvLink:
    """The links of all GPUs; `nvml` is what `load_nvml` returns."""
    if nvml is None:
        return NvLink(unknown="nvidia-ml-py is not installed (pip install nvidia-ml-py)")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as failure:
        return NvLink(unknown=f"NVML does not start: {failure}")
    try:
        return _read(nvml)
    except nvml.NVMLError as failure:
        return NvLink(unknown=f"NVML fails: {failure}")
    except AttributeError as missing:
        why = f"nvidia-ml-py has no {missing.name}: install a newer one"
        return NvLink(unknown=why)
    finally:
        nvml.nvmlShutdown()


def _read(nvml: Any) -> NvLink:
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    addresses = [_address(nvml.nvmlDeviceGetPciInfo(handle)) for handle in handles]
    direct: dict[tuple[str, str], int] = {}
    to_switch: dict[str, int] = {}
    gpus = []
    for index, (handle, address) in enumerate(zip(handles, addresses, strict=True)):
        active = [n for n in range(nvml.NVML_NVLINK_MAX_LINKS) if _is_active(nvml, handle, n)]
        for number in active:
            remote = _address(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, number))
            if remote in addresses:
                direct[address, remote] = direct.get((address, remote), 0) + 1
            elif _leads_to_switch(nvml, handle, number):
                to_switch[address] = to_switch.get(address, 0) + 1
        speed = _link_speed(nvml, handle) if active else None
        gpus.append(
            NvmlGpu(index, address, _text(nvml.nvmlDeviceGetName(handle)), len(active), speed)
        )
    pairs = []
    for i, one in enumerate(addresses):
        for j, other in enumerate(addresses[i + 1 :], i + 1):
            # Both ends count the same links; one of them may hide the other's address.
            links = max(direct.get((one, other), 0), direct.get((other, one), 0))
            if links:
                pairs.append(Pair(one, other, links, False))
            elif one in to_switch and other in to_switch and _reaches(nvml, handles[i], handles[j]):
                pairs.append(Pair(one, other, min(to_switch[one], to_switch[other]), True))
    return NvLink(tuple(gpus), tuple(pairs))


def _is_active(nvml: Any, handle: Any, number: int) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetNvLinkState(handle, number))
    except nvml.NVMLError as failure:
        # A GPU without NVLink, or with fewer links.
        if failure.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_INVALID_ARGUMENT):
            return False
        raise


def _leads_to_switch(nvml: Any, handle: Any, number: int) -> bool:
    kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, number)
    return kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH


def _reaches(nvml: Any, one: Any, other: Any) -> bool:
    status = nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    return status == nvml.NVML_P2P_STATUS_OK


def _link_speed(nvml: Any, handle: Any) -> float | None:
    """One link's rate in GB/s each way, as the driver states it."""
    (field,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON])
    return field.value.uiVal / 1000 if field.nvmlReturn == 0 and field.value.uiVal else None


def _address(info: Any) -> str:
    """NVML's 00000000:06:00.0 as sysfs writes it."""
    domain, _, rest = _text(info.busId).lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
