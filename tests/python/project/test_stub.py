"""The stubs `_native.pyi` say exactly what the compiled modules have."""

from __future__ import annotations

import ast
import builtins
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sumpter import _native as product
from sumpter_lab import _native as laboratory

Definition = ast.FunctionDef | ast.ClassDef | ast.AnnAssign


def named(body: list[ast.stmt]) -> dict[str, Definition]:
    """The definitions of a module or class body by name."""
    found: dict[str, Definition] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return found


def public(names: Any) -> set[str]:
    return {name for name in names if not name.startswith("_") or name == "__version__"}


def stub_of(module: ModuleType) -> dict[str, Definition]:
    """What a module's stub defines."""
    return named(ast.parse(Path(str(module.__file__)).with_name("_native.pyi").read_text()).body)


MODULES = (product, laboratory)
STUBS = {module: stub_of(module) for module in MODULES}
CLASSES = {name: node for name, node in STUBS[product].items() if isinstance(node, ast.ClassDef)}
FUNCTIONS = [
    (module, name, node)
    for module, stub in STUBS.items()
    for name, node in stub.items()
    if isinstance(node, ast.FunctionDef)
]
METHODS = [
    (owner, name, node)
    for owner, body in CLASSES.items()
    for name, node in named(body.body).items()
    if isinstance(node, ast.FunctionDef)
]


def decorators(node: ast.FunctionDef) -> set[str]:
    return {item.id for item in node.decorator_list if isinstance(item, ast.Name)}


def parameters(node: ast.FunctionDef) -> list[tuple[str, bool, bool]]:
    """Name, keyword-only, has a default: of every parameter but self."""
    arguments = node.args
    positional = arguments.posonlyargs + arguments.args
    defaults = [False] * (len(positional) - len(arguments.defaults))
    defaults += [True] * len(arguments.defaults)
    listed = [(argument.arg, False, d) for argument, d in zip(positional, defaults, strict=True)]
    listed += [
        (argument.arg, True, default is not None)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return [item for item in listed if item[0] != "self"]


def built_parameters(function: Any) -> list[tuple[str, bool, bool]]:
    return [
        (
            parameter.name,
            parameter.kind is inspect.Parameter.KEYWORD_ONLY,
            parameter.default is not inspect.Parameter.empty,
        )
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name != "self"
    ]


@pytest.mark.parametrize("module", MODULES)
def test_both_have_the_same_names(module: ModuleType) -> None:
    assert public(STUBS[module]) == public(vars(module))


@pytest.mark.parametrize("name", CLASSES)
def test_classes_have_the_same_members(name: str) -> None:
    built = getattr(product, name)
    if issubclass(built, Exception):
        return
    assert public(named(CLASSES[name].body)) == public(vars(built))


@pytest.mark.parametrize("name", CLASSES)
def test_errors_have_the_same_bases_and_say_what_they_mean(name: str) -> None:
    built, stub = getattr(product, name), CLASSES[name]
    assert ast.get_docstring(stub), f"{name} needs a docstring in the stub"
    if not issubclass(built, Exception):
        return
    bases = [base.id for base in stub.bases if isinstance(base, ast.Name)]
    expected = [getattr(product, base, None) or getattr(builtins, base) for base in bases]
    assert list(built.__bases__) == expected


@pytest.mark.parametrize(("module", "name", "node"), FUNCTIONS)
def test_functions_take_the_same_parameters(
    module: ModuleType, name: str, node: ast.FunctionDef
) -> None:
    assert parameters(node) == built_parameters(getattr(module, name))


@pytest.mark.parametrize(("owner", "name", "node"), METHODS)
def test_methods_take_the_same_parameters(owner: str, name: str, node: ast.FunctionDef) -> None:
    built = getattr(product, owner)
    if "property" in decorators(node):
        assert inspect.isgetsetdescriptor(vars(built)[name])
        return
    function = built if name == "__init__" else getattr(built, name)
    assert parameters(node) == built_parameters(function)
    assert ("staticmethod" in decorators(node)) == isinstance(vars(built).get(name), staticmethod)
