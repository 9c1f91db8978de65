"""The commands of pages, in their `sh` blocks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CONTINUED = re.compile(r"\\\n\s*")
# Options whose value is a file or a folder that a command writes, and how a file is called whose
# page says only FILE.
WRITTEN = {"-o": ".json", "--output": ".json", "--csv": ".csv", "--plot": ".svg"}
# With which option a measurement writes its figures down, given where a page's command does not.
_FIGURES = {
    **dict.fromkeys(("allreduce", "emulate", "server", "ablate", "sum"), "--csv"),
    **dict.fromkeys(("costs", "overhead", "replay", "tenants", "tune"), "--output"),
}
_PLACEHOLDERS = ("FILE", "FOLDER")


@dataclass(frozen=True)
class Command:
    """One command of a page."""

    page: str
    # From 1, in the order of the page.
    number: int
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.page}-{self.number:02}"

    def text(self) -> str:
        return shlex.join(self.words)

    def writing_to(self, folder: Path) -> list[str]:
        """The words, with files that are written in a folder."""
        words = []
        for before, word in zip(("", *self.words), self.words, strict=False):
            suffix = WRITTEN.get(before)
            if suffix is None:
                words.append(word)
            elif word in _PLACEHOLDERS:
                words.append(str(folder / (self.name + (suffix if word == "FILE" else ""))))
            else:
                words.append(str(folder / f"{self.name}-{Path(word).name}"))
        if not {"--list", *WRITTEN}.intersection(words) and "bench" in words[:-1]:
            option = _FIGURES.get(words[words.index("bench") + 1])
            words += [option, str(folder / (self.name + WRITTEN[option]))] if option else []
        return words


def commands(pages: Iterable[Path]) -> Iterator[Command]:
    """All commands of pages, without comments and `sudo`."""
    for page in pages:
        number = 0
        for block in _BLOCK.findall(page.read_text()):
            for line in _CONTINUED.sub(" ", block).splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    number += 1
                    words = words[1:] if words[0] == "sudo" else words
                    yield Command(page.stem, number, tuple(words))
