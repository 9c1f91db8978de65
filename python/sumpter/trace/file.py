"""Files of `sumpter trace`, as Python objects."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sumpter import _native
from sumpter._errors import TraceError


@dataclass(frozen=True)
class Slice:
    """Something that took a while in one process.

    `process` is a worker ("rank 0 on gpu-1") or a server ("server 3 on cpu-1"), `track` the row of
    the process it belongs to: a link, a lane's link, or what the partition waits in. `activity` is
    one of queued, sending, summing, waiting, receiving, copying and step. Times are seconds since
    the beginning of the trace, on the coordinator's clock; `Trace.clock_error_s` says how far they
    may be off. `peer` is the other end of the link, or "rank 3" that was waited for. A step has no
    tensor; its `round` is the number of the step. `tier` is 0 for the sum of all workers, 1 for
    that of one machine.
    """

    process: str
    track: str
    activity: str
    begin_s: float
    end_s: float
    tensor: str | None
    round: int | None
    bytes: int | None
    peer: str | None
    partition: int | None = None
    tier: int | None = None
    flows: tuple[int, ...] = ()


@dataclass(frozen=True)
class Trace:
    """What the processes of one run did.

    `clock_error_s` is, by process, half of the widest uncertainty of its clock against the
    coordinator's within the trace. `remarks` are lines about the run: what `compression=auto` had
    chosen when the trace was made, and why.
    """

    run: str
    slices: tuple[Slice, ...]
    clock_error_s: dict[str, float]
    remarks: tuple[str, ...] = ()


def read(path: str | os.PathLike[str]) -> Trace:
    """The trace in a file of `sumpter trace`.

    Raises:
        TraceError: The file cannot be read, is cut off, is none of Sumpter's or of a newer
            version; one line that names the file, the field and what was expected.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    try:
        content: dict[str, Any] = json.loads(_native.read_trace(data))
    except _native.StartError as error:
        raise TraceError(f"{path}: {error}") from None
    slices = tuple(Slice(**one | {"flows": tuple(one["flows"])}) for one in content["slices"])
    remarks = tuple(content["remarks"])
    return Trace(content["run"], slices, content["clock_error_s"], remarks)
