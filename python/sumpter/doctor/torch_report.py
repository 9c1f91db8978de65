"""Prints what torch says of itself, as one line of JSON. Run by the probe in a process of its own.

A group of one rank is made here as a script would make it, so that the doctor reports what happens
and not what should.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import torch
import torch.distributed as dist

from sumpter._core import cuda_driver
from sumpter.torch.c10d import coverage, registration


def report() -> dict[str, Any]:
    """What `Probe.torch` returns."""
    found: dict[str, Any] = {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "streams_wait": cuda_driver.load() is not None,
        "cuda_devices": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "new_enough": False,
        "backend_error": "",
        "devices": [],
        "coverage": [],
    }
    try:
        registration.check_torch_version(torch.__version__)
    except ImportError as refusal:
        return {**found, "backend_error": str(refusal)}
    try:
        _sum_alone()
    except Exception as failure:
        found["backend_error"] = f"{type(failure).__name__}: {failure}"
    found["new_enough"] = True
    found["devices"] = dist.Backend.backend_capability[registration.NAME]
    found["coverage"] = [dataclasses.asdict(row) for row in coverage.TABLE]
    return found


def _sum_alone() -> None:
    """A sum of the backend in a group of one rank."""
    dist.init_process_group(registration.NAME, store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    if tensor.item() != 1.0:
        raise RuntimeError(f"the sum of one 1 is {tensor.item()}")


if __name__ == "__main__":
    print(json.dumps(report()))
