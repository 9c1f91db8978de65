"""From files to a page: recognise each, make its sections, and lay them out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sumpter_lab.report import inputs
from sumpter_lab.report.blocks import Section
from sumpter_lab.report.errors import ReportError

if TYPE_CHECKING:
    from sumpter_lab.whatif import Case

# The smallest cluster of the paper's figures on which the network is in doubt.
WORKERS, BANDWIDTH_GBPS = 64, 10.0
# Called with a file, and how many of how many cases are simulated.
Advance = Callable[[str, int, int], None]
_EXTRA = "pip install 'sumpter-lab[report]'"


@dataclass(frozen=True)
class Question:
    """What the files do not say: the cluster that a profile is asked about, and the like."""

    workers: int = WORKERS  # GPU machines
    servers: int = 0  # CPU machines that help
    # Gb/s of each machine, each way. Given, it also judges the links of a trace.
    bandwidth_gbps: float | None = None
    compression: float = 1.0
    transport_efficiency: float = 1.0
    step: int | None = None  # of a trace; its last one by default
    batch_time_s: float | None = None  # seconds of an iteration of a NetAI log
    add_estimate: Path | None = None  # a log of additions, instead of the profile's

    def case(self) -> Case:
        """The cluster, with Sumpter where there are helpers and all-reduce where there are not."""
        from sumpter_lab.whatif import Case

        return Case(
            workers=self.workers,
            servers=self.servers,
            architecture="sumpter" if self.servers else "allreduce",
            bandwidth_gbps=self.bandwidth_gbps or BANDWIDTH_GBPS,
            compression=self.compression,
            transport_efficiency=self.transport_efficiency,
        )


@dataclass(frozen=True)
class Page:
    """A page, and what is in it."""

    html: str
    sections: tuple[Section, ...]


def make(
    paths: Sequence[str | Path],
    question: Question | None = None,
    title: str | None = None,
    advance: Advance | None = None,
) -> Page:
    """The page about some files: profiles, traces and what benches wrote, in any order.

    `advance` is called during slow parts: the file's name, simulated cases, all cases.

    What a file is, is seen from its content. Raises DocumentError, ProfileError, TraceError or
    ConfigError, which name the file or option, the field and what was expected; and ReportError
    without the libraries of the extra `sumpter-lab[report]`.
    """
    _check_libraries()
    question = question or Question()
    if not paths:
        raise ReportError(f"expected at least one file: {inputs.KNOWN}")
    asked = inputs.Options(question.batch_time_s, question.add_estimate)
    read = _joined([inputs.read(Path(path), asked) for path in paths])
    sections = tuple(section for one in read for section in _sections(one, question, advance))
    names = read[0].name if len(read) == 1 else f"{len(read)} files"
    from sumpter_lab.report.page import render

    return Page(render(title or f"Sumpter report: {names}", sections), sections)


def write(page: Page, path: str | Path) -> None:
    """Writes the page. Raises ReportError if that fails."""
    try:
        Path(path).write_text(page.html, encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{path}: cannot be written: {error.strerror}") from None


def _joined(read: Sequence[inputs.Input]) -> list[inputs.Input]:
    """The files, those of the papers' cases as one in the place of the first."""
    cases = [one for one in read if one.kind == "reproduce"]
    if len(cases) < 2:
        return list(read)
    rows = [row for one in cases for row in one.content]
    whole = inputs.Input(f"{len(cases)} files of cases", "reproduce", rows)
    return [whole if one is cases[0] else one for one in read if one not in cases[1:]]


def _sections(one: inputs.Input, question: Question, advance: Advance | None) -> Iterator[Section]:
    if one.kind == "profile":
        from sumpter_lab.report import curves, iteration

        def simulated(done: int, total: int) -> None:
            if advance is not None:
                advance(one.name, done, total)

        yield curves.section(one.name, one.content, question.case(), simulated)
        yield iteration.section(one.name, one.content)
    elif one.kind == "trace":
        from sumpter_lab.report import timeline

        yield timeline.section(one.name, one.content, question.step, question.bandwidth_gbps)
    elif one.kind == "emulate":
        from sumpter_lab.report import emulated

        yield emulated.section(one.name, one.content)
    elif one.kind == "reproduce":
        from sumpter_lab.report import papers

        yield from papers.sections(one.name, one.content)
    elif one.kind == "tune":
        from sumpter_lab.report import tuned

        yield tuned.section(one.name, one.content)
    else:
        from sumpter_lab.report.benches import SECTIONS

        yield SECTIONS[one.kind](one.name, one.content)


def _check_libraries() -> None:
    try:
        import jinja2  # noqa: F401
        import plotly.graph_objects  # noqa: F401
    except ImportError as error:
        raise ReportError(f"a report needs {error.name}: {_EXTRA}") from None
