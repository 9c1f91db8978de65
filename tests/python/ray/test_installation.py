"""What `from sumpter.ray import SumpterConfig` says where something is missing; needs no Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDE = """
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == {name!r} else found(name, *more)
"""


def failed_import(*folders: Path, first: str = "") -> str:
    """The last line of an import that must fail, with other packages before those installed."""
    ended = subprocess.run(
        (sys.executable, "-c", f"{first}\nfrom sumpter.ray import SumpterConfig"),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return ended.stderr.strip().splitlines()[-1]


def fake_ray(folder: Path, version: str, train: str | None = None) -> Path:
    package = folder / "ray"
    package.mkdir()
    (package / "__init__.py").write_text(f"__version__ = {version!r}\n")
    if train is not None:
        (package / "train.py").write_text(train)
    return folder


@pytest.mark.parametrize("name", ["ray", "torch"])
def test_what_is_missing_is_named_with_the_command_that_installs_it(
    name: str, tmp_path: Path
) -> None:
    folder = fake_ray(tmp_path, "2.60.0")
    assert failed_import(folder, first=HIDE.format(name=name)) == (
        f"ImportError: sumpter.ray needs {name}, which is not installed: "
        f"pip install 'sumpter[{name}]'"
    )


@pytest.mark.parametrize("version", ["1.13.0", "2.9.3", "2.59.1"])
def test_a_ray_that_is_too_old_is_refused_with_its_version(version: str, tmp_path: Path) -> None:
    assert failed_import(fake_ray(tmp_path, version)) == (
        f"ImportError: sumpter.ray needs Ray 2.60 or newer, and {version} is installed: "
        "pip install 'ray[train]>=2.60'"
    )


def test_a_ray_without_train_is_refused(tmp_path: Path) -> None:
    said = failed_import(fake_ray(tmp_path, "2.60.0"))
    assert "pip install 'sumpter[ray]' (Ray is there without its part Train: " in said


def test_the_first_version_of_ray_train_is_refused(tmp_path: Path) -> None:
    said = failed_import(fake_ray(tmp_path, "2.60.0", train="class ScalingConfig: pass\n"))
    assert "RAY_TRAIN_V2_ENABLED=0 switches off: unset that variable" in said
