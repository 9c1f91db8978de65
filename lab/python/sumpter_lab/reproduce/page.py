"""The page of all results, `docs/measurements/papers.md`.

    python -m sumpter_lab.reproduce.page

prints it, in a clone of the repository. What every machine finds alike is computed; what was
measured is judged again from the records in `lab/records`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sumpter_lab.reproduce.case import PAPERS, Case, described
from sumpter_lab.reproduce.cases import ALL
from sumpter_lab.reproduce.run import judged_record, run
from sumpter_lab.scaffold.results.document import REPRODUCE

ROOT = Path(__file__).resolve().parents[4]
RECORDS = ROOT / "lab" / "records"
_WIDTH = 100
_NO_RECORD = "no record yet"

_HEAD = """\
# The papers' figures and tables

Each figure, table or claim of BytePS (Jiang et al., OSDI 2020), PHub (Luo et al., SoCC 2018), "Is
Network the Bottleneck of Distributed Training?" (Zhang et al., NetAI 2020), ByteScheduler (Peng et
al., SOSP 2019) and AutoByte, beside what comes out here.
[`sumpter reproduce`](../user/reproduce.md) runs any of them.

```sh
sumpter reproduce                                # lists the cases
sumpter reproduce byteps-fig12 -o papers         # runs one
sumpter reproduce --all --quick -o papers        # all models and all in virtual time
python -m sumpter_lab.reproduce.page             # prints this page
```
"""
_RULES = """\
**How.** A *pure model* is the planner's formulas or an equation of the paper; *virtual time* is
the simulation of [what-if](whatif.md); both give the same figures on every machine, and a test
keeps their verdicts. *This machine* and *emulated in real time* are measurements, judged from the
record that is linked. What is *not here* has its reason below.

**Verdict.** A claim is judged by a condition on the figures. A case is reproduced if all of its
claims are, reproduced in part if some are, and refuted if none is and one is refuted.
"""


@dataclass(frozen=True)
class Entry:
    """A case on the page: its result, and the records that it is from."""

    case: Case
    result: dict[str, Any] | None
    records: Sequence[Path] = ()


def entries(cases: Iterable[Case] = ALL, records: Path = RECORDS) -> list[Entry]:
    """What the page shows of each case. Exact ones are run, in the quick size."""
    return [_entry(case, records) for case in cases]


def _entry(case: Case, records: Path) -> Entry:
    if case.how.is_exact or case.absent is not None:
        return Entry(case, run(case, quick=True))
    judged = judged_record(case, records)
    if judged is not None:
        found, files = judged
        return Entry(case, described(case, found), files)
    # The results of cases that are no instrument's are kept as `sumpter reproduce` writes them.
    kept = max(records.glob(f"papers/*-{case.name}.json"), default=None)
    if kept is not None:
        return Entry(case, REPRODUCE.read(kept)[0], [kept])
    return Entry(case, None)


def page(shown: Sequence[Entry]) -> str:
    """The page. The same results give the same text."""
    parts = [_HEAD, _conclusion(shown), _RULES]
    for paper in PAPERS:
        of = [entry for entry in shown if entry.case.paper == paper]
        if of:
            parts += [f"## {paper}\n", _table(of)]
    parts += ["## Differences\n", _differences(shown)]
    parts += ["## Assumed, fitted and bounds\n", _declared(shown)]
    return "\n".join(parts)


def _conclusion(shown: Sequence[Entry]) -> str:
    verdicts = [entry.result["verdict"] for entry in shown if entry.result]
    counts = [f"{verdicts.count(one)} are {one}" for one in dict.fromkeys(sorted(verdicts))]
    exact = sum(entry.case.how.is_exact for entry in shown)
    text = (
        f"**Conclusion.** Of {len(shown)} cases {', '.join(counts)}. {exact} of them are exact: "
        "pure models and virtual time. Where the text of a paper does not print a figure, only the "
        "direction of its claim is compared, and the table says so."
    )
    return _filled(text) + "\n"


def _table(of: Sequence[Entry]) -> str:
    lines = ["| case | claim | the paper's | ours | verdict |", "|---|---|---|---|---|"]
    for entry in of:
        case, result = entry.case, entry.result
        first = f"**{case.name}**<br>{case.place}<br>{_how(entry)}"
        if result is None:
            lines.append(_row([first, case.claim, "", _NO_RECORD, ""]))
            continue
        for number, claim in enumerate(result["claims"]):
            name = first if number == 0 else ""
            cells = [claim["text"], claim["paper"], claim["ours"], claim["verdict"]]
            lines.append(_row([name, *cells]))
    return "\n".join([*lines, ""])


def _how(entry: Entry) -> str:
    links = [
        f"[record](../../lab/records/{file.parent.name}/{file.name})" for file in entry.records
    ]
    return ", ".join([str(entry.case.how), *links])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _differences(shown: Sequence[Entry]) -> str:
    lines = [
        _filled(f"- **{entry.case.name}** ({entry.result['verdict']}): {entry.result['why']}", "  ")
        for entry in shown
        if entry.result and entry.result["why"]
    ]
    return "\n".join([*lines, ""])


def _declared(shown: Sequence[Entry]) -> str:
    """Each note once, with the cases that it is about."""
    about: dict[str, list[str]] = {}
    for entry in shown:
        for note in entry.result["declared"] if entry.result else ():
            about.setdefault(note, []).append(entry.case.name)
    lines = [_filled(f"- {note} *({', '.join(of)})*", "  ") for note, of in about.items()]
    return "\n".join([*lines, ""])


def _filled(text: str, indent: str = "") -> str:
    """Lines of at most so many columns. A link may hold blanks, and is not cut."""
    words = re.findall(r"\[[^\]]+\]\([^)]+\)\S*|\S+", text)
    lines, line = [], ""
    for word in words:
        longer = f"{line} {word}" if line.strip() else f"{line}{word}"
        if len(longer) > _WIDTH and line.strip():
            lines.append(line)
            longer = f"{indent}{word}"
        line = longer
    return "\n".join([*lines, line])


def main() -> None:
    """Prints the page."""
    print(page(entries()), end="")


if __name__ == "__main__":
    main()
