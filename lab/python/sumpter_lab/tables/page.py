"""Tables in a page: which there are, and the page with each made again."""

from __future__ import annotations

import re
import shlex

from sumpter._failure import Failure
from sumpter_lab.tables import builders
from sumpter_lab.tables.record import ROOT, records

PAGES = ROOT / "docs" / "measurements"
_MARKED = re.compile(r"^<!-- table: ([^>]*?) -->\n\n((?:\|.*\n)*)", re.MULTILINE)


def rewritten(text: str, name: str) -> str:
    """The text of a page with its tables made again. Raises Failure if one cannot be made."""

    def again(match: re.Match[str]) -> str:
        before = match[0][: match.start(2) - match.start()]
        if not text.startswith("\n", match.end()) and match.end() < len(text):
            # What stands there would be read as more rows.
            raise Failure(f"{name}: table {match[1]}: put an empty line below it")
        try:
            return before + _made(match[1])
        except (Failure, AttributeError, LookupError, TypeError, ValueError) as error:
            reason = error if isinstance(error, Failure) else f"{type(error).__name__}: {error}"
            raise Failure(f"{name}: table {match[1]}: {reason}") from error

    return _MARKED.sub(again, text)


def _made(marker: str) -> str:
    # A long marker has several lines.
    name, *files = shlex.split(" ".join(marker.split()))
    build = builders.ALL.get(name)
    if build is None:
        raise Failure(f"no table is called {name!r}; there are {', '.join(sorted(builders.ALL))}")
    return build(list(records(files))).markdown()
