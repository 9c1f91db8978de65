"""`make matrix`: what of it is a failure, and what cannot be had."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
# As uv words them, wrapped at the width of a terminal.
NO_BUILD = """\
  × No solution found when resolving dependencies:
  ╰─▶ Because torch==2.5.1 has no wheels with a matching Python ABI
      tag (e.g., `cp314`) and you require torch==2.5.1, we can conclude
      that your requirements are unsatisfiable.
"""
NO_VERSION = "Because there is no version of torch==2.99.0 and you require torch==2.99.0, we"
NO_NETWORK = "error: Failed to fetch: `https://example.org/simple/torch/`"


@pytest.fixture
def matrix(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "matrix"))
    import matrix

    return matrix


@pytest.mark.parametrize(
    ("torch", "said", "failed"),
    [
        ("2.5.1", NO_BUILD, False),
        ("2.99.0", NO_VERSION, False),
        ("2.5.1", NO_NETWORK, True),
        ("newest", NO_BUILD, True),
        ("newest", NO_NETWORK, True),
    ],
)
def test_only_an_older_torch_without_a_build_for_the_python_is_skipped(
    matrix: ModuleType, monkeypatch: pytest.MonkeyPatch, torch: str, said: str, failed: bool
) -> None:
    def run(command: list[str], limit_s: float) -> str:
        if "--only-binary" in command:
            raise matrix.Failed(said.splitlines()[-1], said)
        return ""

    monkeypatch.setattr(matrix, "run", run)
    cell = matrix.Cell("3.14.0", torch)
    matrix.install(Path("environment"), Path("/dist/sumpter.whl"), "python3.14", cell)
    word = f"FAILED: {said.splitlines()[-1]}" if failed else f"skipped: torch {torch} has no build"
    assert cell.results["fronts"].startswith(word) and cell.results["backend"].startswith(word)
    matrix.smoke(Path("environment"), cell)
    assert matrix.exit_code([cell, matrix.Cell("3.11.7", "none", {"doctor": "ok"})]) == failed


def test_a_matrix_without_any_python_is_a_failure(
    matrix: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(matrix, "find_python", lambda version: None)
    cells = matrix.try_python(Path(), Path("sumpter.whl"), "3.17", ["none", "newest"])
    assert [cell.results["wheel"] for cell in cells] == ["skipped: no such Python here"]
    assert matrix.exit_code(cells) == 1
    assert "nothing was tried" in capsys.readouterr().err


def test_what_a_command_says_is_kept_whole_and_its_last_line_is_the_message(
    matrix: ModuleType,
) -> None:
    with pytest.raises(matrix.Failed, match="^last$") as failed:
        matrix.run(["sh", "-c", "echo first >&2; echo last >&2; exit 3"], 60)
    assert "first\nlast" in failed.value.said


def test_it_runs_where_no_package_is_installed() -> None:
    """As in the environment of `make matrix`, and by the Python of a bare system."""
    script = ROOT / "tests" / "matrix" / "matrix.py"
    command = [sys.executable, "-I", "-S", str(script), "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--wheel" in done.stdout
