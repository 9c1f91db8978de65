"""`sumpter doctor`: what of this machine stands in the way of a job, and the remedy.

Each check is a function of a probe (probe.py), which alone touches the system, and returns
findings (finding.py). Nothing here imports torch; what is asked of torch is asked of a process of
its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from sumpter.doctor import fabric, gpu, limits, network, processor, selftest, settings, versions
from sumpter.doctor.finding import ERROR, NOTE, OK, WARNING, Check, Finding
from sumpter.doctor.probe import Probe

__all__ = ["ERROR", "NOTE", "OK", "WARNING", "Finding", "Probe", "examine"]

Part = tuple[str, list[Finding]]


def examine(probe: Probe, self_test: bool = True) -> Iterator[Part]:
    """The parts of the report, each with its title, as they are found."""
    yield _part("Versions", probe, versions.check_versions, versions.check_copies)
    torch = probe.torch()
    yield "PyTorch", versions.check_backend(probe, torch) + versions.check_coverage(torch)
    yield "GPU", gpu.check_gpu(probe, torch)
    yield _part("Settings", probe, settings.check_settings)
    yield _part(
        "Network",
        probe,
        network.check_interfaces,
        network.check_route,
        network.check_host_name,
        network.check_coordinator,
        network.check_ports,
        fabric.check_fabric,
    )
    yield _part(
        "Limits",
        probe,
        limits.check_descriptors,
        limits.check_locked_memory,
        limits.check_shared_memory,
        limits.check_buffers,
    )
    yield _part(
        "Processor",
        probe,
        processor.check_kernels,
        processor.check_codecs,
        processor.check_cores,
        processor.check_link,
        processor.check_steal,
    )
    if self_test:
        yield _part("Self-test", probe, selftest.check_sums)


def _part(title: str, probe: Probe, *checks: Check) -> Part:
    return title, [finding for check in checks for finding in check(probe)]
