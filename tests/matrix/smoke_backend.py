"""The torch.distributed backend between two ranks, in a few seconds; part of matrix.py.

On a torch that is too old for it, the error must say so. Run it by hand with
`sumpter run -n 2 -- python tests/matrix/smoke_backend.py`.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import sumpter.torch as hvd


def train(distributed: bool) -> torch.Tensor:
    """Trains on this rank's half of a batch, or alone on all of it; the parameters, flat."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    inputs = torch.randn(12, 8)
    step = DistributedDataParallel(model) if distributed else model
    if distributed:
        inputs = inputs[dist.get_rank() :: dist.get_world_size()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        step(inputs).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def check_refusal() -> None:
    """With an old torch the error names the first version that works, and what works here."""
    try:
        dist.init_process_group("sumpter")
    except ImportError as error:
        assert "2.14" in str(error) and "Horovod" in str(error), error
    else:
        raise AssertionError("a torch that is too old was not refused")
    print("refused with a clear message")


def main() -> None:
    assert hvd.HorovodInternalError
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14):
        return check_refusal()
    dist.init_process_group("sumpter")
    assert dist.get_world_size() > 1, "start this with `sumpter run -n 2`"
    torch.testing.assert_close(train(distributed=True), train(distributed=False))
    dist.destroy_process_group()
    print("DDP works")


if __name__ == "__main__":
    main()
