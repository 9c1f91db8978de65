"""Collectives on values of the host, such as a metric or a learning rate: arrays go in and out."""

from __future__ import annotations

from typing import Any

import numpy as np

from sumpter._arrays import SUMMABLE
from sumpter._calls import collective as kinds
from sumpter._calls.objects import on_host
from sumpter._calls.refusals import Checking
from sumpter._core import membership
from sumpter._core.compression.choice import Limits, choose
from sumpter._core.compression.codecs import NoneCompressor
from sumpter._core.pieces import padded_rows
from sumpter._core.process_sets import global_process_set, members
from sumpter._core.reduction import Adasum, ReduceOp
from sumpter._errors import UnsupportedError


def reduce_value(
    value: np.ndarray,
    op: ReduceOp,
    name: str | None,
    compression: Any,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> np.ndarray:
    """The reduction of a value over all ranks."""
    limits = Limits.of(membership.current().worker)
    with Checking(kinds.ALL_REDUCE, name):
        choice = choose(compression)
        if choice.compressor is not NoneCompressor:
            raise UnsupportedError(
                f"values take codecs of Compression, not {compression!r}: cast them"
            )
        given = _scaled(_reducible(value, op, name), prescale)
        form, sums = (given.shape, given.dtype.name), op.wire_name == "sum"
        codec = limits.codec_of(choice, *form, sums=sums, named=name is not None)
    return _scaled(on_host(kinds.ALL_REDUCE, name, given, op=op, codec=codec), postscale)


def gather_value(value: np.ndarray, name: str | None) -> np.ndarray:
    """All ranks' rows, joined by rank; ranks may have different numbers of them."""
    value = value.reshape(1) if value.ndim == 0 else value
    length = np.array([len(value)], np.int64)
    counts = on_host(kinds.ALL_GATHER, name and f"{name}.rows", length)
    # Ever new numbers of rows need few names in the core.
    most = padded_rows(int(counts.max()))
    padded = np.zeros((most, *value.shape[1:]), value.dtype)
    padded[: len(value)] = value
    pieces = on_host(kinds.ALL_GATHER, name, padded).reshape(len(counts), *padded.shape)
    return np.concatenate([piece[:count] for piece, count in zip(pieces, counts, strict=True)])


def broadcast_value(value: np.ndarray, root_rank: int, name: str | None) -> np.ndarray:
    """Rank `root_rank`'s value."""
    with Checking(kinds.BROADCAST, name):
        membership.check_root(membership.current(), root_rank)
    return on_host(kinds.BROADCAST, name, value, root=root_rank)


def scatter_value(value: np.ndarray, op: ReduceOp, name: str | None) -> np.ndarray:
    """This rank's share of the rows of a reduction; the first ranks get one more where need be."""
    ranks = len(members(global_process_set))
    with Checking(kinds.REDUCE_SCATTER, name):
        given = _reducible(value, op, name)
        if given.ndim == 0:
            raise ValueError(f"{_described(name)} has no rows to share out: it is a scalar")
    shares = np.array_split(given, ranks)
    padded = np.zeros((ranks, len(shares[0]), *given.shape[1:]), given.dtype)
    for block, share in zip(padded, shares, strict=True):
        block[: len(share)] = share
    rows = on_host(kinds.REDUCE_SCATTER, name, padded.reshape(-1, *given.shape[1:]), op=op)
    return rows[: len(shares[membership.rank()])]


def _reducible(value: np.ndarray, op: ReduceOp, name: str | None) -> np.ndarray:
    if op is Adasum:
        raise UnsupportedError("there is no Adasum of values: use Average")
    if value.dtype.name not in SUMMABLE:
        raise UnsupportedError(
            f"{_described(name)} is of {value.dtype.name}, which cannot be reduced: cast it first"
        )
    return value


def _scaled(value: np.ndarray, factor: float) -> np.ndarray:
    """Integers are rounded towards zero."""
    return value if factor == 1.0 else (value * factor).astype(value.dtype)


def _described(name: str | None) -> str:
    return "the value" if name is None else f"value {name}"
