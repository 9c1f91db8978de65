"""All cases, in the order of the papers and of their figures."""

from __future__ import annotations

import difflib

from sumpter._failure import UsageError
from sumpter_lab.reproduce import (
    absent,
    byteps_machines,
    byteps_plan,
    byteps_rounds,
    emulated,
    measured,
    netai,
    phub,
    scheduling,
    theorem2,
    tuning,
)
from sumpter_lab.reproduce.case import PAPERS, Case

_OF = {
    case.name: case
    for module in (
        byteps_plan,
        byteps_rounds,
        byteps_machines,
        phub,
        netai,
        scheduling,
        tuning,
        theorem2,
        measured,
        emulated,
        absent,
    )
    for case in module.CASES
}

# Those that any machine can run come first within a paper, as their modules do.
ALL: tuple[Case, ...] = tuple(sorted(_OF.values(), key=lambda case: PAPERS.index(case.paper)))


def find(name: str) -> Case:
    """The case of a name. Raises UsageError, which suggests names that are like it."""
    if name in _OF:
        return _OF[name]
    like = difflib.get_close_matches(name, _OF, n=3, cutoff=0.5)
    like = like or [known for known in _OF if name and name in known][:3]
    advice = f"did you mean {' or '.join(like)}?" if like else "`sumpter reproduce` lists them"
    raise UsageError(f"there is no case '{name}': {advice}")
