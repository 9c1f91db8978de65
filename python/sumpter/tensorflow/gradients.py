"""Gradients of one step, reduced over all ranks in one call."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from sumpter._calls import collective as kinds
from sumpter._calls.codecs import CompressionLike, choice_for, codecs_of_gradients
from sumpter._core import membership
from sumpter._core.process_sets import ProcessSet, members
from sumpter._core.reduction import Average, ReduceOp
from sumpter._errors import UnsupportedError
from sumpter.tensorflow.calls import call, checking, described, reducible, reduction
from sumpter.tensorflow.ops import allreduce, size_op
from sumpter.tensorflow.pieces import checking_rows


class GradientReduction:
    """How gradients are reduced. Each is known by its place, which is the same on all ranks."""

    def __init__(
        self,
        name: str,
        op: ReduceOp,
        compression: CompressionLike,
        sparse_as_dense: bool,
        predivide: float,
        process_set: ProcessSet,
    ) -> None:
        self._name, self._op = name, reduction(None, op)
        self._choice = choice_for(compression, "sumpter.tensorflow")
        if predivide != 1.0 and op is not Average:
            raise ValueError("gradient_predivide_factor needs op=Average")
        self._sparse_as_dense, self._predivide = sparse_as_dense, predivide
        self._process_set = process_set

    def __call__(
        self, gradients: Sequence[Any], local: Collection[int] = (), scales_local: bool = True
    ) -> list[Any]:
        """The reduced gradients; None where there is none, the same on all ranks.

        IndexedSlices are gathered, or become dense, as was chosen. Those at the places `local` stay
        this rank's own, and are divided by the number of ranks if `scales_local`.
        """
        results = list(gradients)
        for place in local if scales_local else ():
            results[place] = _divided(results[place], self._ranks())
        slices = [
            place
            for place, gradient in enumerate(results)
            if isinstance(gradient, tf.IndexedSlices) and not self._sparse_as_dense
            if place not in local
        ]
        for place in slices:
            name = f"{self._name}.{place}.slices"
            with checking_rows(name, self._process_set):
                self._check_divisible(results[place], name)
            results[place] = allreduce(
                results[place], op=self._op, name=name, process_set=self._process_set
            )
        dense = [
            place
            for place, gradient in enumerate(results)
            if gradient is not None and place not in slices and place not in local
        ]
        with checking(kinds.ALL_REDUCE, dense, self._name, self._process_set):
            given = [self._reducible(results[place], f"{self._name}.{place}") for place in dense]
            codecs = self._codecs(given)
        for place, reduced in zip(dense, self._reduced(given, codecs), strict=True):
            results[place] = reduced
        return results

    def _reducible(self, gradient: Any, name: str) -> tf.Tensor:
        made = reducible(gradient, name)
        self._check_divisible(made, name)
        return made

    def _check_divisible(self, gradient: tf.Tensor | tf.IndexedSlices, name: str) -> None:
        if self._op is Average and gradient.dtype.is_integer:
            raise UnsupportedError(
                f"{described(name)} is of {gradient.dtype.name} on rank {membership.rank()}, and "
                "an average of gradients that are integers would be rounded: cast it to floats"
            )

    def _reduced(self, gradients: list[tf.Tensor], codecs: tuple[str, ...]) -> list[tf.Tensor]:
        if self._predivide == 1.0:
            return self._sum(gradients, self._op, codecs)
        # A sum of what was divided before, and the rest of the division after.
        sums = self._sum([one / self._predivide for one in gradients], ReduceOp.SUM, codecs)
        rest = self._predivide / tf.cast(self._ranks(), tf.float64)
        return [one * tf.cast(rest, one.dtype) for one in sums]

    def _ranks(self) -> int | tf.Tensor:
        """How many ranks there are; in a graph, when it runs, since workers may come and go."""
        if tf.executing_eagerly():
            return len(members(self._process_set))
        return size_op(self._process_set.process_set_id or 0)

    def _codecs(self, gradients: list[tf.Tensor]) -> tuple[str, ...]:
        forms = {
            str(place): (tuple(one.shape), one.dtype.name)
            for place, one in enumerate(gradients)
            if one.shape.is_fully_defined()
        }
        chosen = codecs_of_gradients(self._choice, forms)
        return tuple(chosen.get(str(place), "") for place in range(len(gradients)))

    def _sum(
        self, gradients: list[tf.Tensor], op: ReduceOp, codecs: tuple[str, ...]
    ) -> list[tf.Tensor]:
        return call(
            kinds.ALL_REDUCE, gradients, self._name, self._process_set, op=op, codecs=codecs
        )


def _divided(gradient: Any, ranks: int | tf.Tensor) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / tf.cast(ranks, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return None if gradient is None else gradient / tf.cast(ranks, gradient.dtype)
