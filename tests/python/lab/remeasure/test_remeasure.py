"""The commands of the measurements' pages can be run again, all of them, by one command."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from sumpter._failure import Failure
from sumpter_lab.remeasure import __main__ as command_line
from sumpter_lab.remeasure import runs
from sumpter_lab.remeasure.commands import commands

PAGES = sorted((runs.ROOT / "docs" / "measurements").glob("*.md"))

PAGE = """\
# A page

```sh
sudo VALUE=7 python write.py -o FILE   # writes
python write.py \\
    --csv rows.csv
```
```python
not a command
```
"""
WRITE = """\
import os, pathlib, sys
pathlib.Path(sys.argv[2]).write_text(os.environ.get("VALUE", "none"))
print("wrote", os.environ.get("VALUE"))
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page in a clone of its own, of one commit."""
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    known = {**runs.record.environment(), "commit": "1234567"}
    monkeypatch.setattr(runs.record, "environment", lambda: known)
    monkeypatch.setattr(runs, "_BUSY_SAMPLE_S", 0.05)
    (tmp_path / "write.py").write_text(WRITE)
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    return page


def again(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["remeasure", *map(str, arguments)])
    return command_line.main()


def test_every_command_of_the_pages_is_one_that_can_be_run() -> None:
    found = list(commands(PAGES))
    assert len(found) > 100
    programs = {*runs._PROGRAMS, "cargo"}
    for command in found:
        words = [word for word in command.words if not re.match(r"[A-Z_]+=", word)]
        assert words[0] in programs, command
        assert not any(text in word for word in words for text in ("|", ">", "$")), command
        written = command.writing_to(Path("/out"))
        assert not any(word in ("FILE", "FOLDER") for word in written), written


def test_measurements_write_their_figures_down(page: Path) -> None:
    page.write_text(
        "```sh\nsumpter run -n 2 -- sumpter bench allreduce --sizes 4\nsumpter bench costs\n"
        "sumpter bench ablate --list\nsumpter bench emulate --csv FILE\nsumpter bench\n```\n"
    )
    ends = [command.writing_to(Path("/out"))[-2:] for command in commands([page])]
    assert ends == [
        ["--csv", "/out/page-01.csv"],
        ["--output", "/out/page-02.json"],
        ["ablate", "--list"],
        ["--csv", "/out/page-04.csv"],
        ["sumpter", "bench"],
    ]


def test_commands_leave_what_they_print_and_write(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert again(monkeypatch, page, "-o", out) == 0
    assert (out / "page-01.json").read_text() == "7"
    assert (out / "page-01.txt").read_text() == "wrote 7\n"
    assert (out / "page-02-rows.csv").read_text() == "none"
    first, second = json.loads((out / "runs.json").read_text())
    assert first["command"] == "VALUE=7 python write.py -o FILE"
    assert (first["exit_code"], first["commit"]) == (0, "1234567")
    assert second["files"] == ["page-02-rows.csv", "page-02.txt"]


def test_only_what_has_not_succeeded_is_run_again(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    script = (tmp_path / "write.py").read_text()
    (tmp_path / "write.py").write_text(script + "sys.exit(sys.argv[1] == '--csv')\n")
    assert again(monkeypatch, page, "-o", out) == 1
    assert "exit code 1" in capsys.readouterr().out
    (tmp_path / "write.py").write_text(script)
    assert again(monkeypatch, page, "-o", out) == 0
    printed = capsys.readouterr().out
    assert "page-02" in printed and "page-01" not in printed
    assert again(monkeypatch, page, "-o", out, "--without", "rows.csv", "--list") == 0
    assert "page-02" not in capsys.readouterr().out


def test_a_program_that_is_missing_is_a_command_that_has_failed(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.write_text("```sh\nno-such-program -o FILE\npython write.py -o FILE\n```\n")
    out = tmp_path / "out"
    assert again(monkeypatch, page, "-o", out) == 1
    first, second = json.loads((out / "runs.json").read_text())
    assert (first["exit_code"], second["exit_code"]) == (127, 0)
    assert "no-such-program" in (out / "page-01.txt").read_text()


def test_sources_that_are_of_no_commit_are_not_measured(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs.record, "environment", lambda: {"commit": "1234567-dirty"})
    with pytest.raises(Failure, match="commit first"):
        again(monkeypatch, page, "-o", tmp_path / "out")
    assert not (tmp_path / "out" / "runs.json").exists()
