"""Leaves how many bytes went over each link of this rank's device, as JSON.

Arguments: the switch of each rank's device, and "nvlink" if all have it.
"""

from __future__ import annotations

import json
import sys

import torch

import fake_device
import fake_group
import sumpter.torch as hvd
from common import RANK, WORLD_SIZE, leave_result
from fake_device import OnFake, Place, on_fake
from sumpter._core import staging

# Together 1 MiB; each is cut, into equal parts for two and for four holders.
TENSORS, ELEMENTS = 4, 65536

if __name__ == "__main__":
    switches = sys.argv[1].split(",")
    place = Place(f"gpu-{RANK}", f"switch-{switches[RANK]}", sys.argv[2] == "nvlink")
    staging.SLICE_BYTES = 8192
    device = fake_device.install(place=place)
    fake_group.install()
    hvd.init()
    given = [on_fake(torch.full((ELEMENTS,), RANK + index)) for index in range(TENSORS)]
    begun = [
        hvd.allreduce_async_(tensor.float().as_subclass(OnFake), op=hvd.Sum, name=f"t{index}")
        for index, tensor in enumerate(given)
    ]
    for index, handle in enumerate(begun):
        total = sum(rank + index for rank in range(WORLD_SIZE))
        assert torch.equal(handle.synchronize().cpu(), torch.full((ELEMENTS,), float(total)))
    hvd.shutdown()
    carried = [[*link, size] for link, size in device.carried.items() if size]
    leave_result(json.dumps(carried).encode())
