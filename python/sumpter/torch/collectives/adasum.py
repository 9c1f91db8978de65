"""Adasum: a sum of directions in which what two of them share counts once.

Two vectors a and b are combined into a (1 - a.b / 2|a|^2) + b (1 - a.b / 2|b|^2): orthogonal ones
are added, equal ones averaged (Maleki et al., "Scaling distributed training with adaptive
summation", MLSys 2021). The vectors of n ranks are combined in a binary tree over neighbours, in
which a vector without a partner goes up as it is: 0 with 1, 2 with 3, then those two with each
other. So n need not be a power of two.

Each rank computes one part of the vectors for all ranks: it gets that part of every rank's vector
(an alltoall), learns the products of whole vectors from one small sum for each level of the tree,
and gives its part of the result to all ranks. A rank sends and receives as much as in an allreduce.
"""

import zlib
from collections.abc import Sequence
from contextlib import nullcontext

import torch

from sumpter._calls.refusals import Checking
from sumpter._core import membership
from sumpter._core.handles import ChainedHandle, GroupHandle, Handle
from sumpter._core.names import Identity, agree, identify
from sumpter._core.process_sets import ProcessSet, members
from sumpter._core.reduction import Reduction
from sumpter._errors import UnsupportedError
from sumpter.torch.collectives.reduction import scale
from sumpter.torch.devices import stream_context
from sumpter.torch.tensors import check_carried, dtype_name, readable, start_round

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# What the names of a call's first rounds end with, one for each element type that it has.
ENDINGS = [f".{str(dtype).removeprefix('torch.')}.agree" for dtype in DTYPES]


def adasum_async(
    kind: str,
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor] | None,
    name: str | Identity | None,
    reduction: Reduction,
    process_set: ProcessSet,
) -> GroupHandle:
    """Starts combining each of `tensors` with the other ranks' into `outputs`, or new tensors.

    Tensors of one element type share their messages; each has coefficients of its own, computed
    in float64. Raises UnsupportedError for elements that are not floating-point, on all ranks.
    """
    # Of a part of a call that has begun the other ranks learn by that call.
    checking = nullcontext()
    if not isinstance(name, Identity):
        checking = Checking(kind, name, process_set, endings=ENDINGS)
    with checking:
        packed = [_pack(tensor, reduction) for tensor in tensors]
    by_dtype: dict[torch.dtype, list[int]] = {}
    for index, (tensor, _) in enumerate(packed):
        by_dtype.setdefault(tensor.dtype, []).append(index)
    identity = name
    if not isinstance(identity, Identity):
        identity = _identify(kind, name, [tensor for tensor, _ in packed], process_set)
    handles = []
    for indices in by_dtype.values():
        vectors = [packed[index][0] for index in indices]
        part = identity.part(dtype_name(vectors[0]))
        handles.append(_Exchange(vectors, part, process_set).start())

    def finish(combined: list[list[torch.Tensor]]) -> list[torch.Tensor]:
        results: list[torch.Tensor] = list(tensors)
        for indices, group in zip(by_dtype.values(), combined, strict=True):
            for index, vector in zip(indices, group, strict=True):
                whole = reduction.compression.compressor.decompress(vector, packed[index][1])
                whole = scale(whole, reduction.postscale)
                if outputs is None:
                    results[index] = whole
                else:
                    outputs[index].detach().copy_(whole)
                    results[index] = outputs[index]
        return results

    return GroupHandle(handles, finish)


def combine(
    first: torch.Tensor, second: torch.Tensor, lengths: list[int], products: torch.Tensor
) -> torch.Tensor:
    """Combines two parts of vectors laid one after the other.

    `products` has a row for each vector: a.a, b.b and a.b of the whole vectors, in float64.
    """
    squares, shared = products[:, :2], products[:, 2:]
    # A vector of zeros shares nothing, and what it is multiplied with does not matter.
    share = torch.where(squares > 0, 0.5 * shared / squares, 0.0)
    factors = (1.0 - share).to(first.dtype)
    spread = factors.repeat_interleave(first.new_tensor(lengths, dtype=torch.int64), dim=0)
    return first * spread[:, 0] + second * spread[:, 1]


def products(first: torch.Tensor, second: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """The rows that combine() needs, from these parts of the vectors alone."""
    rows = [
        torch.stack([a.dot(a), b.dot(b), a.dot(b)])
        for a, b in zip(first.double().split(lengths), second.double().split(lengths), strict=True)
    ]
    return torch.stack(rows)


class _Exchange:
    """The messages of one group of tensors of one element type."""

    def __init__(
        self, tensors: list[torch.Tensor], identity: Identity, process_set: ProcessSet
    ) -> None:
        self._session, self._ranks = membership.current(), members(process_set)
        self._own = self._ranks.index(self._session.rank)
        self._shapes = [tensor.shape for tensor in tensors]
        self._flat = torch.cat([readable(tensor).reshape(-1) for tensor in tensors])
        self._identity = identity
        ends = [len(part) for part in self._flat.tensor_split(len(self._ranks))]
        start = sum(ends[: self._own])
        self._lengths = _overlaps(self._shapes, start, start + ends[self._own])

    def start(self) -> ChainedHandle:
        """Sends the parts; the rest follows by itself."""
        levels = max(len(self._ranks) - 1, 0).bit_length()
        steps = [self._send_parts, self._multiply]
        for level in range(levels):
            steps.append(lambda results, level=level: self._ascend(results, level))
        begin = agree(self._session, self._identity, self._ranks)
        context = stream_context(self._flat)
        return ChainedHandle([begin], steps, lambda _: self._split(), context, self._identity.own())

    def _send_parts(self, _: list[object]) -> list[Handle]:
        """Exchanges parts with every other rank; the own one stays."""
        outgoing = self._flat.tensor_split(len(self._ranks))
        own = outgoing[self._own]
        self._vectors = [own if i == self._own else torch.empty_like(own) for i in self._indices()]
        handles = []
        for index, rank in enumerate(self._ranks):
            if index == self._own:
                continue
            both = sorted((rank, self._session.rank))
            for root, to, part in (
                (self._session.rank, rank, outgoing[index]),
                (rank, self._session.rank, self._vectors[index]),
            ):
                handles.append(self._broadcast(f"{root}.to.{to}", root, both, part))
        return handles

    def _multiply(self, _: list[object]) -> list[Handle]:
        """Sums up over the ranks what each level needs, first of all the lowest."""
        accumulator = torch.float64 if self._flat.dtype == torch.float64 else torch.float32
        self._vectors = [vector.to(accumulator) for vector in self._vectors]
        return self._climb(0)

    def _ascend(self, results: list[torch.Tensor], level: int) -> list[Handle]:
        """Combines the pairs of a level, whose products `results` has."""
        (table,) = results
        pairs = zip(self._vectors[::2], self._vectors[1::2], table, strict=False)
        combined = [combine(a, b, self._lengths, rows) for a, b, rows in pairs]
        self._vectors = combined + self._vectors[2 * len(combined) :]
        return self._climb(level + 1)

    def _climb(self, level: int) -> list[Handle]:
        if len(self._vectors) == 1:
            return self._gather()
        pairs = zip(self._vectors[::2], self._vectors[1::2], strict=False)
        table = torch.stack([products(a, b, self._lengths) for a, b in pairs])
        identity = self._identity.part(f"level.{level}")
        declared = self._session.declare(
            identity.name, "all_reduce", table.shape, "float64", ranks=self._ranks
        )
        round_ = start_round(declared, table, table, tag=identity.tag)
        identity.note(round_)
        return [Handle(round_, lambda: table)]

    def _gather(self) -> list[Handle]:
        """Gives this rank's part of the result to all ranks and gets the others'."""
        result = torch.empty_like(self._flat)
        parts = result.tensor_split(len(self._ranks))
        parts[self._own].copy_(self._vectors[0])
        self._flat = result
        return [
            self._broadcast(f"{rank}.to.all", rank, self._ranks, part)
            for rank, part in zip(self._ranks, parts, strict=True)
        ]

    def _split(self) -> list[torch.Tensor]:
        parts = self._flat.split([shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def _broadcast(self, suffix: str, root: int, ranks: list[int], part: torch.Tensor) -> Handle:
        identity = self._identity.part(suffix)
        declared = self._session.declare(
            identity.name, "broadcast", part.shape, dtype_name(part), root=root, ranks=ranks
        )
        send = part if root == self._session.rank else None
        round_ = start_round(declared, send, part, tag=identity.tag)
        identity.note(round_)
        return Handle(round_, lambda: part)

    def _indices(self) -> range:
        return range(len(self._ranks))


def _pack(tensor: torch.Tensor, reduction: Reduction) -> tuple[torch.Tensor, object]:
    check_carried(tensor)
    if tensor.dtype not in DTYPES:
        raise UnsupportedError(
            f"Adasum combines directions, which {tensor.dtype} cannot express: use op=Sum, or a "
            "floating-point type"
        )
    return reduction.compression.compressor.compress(scale(tensor.detach(), reduction.prescale))


def _identify(
    kind: str, name: str | None, packed: list[torch.Tensor], process_set: ProcessSet
) -> Identity:
    """What all ranks must have alike: how many tensors, their shapes and element types."""
    words = [dtype_name(tensor) for tensor in packed]
    forms = [(word, tuple(tensor.shape)) for word, tensor in zip(words, packed, strict=True)]
    mark = f"{zlib.crc32(str(forms).encode()):08x}"
    dtype, elements = "+".join(dict.fromkeys(words)), sum(tensor.numel() for tensor in packed)
    detail = f"adasum of {len(packed)}, {mark}"
    session = membership.current()
    return identify(session, kind, name, dtype, (elements,), detail, process_set)


def _overlaps(shapes: list[torch.Size], start: int, stop: int) -> list[int]:
    """How many elements of each tensor lie within a part of all tensors, one after the other."""
    lengths, offset = [], 0
    for shape in shapes:
        end = offset + shape.numel()
        lengths.append(max(min(end, stop) - max(offset, start), 0))
        offset = end
    return lengths
