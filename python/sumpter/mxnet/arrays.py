"""MXNet's arrays as NumPy's, and back.

MXNet computes in threads of its own; reading an array blocks until it is computed.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

from sumpter._arrays import SUMMABLE
from sumpter._calls.collective import Front
from sumpter._errors import UnsupportedError

MXNET = Front("mxnet", "make the call anew")

# On which DLPack lends memory of the host.
_HOST = frozenset(["cpu", "cpu_pinned", "cpu_shared"])


def is_sparse(array: Any) -> bool:
    """Whether an array has rows of which only some are there."""
    return isinstance(array, mx.nd.sparse.RowSparseNDArray)


def check_dense(array: Any, name: str | None = None) -> mx.nd.NDArray:
    """The array; raises unless it is one of MXNet with all of its elements."""
    if isinstance(array, mx.nd.sparse.BaseSparseNDArray):
        raise UnsupportedError(
            f"{described(name)} is of storage type {array.stype!r}: only sums and averages of "
            "'row_sparse' arrays are there; give array.tostype('default')"
        )
    if not isinstance(array, mx.nd.NDArray):
        raise TypeError(
            f"{described(name)} is a {type(array).__name__}, not an array of MXNet: give "
            "mx.nd.array(...)"
        )
    return array


def check_reducible(array: Any, name: str | None = None) -> mx.nd.NDArray:
    """The array; raises unless the core can reduce it."""
    if not is_sparse(array):
        check_dense(array, name)
    if not _is_summable(array):
        raise UnsupportedError(
            f"{described(name)} is of {dtype_name(array)}, which cannot be reduced: cast it first"
        )
    return array


def dtype_name(array: mx.nd.NDArray) -> str:
    """The name of the element type; of one that NumPy lacks, MXNet's own."""
    dtype = np.dtype(array.dtype)
    return dtype.names[0] if dtype.names else dtype.name


def described(name: str | None) -> str:
    """An array as messages show it."""
    return "the array" if name is None else f"array {name}"


def view(array: mx.nd.NDArray) -> np.ndarray:
    """The elements, once they are computed: memory of MXNet where it is the host's, else a copy.

    Its use must end before MXNet is told to change the array.
    """
    if array.context.device_type in _HOST and _is_summable(array) and array.size:
        return np.from_dlpack(_Lent(array.to_dlpack_for_read()))
    return array.asnumpy()


def like(result: np.ndarray, given: mx.nd.NDArray) -> mx.nd.NDArray:
    """A new array of the kind, and on the device, of `given`."""
    maker = mx.np if isinstance(given, mx.np.ndarray) else mx.nd
    return maker.array(result, dtype=result.dtype, ctx=given.context)


def assign(target: mx.nd.NDArray, result: Any) -> None:
    """Writes a result into an array; what reads it afterwards waits for that."""
    # It is no step of the computation that is recorded.
    with mx.autograd.pause():
        if is_sparse(target):
            result.copyto(target)
        elif target.ndim:
            target[:] = result
        else:
            target[()] = result


def _is_summable(array: mx.nd.NDArray) -> bool:
    """Whether the core has kernels for what NumPy makes of the elements: of bfloat16, pairs."""
    return np.dtype(array.dtype).name in SUMMABLE


class _Lent:
    """The memory of an array as NumPy asks for it: MXNet has DLPack's capsule, not its protocol."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, stream: object = None) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)
