"""How torch learns of the backend named "sumpter", and what it says where torch is too old.

Apart from backend.py, which cannot be imported on an old torch: the Horovod and BytePS interfaces
work there.
"""

from typing import Any

import torch
import torch.distributed as dist

NAME = "sumpter"
DEVICES = ["cpu", "cuda"]
REQUIRED_TORCH = (2, 14)


def register() -> None:
    """Makes `backend="sumpter"` known to torch; torch calls it through the entry point.

    On an older torch the name becomes known as well, so that its use raises an error that says why.
    """
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=DEVICES)


def check_torch_version(version: str) -> None:
    """Raises ImportError for a torch whose Backend cannot be subclassed in Python."""
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if numbers < REQUIRED_TORCH:
        raise ImportError(
            f"the sumpter backend of torch.distributed needs torch 2.14 or newer, not {version}; "
            "the Horovod and BytePS interfaces of sumpter.torch work with this one"
        )


def _create(opts: Any, backend_options: object | None) -> Any:
    """Called by torch for each process group that this process is a member of."""
    check_torch_version(torch.__version__)
    from sumpter.torch.c10d.backend import create
    from sumpter.torch.c10d.options import read

    return create(opts, read(backend_options))
