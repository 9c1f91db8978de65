"""Gradients of matrices summed by their factors (PowerSGD), in two all-reduces of each.

A rank's matrix is its gradient, and what the round before has left out of it. The product of the
matrix with the right factor of the round before is summed and made orthonormal; then the product
of the transposed matrix with that is summed. Both together are the sum of the matrices in the
directions of the first. The formulas are in the core; what is kept from round to round is here.
The codec's first rounds may be those of an all-reduce of the gradient as it is (`start`).
"""

import dataclasses
import math
import zlib
from collections.abc import Mapping
from typing import Any

import torch

from sumpter import _native
from sumpter._core import membership
from sumpter._core.compression.choice import UNCOMPRESSED
from sumpter._core.handles import ChainedHandle, Handle
from sumpter._core.process_sets import ProcessSet
from sumpter._core.reduction import Reduction, Sum
from sumpter._errors import ConfigError
from sumpter.torch.collectives.reduction import RepeatedReduction


def factors_of(codec: str, shape: torch.Size) -> _native.LowRank | None:
    """The factors of a matrix of this shape, in which its first dimension are the rows.

    None if they have as many elements as the matrix.
    """
    rows, columns = shape[0], math.prod(shape[1:])
    width = rank_of(codec)
    if not rows or not columns or width * (rows + columns) >= rows * columns:
        return None
    return _native.LowRank(codec, rows, columns)


def rank_of(codec: str) -> int:
    """The width of the factors, of a codec in canonical form."""
    arguments = dict(pair.split("=") for pair in codec.partition(":")[2].split(","))
    return int(arguments["rank"])


class LowRankReduction:
    """The all-reduce of one gradient in place, by its factors; alone as it is."""

    # Whether it keeps anything from round to round.
    keeps = True

    def __init__(
        self,
        name: str,
        reduction: Reduction,
        process_set: ProcessSet,
        codec: str,
        factors: _native.LowRank,
    ) -> None:
        self.name, self.codec = name, codec
        self._factors = factors
        self._process_set = process_set
        self._number = zlib.crc32(name.encode())
        # The left factor is made orthonormal, so its scale does not matter.
        plain = Reduction(Sum, compression=UNCOMPRESSED)
        self._left = RepeatedReduction(f"{name}.left", plain, process_set)
        # Of the rounds before the codec begins.
        whole = dataclasses.replace(reduction, compression=UNCOMPRESSED)
        self._whole = RepeatedReduction(name, whole, process_set)
        scaled = Reduction(
            reduction.op, reduction.prescale, reduction.postscale, compression=UNCOMPRESSED
        )
        self._right = RepeatedReduction(f"{name}.right", scaled, process_set)
        self._residual: torch.Tensor | None = None
        self._last = torch.zeros(factors.right_len, dtype=torch.float32, device="cpu")
        self._rounds = 0

    def start(
        self, gradient: torch.Tensor, priority: int = 0, rescale: float = 1.0
    ) -> ChainedHandle:
        """Starts one round; `rescale` multiplies what the one before has left out."""
        target = gradient.detach()
        is_alone = self._process_set.size() == 1
        if is_alone and self._residual is not None:
            # Of a time when the job had more ranks.
            residual = self._residual.view(target.shape).to(target)
            target.add_(residual, alpha=rescale)
            self._residual = None
        if is_alone or self._rounds < self._factors.start:
            return ChainedHandle([self._whole.start(gradient, priority)], [], self._count)
        matrix = target.to("cpu", torch.float32).flatten()
        if self._residual is not None:
            matrix = torch.add(matrix, self._residual, alpha=rescale)
        elif matrix.data_ptr() == target.data_ptr():
            matrix = matrix.clone()
        factors, right = self._factors, self._last.clone()
        left = torch.empty(factors.left_len, dtype=torch.float32, device="cpu")
        factors.refresh(self._number, self._rounds, right.numpy())
        factors.left(matrix.numpy(), right.numpy(), left.numpy())

        def sum_right(_: list[Any]) -> list[Handle[torch.Tensor]]:
            factors.orthonormalize(left.numpy())
            factors.right(matrix.numpy(), left.numpy(), right.numpy())
            return [self._right.start(right.clone(), priority)]

        def finish(summed: list[torch.Tensor]) -> torch.Tensor:
            residual = torch.empty_like(matrix)
            factors.residual(matrix.numpy(), left.numpy(), right.numpy(), residual.numpy())
            (total,) = summed
            # Not needed any more.
            factors.product(left.numpy(), total.numpy(), matrix.numpy())
            target.copy_(matrix.view(target.shape))
            self._residual, self._last, self._rounds = residual, total, self._rounds + 1
            return gradient

        return ChainedHandle([self._left.start(left, priority)], [sum_right], finish, computes=True)

    def _count(self, summed: list[torch.Tensor]) -> torch.Tensor:
        self._rounds += 1
        (gradient,) = summed
        return gradient

    def state(self) -> dict[str, Any]:
        """What is kept from round to round, and of which rank it is."""
        return {
            "rank": membership.rank(),
            "rounds": self._rounds,
            "right": self._last,
            "residual": self._residual,
        }

    def load(self, state: Mapping[str, Any]) -> bool:
        """Goes on from a state; of another rank, without what that rank had left out.

        Whether anything was left so. Raises ConfigError for the state of another tensor.
        """
        is_own = state["rank"] == membership.rank()
        residual = state["residual"] if is_own else None
        if residual is not None and residual.numel() != self._elements():
            raise ConfigError(
                f"compression state of {self.name!r}: its residual has {residual.numel():,} "
                f"elements, and the gradient {self._elements():,}"
            )
        self._residual = None if residual is None else residual.detach().cpu().clone().flatten()
        if "right" in state:  # else it is of another codec
            right = state["right"].detach().cpu()
            # A factor of another rank is of no use: zeros are drawn anew, alike on all ranks.
            is_same = right.numel() == self._factors.right_len
            self._last = right.clone() if is_same else torch.zeros_like(self._last)
            self._rounds = state["rounds"]
        return not is_own and state["residual"] is not None

    def _elements(self) -> int:
        """Of the matrix."""
        rank = rank_of(self.codec)
        return (self._factors.left_len // rank) * (self._factors.right_len // rank)

    def forget(self) -> None:
        """Begins anew."""
        self._residual = None
        self._last = torch.zeros_like(self._last)
        self._rounds = 0
