"""Data-parallel training with optax: gradients of all ranks, and the same start on each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sumpter._calls.codecs import CompressionLike, choice_for, codecs_of_gradients
from sumpter._core.compression.codecs import Compression
from sumpter._core.process_sets import ProcessSet, global_process_set
from sumpter._core.reduction import Average, ReduceOp
from sumpter._packages import need
from sumpter.jax import arrays as leaf_arrays
from sumpter.jax.ops import broadcast, reduce_leaves

if TYPE_CHECKING:
    import optax


def distribute(
    optimizer: optax.GradientTransformation,
    *,
    op: ReduceOp = Average,
    compression: CompressionLike = Compression.none,
    name: str = "gradients",
    process_set: ProcessSet = global_process_set,
) -> optax.GradientTransformationExtraArgs:
    """An optimizer of optax that updates by all ranks' gradients, reduced in one call.

    `update()` works inside and outside of jit, and takes what that of `optimizer` takes. Its state
    is that of `optimizer`, so checkpoints of either serve both. By `compression`, or the setting of
    that name, gradients of two and more dimensions travel in fewer bytes. Optimizers of different
    models in one job need different names.
    """
    need("optax", "sumpter.jax.distribute")
    import optax

    inner = optax.with_extra_args_support(optimizer)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        leaves = leaf_arrays.flatten(updates)
        codecs = _codecs(leaves, compression)
        reduced = reduce_leaves(leaves, op, name, process_set, codecs)
        return inner.update(reduced, state, params, **extra)

    return optax.GradientTransformationExtraArgs(inner.init, update)


def broadcast_parameters(
    params: Any,
    root_rank: int = 0,
    *,
    name: str = "parameters",
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns rank `root_rank`'s parameters, or any other pytree such as an optimizer's state."""
    return broadcast(params, root_rank, name=name, process_set=process_set)


def _codecs(leaves: leaf_arrays.Leaves, compression: CompressionLike) -> tuple[str, ...]:
    """By which codec each gradient travels."""
    choice = choice_for(compression, "sumpter.jax.distribute")
    described = dict(zip(leaves.paths, leaf_arrays.forms(leaves.arrays), strict=True))
    return tuple(codecs_of_gradients(choice, described).values())
