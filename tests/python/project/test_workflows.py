"""The workflows of the public forge: they are valid, and do nothing that is not a make target."""

from __future__ import annotations

import os
import re
import shutil
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


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The project without what has been built."""
    for entry in ROOT.iterdir():
        if entry.name not in ("target", ".venv", ".git"):
            (tmp_path / entry.name).symlink_to(entry)
    return tmp_path


def would_run(checkout: Path, *arguments: str) -> str:
    """The commands of a make target, which are not run."""
    # The tests may be run by make, whose options would count here too.
    outer = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES"}
    variables = {name: text for name, text in os.environ.items() if name not in outer}
    command = ("make", "--dry-run", *arguments)
    done = subprocess.run(command, cwd=checkout, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


BUILDS, VERIFIES = "deploy/release/wheels.py", "deploy/release/release.py verify"


@pytest.mark.parametrize(
    ("target", "uses"),
    [
        ("wheel-check", "tests/wheel/wheel.py"),
        ("matrix", "tests/matrix/matrix.py"),
        ("images", "deploy/release/images.py"),
    ],
)
def test_packages_that_are_there_are_verified_and_used_as_they_are(
    checkout: Path, target: str, uses: str
) -> None:
    without = would_run(checkout, target)
    assert without.index(BUILDS) < without.index(VERIFIES) < without.index(uses)
    (checkout / "target" / "dist").mkdir(parents=True)
    there = would_run(checkout, target)
    assert BUILDS not in there and "target/dist\n" not in there.partition(VERIFIES)[0]
    assert there.index(VERIFIES) < there.index(uses)
    assert BUILDS in would_run(checkout, "wheel")


def test_what_a_release_uploads_is_what_it_has_examined_with_checksums(checkout: Path) -> None:
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    steps = release["jobs"]["release"]["steps"]
    commands = [step["run"].split()[1:] for step in steps if "run" in step]
    (uploaded,) = (step["with"]["path"] for step in steps if "upload" in step.get("uses", ""))
    # The whole folder, and so its SHA256SUMS.
    assert uploaded == "target/dist"
    assert "run" not in steps[-1] and commands[0] == ["release"]
    made = would_run(checkout, *commands[0])
    assert made.index(BUILDS) < made.index("deploy/release/release.py finish")
    (checkout / "target" / "dist").mkdir(parents=True)
    for command in commands[1:]:
        assert BUILDS not in would_run(checkout, *command)


def test_the_image_of_the_server_needs_no_wheel(checkout: Path) -> None:
    assert BUILDS not in would_run(checkout, "images", "IMAGES=server")


def old_pythons() -> list[Path]:
    """Interpreters of pyenv that are older than the oldest that is supported."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return [
        folder / "bin" / "python"
        for folder in sorted(pyenv.glob("[23].*"))
        if tuple(map(int, re.findall(r"\d+", folder.name)[:2])) < (3, 11)
    ]


def test_a_python_that_is_too_old_is_refused_with_the_remedy(checkout: Path) -> None:
    if not (found := old_pythons()):
        pytest.skip("pyenv has no Python below 3.11, so this checks nothing: pyenv install 3.10")
    variables = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
    for python in found:
        command = ("make", "setup", f"PYTHON={python}")
        done = subprocess.run(command, cwd=checkout, env=variables, capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stdout.startswith(
            "sumpter needs Python 3.11 or newer; try: make setup PYTHON=python3.12\n"
        )
        assert "Traceback" not in done.stderr
        assert not (checkout / ".venv").exists()


MAKE = """#!/bin/sh
echo "SKIPPED [2] tests/a.py:7: buildah is missing: install it"
test "$2" = test && echo "SKIPPED [1] tests/b.py:1: buildah is missing: install it"
test "$2" = check && echo "SKIPPED [5] ../c.py: no root"
test "$2" != "$FAILS"
"""


@pytest.mark.parametrize("fails", ["", "demo"])
def test_continuous_integration_says_what_was_skipped_and_stops_at_a_failure(
    tmp_path: Path, fails: str
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy2(ROOT / ".ci" / "run", tmp_path / ".ci")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "make").write_text(MAKE)
    (tmp_path / "bin" / "make").chmod(0o755)
    variables = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "FAILS": fails}
    command = tmp_path / ".ci" / "run"
    done = subprocess.run([command], env=variables, capture_output=True, text=True)
    steps = re.findall(r"^==> make ([a-z-]+)$", done.stdout, re.MULTILINE)
    last = done.stdout.splitlines()[-4:]
    if fails:
        assert done.returncode == 1 and steps[-1] == fails
        assert last[-1] == f"{len(steps) - 1} passed, 1 failed"
        return
    assert done.returncode == 0
    assert last == [
        f"==> {2 * len(steps) + 6} tests were skipped:",
        f"{2 * len(steps) + 1} buildah is missing: install it",
        "5 no root",
        f"{len(steps)} passed, 0 failed",
    ]
    # The page for contributors lists the same steps.
    listed = (ROOT / "CONTRIBUTING.md").read_text().replace("\n              # ", " ")
    assert f"what continuous integration runs: {', '.join(steps)}; " in listed


def test_every_check_that_continuous_integration_leaves_out_is_a_job_of_the_forge() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    jobs = workflow["jobs"].values()
    run = {step["run"].split()[1] for job in jobs for step in job["steps"] if "run" in step}
    targets = re.findall(r"^([a-z-]+-check):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    (inside,) = re.findall(r"^steps=\((.*)\)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert set(targets) - set(inside.split()) <= run
    assert {"ci", "images", "matrix"} <= run


def test_actionlint_finds_nothing() -> None:
    assert WORKFLOWS, "there are no workflows: update this test"
    if not ACTIONLINT.exists():
        pytest.skip("actionlint is missing, so this checks nothing: `make workflow-tools` needs Go")
    command = [str(ACTIONLINT), "-no-color", *map(str, WORKFLOWS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
