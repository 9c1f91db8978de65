"""Placed writes (RDMA) by libfabric: what is there, what a job takes, and why it falls back."""

from __future__ import annotations

import re

from sumpter.doctor.finding import Finding, error, note, ok
from sumpter.doctor.probe import RDMA_DEVICES, Probe

_CHECK = "placed writes"


def check_fabric(probe: Probe) -> list[Finding]:
    """Which of libfabric's networks a job takes with these settings, beside those it has; and
    whether one could take the memory of this machine's GPUs, if there are any."""
    findings = _networks(probe)
    if any(re.fullmatch(r"nvidia\d+|kfd", name) for name in probe.entries("/dev")):
        names = ", ".join(probe.device_memory_networks()) or "none"
        text = f"libfabric's providers that register GPU memory (FI_HMEM): {names}; Sumpter places "
        findings.append(ok("GPU memory", text + "host memory, through which gradients are staged"))
    return findings


def _networks(probe: Probe) -> list[Finding]:
    """Which network a job takes."""
    setting = probe.environment.get("SUMPTER_FABRIC", "auto").strip()
    provider = probe.environment.get("SUMPTER_FABRIC_PROVIDER") or None
    device = probe.environment.get("SUMPTER_FABRIC_DEVICE") or None
    if setting == "tcp":
        return [ok(_CHECK, "fabric = tcp: bytes between machines go over TCP")]
    hardware = [name for folder in RDMA_DEVICES for name in probe.entries(folder)]
    named = provider is not None or device is not None
    version, networks, reason, _ = probe.networks(provider, device)
    if reason is not None:
        return [_missing(setting, named, hardware, reason)]
    there = f"libfabric {version} has " + ", ".join(_words(*network) for network in networks)
    best, of, _, is_rdma = networks[0]
    if setting == "libfabric" or named:
        return [ok(_CHECK, f"{there}; jobs take {best} ({of})")]
    if is_rdma and hardware:
        core = best.partition(";")[0]
        return [
            note(
                _CHECK,
                f"{there}; bytes between machines go over TCP, since no provider is named",
                f"set fabric_provider = {core} on every machine to place them by RDMA",
            )
        ]
    return [ok(_CHECK, f"{there}; none is RDMA, so bytes between machines go over TCP")]


def _missing(setting: str, named: bool, hardware: list[str], reason: str) -> Finding:
    """There is no network that the settings allow."""
    if setting == "libfabric":
        return error(
            _CHECK,
            f"fabric = libfabric cannot be had: {reason}",
            "install libfabric with the provider, or set fabric = auto",
        )
    if not named and not hardware:
        return ok(_CHECK, "no RDMA device here: bytes between machines go over TCP")
    seen = f"there is RDMA hardware ({', '.join(hardware)}), but " if hardware else ""
    return note(
        _CHECK,
        f"{seen}bytes between machines go over TCP: {reason}",
        "install libfabric with the provider of the device, or set fabric = tcp",
    )


def _words(provider: str, device: str, speed: int | None, is_rdma: bool) -> str:
    """A network in words."""
    about = [device]
    if speed is not None:
        about.append(f"{speed / 1e9:g} Gb/s")
    if is_rdma:
        about.append("RDMA")
    return f"{provider} ({', '.join(about)})"
