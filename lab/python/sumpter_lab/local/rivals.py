"""What NumPy and torch do where a kernel of Sumpter adds, on the same memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

_NUMPY = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}
_TORCH = {"sum": "add", "min": "minimum", "max": "maximum", "product": "mul"}


def load_torch() -> ModuleType | None:
    """torch, where it is installed."""
    try:
        import torch
    except ImportError:
        return None
    return torch


@contextmanager
def torch_threads(torch: ModuleType | None, count: int) -> Iterator[None]:
    """Limits torch to `count` threads for a while."""
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def numpy_call(op: str, dtype: str, to: np.ndarray, x: np.ndarray) -> Callable[[], Any] | None:
    """`to = op(to, x)` in NumPy; None for types it lacks."""
    if dtype == "bfloat16":
        return None
    ufunc = _NUMPY[op]
    return lambda: ufunc(to, x, out=to)


def torch_tensor(torch: ModuleType, array: np.ndarray, dtype: str) -> Any:
    """A tensor on the memory of `array`."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def torch_call(
    torch: ModuleType, op: str, dtype: str, to: np.ndarray, x: np.ndarray
) -> Callable[[], Any] | None:
    """`to = op(to, x)` in torch; None for what it cannot do."""
    left, right = torch_tensor(torch, to, dtype), torch_tensor(torch, x, dtype)
    function = getattr(torch, _TORCH[op])

    def call() -> Any:
        return function(left, right, out=left)

    try:
        call()
    except (RuntimeError, TypeError):
        return None
    return call
