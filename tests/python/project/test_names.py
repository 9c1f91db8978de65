"""What a module takes from another one exists: `module.name` fails only when it runs."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import ModuleType

import pytest

from sumpter._packages import EXTRAS
from sumpter._packages import missing as package_missing

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = (ROOT / "python", ROOT / "lab" / "python")
OWN = ("sumpter", "sumpter_lab")
FILES = [path for folder in FOLDERS for path in sorted(folder.rglob("*.py"))]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda one: one.relative_to(ROOT).as_posix())
def test_names_taken_from_own_modules_exist(folder: Path) -> None:
    missing, unchecked = [], set()
    for path in FILES:
        if path.is_relative_to(folder):
            try:
                found = missing_names(path.read_text())
            except ImportError as error:
                package = package_missing(error)
                if package is None:
                    raise
                unchecked.add(f"{path.relative_to(ROOT)} (pip install {EXTRAS[package]})")
                continue
            missing += [f"{path.relative_to(ROOT)}:{line}: {name}" for line, name in found]
    assert not missing, "\n".join(missing)
    if unchecked:
        pytest.skip(f"all names exist but for those not checked: {', '.join(sorted(unchecked))}")


def test_a_name_that_is_missing_is_found() -> None:
    source = "from sumpter_lab.scaffold import spec, units as u\nspec.nothing()\nu.parse_sizes\n"
    assert missing_names(source) == [(2, "sumpter_lab.scaffold.spec.nothing")]


def missing_names(source: str) -> list[tuple[int, str]]:
    tree = ast.parse(source)
    modules = _modules(tree)
    assigned = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    } | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = node.value.id
            # A variable of the same name hides the module somewhere.
            if name in modules and name not in assigned and not hasattr(modules[name], node.attr):
                found.append((node.lineno, f"{modules[name].__name__}.{node.attr}"))
    return found


def _modules(tree: ast.Module) -> dict[str, ModuleType]:
    """Own modules, by the names under which a file imports them."""
    found = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] not in OWN:
            continue
        package = importlib.import_module(node.module)
        for one in node.names:
            if one.name == "*":
                continue
            value = getattr(package, one.name, None)
            if value is None:
                value = importlib.import_module(f"{node.module}.{one.name}")
            if isinstance(value, ModuleType):
                found[one.asname or one.name] = value
    return found
