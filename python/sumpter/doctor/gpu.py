"""Whether there is a GPU, whether torch can use it, and what happens with its tensors."""

from __future__ import annotations

import re
from typing import Any

from sumpter.doctor.finding import Finding, note, ok, warning
from sumpter.doctor.probe import Probe

_DRIVER = "libcuda.so.1"
_NEWER = "install torch 2.14 or newer, or leave CUDA tensors to NCCL in torch.distributed"


def check_gpu(probe: Probe, torch: dict[str, Any] | None) -> list[Finding]:
    """The CUDA driver beside the build of torch, and what becomes of CUDA tensors."""
    refused = probe.library_error(_DRIVER)
    cards = [name for name in probe.entries("/dev") if re.fullmatch(r"nvidia\d+", name)]
    if refused and not cards:
        return [ok("gpu", "no CUDA driver: all tensors are the CPU's")]
    version = (probe.read("/proc/driver/nvidia/version") or "of unknown version").splitlines()[0]
    if refused:
        return [
            warning(
                "gpu",
                f"{len(cards)} device(s), but the driver cannot be loaded: {refused}",
                "install the driver's libraries; in Docker start with --gpus all",
            )
        ]
    findings = [ok("gpu", f"driver loaded, {len(cards)} device(s); {version}")]
    if not torch or "error" in torch:
        return findings
    if torch["cuda"] is None:
        remedy = "install a build of torch with CUDA if models shall train on the GPU"
        return [*findings, note("torch and gpu", "this torch is built without CUDA", remedy)]
    if not torch["cuda_devices"]:
        remedy = (
            "`python -c 'import torch; torch.cuda.init()'` says why; often the driver is older "
        )
        remedy += f"than CUDA {torch['cuda']} needs, or CUDA_VISIBLE_DEVICES is empty"
        found = f"torch is built for CUDA {torch['cuda']} and sees no device"
        return [*findings, warning("torch and gpu", found, remedy)]
    said = f"torch sees {torch['cuda_devices']} device(s) with CUDA {torch['cuda']}"
    if "cuda" in torch["devices"]:
        found = f"{said}; their tensors travel in slices through pinned host memory"
        if torch["streams_wait"]:
            return [*findings, ok("torch and gpu", f"{found}, and streams wait for the network")]
        remedy = "a driver for CUDA 11.7 or newer lets streams wait, and the thread go on"
        found += ", and the thread that calls wait() waits for the network"
        return [*findings, note("torch and gpu", found, remedy)]
    found = f"{said}; the Horovod and BytePS interfaces take their tensors, the backend does not"
    return [*findings, note("torch and gpu", found, _NEWER)]
