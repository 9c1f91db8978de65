"""Calls on arrays that one rank cannot make: an error on all ranks, and the job goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

import sumpter
from common import ALL, RANK, WORLD_SIZE, raises
from refusing import ODD, refused, refused_at_once
from sumpter._calls import objects

ONES = np.ones(6, np.float32)


class Variable:
    """What a framework's variable has that is used of it."""

    def __init__(self, value: float) -> None:
        self.value = np.full(2, value)

    def numpy(self) -> np.ndarray:
        return self.value

    def assign(self, value: np.ndarray) -> None:
        self.value = value


def check_later(name: str | None) -> None:
    """The next calls match, under the same name and others."""
    for again in (name, "another", None):
        total = sumpter.push_pull(ONES * RANK, average=False, name=again)
        np.testing.assert_array_equal(total, np.full(6, sum(ALL), np.float32))


# What one rank does instead of push_pull(ONES), and what is wrong with it.
BAD: dict[str, tuple[Callable[[str | None], object], str]] = {
    "type": (lambda name: sumpter.push_pull(ONES > 0, name=name), "bool"),
    "strings": (lambda name: sumpter.push_pull(np.array(["a"]), name=name), "str"),
    "complex": (lambda name: sumpter.push_pull(ONES * 1j, name=name), "complex64"),
    "out": (lambda name: sumpter.push_pull(ONES, name=name, out=np.empty(5)), "out is float64[5]"),
    "codec": (lambda name: sumpter.push_pull(ONES, name=name, compression="zip"), "zip"),
    "integers": (
        lambda name: sumpter.push_pull(np.arange(6), name=name, compression="int8"),
        "int64",
    ),
    "count": (lambda name: sumpter.push_pull(ONES, name=name, compression="topk:k=9"), "k=9"),
}


def named() -> None:
    for name, (bad, reason) in BAD.items():
        # Again under the name that has failed, and has another meaning in the core by then.
        for _ in range(2):
            refused_at_once(
                lambda bad=bad, name=name: bad(name),
                lambda name=name: sumpter.push_pull(ONES, name=name),
                reason,
                sumpter.barrier,
            )
            check_later(name)
    # It has been used for several shapes, and the others' call is of one of them, or of another.
    for length in (1, 2, 3):
        sumpter.push_pull(np.ones(length), name="shapes")
    for length in (2, 4):
        refused_at_once(
            lambda: sumpter.push_pull(ONES > 0, name="shapes"),
            lambda length=length: sumpter.push_pull(np.ones(length), name="shapes"),
            "bool",
            sumpter.barrier,
        )
        check_later("shapes")


def broadcasts_and_objects() -> None:
    refused_at_once(
        lambda: sumpter.broadcast(ONES, WORLD_SIZE, name="root"),
        lambda: sumpter.broadcast(ONES, ODD, name="root"),
        f"root_rank is {WORLD_SIZE}",
        sumpter.barrier,
    )
    refused_at_once(
        lambda: sumpter.broadcast(np.array([None] * 6), ODD, name="objects"),
        lambda: sumpter.broadcast(ONES, ODD, name="objects"),
        "broadcast_object()",
        sumpter.barrier,
    )
    refused_at_once(
        lambda: objects.broadcast_arrays([ONES, np.array([None])], ODD, "arrays"),
        lambda: objects.broadcast_arrays([ONES, ONES], ODD, "arrays"),
        "broadcast_object()",
        sumpter.barrier,
    )
    refused_at_once(
        lambda: objects.broadcast_variables([Variable(0), None], ODD),
        lambda: objects.broadcast_variables([Variable(0), Variable(0)], ODD),
        "no attribute 'numpy'",
        sumpter.barrier,
    )
    refused_at_once(
        lambda: sumpter.broadcast_object(lambda: None, ODD),
        lambda: sumpter.broadcast_object(None, ODD),
        "pickle",
        sumpter.barrier,
    )
    refused_at_once(
        lambda: sumpter.allgather_object(lambda: None),
        lambda: sumpter.allgather_object(None),
        "pickle",
        sumpter.barrier,
    )
    found = sumpter.broadcast(np.full(2, RANK), ODD, name="root")
    assert found.tolist() == [ODD, ODD]
    assert sumpter.broadcast_object(RANK, ODD) == ODD
    assert sumpter.allgather_object(RANK) == list(ALL)
    # Every rank refuses its own, and none sends a pointer.
    with raises(sumpter.UnsupportedError, "broadcast_object()"):
        sumpter.broadcast(np.array([{"rank": RANK}]), ODD, name="everywhere")
    found = objects.broadcast_arrays([np.full(2, RANK)], ODD, "arrays")
    assert found[0].tolist() == [ODD, ODD]
    variables = [Variable(RANK), Variable(-RANK)]
    objects.broadcast_variables(variables, ODD)
    assert [one.value[0] for one in variables] == [ODD, -ODD]


def a_name_in_flight() -> None:
    """Nobody may use it: an error of each rank's own, which says so."""
    # The last rank's contribution comes only after that.
    handle = sumpter.push_pull_async(ONES, name="flight") if RANK != ODD else None
    if handle is None:
        handle = sumpter.push_pull_async(ONES, name="flight")
        with raises(sumpter.UnsupportedError, "bool"):
            sumpter.push_pull(ONES > 0, name="flight")
    else:
        with raises(sumpter.DuplicateNameError, "flight"):
            sumpter.push_pull(ONES, name="flight")
    np.testing.assert_array_equal(handle.synchronize(), ONES)


def everywhere() -> None:
    """All ranks refuse the same call, each with its own error."""
    for name in ("everywhere", None):
        with raises(sumpter.UnsupportedError, "bool"):
            sumpter.push_pull(ONES > 0, name=name)
        check_later(name)


def unnamed() -> None:
    """The coordinator finds them by heartbeats, as it does calls that differ."""
    for bad, reason in (BAD["type"], BAD["integers"]):
        refused(lambda bad=bad: bad(None), lambda: sumpter.push_pull(ONES), reason, sumpter.barrier)
        check_later(None)


sumpter.init()
for check in (unnamed,) if sys.argv[1] == "unnamed" else (
    named, broadcasts_and_objects, a_name_in_flight, everywhere,
):  # fmt: skip
    check()
sumpter.shutdown()
