"""No import circle of more than three files, in Rust crates and in Python packages.

An arrow runs from a file to the file that defines what it names: re-exports are followed, so a
`lib.rs` or an `__init__.py` that only hands names on ties nothing together, and a parent's `mod x;`
is no arrow. Test code is left out.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FILES_PER_CIRCLE = 3

# Where crates are, and the files at which they begin.
AREAS = ("crates/*", "lab/crates/*")
FACES = ("lib", "main")

Arrows = dict[str, set[str]]


# Rust: what a file says, without comments, literals and tests.

COMMENT_OR_LITERAL = re.compile(
    r"//[^\n]*|/\*.*?\*/|b?r(#*)\".*?\"\1|b?\"(?:\\.|[^\"\\])*\"|b?'(?:\\[^\n]+?|[^\\'\n])'",
    re.DOTALL,
)
TEST_ITEM = re.compile(r"#\[cfg\((?:test|all\(test\b[^\]]*)\)\]\s*(?:#\[[^\]]*\]\s*)*")
MODULE = re.compile(r"\bmod\s+(\w+)\s*([;{])")
DEFINITION = re.compile(r"\b(?:struct|enum|trait|fn|const|static|type|union)\s+(\w+)")
USE = re.compile(r"\buse\s+([^;]+);")
INLINE_PATH = re.compile(r"(?<![\w:])((?:crate|super|self)(?:::\w+)+|\w+(?:::\w+)+)")


def item_end(text: str, start: int) -> int:
    """Where the item that begins here ends: a semicolon, or its closing brace."""
    depth = 0
    for index in range(start, len(text)):
        character = text[index]
        depth += (character in "{([") - (character in "})]")
        if depth == 0 and character in ";}":
            return index + 1
    return len(text)


def without_tests(text: str) -> str:
    text = COMMENT_OR_LITERAL.sub(" ", text)
    while match := TEST_ITEM.search(text):
        text = text[: match.start()] + text[item_end(text, match.end()) :]
    return text


def use_tree(tree: str) -> Iterator[tuple[list[str], str]]:
    """The paths of a `use`, each with the name it gets; `*` for a glob."""
    tree = tree.strip()
    brace = tree.find("{")
    if brace < 0:
        path, _, alias = tree.partition(" as ")
        segments = [segment.strip() for segment in path.split("::") if segment.strip()]
        if segments and segments[-1] == "self":
            segments.pop()
        if segments:
            yield segments, alias.strip() or segments[-1]
        return
    prefix = [segment.strip() for segment in tree[:brace].split("::") if segment.strip()]
    depth, begin, inside = 0, 0, tree[brace + 1 : tree.rindex("}")]
    for index, character in enumerate(inside + ","):
        depth += (character == "{") - (character == "}")
        if depth == 0 and character == ",":
            one = inside[begin:index].strip()
            if one:  # none after a trailing comma
                yield from use_tree("::".join([*prefix, one]))
            begin = index + 1


class Crate:
    """The modules of one crate: each a path of names, in a file, with what it imports."""

    def __init__(self, root: Path) -> None:
        self.files: dict[tuple[str, ...], Path] = {}
        self.texts: dict[tuple[str, ...], str] = {}
        self.defined: dict[tuple[str, ...], set[str]] = {}
        self.uses: dict[tuple[str, ...], dict[str, list[str]]] = {}
        self.globs: dict[tuple[str, ...], list[list[str]]] = {}
        self.load((), root, without_tests(root.read_text()), root.parent)

    def load(self, module: tuple[str, ...], file: Path, text: str, folder: Path) -> None:
        while match := MODULE.search(text):
            child, end = (*module, match[1]), match.end()
            if match[2] == "{":
                end = item_end(text, match.end() - 1)
                self.load(child, file, text[match.end() : end - 1], folder / match[1])
            else:
                beside, inside = folder / f"{match[1]}.rs", folder / match[1] / "mod.rs"
                path = beside if beside.is_file() else inside
                if path.is_file():
                    self.load(child, path, without_tests(path.read_text()), folder / match[1])
            text = text[: match.start()] + text[end:]
        self.files[module] = file
        self.uses[module], self.globs[module] = {}, []
        for match in USE.finditer(text):
            for segments, name in use_tree(match[1]):
                if segments[-1] == "*":
                    self.globs[module].append(segments[:-1])
                elif name != "_":
                    self.uses[module][name] = segments
        self.texts[module] = text
        self.defined[module] = set(DEFINITION.findall(text))

    def module_of(
        self, module: tuple[str, ...], path: list[str], seen: frozenset[tuple[object, ...]]
    ) -> tuple[str, ...] | None:
        """The module that defines what a path means in a module; none if it is another crate's."""
        place, rest = module, list(path)
        if rest[0] == "crate":
            place, rest = (), rest[1:]
        elif rest[0] not in ("super", "self"):
            known = (*module, rest[0]) in self.files or rest[0] in self.uses[module]
            if not known:
                return None
        while rest and rest[0] in ("super", "self"):
            place, rest = (place[:-1] if rest[0] == "super" else place), rest[1:]
        while rest:
            name, key = rest[0], (place, rest[0])
            if (*place, name) in self.files:
                place, rest = (*place, name), rest[1:]
            elif name in self.uses.get(place, {}) and key not in seen:
                seen |= {key}
                return self.module_of(place, self.uses[place][name] + rest[1:], seen)
            else:
                return self.through_globs(place, rest, seen)
        return place

    def through_globs(
        self, place: tuple[str, ...], rest: list[str], seen: frozenset[tuple[object, ...]]
    ) -> tuple[str, ...]:
        if rest[0] in self.defined.get(place, ()):
            return place
        for glob in self.globs.get(place, []):
            key = (place, "*", *glob)
            target = None if key in seen else self.module_of(place, glob, seen | {key})
            if target is not None and rest[0] in self.defined.get(target, ()):
                return target
        return place

    def arrows(self) -> Arrows:
        arrows: Arrows = {name_of(file): set() for file in self.files.values()}
        for module, text in self.texts.items():
            body = USE.sub(" ", text)
            inline = (match[1].split("::") for match in INLINE_PATH.finditer(body))
            for path in [*self.uses[module].values(), *self.globs[module], *inline]:
                target = self.module_of(module, path, frozenset())
                if target in self.files and self.files[target] != self.files[module]:
                    arrows[name_of(self.files[module])].add(name_of(self.files[target]))
        return arrows


# Python: imports at any depth of a file, those for types included.


class Package:
    """The modules of one package and the names each hands on."""

    def __init__(self, root: Path) -> None:
        self.files: dict[str, Path] = {}
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root.parent).with_suffix("").parts
            self.files[".".join(parts).removesuffix(".__init__")] = path
        stubs = (path.relative_to(root.parent).with_suffix("") for path in root.rglob("*.pyi"))
        self.compiled = {".".join(stub.parts) for stub in stubs}
        self.imports = {module: list(self.imported(module)) for module in self.files}
        self.defined = {module: definitions(path) for module, path in self.files.items()}

    def imported(self, module: str) -> Iterator[tuple[str, str, str]]:
        """(module, name, name here) of each import; no name where the module itself is meant."""
        path = self.files[module]
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.name, "", alias.asname or alias.name
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")
                base = above[: len(above) - node.level + 1] if node.level else []
                source = ".".join([*base, *filter(None, [node.module])])
                for alias in node.names:
                    yield source, alias.name, alias.asname or alias.name

    def definer(self, module: str, name: str, seen: frozenset[tuple[str, str]]) -> str | None:
        if name and f"{module}.{name}" in self.files:
            return f"{module}.{name}"
        if f"{module}.{name}" in self.compiled:
            return None
        if module not in self.files:
            return None
        if not name or name in self.defined[module] or (module, name) in seen:
            return module
        for source, original, here in self.imports[module]:
            if here == name:
                return self.definer(source, original, seen | {(module, name)}) or module
        return module

    def arrows(self) -> Arrows:
        arrows: Arrows = {name_of(path): set() for path in self.files.values()}
        for module, imports in self.imports.items():
            for source, name, _ in imports:
                target = self.definer(source, name, frozenset())
                if target is not None and target != module:
                    arrows[name_of(self.files[module])].add(name_of(self.files[target]))
        return arrows


def definitions(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


# Circles.


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()


def circles(arrows: Arrows) -> list[list[str]]:
    """Files that reach each other: the strongly connected components of more than one file."""
    reached = {file: reachable(arrows, file) for file in arrows}
    found = []
    left = set(arrows)
    while left:
        file = left.pop()
        circle = {file} | {other for other in left & reached[file] if file in reached[other]}
        left -= circle
        if len(circle) > 1:
            found.append(sorted(circle))
    return sorted(found)


def reachable(arrows: Arrows, start: str) -> set[str]:
    seen: set[str] = set()
    left = [start]
    while left:
        for target in arrows.get(left.pop(), set()) - seen:
            seen.add(target)
            left.append(target)
    return seen


def too_large(arrows: Arrows) -> list[str]:
    found = []
    for circle in circles(arrows):
        if len(circle) > FILES_PER_CIRCLE:
            inside = [f"  {f} -> {g}" for f in circle for g in sorted(arrows[f] & set(circle))]
            found += [f"a circle of {len(circle)} files:", *inside]
    return found


@functools.cache
def all_arrows() -> list[Arrows]:
    roots = [ROOT.glob(f"{place}/src/{name}.rs") for place in AREAS for name in FACES]
    crates = [Crate(root).arrows() for root in sorted(path for found in roots for path in found)]
    faces = sorted([*ROOT.glob("python/*/__init__.py"), *ROOT.glob("lab/**/*lab/__init__.py")])
    return crates + [Package(face.parent).arrows() for face in faces]


def test_no_import_circle_is_large() -> None:
    found = [line for arrows in all_arrows() for line in too_large(arrows)]
    advice = f"cut these import circles: over {FILES_PER_CIRCLE} files; move shared types down"
    assert not found, "\n".join([advice, *found])


def test_a_circle_of_rust_modules_is_found_through_re_exports(tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod a;\nmod b;\nmod c;\nmod d;\npub use a::A;\n",
        "a.rs": "use crate::b::B;\npub struct A(B);\n",
        "b.rs": "pub struct B(Option<Box<super::c::C>>);\n",
        "c.rs": "use crate::{d::*, A};\npub struct C(Box<A>, D);\n",
        "d.rs": "// use crate::a::A;\npub struct D;\n#[cfg(test)]\nmod tests { use crate::A; }\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    arrows = Crate(tmp_path / "lib.rs").arrows()
    assert circles(arrows) == [[str(tmp_path / f"{name}.rs") for name in "abc"]]


def test_a_circle_of_python_modules_is_found_through_re_exports(tmp_path: Path) -> None:
    files = {
        "__init__.py": "from .a import A\n",
        "a.py": "from p.b import B\nclass A: ...\n",
        "b.py": "def f():\n    from . import A\nclass B: ...\n",
        "c.py": "from p import A\n",
    }
    (tmp_path / "p").mkdir()
    for name, text in files.items():
        (tmp_path / "p" / name).write_text(text)
    arrows = Package(tmp_path / "p").arrows()
    assert circles(arrows) == [[str(tmp_path / "p" / f"{name}.py") for name in "ab"]]
