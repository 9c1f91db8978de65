"""NumPy arrays in front of the Rust core: from any DLPack array, and back to its own kind."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from sumpter._core.tensor import ITEM_BYTES
from sumpter._errors import UnsupportedError

# The element types that summation kernels exist for; bfloat16 comes from the ml_dtypes package.
SUMMABLE = frozenset(ITEM_BYTES)
# Device types of DLPack that mean memory this process may read: the host's, pinned or not.
HOST_DEVICES = frozenset([1, 3])


Restore = Callable[[np.ndarray], Any]


def read(source: Any) -> tuple[np.ndarray, Restore]:
    """A contiguous host array, and how to turn a result into the caller's kind of array.

    Takes a NumPy array, any DLPack array on the host, or what NumPy can make an array of.
    """
    if type(source) is np.ndarray and source.flags.c_contiguous and source.dtype.isnative:
        return source, unchanged
    if isinstance(source, np.ndarray) or not hasattr(source, "__dlpack__"):
        return _contiguous(np.asarray(source)), unchanged
    device_type, device = source.__dlpack_device__()
    if int(device_type) not in HOST_DEVICES:
        name = getattr(source, "device", f"{device_type}:{device}")
        raise UnsupportedError(
            f"the array is on device {name}: Sumpter sums arrays in host memory, so copy it "
            "there first"
        )
    try:
        array = np.from_dlpack(source)
    except (BufferError, RuntimeError) as error:
        raise UnsupportedError(
            f"{type(source).__module__}.{type(source).__name__} cannot be shared with NumPy "
            f"({error}); for torch tensors use sumpter.torch"
        ) from error
    return _contiguous(array), _restorer(source)


def unchanged(result: np.ndarray) -> np.ndarray:
    """Gives back a NumPy array to a caller of NumPy."""
    return result


def check_out(out: np.ndarray, given: np.ndarray) -> None:
    """Raises unless the result of summing `given` can be written to `out`."""
    if not isinstance(out, np.ndarray):
        raise UnsupportedError(f"out is a {type(out).__name__}, but has to be a NumPy array")
    if (out.shape, out.dtype) != (given.shape, given.dtype):
        raise UnsupportedError(
            f"out is {out.dtype.name}{list(out.shape)}, but the result is "
            f"{given.dtype.name}{list(given.shape)}"
        )
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise UnsupportedError(
            "out has to be writable and contiguous; give numpy.empty_like(array), or no out"
        )
    if out.ctypes.data != given.ctypes.data and np.may_share_memory(out, given):
        raise UnsupportedError("out overlaps the array: give the array itself, or other memory")


def check_summable(array: np.ndarray) -> str:
    """The element type's name on the wire; raises for a type that cannot be summed."""
    name = array.dtype.name
    if name not in SUMMABLE:
        raise UnsupportedError(
            f"cannot sum elements of type {name}; supported are {', '.join(sorted(SUMMABLE))}"
        )
    return name


def check_movable(array: np.ndarray) -> None:
    """Raises for elements that are objects of Python: their bytes are addresses of this process."""
    if array.dtype.hasobject:
        raise UnsupportedError(
            f"an array of {array.dtype} holds references to objects of this process, which mean "
            "nothing in another: give the objects to sumpter.broadcast_object() or "
            "allgather_object(), or cast the array to a type of fixed size"
        )


def wire_form(array: np.ndarray) -> tuple[tuple[int, ...], str]:
    """Shape and element type under which a broadcast carries `array`.

    A broadcast only moves bytes, so types without a summation kernel travel as bytes. Raises for
    objects of Python.
    """
    name = array.dtype.name
    if name in SUMMABLE:
        return array.shape, name
    check_movable(array)
    return (array.nbytes,), "uint8"


def divide(total: np.ndarray, count: int) -> np.ndarray:
    """The average of integers, rounded down, in place."""
    return np.floor_divide(total, count, out=total)


def _contiguous(array: np.ndarray) -> np.ndarray:
    # ascontiguousarray turns 0-dimensional arrays into vectors; reshape undoes that.
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return np.ascontiguousarray(native).reshape(array.shape)


def _restorer(source: Any) -> Restore:
    if hasattr(source, "__array_namespace__"):
        namespace = source.__array_namespace__()
    else:
        namespace = sys.modules.get(type(source).__module__.partition(".")[0])
    return getattr(namespace, "from_dlpack", unchanged)
