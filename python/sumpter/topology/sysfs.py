"""Reads below the folder of sysfs, and a record of what could not be read.

A value that is missing, unreadable or meaningless is None; the reader keeps the path and the
reason, so that a report can say what is unknown and why.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

# Domain, bus, device and function as the kernel writes them; more digits for domains that it
# numbers itself (Intel VMD, Hyper-V).
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

# No number of sysfs that is read here has more, with its sign or 0x.
_MOST_DIGITS = 20


@dataclass(frozen=True)
class Unknown:
    """A value that is not known: whose it is, what it would have been read from, and the reason."""

    what: str
    path: str
    why: str


class Sysfs:
    """Files and links below a folder that looks like /sys; paths are relative to it."""

    def __init__(self, root: str | os.PathLike[str] = "/sys") -> None:
        self.root = Path(root)
        self.unknown: list[Unknown] = []

    def missing(self, what: str, path: str, why: str) -> None:
        """Records that a value is not known."""
        found = Unknown(what, str(self.root / path), why)
        if found not in self.unknown:
            self.unknown.append(found)

    def read(self, path: str, what: str, may_be_empty: bool = False) -> str | None:
        """The text of a file without white space around it; None, recorded, if it has none."""
        try:
            text = self._text(self.root / path).strip()
        except OSError as failure:
            self.missing(what, path, reason(failure))
            return None
        if not text and not may_be_empty:
            self.missing(what, path, "is empty")
            return None
        return text

    def integer(self, path: str, what: str, base: int = 10) -> int | None:
        """A whole number; None, recorded, if the file holds none."""
        text = self.read(path, what)
        if text is None:
            return None
        try:
            if len(text) > _MOST_DIGITS:
                raise ValueError
            return int(text, base)
        except ValueError:
            self.missing(what, path, f"holds {text[:40]!r}, which is no number")
            return None

    def names(self, path: str, what: str) -> list[str]:
        """The names in a folder, sorted; none, recorded, if it cannot be listed."""
        try:
            return sorted(self._listed(self.root / path))
        except OSError as failure:
            self.missing(what, path, reason(failure))
            return []

    def exists(self, path: str) -> bool:
        return os.path.lexists(self.root / path)

    def addresses(self, path: str) -> list[str]:
        """The PCI devices on the way to what a link leads to, the outermost first.

        Only those below the innermost host bridge: a host bridge can itself be a device's (Intel
        VMD). The bridge comes first, as `pciDDDD:BB`.
        """
        parts = Path(os.path.realpath(self.root / path)).parts
        bridges = [n for n, part in enumerate(parts) if re.fullmatch(r"pci[0-9a-f:]{7,}", part)]
        below = parts[bridges[-1] :] if bridges else ()
        return [*below[:1], *(part for part in below[1:] if ADDRESS.fullmatch(part))]

    def _text(self, path: Path) -> str:
        return path.read_text(errors="replace")

    def _listed(self, path: Path) -> list[str]:
        return os.listdir(path)


def reason(failure: OSError) -> str:
    """The system's words for a failure, such as `no such file or directory`."""
    words = failure.strerror or type(failure).__name__
    return words[:1].lower() + words[1:]
