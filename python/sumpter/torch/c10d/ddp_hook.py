"""The buckets of torch's DistributedDataParallel, in the order in which they are needed."""

import torch
import torch.distributed as dist


def ddp_hook(
    group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """A communication hook that averages the buckets with the first layers first.

    `model.register_comm_hook(None, sumpter.torch.ddp_hook)`, or with the process group of the model
    in place of None. DDP fills its buckets in the order in which the first backward pass has
    completed the gradients, so those with higher numbers are needed earlier. ValueError if the
    group's backend is not "sumpter".
    """
    from sumpter.torch.c10d.backend import SumpterBackend  # which needs a newer torch than the rest

    buffer = bucket.buffer()
    group = dist.group.WORLD if group is None else group
    backend = group._get_backend(buffer.device)
    if not isinstance(backend, SumpterBackend):
        raise ValueError(
            f"the process group's backend for {buffer.device.type} is {backend.name()}: ddp_hook "
            'needs init_process_group("sumpter")'
        )
    work = backend.average_bucket(buffer, bucket.index())
    return work.get_future().then(lambda done: done.value()[0])
