"""Bringing all ranks to one state: parameters, optimizer state and any Python object.

Objects travel as pickles, and unpickling runs what the sender wrote. They are accepted from
members of the job only, all of which have proved on every connection that they know its token.
"""

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from sumpter._calls import objects
from sumpter._calls.refusals import Checking
from sumpter._core import membership
from sumpter._core.compression.memory import COMPRESSION, with_own, without_residuals
from sumpter._core.handles import GroupHandle
from sumpter._core.names import matched_by_names
from sumpter._core.process_sets import ProcessSet, global_process_set
from sumpter.torch.collectives.broadcasts import broadcast_async_
from sumpter.torch.tensors import check_carried, dtype_name
from sumpter.torch.training.overlap import settle

# By which ranks match the calls that broadcast parameters.
_PARAMETERS = "broadcast_parameters", "all", global_process_set

Parameters = Mapping[str, Any] | Iterable[torch.Tensor] | Iterable[tuple[str, Any]]


def broadcast_parameters(
    params: Parameters, root_rank: int = 0, prefix: str = "Parameter."
) -> None:
    """Overwrites every rank's tensors with rank `root_rank`'s.

    `params` is a state_dict(), named_parameters(), or any iterable of tensors.
    """
    with Checking(*_PARAMETERS):
        named = [(name, tensor) for name, tensor in _named(params) if tensor is not None]
        for name, tensor in named:
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(
                    f"{name} is a {type(tensor).__name__}, not a tensor: use broadcast_object"
                )
    settle(tensor for _, tensor in named)
    with torch.no_grad():
        _broadcast_named(named, root_rank, prefix)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int = 0,
    prefix: str | torch.nn.Module = "Parameter.",
    model: torch.nn.Module | None = None,
) -> None:
    """Gives every rank's optimizer the state and the options of rank `root_rank`'s.

    Ranks whose optimizer has no state yet get it. As with Horovod, parameters of an optimizer
    without any state have a gradient after that: zeros, if they had none. `prefix` is BytePS'
    third argument; `model`, Horovod's, is not needed, because no state has to be made before it is
    received. ValueError for LBFGS. What is not a tensor travels as a pickle, within the
    authenticated job. What the codec of a DistributedOptimizer has left out stays with each rank.
    """
    if not isinstance(prefix, str):
        prefix = "Parameter."
    session = membership.current()
    is_root = session.rank == root_rank
    tensors: list[torch.Tensor] = []
    with objects.checking_object():
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError("cannot broadcast the state of LBFGS: it holds history of the closure")
        state = optimizer.state_dict()
        own = state.get(COMPRESSION, {})
        if own:
            state = {**state, COMPRESSION: without_residuals(own)}
        outline = _outline(state, tensors) if is_root else None
    pickled = objects.broadcast_pickle(outline, root_rank)
    with Checking(*_PARAMETERS):
        if not is_root:
            state = _allocate(pickle.loads(pickled), tensors)
    names = [(f"state.{index}", tensor) for index, tensor in enumerate(tensors)]
    _broadcast_named(names, root_rank, prefix)
    if not optimizer.state:
        _make_gradients(optimizer)
    if not is_root or getattr(optimizer, "is_shared", False):
        if own and COMPRESSION in state:
            state[COMPRESSION] = with_own(state[COMPRESSION], own)
        optimizer.load_state_dict(state)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns rank `root_rank`'s object; the other ranks' arguments are ignored.

    It travels as a pickle, which is accepted from members of the authenticated job only.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def _make_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Gives zeros to the parameters that have no gradient."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
                if isinstance(optimizer, torch.optim.SparseAdam):
                    # Added to dense zeros, a sparse gradient is dense.
                    parameter.grad = parameter.grad.to_sparse(1)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the list of all ranks' objects, by rank.

    They travel as pickles, which are accepted from members of the authenticated job only.
    """
    return objects.allgather_object(obj, name, process_set)


def _named(params: Parameters) -> Iterable[tuple[str, Any]]:
    if isinstance(params, Mapping):
        yield from sorted(params.items())
        return
    for index, item in enumerate(params):
        yield item if isinstance(item, tuple) else (str(index), item)


def _broadcast_named(named: list[tuple[str, torch.Tensor]], root_rank: int, prefix: str) -> None:
    session = membership.current()
    with Checking(*_PARAMETERS):
        membership.check_root(session, root_rank)
        for _, tensor in named:
            check_carried(tensor)
        described = {name: _describe(tensor) for name, tensor in named}
        if len(described) != len(named):
            raise ValueError("two tensors to broadcast have the same name")
    with matched_by_names(session, _PARAMETERS, prefix, described, "tensors", root_rank) as matched:
        handles = [
            broadcast_async_(tensor, root_rank, matched._replace(name=matched.name + name))
            for name, tensor in named
        ]
        GroupHandle(handles).synchronize()


def _describe(tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    return dtype_name(tensor), tuple(tensor.shape)


@dataclass(frozen=True)
class _Blank:
    """Stands for a tensor in the outline of an optimizer's state."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def _outline(value: Any, tensors: list[torch.Tensor]) -> Any:
    """`value` with blanks for its tensors, which are collected in `tensors`."""
    if isinstance(value, torch.Tensor):
        # On the CPU on all ranks, wherever the others' optimizers keep it.
        tensors.append(value.detach().cpu())
        return _Blank(tuple(value.shape), value.dtype)
    if isinstance(value, dict):
        return {key: _outline(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_outline(item, tensors) for item in value)
    return value


def _allocate(outline: Any, tensors: list[torch.Tensor]) -> Any:
    """The opposite of _outline, with new tensors to receive into."""
    if isinstance(outline, _Blank):
        tensors.append(torch.zeros(outline.shape, dtype=outline.dtype, device="cpu"))
        return tensors[-1]
    if isinstance(outline, dict):
        return {key: _allocate(item, tensors) for key, item in outline.items()}
    if type(outline) in (list, tuple):
        return type(outline)(_allocate(item, tensors) for item in outline)
    return outline
