"""Versions, and whether torch finds the backend and works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sumpter import _native
from sumpter.doctor.finding import Finding, error, note, ok, warning
from sumpter.doctor.probe import Probe

GROUP = "torch.distributed.backends"
REGISTRAR = "sumpter.torch.c10d.backend:register"
INSTALL_TORCH = "install it where PyTorch trains: pip install 'sumpter[torch]'"


def check_versions(probe: Probe) -> list[Finding]:
    """The versions that a report of a fault should name."""
    numpy = probe.installed("numpy")
    kernel, libc = probe.system()
    return [
        ok("sumpter", f"{_native.__version__} in {probe.package_folder()}"),
        ok("python", f"{probe.python_version()}, NumPy {numpy[0].version if numpy else 'unknown'}"),
        ok("system", f"{kernel}, {libc}"),
    ]


def check_copies(probe: Probe) -> list[Finding]:
    """Whether the copy that is imported is the only one, and the one that torch will find."""
    copies = probe.installed("sumpter")
    if not copies:
        return [
            warning(
                "copies",
                "Sumpter runs from sources that are not installed, so torch cannot find the "
                "backend by name",
                "run `make setup`, or pip install the wheel",
            )
        ]
    if len(copies) > 1:
        listed = ", ".join(f"{each.version} in {each.folder}" for each in copies)
        return [
            warning(
                "copies",
                f"several copies are on the path and the first hides the others: {listed}",
                "pip uninstall sumpter until none is left, then install one",
            )
        ]
    if not Path(probe.package_folder()).is_relative_to(copies[0].folder):
        return [
            warning(
                "copies",
                f"version {copies[0].version} is installed in {copies[0].folder}, but version "
                f"{_native.__version__} in {probe.package_folder()} is imported",
                "remove the folder that hides it from PYTHONPATH or from the working directory",
            )
        ]
    return [ok("copies", "one copy on the path")]


def check_backend(probe: Probe, torch: dict[str, Any] | None) -> list[Finding]:
    """torch itself, and whether `init_process_group("sumpter")` will work."""
    if torch is None:
        return [note("torch", "not installed; NumPy arrays work without it", INSTALL_TORCH)]
    if "error" in torch:
        return [
            error(
                "torch",
                f"installed, but does not work: {torch['error']}",
                "reinstall torch; `python -c 'import torch'` must work",
            )
        ]
    findings = [ok("torch", torch["version"])]
    refusal = torch["backend_error"]
    values = probe.entry_points(GROUP, "sumpter")
    if not torch["new_enough"]:
        findings.append(
            note("backend", refusal, "pip install 'torch>=2.14' where the backend is wanted")
        )
    elif REGISTRAR not in values:
        found = f"its entry point says {values[0]}" if values else "its entry point is missing"
        findings.append(
            error(
                "backend",
                f"torch cannot find the backend by name: {found}",
                "reinstall sumpter with pip; a copy on PYTHONPATH has no entry points",
            )
        )
    elif refusal:
        findings.append(error("backend", f"torch refuses it: {refusal}", "reinstall sumpter"))
    else:
        devices = ", ".join(torch["devices"])
        findings.append(ok("backend", f"registered as sumpter for {devices} tensors"))
    if not torch["gloo"]:
        findings.append(
            warning(
                "gloo",
                "this torch is built without Gloo, so what the backend delegates fails",
                "install a build of torch with Gloo; the official ones have it",
            )
        )
    return findings


def check_coverage(torch: dict[str, Any] | None) -> list[Finding]:
    """What of torch.distributed Sumpter carries itself and what goes to Gloo."""
    if not torch or not torch.get("coverage"):
        return []
    calls: dict[tuple[str, str], list[str]] = {}
    for row in torch["coverage"]:
        calls.setdefault((row["carrier"], row["why"]), []).append(row["call"])
    findings = []
    for (carrier, why), listed in calls.items():
        names = ", ".join(dict.fromkeys(listed))
        carried = carrier == "sumpter"
        findings.append(ok("carried", names) if carried else ok("to Gloo", f"{names}: {why}"))
    exceptions = {row["otherwise"] for row in torch["coverage"] if row["otherwise"]}
    findings += [ok("to Gloo", text) for text in sorted(exceptions)]
    return findings
