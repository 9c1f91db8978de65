"""`sumpter bench scale`: small jobs beside a real coordinator, and what cannot be had."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from sumpter._errors import ConfigError
from sumpter._failure import Failure
from sumpter_lab import _native
from sumpter_lab.scaffold.results.document import SCALE
from sumpter_lab.scale import run as scale

# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 300.0


def sumpter(words: Sequence[str], soft: int | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command, with a lower limit of open files if one is given, which is also the most."""

    limit = [] if soft is None else ["sh", "-c", f'ulimit -n {soft}; exec "$@"', "sh"]
    command = [*limit, sys.executable, "-m", "sumpter", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)


def test_each_number_of_members_has_a_row_with_every_phase(tmp_path: Path) -> None:
    table, document = tmp_path / "scale.csv", tmp_path / "scale.json"
    small = ("--members", "2,5", "--servers", "2", "--lanes", "3", "--tensors", "20")
    files = ("--csv", str(table), "-o", str(document))
    done = sumpter(["bench", "scale", *small, "--seconds", "0.5", "--json", *files])
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["members"] for row in rows] == [2, 5]
    assert SCALE.read(document) == rows
    assert len(table.read_text().splitlines()) == 3
    for row in rows:
        assert row["lanes"] == row["members"] + 6
        assert row["connections_of_worker"] == 2 * row["members"] + 4
        assert row["join_s"] > 0 and row["change_s"] > 0 and row["unlike_change_s"] > 0
        assert 0 <= row["change_suspended_s"] <= row["change_s"]
        assert row["peak_bytes"] > 1 << 20
    # Alike answers are sent once, unlike ones each; a plan grows with the members that it names.
    two, five = rows
    assert two["plan_bytes"] < five["plan_bytes"]
    assert five["unlike_change_bytes"] > five["change_bytes"] > two["change_bytes"]
    # The table is the same, in lists that depend on who declares when.
    tables = sorted((two["table_bytes"], five["table_bytes"]))
    assert 20 * len("module.layers") < tables[0] <= tables[1] < 2 * tables[0]


def test_a_column_for_people_shows_each_row() -> None:
    row = dict.fromkeys(
        ("members", "join_s", "join_cpu_s", "memory_bytes_per_member", "heartbeat_cpu_share"), 1
    )
    row |= dict.fromkeys(
        ("training_cpu_share", "waiting_cpu_share", "declare_s", "change_s", "unlike_change_s"), 2
    )
    row |= {"plan_bytes": 2048, "placement_ms": 3.25}
    texts = [column.text(row) for column in scale.COLUMNS]
    assert texts[-2:] == ["2.0", "3.2"] and texts[4] == "100.0%"


def test_members_that_this_process_cannot_hold_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    with pytest.raises(Failure, match=r"take 12544 open files.*allows it 4096.*ulimit -n 12544"):
        scale._check(2048)
    monkeypatch.setattr(scale, "available_bytes", lambda: 1 << 30)
    with pytest.raises(Failure, match="give fewer --members"):
        scale._check(2048)


def test_numbers_of_which_no_plan_can_be_made_are_named() -> None:
    with pytest.raises(ConfigError, match="lanes of server 1.*4096"):
        _native.placement_s(workers=1, servers=1, lanes=5000, tensors=[1 << 20])


def test_a_job_beyond_the_limit_of_open_files_names_it_and_the_remedy() -> None:
    program = "import sumpter; sumpter.init(); sumpter.shutdown()"
    done = sumpter(["run", "-n", "2", "--", sys.executable, "-c", program], soft=40)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "open files" in said and "allows it 40 at most" in said, said
    assert "`ulimit -n " in said and "LimitNOFILE=" in said, said
