"""Benchmark memory: page-aligned NumPy arrays whose every page has been written."""

from __future__ import annotations

import numpy as np

_PAGE_BYTES = 4096

# Bytes of an element, and of what its sums are kept in.
SIZES = {
    "float32": (4, 4),
    "float64": (8, 8),
    "float16": (2, 4),
    "bfloat16": (2, 4),
    "int8": (1, 1),
    "uint8": (1, 1),
    "int32": (4, 4),
    "int64": (8, 8),
}

# The number one in a type that NumPy does not have.
_ONE_BFLOAT16 = 0x3F80


def storage(dtype: str) -> str:
    """The NumPy type that holds the bits of `dtype`."""
    return "uint16" if dtype == "bfloat16" else dtype


def accumulator(dtype: str) -> str:
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def ones(count: int, dtype: str) -> np.ndarray:
    """`count` ones at the start of a page. Writing them makes every page real memory: untouched
    zeros would all be read from one page, which stays in cache."""
    kind = np.dtype(storage(dtype))
    raw = np.empty(count * kind.itemsize + _PAGE_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % _PAGE_BYTES
    array = raw[start : start + count * kind.itemsize].view(kind)
    array[:] = _ONE_BFLOAT16 if dtype == "bfloat16" else 1
    return array


def of_values(values: np.ndarray, dtype: str) -> np.ndarray:
    """Small whole numbers as elements of `dtype`."""
    array = ones(len(values), dtype)
    if dtype == "bfloat16":
        array[:] = values.astype(np.float32).view(np.uint32) >> 16
    else:
        array[:] = values
    return array


def to_float32(array: np.ndarray, dtype: str) -> np.ndarray:
    """The values of 16-bit floats; exact."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def address(array: np.ndarray) -> int:
    return array.ctypes.data
