"""The same state on all ranks: variables, and objects of Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sumpter._calls import objects
from sumpter._core.process_sets import ProcessSet, global_process_set
from sumpter.tensorflow.ops import grouped_broadcast


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int = 0,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
    scope: str = "",
) -> None:
    """Gives the variables the values of rank `root_rank`'s, in one call.

    They are assigned in place whatever `inplace` says. `scope` is BytePS': it goes in front of the
    name of the call.
    """
    variables = list(variables)
    values = grouped_broadcast(variables, root_rank, f"{scope}variables", process_set)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gives the variables the values of rank `root_rank`'s, and returns them."""
    variables = list(variables)
    values = grouped_broadcast(variables, root_rank, name, process_set)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return variables


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns rank `root_rank`'s object; the other ranks' arguments are ignored.

    It travels as a pickle, which is accepted from members of the authenticated job only.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """broadcast_object() with everything but the object."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns all ranks' objects, by rank. They travel as broadcast_object()'s do."""
    return objects.allgather_object(obj, name, process_set)
