"""What a case is: which claim of which paper, how it is tried, and what came out.

A verdict is never written down: each claim is judged by a condition on the figures that were found,
and the case's verdict follows from those of its claims.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from sumpter_lab.scaffold.results.table import Row

NOT_AT_HAND = "the paper's value is not available as text"
# Of the sources, in the order of the listing.
BYTEPS = "BytePS (OSDI 2020)"
PHUB = "PHub (SoCC 2018)"
NETAI = "NetAI 2020"
SCHEDULING = "ByteScheduler (SOSP 2019), AutoByte"
PAPERS = (BYTEPS, PHUB, NETAI, SCHEDULING)
_PERCENT = re.compile(r"(?<=\d)%")
# Links of Markdown, relative to docs/measurements.
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


class How(StrEnum):
    """How ours is got."""

    MODEL = "pure model"
    VIRTUAL_TIME = "virtual time"
    MEASURED = "this machine"
    EMULATED = "emulated in real time"
    ABSENT = "not here"

    @property
    def is_exact(self) -> bool:
        """Whether every machine finds the same."""
        return self in (How.MODEL, How.VIRTUAL_TIME)


class Verdict(StrEnum):
    """What became of a claim, or of all claims of a case."""

    REPRODUCED = "reproduced"
    PARTLY = "reproduced in part"
    REFUTED = "refuted"
    OPEN = "not reproducible here"


@dataclass(frozen=True)
class Claim:
    """One statement of a paper beside ours."""

    text: str
    paper: str  # the paper's figure
    ours: str
    verdict: Verdict


def judged(text: str, paper: str, ours: str, holds: bool) -> Claim:
    """A claim that was tried."""
    return Claim(text, paper, ours, Verdict.REPRODUCED if holds else Verdict.REFUTED)


def undecided(text: str, paper: str, ours: str = "-") -> Claim:
    """A claim that what was found neither confirms nor refutes."""
    return Claim(text, paper, ours, Verdict.OPEN)


def verdict_of(claims: Sequence[Claim]) -> Verdict:
    """That of the claims if they agree. Claims that nothing decides make it one in part, but no
    refuted one any better."""
    kinds = {claim.verdict for claim in claims}
    if len(kinds) == 1:
        return kinds.pop()
    return Verdict.PARTLY if Verdict.REPRODUCED in kinds else Verdict.REFUTED


@dataclass(frozen=True)
class Line:
    """Points of a plot. Of bars, `x` are their names."""

    label: str
    x: Sequence[float | str]
    y: Sequence[float | None]
    reference: bool = False  # a bound, or the paper's own figures


@dataclass(frozen=True)
class Plot:
    """A picture in the paper's form, as data."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    bars: bool = False
    log_x: bool = False
    from_zero: bool = True


@dataclass(frozen=True)
class Found:
    """What came out of a case."""

    setup: str
    claims: Sequence[Claim]
    # Two sentences where ours differs from the paper, with a link to what shows it. Links are
    # relative to docs/measurements.
    why: str = ""
    declared: Sequence[str] = ()  # what is assumed or fitted, and what is only a bound
    plots: Sequence[Plot] = ()
    rows: Sequence[Row] = ()  # the raw figures

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.claims)


@dataclass(frozen=True)
class Asked:
    """How a case is to be run."""

    quick: bool = False  # a smaller size with the same claims
    note: Callable[[str], None] = field(default=lambda text: None)  # of the progress


@dataclass(frozen=True)
class Measurement:
    """A command of the laboratory that writes a file, and the file of it that is kept."""

    command: tuple[str, ...]  # of `sumpter`
    output: str  # the option that names the file: `--csv` or `-o`
    # A pattern of files in lab/records, of which the newest counts; none was kept if it is empty.
    record: str = ""

    @property
    def suffix(self) -> str:
        return ".csv" if self.output == "--csv" else ".json"


# From the rows of each measurement, in their order, to what they say.
Judge = Callable[[Sequence[Sequence[Row]]], Found]


@dataclass(frozen=True)
class Case:
    """A figure, a table or a claim of a paper.

    Exactly one of `find`, `measurements` with `judge`, and `absent` is given.
    """

    name: str
    paper: str  # one of PAPERS
    place: str  # in the paper
    claim: str  # in a line
    how: How
    find: Callable[[Asked], Found] | None = None
    measurements: tuple[Measurement, ...] = ()
    judge: Judge | None = None
    absent: Found | None = None
    needs: str = ""  # beyond the laboratory, such as root

    @property
    def runs(self) -> bool:
        return self.absent is None


def described(case: Case, found: Found) -> dict[str, Any]:
    """The object of a case as files have it. Percentages have a blank before their sign."""

    def spaced(text: str) -> str:
        return _PERCENT.sub(" %", text)

    return {
        "name": case.name,
        "paper": case.paper,
        "place": case.place,
        "claim": case.claim,
        "how": str(case.how),
        "setup": spaced(found.setup),
        "verdict": str(found.verdict),
        "claims": [
            {name: spaced(text) for name, text in asdict(claim).items()} for claim in found.claims
        ],
        "why": spaced(found.why),
        "declared": [spaced(note) for note in found.declared],
        "plots": [asdict(plot) for plot in found.plots],
        "rows": [dict(row) for row in found.rows],
    }


def plain(text: str, pages: bool = True) -> str:
    """A note without the marks of Markdown; a link becomes its words, and the path of its page."""
    shown = r"\1 (docs/measurements/\2)" if pages else r"\1"
    return _LINK.sub(shown, text).replace("**", "")
