"""The parameters of an optimizer and their names, checked as Horovod checks them."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch


def check_groups(num_groups: int, groups: object) -> None:
    """Raises ValueError unless the arguments are what Horovod takes, though nothing follows."""
    whole = isinstance(groups, int) and not isinstance(groups, bool)
    lists = isinstance(groups, (list, tuple)) and all(
        isinstance(group, (list, tuple)) and all(isinstance(p, torch.Tensor) for p in group)
        for group in groups
    )
    if num_groups < 0 or (whole and groups < 0):
        raise ValueError(f"num_groups={num_groups}, groups={groups}: a number of groups is from 0")
    if groups is not None and not whole and not lists:
        raise ValueError("groups must be a number, or a list of lists of parameters")


def name_parameters(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None,
) -> dict[torch.nn.Parameter, str]:
    """The parameters of `optimizer` in its order, frozen ones too, with their names."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if named_parameters is None:
        return {parameter: str(index) for index, parameter in enumerate(parameters)}
    names = _check_names(list(named_parameters), parameters)
    return {parameter: names[parameter] for parameter in parameters}


def name_added(
    group: Mapping[str, Any], known: Mapping[torch.nn.Parameter, str]
) -> dict[torch.nn.Parameter, str]:
    """Names for the parameters of a new group, which the `known` ones of the optimizer have not.

    They are the group's own if it was given any, and else their numbers in the optimizer.
    """
    parameters = group["params"]
    given = group.get("param_names") or [
        str(number) for number in range(len(known), len(known) + len(parameters))
    ]
    taken = set(known.values())
    names = {}
    for parameter, name in zip(parameters, given, strict=True):
        while name in taken:
            name += "+"
        taken.add(name)
        names[parameter] = name
    return names


def trainable(names: Mapping[torch.nn.Parameter, str]) -> dict[torch.nn.Parameter, str]:
    """Those that need gradients."""
    return {parameter: name for parameter, name in names.items() if parameter.requires_grad}


def _check_names(
    named: list[Any], parameters: list[torch.nn.Parameter]
) -> dict[torch.nn.Parameter, str]:
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in named):
        raise ValueError("named_parameters must be pairs of name and parameter")
    seen: set[str] = set()
    duplicates = sorted({name for name, _ in named if name in seen or seen.add(name)})
    if duplicates:
        raise ValueError(f"named_parameters has duplicate names: {', '.join(duplicates)}")
    names = {parameter: name for name, parameter in named}
    unnamed = sum(parameter not in names for parameter in parameters)
    if unnamed:
        raise ValueError(f"named_parameters lacks {unnamed} of the optimizer's parameters")
    return names
