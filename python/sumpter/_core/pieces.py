"""Sizes of the pieces that allgather and alltoall move, which ranks exchange first.

Pieces travel as bytes, padded to one of eight sizes an octave, so that a job whose pieces have ever
new sizes still needs few names.
"""

import zlib
from collections.abc import Sequence

import numpy as np

from sumpter._core.handles import Handle
from sumpter._core.names import Identity
from sumpter._core.process_sets import ProcessSet, global_process_set, members
from sumpter._core.session import Session
from sumpter._errors import MismatchError

SMALLEST_PIECE_BYTES = 256


def padded(size: int) -> int:
    """The next of eight sizes an octave: at most an eighth is added."""
    step = 1 << max(size.bit_length() - 4, 0)
    return max(SMALLEST_PIECE_BYTES, -(-size // step) * step)


def padded_rows(rows: int) -> int:
    """The next of sixteen numbers an octave: at most a sixteenth is added, and nothing below 32."""
    step = 1 << max(rows.bit_length() - 5, 0)
    return -(-rows // step) * step


def describe_row(dtype: str, shape: Sequence[int]) -> str:
    """Element type and shape of a row, which must be equal on every rank."""
    return f"{dtype} {list(shape)}"


def rows_form(name: str | None, dtype: str, row: Sequence[int]) -> tuple[str, tuple[int, ...], str]:
    """What calls that move rows say of them: element type, shape and detail of their identity.

    Without a name all but the number of rows must agree; under a name ranks always meet, and the
    marks that they exchange show who differs.
    """
    if name is None:
        return dtype, (0, *row), dtype
    return "uint8", (0,), "rows"


def sum_numbers(
    session: Session, identity: Identity, numbers: np.ndarray, process_set: ProcessSet
) -> Handle[np.ndarray]:
    """Starts the sum of a few integers (int64) over the ranks of a set, in place."""
    ranks = None if process_set is global_process_set else members(process_set)
    tensor = session.declare(identity.name, "all_reduce", numbers.shape, "int64", ranks=ranks)
    address = numbers.ctypes.data
    round_ = tensor.submit(address, address, keep=numbers, tag=identity.tag)
    identity.note(round_)
    return Handle(round_, lambda: numbers)


def exchange_counts(
    session: Session,
    identity: Identity,
    counts: Sequence[int],
    row: str,
    process_set: ProcessSet,
    even: bool = False,
) -> Handle[list[list[int]]]:
    """Starts telling every rank how many rows this one sends where, and what a row is.

    The result has the counts of each rank; MismatchError on all of them if their rows differ, and
    if their counts differ where `even` says on some rank that they must not. A rank that is out of
    data has sent zeros: it has no rows and no mark.
    """
    ranks = members(process_set)
    table = np.zeros((len(ranks), len(counts) + 1), dtype=np.int64)
    mark = 1 + zlib.crc32(row.encode())
    table[process_set.rank()] = [*counts, -mark if even else mark]
    begun = sum_numbers(session, identity.part("sizes"), table, process_set)

    def check() -> list[list[int]]:
        marks, told = table[:, -1].tolist(), table[:, :-1].tolist()
        alike = (mark, -mark, 0)
        others = [rank for rank, other in zip(ranks, marks, strict=True) if other not in alike]
        if others:
            raise MismatchError(
                f"{identity.name!r}: this rank's rows are {row}, those of rank "
                f"{', '.join(map(str, others))} have another shape or element type; they must be "
                "equal on every rank"
            )
        if min(marks) < 0 and min(told) != max(told):
            words = [f"{count[0]} on rank {rank}" for rank, count in zip(ranks, told, strict=True)]
            asking = ranks[marks.index(-mark)]
            raise MismatchError(
                f"{identity.name!r}: rank {asking} needs equally many rows on every rank, and "
                f"there are {', '.join(words)}"
            )
        return told

    return Handle(begun.round, check)


def check_splits(rows: int, splits: Sequence[int] | None, ranks: int) -> list[int]:
    """How many of `rows` go to each of the `ranks`; equally many without `splits`."""
    if splits is None:
        if rows % ranks:
            raise ValueError(
                f"{rows} rows cannot be shared out evenly among {ranks} ranks: give splits"
            )
        return [rows // ranks] * ranks
    counts = [int(count) for count in splits]
    if len(counts) != ranks or any(count < 0 for count in counts) or sum(counts) != rows:
        raise ValueError(
            f"splits are {counts}: {ranks} numbers from 0 up are needed that add up to the "
            f"{rows} rows of the tensor"
        )
    return counts
