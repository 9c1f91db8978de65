"""Every combination of lists of values, without those that contradict themselves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sumpter._errors import ConfigError
from sumpter_lab.whatif.cases import Case, described_list


def cases(values: Mapping[str, Sequence[Any]], architectures: Sequence[str]) -> Iterator[Case]:
    """Cases of all combinations of the fields' values; the last field changes fastest.

    Without architectures, cases without servers are all-reduces and the others Sumpter. Of several
    architectures each is tried where it can be: all-reduce without servers, parameter servers with
    some. Raises ConfigError where that leaves nothing of an architecture.
    """
    for architecture in architectures or (None,):
        fitting = [n for n in values["servers"] if _fits(architecture, n)]
        if not fitting and len(architectures) > 1:
            count = "0" if architecture == "allreduce" else "1 or more"
            listed = ",".join(map(str, values["servers"]))
            raise ConfigError(
                f"servers is {listed}; expected one that is {count}, for {architecture}"
            )
    for combination in itertools.product(*values.values()):
        fields = dict(zip(values, combination, strict=True))
        servers = fields["servers"]
        for architecture in architectures or ("sumpter" if servers else "allreduce",):
            if len(architectures) < 2 or _fits(architecture, servers):
                yield Case(**fields, architecture=architecture)


def of_lists(
    lists: Mapping[str, str],
    values: Mapping[str, Sequence[Any]],
    architectures: Sequence[str],
) -> Iterator[Case]:
    """The same on the machines of lists, by name. `values` has no numbers of machines, and no
    bandwidths where those of the lists are meant.

    Raises ConfigError, which names the list, for one that cannot be.
    """
    for name, text in lists.items():
        try:
            found = [described_list(text, local) for local in values["local_reduction"]][0]
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
        own = {
            "machines": [text],
            "workers": [found.workers],
            "servers": [found.servers],
            "bandwidth_gbps": [found.bandwidth_gbps],
        }
        yield from cases({**own, **values}, architectures)


def _fits(architecture: str | None, servers: int) -> bool:
    return {"allreduce": servers == 0, "ps": servers > 0}.get(architecture or "", True)
