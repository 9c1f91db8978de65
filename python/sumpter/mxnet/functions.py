"""The same state on all ranks: parameters, and objects of Python."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any

import mxnet as mx

from sumpter._calls import collective as kinds
from sumpter._calls import objects
from sumpter._calls.refusals import Checking
from sumpter._core import membership
from sumpter._core.names import matched_by_names
from sumpter._core.process_sets import ProcessSet, global_process_set, label, members
from sumpter._errors import UnsupportedError
from sumpter.mxnet.arrays import assign, check_dense, dtype_name
from sumpter.mxnet.calls import call
from sumpter.mxnet.ops import check_root

# What the names of all calls of broadcast_values() begin with, and go on with without a prefix.
PARAMETERS, EVERYTHING = "parameter", "all"


def broadcast_parameters(
    params: Mapping[str, Any],
    root_rank: int = 0,
    prefix: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives parameters the values of rank `root_rank`'s, in one call.

    `params` is what Block.collect_params() returns, or a dictionary of parameters or arrays, under
    the same names on all ranks. A parameter whose shape is not known yet gets its value in the
    forward pass that initializes it, which all ranks have to make. Calls for different models take
    different prefixes.
    """
    if not isinstance(params, (Mapping, mx.gluon.ParameterDict)):
        raise ValueError(
            f"params is a {type(params).__name__}: give Block.collect_params() or a dictionary"
        )
    word, targets = prefix or "", dict[str, list[Any]]()
    with Checking(PARAMETERS, word or EVERYTHING, process_set):
        check_root(root_rank, process_set)
        for name, parameter in sorted(params.items()):
            if not isinstance(parameter, mx.gluon.Parameter):
                targets[name] = [parameter]
            elif is_deferred(parameter):
                _broadcast_when_initialized(parameter, root_rank, f"{word}{name}", process_set)
            else:
                targets[name] = values_of(parameter)
    broadcast_values(targets, root_rank, word, process_set)


def broadcast_values(
    targets: Mapping[str, Sequence[Any]], root_rank: int, prefix: str, process_set: ProcessSet
) -> None:
    """Gives each list of arrays the value of the first of rank `root_rank`'s of that name."""
    with Checking(PARAMETERS, prefix or EVERYTHING, process_set):
        given = [check_dense(arrays[0], name) for name, arrays in targets.items()]
    if not given or len(members(process_set)) == 1:
        return
    forms = [(dtype_name(array), tuple(array.shape)) for array in given]
    series = PARAMETERS, prefix or EVERYTHING, process_set
    scope = f"{PARAMETERS}{prefix and '.'}{prefix}{label(process_set)}."
    described = dict(zip(targets, forms, strict=True))
    session, paths = membership.current(), list(targets)
    with matched_by_names(session, series, scope, described, "arrays", root_rank) as matched:
        results = call(
            kinds.BROADCAST, given, matched.name, process_set, paths=paths, root=root_rank
        )
    for arrays, result in zip(targets.values(), results, strict=True):
        for array in arrays:
            assign(array, result)


def is_deferred(parameter: mx.gluon.Parameter) -> bool:
    """Whether a parameter is initialized when its shape is known."""
    return bool(parameter._deferred_init)


def values_of(parameter: mx.gluon.Parameter) -> list[mx.nd.NDArray]:
    """The value of a parameter on each of its devices."""
    if parameter._stype != "default":
        raise UnsupportedError(
            f"parameter {parameter.name} is of storage type {parameter._stype!r}: only its "
            "gradient may be sparse, so make it with stype='default'"
        )
    return parameter.list_data()


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns rank `root_rank`'s object; the other ranks' arguments are ignored.

    It travels as a pickle, which is accepted from members of the authenticated job only.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns all ranks' objects, by rank. They travel as broadcast_object()'s do."""
    return objects.allgather_object(obj, name, process_set)


def _broadcast_when_initialized(
    parameter: mx.gluon.Parameter, root_rank: int, name: str, process_set: ProcessSet
) -> None:
    """Has a parameter get its value right after MXNet has initialized it."""

    def initialize(own: mx.gluon.Parameter, *arguments: Any) -> None:
        # Once: afterwards it is a parameter like any other.
        del own._init_impl
        own._init_impl(*arguments)
        broadcast_values({name: values_of(own)}, root_rank, f"deferred.{name}", process_set)

    parameter._init_impl = types.MethodType(initialize, parameter)
