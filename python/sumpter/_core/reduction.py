"""Reductions as users describe them: the operation, scaling and compression around a round."""

import enum
from dataclasses import dataclass
from typing import Literal

from sumpter._core.compression.choice import UNCOMPRESSED, Choice


class ReduceOp(enum.Enum):
    """How the ranks' tensors become one."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"
    ADASUM = "adasum"

    def __init__(self, word: str) -> None:
        # The reduction that the core runs; an average is a sum that is divided.
        self.wire_name = "sum" if word == "average" else word


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT
Adasum = ReduceOp.ADASUM


@dataclass(frozen=True)
class Reduction:
    """What to do with a tensor besides summing it."""

    op: ReduceOp = ReduceOp.AVERAGE
    prescale: float = 1.0
    postscale: float = 1.0
    rounding: Literal["floor", "trunc"] = "trunc"
    compression: Choice = UNCOMPRESSED

    @property
    def is_linear(self) -> bool:
        """Whether it has a derivative: sums and averages, but no minimum."""
        return self.op in (Sum, Average)


def choose_op(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    """The reduction that `op` or its old spelling `average` asks for."""
    if op is not None and average is not None:
        raise ValueError("give either op or average, not both: op=Average means average=True")
    if op is not None:
        return ReduceOp(op)
    return Sum if average is False else Average
