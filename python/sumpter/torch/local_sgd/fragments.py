"""Fragments of a model: which parameters are synchronized together, and in which step."""

from collections.abc import Sequence

import torch

Names = dict[torch.nn.Parameter, str]


def split(names: Names, fragments: int | Sequence[torch.nn.Module]) -> list[Names]:
    """The parameters of each fragment, in the order of transmission.

    A number cuts the parameters, in their order, into as many parts of about the same bytes.
    Modules give their own parameters; together they must have each of `names` once. ValueError for
    what would leave a parameter out, or synchronize it twice.
    """
    if isinstance(fragments, int) and not isinstance(fragments, bool):
        return _cut(names, fragments)
    return _of_modules(names, list(fragments))


def offset(index: int, fragments: int, sync_every: int) -> int:
    """The step, from 1 to `sync_every`, in which the fragment of this index is sent.

    Fragments are spread evenly over the interval, and the last is sent in its last step. They are
    sent in the order of their indices whatever `sync_every` is, so ranks with different intervals
    send them in one order: no rank waits for a fragment that another would send only after one
    that the first has not sent.
    """
    return -(-sync_every * (index + 1) // fragments)


def _cut(names: Names, count: int) -> list[Names]:
    if not 1 <= count <= len(names):
        raise ValueError(
            f"fragments is {count}: it must be within 1..{len(names)}, the number of parameters "
            "that are trained"
        )
    items = list(names.items())
    ends = [0]
    for parameter, _ in items:
        ends.append(ends[-1] + parameter.numel() * parameter.element_size())
    cuts = [0]
    for part in range(1, count):
        # Where the bytes before come closest, with a parameter for each of the others.
        candidates = range(cuts[-1] + 1, len(items) - (count - part) + 1)
        target = ends[-1] * part / count
        cuts.append(min(candidates, key=lambda cut: abs(ends[cut] - target)))
    cuts.append(len(items))
    return [dict(items[start:stop]) for start, stop in zip(cuts, cuts[1:], strict=False)]


def _of_modules(names: Names, modules: list[torch.nn.Module]) -> list[Names]:
    parts: list[Names] = []
    seen: dict[torch.nn.Parameter, int] = {}
    for index, module in enumerate(modules):
        if not isinstance(module, torch.nn.Module):
            raise ValueError(f"fragments has a {type(module).__name__}: give modules, or a number")
        own = [p for p in module.parameters() if p.requires_grad]
        for parameter in own:
            if parameter not in names:
                raise ValueError(f"fragment {index} has a parameter that is not the model's")
            if parameter in seen:
                raise ValueError(
                    f"parameter {names[parameter]} is in the fragments {seen[parameter]} and "
                    f"{index}: each parameter must be in one"
                )
            seen[parameter] = index
        if not own:
            raise ValueError(f"fragment {index} has no parameter that is trained")
        parts.append({parameter: names[parameter] for parameter in own})
    left = [name for parameter, name in names.items() if parameter not in seen]
    if left:
        raise ValueError(
            f"{len(left)} parameters are in no fragment and would differ between ranks: "
            f"{', '.join(left[:3])}"
        )
    return parts
