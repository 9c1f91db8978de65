"""Public modules as they are in the source, of fronts whose frameworks need not be installed.

What a front defines itself becomes a stand-in with its signature and docstring. What it takes from
modules without a framework is the object itself.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import sumpter

SOURCE = Path(sumpter.__file__).parents[1]
# Packages whose import needs a framework; nothing else is read instead of imported.
FRONTS = ("jax", "tensorflow", "keras", "mxnet", "ray")

_Scope = dict[str, Any]


@functools.cache
def module(name: str) -> ModuleType:
    """A module with its docstring, and with the public names that it exports."""
    made, scope = ModuleType(name, ast.get_docstring(_tree(name))), _scope(name)
    made.__all__ = ast.literal_eval(scope["__all__"].value)
    for exported in made.__all__:
        setattr(made, exported, _value(name, exported))
    return made


def _is_front(name: str) -> bool:
    package, _, rest = name.partition(".")
    return package == "sumpter" and rest.partition(".")[0] in FRONTS


@functools.cache
def _path(name: str) -> Path | None:
    place = SOURCE.joinpath(*name.split("."))
    found = (place / "__init__.py", place.with_suffix(".py"))
    return next((path for path in found if path.is_file()), None)


@functools.cache
def _tree(name: str) -> ast.Module:
    path = _path(name)
    assert path is not None, f"there is no module {name}"
    return ast.parse(path.read_text())


@functools.cache
def _scope(name: str) -> _Scope:
    """What defines each name at the top of a module."""
    scope: _Scope = {}
    body = list(_tree(name).body)
    for node in body:
        if isinstance(node, ast.If):
            # For type checkers only, but imports all the same.
            body += node.body
        elif isinstance(node, ast.ImportFrom | ast.Import):
            scope |= {alias.asname or alias.name: node for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            scope[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            scope[node.targets[0].id] = node
    return scope


@functools.cache
def _value(where: str, name: str) -> Any:
    """What a name of a module stands for; LookupError if only a framework knows."""
    if not _is_front(where):
        found = importlib.import_module(where)
        return getattr(found, name, None) or importlib.import_module(f"{where}.{name}")
    node = _scope(where).get(name)
    if isinstance(node, ast.FunctionDef):
        return _function(where, node)
    if isinstance(node, ast.ClassDef):
        return _class(where, node)
    if isinstance(node, ast.Assign):
        return _evaluated(where, node.value)
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sumpter"):
        alias = next(one for one in node.names if name in (one.asname, one.name))
        if _path(f"{node.module}.{alias.name}") is not None:
            return ModuleType(f"{node.module}.{alias.name}")
        return _value(node.module or "", alias.name)
    raise LookupError(f"{where} has no {name} of its own")


def _evaluated(where: str, expression: ast.expr) -> Any:
    """The value of a default; of what only a framework knows an object, which shows as `...`."""
    try:
        if isinstance(expression, ast.Name):
            return _value(where, expression.id)
        if isinstance(expression, ast.Attribute):
            return getattr(_evaluated(where, expression.value), expression.attr)
        return ast.literal_eval(expression)
    except (AttributeError, LookupError, ValueError):
        return object()


def _signature(where: str, node: ast.FunctionDef, is_method: bool) -> inspect.Signature:
    given, kinds = node.args, inspect.Parameter
    positional = [*given.posonlyargs, *given.args]
    missing = [None] * (len(positional) - len(given.defaults))
    found = [
        (one, kinds.POSITIONAL_OR_KEYWORD, default)
        for one, default in zip(positional, [*missing, *given.defaults], strict=True)
    ]
    if given.vararg:
        found.append((given.vararg, kinds.VAR_POSITIONAL, None))
    for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found.append((one, kinds.KEYWORD_ONLY, default))
    if given.kwarg:
        found.append((given.kwarg, kinds.VAR_KEYWORD, None))
    parameters = [
        inspect.Parameter(
            one.arg,
            kind,
            default=kinds.empty if default is None else _evaluated(where, default),
            annotation=kinds.empty if one.annotation is None else ast.unparse(one.annotation),
        )
        for one, kind, default in found
    ]
    empty = inspect.Signature.empty
    result = empty if node.returns is None else ast.unparse(node.returns)
    return inspect.Signature(parameters[is_method:], return_annotation=result)


def _function(where: str, node: ast.FunctionDef) -> Any:
    def stand_in() -> None:
        raise AssertionError("only its signature and docstring are there")

    stand_in.__name__, stand_in.__module__ = node.name, where
    stand_in.__doc__ = ast.get_docstring(node) or _assigned_docstring(where, node.name)
    stand_in.__signature__ = _signature(where, node, is_method=False)  # type: ignore[attr-defined]
    return stand_in


def _fields(where: str, node: ast.ClassDef) -> list[inspect.Parameter]:
    """What a dataclass takes by fields of its own."""
    return [
        inspect.Parameter(
            one.target.id,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if one.value is None else _evaluated(where, one.value),
            annotation=ast.unparse(one.annotation),
        )
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    ]


def _assigned_docstring(where: str, function: str) -> str | None:
    """That of another function, if it is given to this one."""
    for node in _tree(where).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == f"{function}.__doc__":
            return _evaluated(where, node.value)
    return None


def _class(where: str, node: ast.ClassDef) -> type:
    bases = [_evaluated(where, base) for base in node.bases]
    known = tuple(base for base in bases if isinstance(base, type))
    methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
    namespace: dict[str, Any] = {
        name: _function(where, one) for name, one in methods.items() if not name.startswith("_")
    }
    namespace |= {"__doc__": ast.get_docstring(node), "__module__": where}
    if "__init__" in methods:
        namespace["__signature__"] = _signature(where, methods["__init__"], is_method=True)
    elif any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        namespace["__signature__"] = inspect.Signature(_fields(where, node))
    return type(node.name, known, namespace)
