"""The workflows of the public forge: they are valid, and do nothing that is not a make target."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONLINT = ROOT / "target" / "tools" / "bin" / "actionlint"
# What cannot be a target: to have the sources and a Python, and to keep what was made.
ACTIONS = {"actions/checkout", "actions/setup-python", "actions/upload-artifact"}

per_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


@per_workflow
def test_every_command_is_a_make_target(path: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        for step in job["steps"]:
            if "uses" in step:
                assert step["uses"].partition("@")[0] in ACTIONS, step
            else:
                make, target, *variables = step["run"].split()
                assert make == "make" and target in targets, f"{step['run']}: make it a target"
                assert all("=" in one for one in variables), step["run"]


@per_workflow
def test_a_workflow_may_only_read(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert not [name for name, job in workflow["jobs"].items() if "permissions" in job]


def test_actionlint_finds_nothing() -> None:
    assert WORKFLOWS, "there are no workflows: update this test"
    if not ACTIONLINT.exists():
        pytest.skip("actionlint is missing, so this checks nothing: `make workflow-tools` needs Go")
    command = [str(ACTIONLINT), "-no-color", *map(str, WORKFLOWS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
