"""The laboratory's commands: where it is installed, and where it is not."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

import pytest

from jobs import HANG_S
from sumpter.cli import main, plugins

ROOT = Path(__file__).resolve().parents[3]
# Where the laboratory is not installed: no entry points, and its package cannot be imported.
WITHOUT = (
    "import sys; from importlib import metadata; metadata.entry_points = lambda **given: (); "
    "sys.modules['sumpter_lab'] = None; from sumpter.cli import main; main(sys.argv[1:])"
)


def without(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command on a machine that has the product only."""
    command = [sys.executable, "-c", WITHOUT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)


def test_every_command_of_the_laboratory_is_declared_and_listed() -> None:
    declared = metadata.entry_points(group=plugins.GROUP)
    assert set(declared.names) == set(plugins.COMMANDS)


@pytest.mark.parametrize("arguments", [("--help",), ("emulate", "--help"), ()])
def test_arguments_reach_the_laboratory(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["bench", *arguments])
    shown = capsys.readouterr()
    what = " ".join(["sumpter bench", *arguments[:-1]])
    assert f"Usage: {what}" in shown.out + shown.err


def test_wrong_use_of_the_laboratory_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["record", "--", "python", "none.py"])
    assert end.value.code == 2
    assert capsys.readouterr().err == "error: 'none.py' is no file: give a Python script\n"


def test_the_exit_code_of_a_recorded_script_is_that_of_the_command(tmp_path) -> None:
    (tmp_path / "ends.py").write_text("import sys; sys.exit(7)")
    command = [sys.executable, "-m", "sumpter", "record", "--", "python", "ends.py", "--", "-x"]
    assert subprocess.run(command, cwd=tmp_path, timeout=HANG_S).returncode == 7


@pytest.mark.parametrize("command", plugins.COMMANDS)
def test_without_the_laboratory_its_commands_say_what_to_install(command: str) -> None:
    done = without(command, "--help")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert f"`sumpter {command}`" in done.stderr
    assert f"`make wheel` and `pip install {plugins.WHEEL}`" in done.stderr


def test_the_wheel_that_is_named_is_what_a_checkout_makes() -> None:
    project = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]
    assert project["name"] == plugins.LABORATORY
    wheel = f"{project['name'].replace('-', '_')}-0.1.0-cp311-abi3-manylinux_2_28_x86_64.whl"
    assert fnmatch(f"target/dist/{wheel}", plugins.WHEEL)
    assert "\nwheel: " in (ROOT / "Makefile").read_text()


def test_without_the_laboratory_help_lists_its_commands() -> None:
    done = without("--help")
    assert done.returncode == 0
    for command in plugins.COMMANDS:
        assert f" {command} " in done.stdout


def test_help_does_not_load_the_laboratory() -> None:
    script = (
        "import sys\nfrom sumpter.cli import main\ntry:\n    main(['--help'])\nfinally:\n"
        "    assert 'sumpter_lab' not in sys.modules"
    )
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, capture_output=True, timeout=HANG_S).returncode == 0
