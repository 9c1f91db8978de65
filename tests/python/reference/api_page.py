"""The API reference, made from signatures and docstrings.

    python tests/python/reference/api_page.py > docs/user/api.md

prints the page, which `make docs` writes and a test compares.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType

import unimported

# The modules that users import, and the names of those that do not list theirs.
MODULES: dict[str, tuple[str, ...]] = {
    "sumpter": (),
    "sumpter.service": (),
    "sumpter.torch": (),
    "sumpter.jax": (),
    "sumpter.torch.elastic": (),
    "sumpter.torch.parallel": ("DistributedDataParallel",),
    "sumpter.torch.cross_barrier": ("CrossBarrier",),
    "sumpter.tensorflow": (),
    "sumpter.tensorflow.elastic": (),
    "sumpter.keras": (),
    "sumpter.keras.callbacks": (),
    "sumpter.keras.elastic": (),
    "sumpter.mxnet": (),
    "sumpter.ray": (),
    "sumpter.profiles": (),
    "sumpter.trace": (),
    "sumpter_lab.profiles": (),
    "sumpter_lab.profiles.record": ("record",),
    "sumpter_lab.whatif": (),
    "sumpter_lab.report": (),
}
OWN = ("sumpter", "sumpter_lab")
COLUMNS = 96

_HEAD = """\
# API reference

<!-- Made by `make docs` from signatures and docstrings; edit those instead. -->

The public modules, with every name that they export. Errors are classes of `sumpter.SumpterError`,
so one `except` catches all. Terms are in the [glossary](glossary.md); settings that `init` takes
are in [Configuration](configuration.md).
"""


def page() -> str:
    parts = [_HEAD, _contents()]
    seen: dict[int, str] = {}
    for name, listed in MODULES.items():
        module = _module(name)
        parts.append(f"## {name}\n\n{_doc(module)}\n")
        again = []
        for member in sorted(listed or module.__all__, key=str.lower):
            value = getattr(module, member)
            first = seen.setdefault(id(value), name) if _is_documented(value) else name
            if isinstance(value, ModuleType):
                continue
            if first != name:
                again.append(f"`{member}`")
            else:
                parts.append(described(member, value))
        if again:
            parts.append(_filled(f"Also here, as above: {', '.join(again)}.") + "\n")
    return "\n".join(parts)


def _module(name: str) -> ModuleType:
    """The module, or what its source says where its framework need not be installed."""
    return unimported.module(name) if is_front(name) else importlib.import_module(name)


def is_front(name: str) -> bool:
    """Whether a module needs a framework that may not be there."""
    return any(name.startswith(f"sumpter.{front}") for front in unimported.FRONTS)


def _contents() -> str:
    links = (f"- [{name}](#{name.replace('.', '')})" for name in MODULES)
    return "\n".join(links) + "\n"


def described(name: str, value: object) -> str:
    """What the page says of a public name."""
    return "" if isinstance(value, ModuleType) else "\n".join(_member(name, value))


def _member(name: str, value: object) -> Iterator[str]:
    # Underscores at both ends would be emphasis.
    yield f"### `{name}`\n" if name.startswith("__") else f"### {name}\n"
    if isinstance(value, type):
        yield from _class(name, value)
    elif callable(value) and _is_documented(value):
        yield _fence(_declaration(name, value))
        yield f"{_doc(value)}\n"
    else:
        kind = type(value).__name__
        shown = "" if name.startswith("__") else f": `{value!r}`" if _is_short(value) else ""
        yield f"A constant of type `{kind}`{shown}.\n"


def _class(name: str, value: type) -> Iterator[str]:
    if issubclass(value, BaseException):
        bases = ", ".join(f"`{base.__name__}`" for base in value.__bases__)
        yield f"An exception, derived from {bases}.\n"
    elif issubclass(value, enum.Enum):
        yield f"One of {', '.join(f'`{one.name}`' for one in value)}.\n"
    else:
        yield _fence(_declaration(name, value, "class"))
    yield f"{_doc(value)}\n"
    for method, function in sorted(_methods(value)):
        yield _fence(_declaration(method, function))
        yield f"{_doc(function)}\n"


def _methods(value: type) -> Iterator[tuple[str, Callable[..., object]]]:
    """Public methods with a docstring, of the class and of Sumpter's classes that it is made of."""
    found = {}
    for base in reversed(value.__mro__):
        if base.__module__.partition(".")[0] in OWN and base is not value.__base__ or base is value:
            for name, member in vars(base).items():
                plain = (
                    member.__func__ if isinstance(member, classmethod | staticmethod) else member
                )
                if not name.startswith("_") and inspect.isfunction(plain) and plain.__doc__:
                    found[name] = plain
    yield from found.items()


class _Text:
    """What a signature shows in place of an annotation or a default."""

    def __init__(self, annotation: object) -> None:
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        if union := re.fullmatch(r"(?:typing\.)?Union\[(.*)\]", text):
            text = " | ".join(_split(union[1]))
        # Modules of types differ between versions of Python and of torch; their names do not.
        self._text = re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=\w)", "", text)

    def __repr__(self) -> str:
        return self._text


def _declaration(name: str, value: Callable[..., object], word: str = "def") -> str:
    signature = inspect.signature(value)
    empty = inspect.Signature.empty
    shown = [
        one.replace(
            annotation=empty if one.annotation is empty else _Text(one.annotation),
            default=empty if one.default is empty else _Text(_default(one.default)),
        )
        for one in signature.parameters.values()
    ]
    result = signature.return_annotation
    result = empty if result is empty or word == "class" else _Text(result)
    arguments = str(inspect.Signature(shown))[1:-1]
    ending = "" if result is empty else f" -> {result!r}"
    if len(name) + len(arguments) + len(ending) <= COLUMNS:
        return f"{word} {name}({arguments}){ending}"
    lines = "".join(f"    {one},\n" for one in _split(arguments))
    return f"{word} {name}(\n{lines}){ending}"


def _default(value: object) -> str:
    """A default as it is written; that of an object is `...`, since its state is no part of it."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, type) or inspect.isroutine(value):
        return value.__name__
    return repr(value) if isinstance(value, str | int | float | tuple | None) else "..."


def _split(arguments: str) -> list[str]:
    """The arguments of a signature; commas within brackets and quotes do not part them."""
    parts, depth, quoted = [""], 0, False
    for char in arguments:
        quoted ^= char == "'"
        depth += char in "([{"
        depth -= char in ")]}"
        if char == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def _fence(text: str) -> str:
    return f"```text\n{text}\n```\n"


def _doc(value: object) -> str:
    text = inspect.getdoc(value)
    assert text, f"{value.__module__}.{value.__name__} has no docstring"
    return text


def _is_documented(value: object) -> bool:
    return isinstance(value, type | ModuleType) or inspect.isroutine(value)


def _is_short(value: object) -> bool:
    return len(repr(value)) <= 60 and " at 0x" not in repr(value)


def _filled(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    print(page(), end="")
