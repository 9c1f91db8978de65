"""Data-parallel training with optax: gradients of all ranks, and the same start on each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from sumpter._calls.codecs import CompressionLike, choice_for, codecs_of_gradients
from sumpter._core.compression.codecs import Compression
from sumpter._core.process_sets import ProcessSet, global_process_set, members
from sumpter._core.reduction import Adasum, Average, ReduceOp, Sum
from sumpter._errors import UnsupportedError
from sumpter._packages import need
from sumpter.jax import arrays as leaf_arrays
from sumpter.jax.ops import broadcast, reduce_tree

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
        reduced = _reduced(updates, op, compression, name, process_set)
        return inner.update(reduced, state, params, **extra)

    return optax.GradientTransformationExtraArgs(inner.init, update)


class GradientReduction:
    """How an optimizer of Keras reduces gradients; each is known by its place."""

    def __init__(
        self,
        name: str,
        op: ReduceOp,
        compression: CompressionLike,
        sparse_as_dense: bool,
        predivide: float,
        process_set: ProcessSet,
    ) -> None:
        # JAX has no sparse gradients.
        if predivide != 1.0 and op is not Average:
            raise ValueError("gradient_predivide_factor needs op=Average")
        if op is Adasum:
            raise UnsupportedError("there is no Adasum of JAX arrays: use Average")
        self._name, self._op, self._predivide = name, op, predivide
        self._compression, self._process_set = compression, process_set

    def __call__(
        self, gradients: Sequence[Any], local: Collection[int] = (), scales_local: bool = True
    ) -> list[Any]:
        """The reduced gradients, where those at the places `local` stay this rank's own.

        They are divided by the number of ranks if `scales_local`.
        """
        size = len(members(self._process_set))
        results = [
            one / size if place in local and scales_local else one
            for place, one in enumerate(gradients)
        ]
        # By place, so that a gradient keeps its name whichever others stay local.
        given = {str(place): one for place, one in enumerate(results) if place not in local}
        op, before, after = self._op, 1.0, 1.0
        if self._predivide != 1.0:
            # A sum of what was divided before, and the rest of the division after.
            op, before, after = Sum, 1 / self._predivide, self._predivide / size
            given = {place: one * before for place, one in given.items()}
        reduced = _reduced(given, op, self._compression, self._name, self._process_set)
        for place, one in reduced.items():
            results[int(place)] = one if after == 1.0 else one * after
        return results


def broadcast_parameters(
    params: Any,
    root_rank: int = 0,
    *,
    name: str = "parameters",
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns rank `root_rank`'s parameters, or any other pytree such as an optimizer's state."""
    return broadcast(params, root_rank, name=name, process_set=process_set)


def _reduced(
    tree: Any, op: ReduceOp, compression: CompressionLike, name: str, process_set: ProcessSet
) -> Any:
    return reduce_tree(tree, op, name, process_set, lambda leaves: _codecs(leaves, compression))


def _codecs(leaves: leaf_arrays.Leaves, compression: CompressionLike) -> tuple[str, ...]:
    """By which codec each gradient travels."""
    choice = choice_for(compression, "sumpter.jax.distribute")
    described = dict(zip(leaves.paths, leaf_arrays.forms(leaves.arrays), strict=True))
    return tuple(codecs_of_gradients(choice, described).values())
