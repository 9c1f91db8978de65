"""How plots look: colours that colour-blind readers distinguish, on light and on dark pages.

The hues are those of Okabe and Ito (2008), darker on light pages and lighter on dark ones so that
each keeps a contrast of 3 to 1. Lines differ in marker and dash as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go

BLUE, VERMILION, GREEN, PURPLE = "#0072b2", "#c8510a", "#00815d", "#a8487f"
AMBER, SKY, GREY, INK = "#9c6f00", "#2b87c4", "#71767c", "#1b1f24"
SERIES = (BLUE, VERMILION, GREEN, PURPLE, AMBER, SKY, GREY)
# The page's script puts the second where the first is when the page is dark.
DARK = {
    BLUE: "#4da6e8",
    VERMILION: "#ff8a4a",
    GREEN: "#2fc79b",
    PURPLE: "#e59bc8",
    AMBER: "#eac54f",
    SKY: "#9cd4f7",
    GREY: "#a9b0b7",
    INK: "#e8eaed",
}
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "star", "cross")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "solid", "dash")
# Percents on an axis, with as many decimals as its ticks need: `0 % 0.5 % 1 %` or `0 % 50 % 100 %`.
PERCENT = "~%"
_ROW_PX = 26


def color(index: int) -> str:
    """The colour of a series."""
    return SERIES[index % len(SERIES)]


def line(index: int, *, width: float = 2.0) -> dict[str, Any]:
    """Colour, dash and marker of a series, for go.Scatter(**...)."""
    return {
        "mode": "lines+markers",
        "line": {"color": color(index), "dash": DASHES[index % len(DASHES)], "width": width},
        "marker": {"color": color(index), "symbol": MARKERS[index % len(MARKERS)], "size": 8},
    }


def pattern(index: int) -> dict[str, Any]:
    """The hatching of a series of bars: the distinction that needs no colour."""
    # Not as many as there are colours: a repeated colour is hatched differently.
    shapes = ("", "/", ".", "x", "-", "\\")
    shape = shapes[index % len(shapes)]
    return {"shape": shape, "size": 6, "fillmode": "overlay", "fgopacity": 0.55, "solidity": 0.2}


def finish(plot: go.Figure, *, x: str, y: str, height: int = 380, **layout: Any) -> go.Figure:
    """The layout that all plots share. The page's script adds the colours of text and grid."""
    plot.update_layout(
        height=height,
        margin={"l": 8, "r": 12, "t": 12, "b": 8},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "xanchor": "left", "x": 0},
        hovermode="closest",
        template="none",
        **layout,
    )
    plot.update_xaxes(title=x, automargin=True, zeroline=False)
    plot.update_yaxes(title=y, automargin=True, zeroline=False)
    return plot


def rows_height(rows: int) -> int:
    """Enough height for a plot with so many horizontal bars and their legend."""
    return max(220, 130 + _ROW_PX * rows)


def plain(text: object, most: int = 80) -> str:
    """Text that a plot shows as it is: plotly reads a little HTML, links too, in labels."""
    shown = str(text)
    if len(shown) > most:
        shown = f"{shown[: most - 3]}..."
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
