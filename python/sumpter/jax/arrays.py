"""What the core can carry of a pytree's leaves, and how the leaves are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sumpter._core.reduction import Average, ReduceOp, Sum
from sumpter._core.tensor import ITEM_BYTES
from sumpter._errors import UnsupportedError


class Leaves(NamedTuple):
    """A pytree's arrays, what each is called, and how they become a pytree again."""

    arrays: list[Any]
    # Empty for a tree that is a single array; else with a slash in front.
    paths: tuple[str, ...]
    structure: Any


def flatten(tree: Any) -> Leaves:
    """The arrays of a pytree; raises UnsupportedError for what JAX or the core does not carry."""
    leaves, paths, structure = _unchecked(tree)
    arrays = [_array(leaf, path) for path, leaf in zip(paths, leaves, strict=True)]
    return Leaves(arrays, paths, structure)


def paths_of(tree: Any) -> tuple[str, ...]:
    """What the leaves of a pytree are called, whatever they are."""
    return _unchecked(tree).paths


def _unchecked(tree: Any) -> Leaves:
    with_paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    paths = tuple("".join(f"/{_word(key)}" for key in path) for path, _ in with_paths)
    return Leaves([leaf for _, leaf in with_paths], paths, structure)


def check_reducible(leaves: Leaves, op: ReduceOp) -> None:
    """Raises UnsupportedError unless the core has a kernel for every array."""
    for array, path in zip(leaves.arrays, leaves.paths, strict=True):
        name = np.dtype(array.dtype).name
        if name in ITEM_BYTES:
            continue
        if name == "bool" and op not in (Sum, Average):
            # With 0 and 1, the minimum and the product mean "all" and the maximum means "any".
            continue
        if name == "bool":
            raise UnsupportedError(
                f"{_called(path)} is bool, which has no sum: use op=Max for 'any', op=Min for 'all'"
            )
        advice = "; reduce .real and .imag by themselves" if name.startswith("complex") else ""
        raise UnsupportedError(
            f"{_called(path)} has elements of type {name}, which cannot be reduced; supported are "
            f"{', '.join(sorted(ITEM_BYTES))}{advice}"
        )


def with_rows(leaves: Leaves) -> list[Any]:
    """The arrays, with a dimension for those that have none."""
    return [jnp.reshape(array, (1,)) if array.ndim == 0 else array for array in leaves.arrays]


def check_rows(leaves: Leaves, ranks: int) -> None:
    """Raises ValueError unless the rows of every array can be shared out evenly."""
    for array, path in zip(leaves.arrays, leaves.paths, strict=True):
        if array.ndim == 0:
            raise ValueError(
                f"{_called(path)} is a scalar: reduce_scatter shares out rows, so it needs at "
                "least one dimension"
            )
        if array.shape[0] % ranks:
            raise ValueError(
                f"{_called(path)} has {array.shape[0]} rows, which cannot be shared out evenly "
                f"among {ranks} ranks: pad it to a multiple"
            )


def forms(arrays: Sequence[Any]) -> list[tuple[tuple[int, ...], str]]:
    """Shape and element type of each array."""
    return [(tuple(array.shape), np.dtype(array.dtype).name) for array in arrays]


def _array(leaf: Any, path: str) -> Any:
    dtype = getattr(leaf, "dtype", None)
    if dtype == jax.dtypes.float0:
        raise UnsupportedError(
            f"{_called(path)} is float0, the gradient of an integer, which has no elements: leave "
            "it out of what is reduced"
        )
    if dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        raise UnsupportedError(
            f"{_called(path)} has elements of type {dtype}: pass jax.random.key_data(key)"
        )
    if isinstance(leaf, jax.Array):
        return leaf
    try:
        return jnp.asarray(leaf)
    except (TypeError, ValueError) as error:
        raise UnsupportedError(
            f"{_called(path)} is {_kind(leaf)}, which JAX has no arrays of: {error}"
        ) from error


def _kind(leaf: Any) -> str:
    dtype = getattr(leaf, "dtype", None)
    return type(leaf).__name__ if dtype is None else f"{type(leaf).__name__} of {dtype}"


def _called(path: str) -> str:
    return f"leaf {path.removeprefix('/')!r}" if path else "the array"


def _word(key: Any) -> str:
    """A step of a path: a dictionary's key, a place in a list, or an attribute's name."""
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
