"""Sections as one page of HTML. Whatever comes from files is escaped, and nothing is fetched.

The page's policy (Content-Security-Policy) allows its own scripts by their digests and no
request at all, so that even an error here could not make a file's text run or call home.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from sumpter import _native
from sumpter_lab.report import theme
from sumpter_lab.report.blocks import Cell, Section

_LONG = 40  # characters of a cell
_PACKAGE = "sumpter_lab.report"


def render(title: str, sections: Sequence[Section]) -> str:
    """The page. The same sections give the same bytes."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["cell"] = cell
    environment.filters["numeric"] = _is_numeric
    environment.filters["long"] = _is_long
    environment.filters["data"] = lambda plot: Markup(_data(plot.to_plotly_json()))
    library, own = _library(), _text("page.js")
    return environment.get_template("page.html").render(
        title=title,
        sections=sections,
        version=_native.__version__,
        style=Markup(_text("page.css")),
        dark=Markup(_data(theme.DARK)),
        # Both are this program's own, and free of a tag that would end their element.
        library=Markup(library),
        script=Markup(own),
        digests=Markup(" ".join(f"'sha256-{_digest(text)}'" for text in (library, own))),
    )


def cell(value: Cell) -> str:
    """A value of a table, with four significant digits."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def _is_numeric(value: Cell) -> bool:
    if isinstance(value, str):
        return value.removesuffix("%").lstrip("+-").replace(".", "", 1).isdigit()
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _is_long(value: Cell) -> bool:
    """Whether a cell holds sentences, which need width lest the row become a screen tall."""
    return isinstance(value, str) and len(value) > _LONG


def _data(value: Any) -> str:
    """JSON that can stand in a script element: it holds no tag and no end of one."""
    text = json.dumps(value, cls=_encoder(), allow_nan=False, separators=(",", ":"))
    escapes = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
    return "".join(escapes.get(character, character) for character in text)


def _encoder() -> type[json.JSONEncoder]:
    from plotly.utils import PlotlyJSONEncoder

    return PlotlyJSONEncoder


@cache
def _library() -> str:
    from plotly.offline import get_plotlyjs

    text = get_plotlyjs()
    if "</script" in text.lower():
        text = text.replace("</script", "<\\/script").replace("</SCRIPT", "<\\/SCRIPT")
    return text


@cache
def _text(name: str) -> str:
    return files(_PACKAGE).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
