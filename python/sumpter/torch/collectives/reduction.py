"""All-reduce of one tensor: scaling, compression and averaging around a submitted round.

Both interfaces end here. They differ in how they average integers: BytePS rounds down, Horovod
truncates toward zero.
"""

from collections.abc import Mapping
from typing import Any

import torch

from sumpter import _native
from sumpter._calls.refusals import refuse
from sumpter._core import membership
from sumpter._core.compression.choice import Limits
from sumpter._core.compression.codecs import NoneCompressor, going_on
from sumpter._core.compression.memory import as_bytes, draws_of
from sumpter._core.handles import Handle
from sumpter._core.names import Identity, Operation, share_refusal
from sumpter._core.process_sets import ProcessSet, global_process_set, members
from sumpter._core.reduction import Average, Reduction
from sumpter._core.session import Session
from sumpter._core.tensor import CodecMemory, Tensor
from sumpter.torch.tensors import (
    check_carried,
    dtype_name,
    is_plain,
    is_sharded,
    readable,
    reduced_form,
    start_round,
    writable,
)


def reduce_async(
    kind: str,
    tensor: torch.Tensor,
    output: torch.Tensor | None,
    name: str | None,
    reduction: Reduction,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """Starts an all-reduce of `tensor` into `output`, or into a new tensor if that is None.

    What this rank refuses of it fails on the other ranks as well.
    """
    session = membership.current()
    op = reduction.op
    try:
        ranks = None if process_set is global_process_set else tuple(members(process_set))
        packed, context = _pack(tensor, reduction)
        sharded = not packed.is_cpu and is_sharded(session, packed, ranks)
        chosen = reduction.compression.codec
        key = (kind, name, packed.dtype, packed.shape, op.wire_name, op is Average, ranks, sharded,
               chosen)  # fmt: skip
        known = session.operations.get(key)
        if known is None:
            known = session.operations[key] = _operation(
                session, kind, name, packed, reduction, sharded, process_set
            )
    except Exception as error:
        refuse(kind, name, process_set, error)
        raise
    operation, codec = known
    identity = operation.next()
    declared = operation.tensors.get(identity.name)
    if is_first := declared is None:
        declared = _declare(session, identity.name, packed, reduction, ranks, sharded, codec)
        operation.tensors[identity.name] = declared
    handle = _start(declared, packed, context, output, reduction, priority, identity.tag)
    identity.note(handle.round)
    if is_first:
        share_refusal(session, identity, declared, handle.round)
    handle.seen = identity.own()
    return handle


def _operation(
    session: Session,
    kind: str,
    name: str | None,
    packed: torch.Tensor,
    reduction: Reduction,
    sharded: bool,
    process_set: ProcessSet,
) -> tuple[Operation, str]:
    """The calls of one description, and the codec of their tensors."""
    op, chosen = reduction.op, reduction.compression
    form = reduced_form(packed, op.wire_name)  # raises before the call is counted
    codec = ""
    if not chosen.is_off:
        # What device groups reduce first is compressed only where a caller asks for it.
        sums = op.wire_name == "sum" and not sharded
        limits = Limits.of(session.worker)
        codec = limits.codec_of(chosen, form.shape, form.dtype, sums, named=name is not None)
    detail = f"{op.value} on devices" if sharded else op.value
    detail = f"{detail} by {codec}" if codec else detail
    operation = Operation(
        session, kind, name, dtype_name(packed), packed.shape, detail, process_set
    )
    return operation, codec


class RepeatedReduction:
    """An all-reduce in place under a name that no other operation has, such as a gradient's."""

    def __init__(
        self, name: str, reduction: Reduction, process_set: ProcessSet, codec: str = ""
    ) -> None:
        self.name = name
        self.codec = codec
        self._reduction = reduction
        self._process_set = process_set
        self._declared: Tensor | None = None
        self._dtype: torch.dtype | None = None
        self._shape: torch.Size | None = None
        self._sharded = False
        # What the next round goes on from, of this job or an earlier one.
        self._restored: CodecMemory | None = None

    def start(
        self, tensor: torch.Tensor, priority: int = 0, rescale: float = 1.0
    ) -> Handle[torch.Tensor]:
        """Starts one round; `rescale` multiplies what earlier ones have left out."""
        session, reduction, declared = membership.current(), self._reduction, self._declared
        process_set = self._process_set
        ranks = None if process_set is global_process_set else tuple(members(process_set))
        packed, context = _pack(tensor, reduction)
        sharded = is_sharded(session, packed, ranks)
        if is_new := (
            declared is None
            or declared.session is not session
            or packed.dtype is not self._dtype
            or packed.shape != self._shape
            or sharded != self._sharded
        ):
            draws = None if self._restored is None else self._restored.draws
            codec = going_on(self.codec, draws)
            declared = _declare(session, self.name, packed, reduction, ranks, sharded, codec)
            self._declared, self._dtype, self._shape = declared, packed.dtype, packed.shape
            self._sharded = sharded
        if self._restored is not None:
            declared.restore(self._restored)
            self._restored = None
        handle = _start(declared, packed, context, tensor, reduction, priority, "", rescale)
        if is_new:
            share_refusal(session, Identity(self.name), declared, handle.round)
        return handle

    @property
    def keeps(self) -> bool:
        """Whether its codec keeps anything from round to round."""
        return bool(self.codec) and any(_native.codec_keeps(self.codec))

    def state(self) -> dict[str, Any]:
        """What the codec keeps on this rank, and of which rank it is.

        Raises MismatchError while a round is under way.
        """
        memory, declared = self._restored or CodecMemory(), self._declared
        if self._restored is None and declared is not None:
            if declared.session is membership.peek():
                memory = declared.codec_memory()
        residual, momentum = (
            None if part is None else torch.frombuffer(bytearray(part), dtype=torch.float32)
            for part in (memory.residual, memory.momentum)
        )
        parts = {"residual": residual, "momentum": momentum, "draws": memory.draws}
        return {"rank": membership.rank(), **parts}

    def load(self, state: Mapping[str, Any]) -> bool:
        """Goes on from a state; of another rank, without what that rank had left out.

        Whether anything was left so.
        """
        is_own = state["rank"] == membership.rank()
        residual = state["residual"] if is_own else None
        parts = (residual, state.get("momentum"))
        self._restored = CodecMemory(
            *(None if part is None else as_bytes(part.detach().cpu().numpy()) for part in parts),
            draws_of(state),
        )
        return not is_own and state["residual"] is not None

    def forget(self) -> None:
        """Begins anew."""
        self._restored = CodecMemory()


def scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """The tensor times `factor`; integers are multiplied in double precision and truncated."""
    if factor == 1.0:
        return tensor
    if tensor.dtype.is_floating_point:
        return tensor * factor
    return (tensor.double() * factor).trunc().to(tensor.dtype)


def _pack(tensor: torch.Tensor, reduction: Reduction) -> tuple[torch.Tensor, Any]:
    """What is sent, and what its compressor has to know when it comes back."""
    check_carried(tensor)
    packed = tensor.detach()
    if reduction.prescale != 1.0:
        packed = scale(packed, reduction.prescale)
    compressor = reduction.compression.compressor
    return (packed, None) if compressor is NoneCompressor else compressor.compress(packed)


def _declare(
    session: Session,
    name: str,
    packed: torch.Tensor,
    reduction: Reduction,
    ranks: tuple[int, ...] | None,
    sharded: bool,
    codec: str,
) -> Tensor:
    wire_name = reduction.op.wire_name
    return session.declare(
        name,
        "all_reduce",
        *reduced_form(packed, wire_name),
        wire_name,
        # Averages of integers are rounded here.
        average=reduction.op is Average and packed.dtype.is_floating_point,
        ranks=ranks,
        sharded=sharded,
        compression=codec,
    )


def _start(
    declared: Tensor,
    packed: torch.Tensor,
    context: Any,
    output: torch.Tensor | None,
    reduction: Reduction,
    priority: int,
    tag: str,
    rescale: float = 1.0,
) -> Handle[torch.Tensor]:
    # It is an alias already, in most cases.
    send = packed if is_plain(packed) else readable(packed)
    address = send.data_ptr()
    if output is None or packed.dtype != output.dtype:
        receive = torch.empty_like(send)
    elif address == output.data_ptr() and output.is_contiguous() and not output.is_neg():
        receive = send
    else:
        receive = writable(output)
    if send.is_cpu:
        received = address if receive is send else receive.data_ptr()
        round_ = declared.submit(
            address, received, keep=(send, receive), priority=priority, tag=tag, rescale=rescale
        )
        if declared.session.device_link is not None:
            declared.session.device_link.follow(declared.name, tag, round_)
    else:
        round_ = start_round(declared, send, receive, priority, tag, rescale=rescale)

    def finish() -> torch.Tensor:
        result = receive
        if reduction.op is Average and not packed.dtype.is_floating_point:
            ranks = declared.description.ranks
            count = declared.session.world_size if ranks is None else len(ranks)
            result = torch.div(result, count, rounding_mode=reduction.rounding)
        result = scale(
            reduction.compression.compressor.decompress(result, context), reduction.postscale
        )
        if output is None:
            return result
        target = output.detach()
        if target.data_ptr() != result.data_ptr() or target.stride() != result.stride():
            target.copy_(result)
        return output

    return Handle(round_, finish)
