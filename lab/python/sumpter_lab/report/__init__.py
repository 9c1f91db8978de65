"""One page about a run: its timeline, what it waited for, how far from the optimum, and advice.

    from sumpter_lab import (report)

    page = report.make(["run.profile.json", "bench.csv"])
    report.write(page, "report.html")

The page is one file that needs no network: plots, their script and style are in it.
`docs/user/report.md` says what it shows. Needs the extra `sumpter-lab[report]`.
"""

from sumpter_lab.report.compose import Page, Question, make, write
from sumpter_lab.report.errors import ReportError

__all__ = ["Page", "Question", "ReportError", "make", "write"]
