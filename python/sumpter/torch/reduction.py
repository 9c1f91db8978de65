"""All-reduce of one tensor: scaling, compression and averaging around a submitted round.

Both interfaces end here. They differ in how they average integers: BytePS rounds down, Horovod
truncates toward zero.
"""

import enum
from dataclasses import dataclass
from typing import Literal

import torch

from sumpter import _native
from sumpter._core import membership
from sumpter._core.names import Identity, identify
from sumpter._core.process_sets import ProcessSet, global_process_set, members
from sumpter.torch.compression import Compressor, NoneCompressor
from sumpter.torch.handles import TensorHandle, submit
from sumpter.torch.tensors import check_carried, dtype_name, readable, reduced_form, writable


class ReduceOp(enum.Enum):
    """How the ranks' tensors become one."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"
    ADASUM = "adasum"

    @property
    def wire_name(self) -> str:
        """The reduction that the core runs; an average is a sum that is divided."""
        return "sum" if self is ReduceOp.AVERAGE else self.value


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
    compression: type[Compressor] = NoneCompressor


def reduce_async(
    kind: str,
    tensor: torch.Tensor,
    output: torch.Tensor | None,
    name: str | Identity | None,
    reduction: Reduction,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> TensorHandle:
    """Starts an all-reduce of `tensor` into `output`, or into a new tensor if that is None."""
    session = membership.current()
    ranks = members(process_set)
    check_carried(tensor)
    source = scale(tensor.detach(), reduction.prescale)
    packed, context = reduction.compression.compress(source)
    form = reduced_form(packed, reduction.op.wire_name)
    send = readable(packed)
    in_place = output is not None and packed.dtype == output.dtype
    receive = writable(output) if in_place else torch.empty_like(send)
    identity = name
    if not isinstance(identity, Identity):
        identity = identify(
            session,
            kind,
            name,
            dtype_name(packed),
            packed.shape,
            reduction.op.wire_name,
            process_set,
        )
    averages = reduction.op is ReduceOp.AVERAGE
    round_ = _native.Round(
        "all_reduce",
        *form,
        reduction.op.wire_name,
        average=averages and packed.dtype.is_floating_point,
        ranks=None if process_set is global_process_set else ranks,
    )
    native = submit(session, round_, identity, send, receive, priority)

    def finish() -> torch.Tensor:
        result = receive
        if averages and not packed.dtype.is_floating_point:
            result = torch.div(result, len(ranks), rounding_mode=reduction.rounding)
        result = scale(reduction.compression.decompress(result, context), reduction.postscale)
        if output is None:
            return result
        target = output.detach()
        if target.data_ptr() != result.data_ptr() or target.stride() != result.stride():
            target.copy_(result)
        return output

    return TensorHandle(native, finish)


def scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """The tensor times `factor`; integers are multiplied in double precision and truncated."""
    if factor == 1.0:
        return tensor
    if tensor.dtype.is_floating_point:
        return tensor * factor
    return (tensor.double() * factor).trunc().to(tensor.dtype)
