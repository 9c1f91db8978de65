"""The figures and tables of the papers that Sumpter builds on, beside what comes out here.

    from sumpter_lab import reproduce

    result = reproduce.run(reproduce.find("byteps-fig12"), quick=True)
    print(result["verdict"])

A *case* is one figure, table or claim of a paper. It is data (`case.py`) and a function that finds
what comes out here; one scaffold (`run.py`) runs, judges, draws and keeps every case.
`docs/measurements/papers.md` has the results of all of them.
"""

from sumpter_lab.reproduce.case import Case, Claim, Found, How, Verdict
from sumpter_lab.reproduce.cases import ALL, find
from sumpter_lab.reproduce.run import run, save

__all__ = ["ALL", "Case", "Claim", "Found", "How", "Verdict", "find", "run", "save"]
