"""Pages of the documentation as tests see them: fences, what their marks say, and commands.

A mark is an HTML comment on the line above a fence, such as `<!-- needs: several machines -->`:

    file: NAME    the fence is written to this file of the page's folder, and not run
    run: OPTIONS  a Python fence runs under `sumpter run OPTIONS`; without the mark it runs alone
    needs: WHAT   the machine of the tests lacks this: commands are parsed, and not run; those that
                  need a framework run in its environment, as of `make tensorflow-check`
    excerpt       a part of a Python program: it is compiled, and its names are looked up
    message       what a program says, with `...` for what is filled in
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parents[3]
LANGUAGES = {"sh", "console", "python", "text", "diff", "toml", "json", "yaml", "html"}
MARKS = {"file", "run", "needs", "excerpt", "message"}
# Those that a mark may ask for.
FRAMEWORKS = {"tensorflow", "mxnet"}
PROGRAMS = {"sumpter", "sumpter-server"}
# They take names of releases and namespaces, which may be a program's.
NAMING = {"helm", "kubectl"}

_FENCE = re.compile(r"^( *)```([\w-]*)[ ]*$")
_MARK = re.compile(r"^ *<!-- (.*) -->$")
# What ends a simple command in the fences of these pages.
_ENDS = re.compile(r"^(&&?|\|\|?|;|\(|\)|>|>>|<|<<|2>|2>&1)$")


@dataclass(frozen=True)
class Fence:
    page: str
    line: int
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def user_pages() -> list[Path]:
    """The pages whose commands users copy."""
    return [ROOT / "README.md", *sorted((ROOT / "docs" / "user").glob("*.md"))]


def all_pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def fences(page: Path) -> list[Fence]:
    lines = page.read_text().splitlines()
    found, number = [], 0
    while number < len(lines):
        opened = _FENCE.match(lines[number])
        number += 1
        if opened is None:
            continue
        start, indent = number, len(opened[1])
        while lines[number].strip() != "```":
            number += 1
        text = "".join(f"{line[indent:]}\n" for line in lines[start:number])
        marks = _marks_above(lines[: start - 1])
        found.append(Fence(name_of(page), start, opened[2], text, marks))
        number += 1
    return found


def _marks_above(lines: list[str]) -> dict[str, str]:
    marks = {}
    for line in reversed(lines):
        mark = _MARK.match(line)
        if mark is None:
            return marks
        name, _, value = mark[1].partition(":")
        if name in MARKS:
            marks[name] = value.strip()
    return marks


def is_run(fence: Fence) -> bool:
    """Whether the programs and commands of a fence run here."""
    need = fence.marks.get("needs")
    return "excerpt" not in fence.marks and (need is None or _is_there(need))


def _is_there(need: str) -> bool:
    if need not in FRAMEWORKS or find_spec(need) is None:
        return False
    # It imports what is tested; what only reads pages works where that is not installed.
    import needs

    return needs.is_asked_for(need)


def console(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a console fence, each with what is printed below it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        last = next(i for i, line in enumerate(lines) if not line.endswith("\\\n"))
        yield "".join(lines[: last + 1]), "".join(lines[last + 1 :])


def matches(printed: str, real: str) -> bool:
    """Whether output is as printed, where `...` stands for anything."""
    parts = (re.escape(part) for part in printed.strip().split("..."))
    return re.fullmatch(".*".join(parts), real.strip(), re.DOTALL) is not None


def simple_commands(text: str) -> Iterator[list[str]]:
    """The words of every simple command of a shell text, without redirections' signs."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in lexer:
            if not _ENDS.match(word):
                words.append(word)
            elif words:
                yield words
                words = []
        if words:
            yield words


def commands(page: Path, program: str) -> list[list[str]]:
    """A page's commands of a program, those within its text too."""
    texts = [fence.text for fence in fences(page) if fence.language == "sh"]
    prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    texts += re.findall(rf"`({program} [^`]+)`", prose.replace("\n", " "))
    found = [words for text in texts for words in simple_commands(text)]
    # `$(kubectl ...` begins within a word.
    return [
        words[index:]
        for words in found
        for index, word in enumerate(words)
        if word == program and (index == 0 or words[index - 1].endswith("$"))
    ]


def own_commands(text: str) -> Iterator[list[str]]:
    """Commands of Sumpter, also behind variables, `srun`, `ssh` and the like."""
    for words in simple_commands(text):
        if words[0] in NAMING:
            continue
        for index, word in enumerate(words):
            if PurePath(word).name in PROGRAMS:
                yield words[index:]
                break
