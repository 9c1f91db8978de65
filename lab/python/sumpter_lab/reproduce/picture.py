"""Pictures of results by matplotlib, in the papers' form: lines by a quantity, or bars."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sumpter_lab.scaffold.results.output import save_picture

_MARKERS = "osv^DP*X"
_MOST_TICKS = 12  # that are named each
_BARS = 0.8  # of the room between two groups


def is_possible() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw(plot: Mapping[str, Any], file: Path) -> None:
    """Writes one plot of a result."""
    # The object interface: no window system is asked for, and no global state is left behind.
    from matplotlib.figure import Figure

    picture = Figure(figsize=(6.4, 4.2), layout="constrained")
    panel = picture.subplots()
    (_bars if plot["bars"] else _lines)(panel, plot)
    panel.set(title=plot["title"], xlabel=plot["x"], ylabel=plot["y"])
    if plot["from_zero"]:
        panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    if len(plot["lines"]) > 1:
        picture.legend(loc="outside lower center", ncols=2, fontsize="small")
    save_picture(picture, file, 150)


def _lines(panel: Any, plot: Mapping[str, Any]) -> None:
    for index, line in enumerate(plot["lines"]):
        style = {"marker": _MARKERS[index % len(_MARKERS)]}
        if line["reference"]:
            style |= {"linestyle": "--", "color": "black"}
        panel.plot(line["x"], line["y"], label=line["label"], **style)
    if plot["log_x"]:
        panel.set_xscale("log")
    ticks = sorted({x for line in plot["lines"] for x in line["x"]})
    if len(ticks) <= _MOST_TICKS:
        panel.set_xticks(ticks, [f"{x:g}" for x in ticks])
        panel.minorticks_off()


def _bars(panel: Any, plot: Mapping[str, Any]) -> None:
    names = list(dict.fromkeys(name for line in plot["lines"] for name in line["x"]))
    width = _BARS / len(plot["lines"])
    for index, line in enumerate(plot["lines"]):
        at = [names.index(name) - _BARS / 2 + (index + 0.5) * width for name in line["x"]]
        heights = [0.0 if y is None else y for y in line["y"]]
        look = {"color": "lightgrey", "hatch": "//"} if line["reference"] else {}
        panel.bar(at, heights, width, label=line["label"], **look)
    turned = {"rotation": 20, "ha": "right"} if sum(map(len, names)) > 60 else {}
    panel.set_xticks(range(len(names)), names, **turned)
