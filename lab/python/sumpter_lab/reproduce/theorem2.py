"""BytePS' Theorem 2: a real asynchronous job beside a plain asynchronous parameter server.

The job's ranks are `theorem2_rank.py`, which needs torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from sumpter._failure import Failure
from sumpter_lab.reproduce.case import BYTEPS, Asked, Case, Found, How, judged

_RANKS, _SERVERS = 3, 1
_STEPS = {True: 60, False: 1000}  # by whether the run is quick
_PATIENCE_S = 600
_SHOWN_LINES = 6


def theorem2(asked: Asked) -> Found:
    """Runs the job and compares bytes."""
    if find_spec("torch") is None:
        raise Failure("this case trains with torch: pip install 'sumpter-lab[torch]'")
    steps = _STEPS[asked.quick]
    asked.note(f"a job of {_RANKS} ranks and {_SERVERS} server, {steps} steps of each optimizer")
    with tempfile.TemporaryDirectory(prefix="sumpter-reproduce-") as folder:
        rows = _job(Path(folder), steps)
    equal = [row for row in rows if row["equal"]]
    kinds = ", ".join(dict.fromkeys(row["optimizer"] for row in rows))
    return Found(
        setup=f"{_RANKS} ranks and {_SERVERS} server on this machine, a model of two layers, "
        f"{steps} steps of {kinds} in an order that is drawn at random",
        claims=[
            judged(
                "servers make the same of pushes and pulls in one order as an asynchronous PS",
                "the same weights",
                f"the same bytes on {len(equal)} of {len(rows)} ranks",
                len(equal) == len(rows),
            )
        ],
        rows=rows,
    )


def _job(folder: Path, steps: int) -> list[dict]:
    program = [sys.executable, "-m", "sumpter_lab.reproduce.theorem2_rank"]
    launcher = [sys.executable, "-m", "sumpter", "run", "-n", str(_RANKS), "-s", str(_SERVERS)]
    command = [*launcher, "--", *program, str(folder), str(steps)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_PATIENCE_S
        )
    except subprocess.TimeoutExpired:
        raise Failure(f"the job did not end within {_PATIENCE_S} s") from None
    files = sorted(folder.glob("rank-*.json"))
    if done.returncode or len(files) != _RANKS:
        said = "\n".join([*done.stdout.splitlines(), *done.stderr.splitlines()][-_SHOWN_LINES:])
        raise Failure(f"the job ended with code {done.returncode}: {said}")
    return [row for file in files for row in json.loads(file.read_text())]


CASES = (
    Case(
        "byteps-theorem2",
        BYTEPS,
        "Theorem 2",
        "asynchronous training gives the weights of an asynchronous parameter server",
        How.MEASURED,
        theorem2,
        needs="torch",
    ),
)
