"""What the worker scripts of the tests share."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

# Other frameworks' environments have no torch.
if TYPE_CHECKING:
    import torch

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
FOLDER = Path(os.environ["TEST_FOLDER"])
ALL = range(WORLD_SIZE)
# Within which the death of a rank is an error of the others; far longer than it takes.
ENDS_S = 30.0


def join_torch(timeout_s: float = 300.0) -> None:
    """Joins torch.distributed through a file, which needs no port."""
    import torch.distributed as dist

    # Torch was imported before this process had an environment of its own.
    dist.set_debug_level_from_env()
    dist.init_process_group(
        "sumpter",
        init_method=f"file://{FOLDER}/store",
        rank=RANK,
        world_size=WORLD_SIZE,
        timeout=datetime.timedelta(seconds=timeout_s),
    )


def leave_result(content: bytes) -> None:
    """Leaves bytes for the test to compare."""
    (FOLDER / f"result.{RANK}").write_bytes(content)


def announce(pipe: str) -> None:
    """Wakes the test that waits for `pipe`."""
    with (FOLDER / pipe).open("wb"):
        pass


def die() -> None:
    """Kills this process, and notes when."""
    # The clock is the machine's, and the other ranks read it as well.
    (FOLDER / "died").write_text(str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)


def check_death(error: BaseException, rank: int, tensor: str) -> None:
    """Expects an error that names the rank that died and a tensor, soon after its death."""
    took = time.monotonic() - float((FOLDER / "died").read_text())
    said = f"{type(error).__name__}: {error}"
    missing = [part for part in ("PeerLostError", f"rank {rank}", tensor) if part not in said]
    assert not missing, f"{missing} not in: {said}"
    assert took < ENDS_S, f"rank {RANK} had its error {took:.1f} s after the death"


@contextlib.contextmanager
def raises(kind: type[BaseException], *parts: str) -> Iterator[None]:
    """Expects an error of `kind` whose message has all `parts`."""
    try:
        yield
    except kind as error:
        missing = [part for part in parts if part not in str(error)]
        assert not missing, f"{missing} not in: {error}"
    else:
        raise AssertionError(f"expected {kind.__name__}")


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Expects equal element types, shapes and elements."""
    import torch

    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    assert torch.equal(actual, expected), (actual, expected)
