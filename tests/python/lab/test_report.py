"""`sumpter report`: what files it knows, what it says of others, and that its numbers are right."""

from __future__ import annotations

import csv
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import fake_trace
from sumpter.cli import main
from sumpter.profiles import save
from sumpter_lab import profiles, report
from sumpter_lab.report import benches, blocks, curves, timeline
from sumpter_lab.report.page import render
from sumpter_lab.scaffold.results import schema
from sumpter_lab.scaffold.results.document import DocumentError

ROOT = Path(__file__).resolve().parents[3]
RECORDS = ROOT / "lab" / "records"
NETAI = ROOT / "tests" / "data" / "netai"
RESNET50 = NETAI / "resnet50.bk.log"
ADDITIONS = NETAI / "cuda_vec_add.log"
BATCH_S = 0.12808580219559176
EMULATE = RECORDS / "emulate-uniform/2026-11-22-n8.csv"
TUNE = RECORDS / "tune/2026-11-30-switch.json"
REPLAY = RECORDS / "scheduling/2026-11-30-resnet50.json"
NASTY = "<script>alert(1)</script><a href='https://example.org'>x</a>&"


class Contents(HTMLParser):
    """The data of plots, the cells of tables, and the elements of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.plots: dict[str, dict] = {}
        self.tables: dict[str, list[list[str]]] = {}
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._id: str | None = None
        self._caption = ""
        self._text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.elements.append((tag, found))
        self._text = ""
        if tag == "script":
            self._id = found.get("data-plot")
        if tag == "tr" and self._caption:
            self.tables[self._caption].append([])

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "script" and self._id:
            self.plots[self._id] = json.loads(self._text)
            self._id = None
        if tag == "caption":
            self._caption = self._text.strip()
            self.tables.setdefault(self._caption, [])
        if tag in ("td", "th"):
            self.tables[self._caption][-1].append(self._text.strip())


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Runs `sumpter report` in this process: its exit code, what it printed, and the page."""
    monkeypatch.setenv("COLUMNS", "200")
    output = tmp_path / "report.html"

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_info:
            main(["report", *map(str, arguments), "-o", str(output)])
        captured = capsys.readouterr()
        code = int(exit_info.value.code or 0)
        return code, captured.err, output.read_text() if code == 0 else ""

    return run


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A trace's file, which `sumpter.trace` reads as the given trace."""

    def traced(trace: fake_trace.Trace) -> Path:
        monkeypatch.setitem(sys.modules, "sumpter.trace", fake_trace.module(trace))
        file = tmp_path / "run.pftrace"
        file.write_bytes(fake_trace.HEAD)
        return file

    return traced


def _profile(tmp_path: Path, name: str = "resnet18") -> Path:
    file = tmp_path / "run.profile.json"
    save(profiles.published(name), file)
    return file


NETAI_OPTIONS = ("--batch-time-s", BATCH_S, "--add-estimate", ADDITIONS)


def test_curves_are_the_numbers_that_whatif_prints(run, capsys: pytest.CaptureFixture[str]) -> None:
    code, err, page = run(RESNET50, *NETAI_OPTIONS, "-n", 64, "--bandwidth-gbps", 10)
    assert code == 0, err
    asked = ("--workers", "16,32,64", "--bandwidth-gbps", "1,2,5,10,25,40,100")
    files = ("--profile", RESNET50, "--format", "netai", *NETAI_OPTIONS)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["whatif", *map(str, (*files, *asked, "--json"))])
    expected = {
        (one["workers"], one["bandwidth_gbps"]): one["scaling_factor"]
        for one in json.loads(capsys.readouterr().out)
    }
    contents = Contents(page)
    drawn = {
        (int(line["name"].split()[0]), x): y
        for line in contents.plots["figure-1-1"]["data"]
        for x, y in zip(line["x"], line["y"], strict=True)
    }
    assert drawn == expected
    # The published figures, as a person reads them in the table.
    heads, *rows = contents.tables["Scaling factor by bandwidth"]
    assert heads[1:] == ["16 GPU machines", "32 GPU machines", "64 GPU machines"]
    assert ["10", "0.5718", "0.5545", "0.5397"] in rows


@pytest.mark.parametrize("servers", [0, 4])
def test_every_curve_goes_through_the_case(servers: int) -> None:
    from sumpter_lab.whatif import Case, simulate

    profile = profiles.published("resnet18")
    architecture = "sumpter" if servers else "allreduce"
    case = Case(8, servers, architecture, bandwidth_gbps=3.0, compression=1.5)
    (outcome,) = simulate(profile, [case])
    fields = ("bandwidth_gbps", "workers", "servers", "compression")
    for field, figure in zip(fields, curves.figures(profile, case), strict=True):
        now = getattr(case, field)
        values = [
            y for line in figure.plot.data for x, y in zip(line.x, line.y, strict=True) if x == now
        ]
        assert any(value == outcome.scaling_factor for value in values), field


def test_helpers_are_compared_with_parameter_servers_and_all_reduce() -> None:
    from sumpter_lab.whatif import Case, simulate

    profile = profiles.published("vgg16")
    case = Case(8, bandwidth_gbps=10)
    figure = curves.figures(profile, case)[2]
    lines = {line.name: dict(zip(line.x, line.y, strict=True)) for line in figure.plot.data}
    assert set(lines["Sumpter"]) == {0, 1, 2, 4, 6, 8}
    assert set(lines["parameter servers"]) == {1, 2, 4, 6, 8}
    asked = [Case(8, 2, "sumpter", 10), Case(8, 2, "ps", 10), case]
    expected = [outcome.scaling_factor for outcome in simulate(profile, asked)]
    names = ("Sumpter", "parameter servers", "all-reduce, without them")
    assert [lines[name][2] for name in names] == expected


# Of the scripts in benches.
NO_PAGE = (
    *(
        "asynchronous",
        "convergence",
        "costs",
        "diloco",
        "interfaces",
        "memory",
        "overhead",
        "refill",
    ),
    *("scale", "stragglers", "tune-regret"),
)
WITH_PAGE = [f for f in sorted(RECORDS.glob("*/*.[cj]s*")) if f.parent.name not in NO_PAGE]


@pytest.mark.parametrize("file", WITH_PAGE, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_recorded_measurements_make_a_page(file: Path, run) -> None:
    code, err, page = run(file)
    assert code == 0, err
    contents = Contents(page)
    # A theorem has nothing to draw.
    assert contents.plots or file.parent.name == "papers"
    assert all(plot["data"] for plot in contents.plots.values())
    assert all(len(rows) > 1 for rows in contents.tables.values())


def test_tuners_are_drawn_over_time_with_what_happened_meanwhile(run) -> None:
    code, err, page = run(TUNE)
    assert code == 0, err
    contents = Contents(page)
    (plot,) = contents.plots.values()
    runs = json.loads(TUNE.read_text())["runs"]
    assert [line["name"] for line in plot["data"]] == [one["tuner"] for one in runs]
    # The links were slow every other 20 iterations.
    assert len(plot["layout"]["shapes"]) == len(runs[0]["periods_s"]) // 40
    took = {one["tuner"]: sum(one["periods_s"]) for one in runs}
    for tuner in ("bayes", "autobyte"):
        assert f"{tuner} had {took['fixed'] / took[tuner]:.1%} of fixed" in page


def test_shares_of_the_optimum_are_those_of_the_file(run) -> None:
    code, err, page = run(EMULATE)
    assert code == 0, err
    with EMULATE.open() as stream:
        rows = list(csv.DictReader(stream))
    contents = Contents(page)
    (line,) = contents.plots["figure-1-1"]["data"]
    assert line["x"] == [int(row["servers"]) for row in rows]
    assert line["y"] == [float(row["optimum_fraction"]) for row in rows]
    (links,) = contents.plots["figure-1-2"]["data"]
    idle = json.loads(rows[1]["link_idle"])["gpu-0"]
    used = 1 - (idle["sent"] + idle["received"]) / 2
    assert links["z"][1][links["x"].index("gpu-0")] == pytest.approx(used)
    assert links["z"][0][links["x"].index("cpu-0")] is None, "without helpers there is no such link"


def test_files_are_known_by_content_whatever_their_names(run, tmp_path: Path) -> None:
    renamed = {"a.pftrace": EMULATE, "b.csv": REPLAY, "c.json": RESNET50}
    for name, file in renamed.items():
        (tmp_path / name).write_bytes(file.read_bytes())
    code, err, page = run(*(tmp_path / name for name in renamed), *NETAI_OPTIONS)
    assert code == 0, err
    for title in ("Share of the optimum", "Replayed training", "What if: c"):
        assert f">{title}</h2>" in page


def test_rows_as_json_are_the_same_as_csv(run, tmp_path: Path) -> None:
    kind, rows = schema.from_csv(EMULATE, EMULATE.read_text())
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (_, _, from_csv), (_, _, from_json) = run(EMULATE), run(tmp_path / "rows.json")
    assert kind == "emulate"
    assert Contents(from_csv).plots == Contents(from_json).plots


def test_the_same_files_give_the_same_page(tmp_path: Path) -> None:
    files = [_profile(tmp_path), EMULATE]
    assert report.make(files).html == report.make(files).html


def test_text_of_files_stays_text(run, traced, tmp_path: Path) -> None:
    profile = json.loads(_profile(tmp_path).read_text())
    profile["name"] = profile["layers"][0]["name"] = profile["tensors"][0]["name"] = NASTY
    (tmp_path / "nasty.json").write_text(json.dumps(profile))
    trace = traced(fake_trace.trace(tensor=NASTY))
    code, err, page = run(tmp_path / "nasty.json", trace, "--title", NASTY)
    assert code == 0, err
    contents = Contents(page)
    assert "<script>alert" not in page
    assert not [
        found for tag, found in contents.elements if tag == "a" and "#" not in found["href"]
    ]
    scripts = [found for tag, found in contents.elements if tag == "script"]
    own = [found for found in scripts if found.get("type") != "application/json"]
    assert own == [{}, {}], "the library and the page's own"
    # Plotly reads tags in labels: they must reach it escaped.
    assert "<a " not in json.dumps(contents.plots)
    assert "&lt;script&gt;" in json.dumps(contents.plots)


def test_nothing_of_the_page_is_elsewhere(run) -> None:
    code, err, page = run(EMULATE)
    assert code == 0, err
    outside = [
        found
        for _, found in Contents(page).elements
        for name in ("src", "href", "action", "data", "poster")
        if not (found.get(name) or "#").startswith(("#", "data:"))
    ]
    assert outside == []
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy and policy[1].startswith("default-src 'none'; script-src 'sha256-")


def test_a_timeline_shows_the_step_asked_for(run, traced) -> None:
    file = traced(fake_trace.trace(steps=3, tensors=4))
    code, err, page = run(file, "--step", 1, "--bandwidth-gbps", 10)
    assert code == 0, err
    contents = Contents(page)
    assert "Step 1: who did what when" in page
    bars = {bars["name"]: bars for bars in contents.plots["figure-1-1"]["data"]}
    assert set(bars) == {"step", "queued", "waiting", "sending", "receiving", "summing"}
    assert sorted(bars["sending"]["base"])[0] == pytest.approx(12.0), "ms since the step began"
    assert len(bars["sending"]["x"]) == 2 * 4, "the other steps are left out"
    causes = {bars["name"]: bars["x"] for bars in contents.plots["figure-1-2"]["data"]}
    assert causes == {name: [share, share] for name, share in fake_trace.SHARES.items()}
    sent = contents.plots["figure-1-3"]["data"][0]
    share = 4 * fake_trace.BYTES * 8 / (fake_trace.STEP_MS * 1e-3) / 10e9
    assert sent["x"] == pytest.approx([share, share])


def test_a_long_trace_stays_small(traced) -> None:
    file = traced(fake_trace.trace(steps=1, tensors=20_000))
    page = report.make([file])
    bars = [len(bars.x) for bars in page.sections[0].figures[0].plot.data]
    assert sum(bars) <= len(bars) * 3 * timeline.PIXELS


def test_merging_keeps_the_time_in_which_a_lane_was_busy() -> None:
    slices = [fake_trace._slice("p", "t", "sending", i * 0.01, 0.01, "x", 0) for i in range(1000)]
    slices.append(fake_trace._slice("p", "t", "sending", 30.0, 5.0, "y", 0))
    bars = timeline._merged(slices, timeline.Window("w", 0.0, 0.04))
    assert [(bar.begin_s, bar.end_s) for bar in bars] == [
        (0.0, pytest.approx(0.01)),
        (pytest.approx(0.03), pytest.approx(0.035)),
    ]


def _cut_json(tmp_path: Path) -> Path:
    file = tmp_path / "cut.json"
    file.write_text(REPLAY.read_text()[:500])
    return file


def _cut_csv(tmp_path: Path) -> Path:
    file = tmp_path / "cut.csv"
    text = EMULATE.read_text()
    file.write_text(text[: text.rindex("\n", 0, len(text) - 1) + 40])
    return file


def _written(content: str | bytes):
    def make(tmp_path: Path) -> Path:
        file = tmp_path / "file"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    return make


def _edited(old: str, new: str, source: Path = EMULATE):
    text = source.read_text()
    assert old in text
    return _written(text.replace(old, new, 1))


def _newer(tmp_path: Path) -> Path:
    document = json.loads(_profile(tmp_path).read_text()) | {"version": 99}
    return _written(json.dumps(document))(tmp_path)


HEAD = EMULATE.read_text().splitlines()[0]

REFUSED = {
    "empty": (_written(""), "the file is empty"),
    "blank": (_written("\n \n"), "the file is empty"),
    "CSV without rows": (_written(HEAD + "\n"), "expected at least one row below the head"),
    "CSV cut short": (_cut_csv, "it may be cut short"),
    "a CSV row cut short": (_written(HEAD + "\n8,1,67108864\n"), "line 2: expected 49 cells"),
    "another program's CSV": (_written("name,age\nx,3\n"), "got age, name"),
    "JSON cut short": (_cut_json, "it is cut short"),
    "another program's JSON": (_written('{"a": 1}'), "expected the fields of `sumpter bench`"),
    "no objects": (_written("[1, 2]"), "this JSON holds no objects"),
    "an empty list": (_written("[]"), "the list is empty"),
    "another format": (_written('{"format": "x"}'), "format: expected 'sumpter-profile' or"),
    "a newer profile": (_newer, "version: expected at most 1, got 99"),
    "a newer replay": (
        _edited('"version": 1', '"version": 2', REPLAY),
        "version: expected 1, got 2: a newer Sumpter wrote this file",
    ),
    "a newer bench of tuners": (
        _edited('"version": 1', '"version": 2', TUNE),
        "version: expected 1, got 2: a newer Sumpter wrote this file",
    ),
    "a tuner that never ran": (
        _written(re.sub(r'"periods_s": \[[^]]*\]', '"periods_s": []', TUNE.read_text())),
        "row 1: periods_s: expected a list of at least one number above 0",
    ),
    "a tuner without sizes": (
        _edited('"sizes"', '"seizes"', TUNE),
        "row 1: sizes: expected, but there is no such field",
    ),
    "no cells": (
        _written('{"format": "sumpter-replay", "version": 1, "cells": []}'),
        "cells: expected a list of at least one object",
    ),
    "infinite": (_written('[{"a": Infinity}]'), "expected finite numbers, got Infinity"),
    "not a number": (
        _edited(",0.977431022254567,", ",fast,"),
        "row 1: optimum_fraction: expected a number of at least 0, got 'fast'",
    ),
    "not finite": (
        _edited(",0.977431022254567,", ",nan,"),
        "row 1: optimum_fraction: expected a number of at least 0, got nan",
    ),
    "a field inside a cell": (
        _edited('""sent""', '""gone""'),
        "row 1: link_idle['gpu-0'].sent: expected, but there is no such field",
    ),
    "prose": (_written("Dear reader,\nhello\n"), "expected a profile, a trace, or what"),
    "latin-1": (_written("größe,\n".encode("latin-1")), "this is no text in UTF-8"),
    "another program's binary": (_written(b"\x7fELF\x02\x01\x00"), "another program's binary"),
    "a NetAI log": (lambda _: RESNET50, "a NetAI log needs --batch-time-s T"),
    "a missing file": (lambda tmp_path: tmp_path / "none", "cannot be read: No such file"),
    "nested": (_written("[" * 100_000), "nested too deep"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_files_are_refused_in_one_line(case: str, run, tmp_path: Path) -> None:
    make, expected = REFUSED[case]
    file = make(tmp_path)
    code, err, _ = run(file)
    assert code == 1
    assert err.startswith("error: ") and err.count("\n") == 1
    assert file.name in err and expected in err, err


WRONG = {
    "--bandwidth-gbps 0": ("--bandwidth-gbps", "expected a number above 0"),
    "--compression nan": ("--compression", "expected a number above 0"),
    "--workers 0": ("--workers", "greater than or equal to 1"),
    "--servers -1": ("--servers", "greater than or equal to 0"),
    "--transport-efficiency 2": ("transport_efficiency", "expected"),
    "--compression 0.5": ("compression", "expected"),
}


@pytest.mark.parametrize("arguments", WRONG)
def test_impossible_arguments_are_refused_in_one_line(arguments: str, run, tmp_path: Path) -> None:
    code, err, _ = run(_profile(tmp_path), *arguments.split())
    assert code == 2
    assert err.startswith("error: ") and err.count("\n") == 1
    assert all(word in err for word in WRONG[arguments]), err


def test_a_step_that_is_not_there_is_named(run, traced) -> None:
    code, err, _ = run(traced(fake_trace.trace(steps=2)), "--step", 7)
    assert code == 1
    assert "--step 7: expected a step of the trace: 0, 1" in err


def test_an_input_is_not_overwritten(run, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_bytes(EMULATE.read_bytes())
    code, err, _ = run(file)
    assert code == 2
    assert "this is a file to be read" in err


def test_a_missing_library_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(report.ReportError, match=r"pip install 'sumpter-lab\[report\]'"):
        report.make([_profile(tmp_path)])


def test_a_trace_without_steps_shows_all_of_it(traced) -> None:
    whole = fake_trace.trace(steps=1, tensors=3)
    slices = tuple(one for one in whole.slices if one.activity != "step")
    page = report.make([traced(fake_trace.Trace("a-run", slices, {}))])
    (timeline_, links) = page.sections[0].figures
    assert timeline_.title == "The trace: who did what when"
    assert links.title == "Use of links"


def test_bytes_within_a_process_cross_no_link(traced) -> None:
    def sent(peer: str) -> fake_trace.Slice:
        return fake_trace.Slice("rank 0 on a", "l", "sending", 0.0, 1.0, "t", 0, 1000, peer)

    file = traced(fake_trace.Trace("a-run", (sent("rank 0"), sent("rank 1")), {}))
    (_, links) = report.make([file]).sections[0].figures
    assert links.table.rows[0][1] == "1000 B"


@pytest.mark.parametrize("value", [10**400, "x", [1], {"a": 1}, None])
@pytest.mark.parametrize("field", ["part", "part_beside_greedy", "weight"])
def test_no_value_of_a_field_is_a_traceback(field: str, value: object, tmp_path: Path) -> None:
    found = json.loads((RECORDS / "tenants/2026-11-25-shaped.json").read_text())
    found["jobs"][1][field] = value
    file = tmp_path / "tenants.json"
    file.write_text(json.dumps(found))
    if value is None and field != "weight":
        assert report.make([file]).sections
    else:
        with pytest.raises(DocumentError, match=rf"tenants.json: row 1: jobs\[1\].{field}: "):
            report.make([file])


def test_a_csv_whose_last_line_has_no_end_is_whole(run, tmp_path: Path) -> None:
    file = _written(EMULATE.read_text().rstrip())(tmp_path)
    code, err, _ = run(file)
    assert code == 0, err


def test_what_takes_long_says_how_far_it_is() -> None:
    from sumpter_lab import profiles
    from sumpter_lab.report import curves
    from sumpter_lab.report.compose import Question

    heard: list[tuple[int, int]] = []
    case = Question(workers=2).case()
    profile = profiles.published("resnet18")
    curves.figures(profile, case, lambda done, total: heard.append((done, total)))
    assert heard == sorted(heard) and heard[-1][0] == heard[-1][1] > 20


def test_percents_of_an_axis_get_the_decimals_that_their_ticks_need() -> None:
    page = report.make([EMULATE], report.Question()).html
    formats = set(re.findall(r'"tickformat":"([^"]*%)"', page))
    # d3-format: no fixed number of decimals, and insignificant zeros trimmed.
    assert formats == {"~%"}


def test_what_a_step_waited_for_is_in_short_cells(traced) -> None:
    page = report.make([traced(fake_trace.trace())], report.Question()).html
    table = page.split("by rank</caption>")[1].split("</table>")[0]
    cells = re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", table)
    assert "largest cause" in cells
    assert max(map(len, cells)) < 40


def test_sentences_in_cells_get_width_on_a_phone() -> None:
    table = blocks.Table("t", ("a", "b"), [("short", "word " * 40), ("short", "word")])
    page = render("title", [blocks.Section("s", "f", tables=[table])])
    assert page.count('<td class="long">') == 1
    assert re.search(r"td\.long \{ min-width: \d+rem; \}", page)


@pytest.mark.parametrize("cells", [1, 3, 4])
def test_the_summary_of_a_replay_lists_few_cells_and_names_the_lowest_of_many(cells: int) -> None:
    def cell(servers: int) -> dict:
        shares = {"paced": 0.9 - servers / 10, "overlap": 0.95 - servers / 10}
        systems = {
            name: {"share_of_bound": share, "iterations_per_s": 1.0}
            for name, share in shares.items()
        }
        of = {"profile": "net", "workers": 4, "servers": servers, "stands_for_gbps": 10.0}
        return {**of, "systems": systems}

    findings = benches.replay("replay.json", [cell(servers) for servers in range(cells)]).findings
    if cells <= 3:
        assert len(findings) == cells
        last = f"net, n=4 k={cells - 1}, 10 Gb/s: {1.05 - cells / 10:.0%} of the bound"
        assert findings[-1] == f"{last}, with priority, credit, overlap."
    else:
        assert findings == [
            "4 cells reach 65% of the bound or more, each with the best way to schedule it; the "
            "lowest is net, n=4 k=3, 10 Gb/s, with priority, credit, overlap.",
            "The best one most often: priority, credit, overlap (4 of 4 cells).",
        ]
