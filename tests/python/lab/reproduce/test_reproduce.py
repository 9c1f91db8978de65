"""`sumpter reproduce`: verdicts that hold, judgements that can fail, and the page made of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command_lines import parse
from sumpter._failure import Failure, UsageError
from sumpter.cli import main, plugins
from sumpter_lab import report
from sumpter_lab.cli import reproduce as command
from sumpter_lab.reproduce import byteps_plan, page, theorem2
from sumpter_lab.reproduce.case import (
    PAPERS,
    Asked,
    Case,
    Claim,
    Found,
    How,
    Measurement,
    Verdict,
    judged,
    plain,
    undecided,
    verdict_of,
)
from sumpter_lab.reproduce.cases import ALL, find
from sumpter_lab.reproduce.run import Instruments, judged_record, newest, read, run, save
from sumpter_lab.scaffold.results.document import REPRODUCE, DocumentError

ROOT = Path(__file__).resolve().parents[4]
RECORDS = ROOT / "lab" / "records"
OPEN, PARTLY, REFUTED, REPRODUCED = (
    Verdict.OPEN,
    Verdict.PARTLY,
    Verdict.REFUTED,
    Verdict.REPRODUCED,
)
# The verdict of each claim that every machine decides alike, in the order of the case's claims.
EXACT = {
    "byteps-theorem1": [REPRODUCED] * 5,
    "byteps-section421": [REPRODUCED] * 3,
    "byteps-fig4": [REPRODUCED] * 3,
    "byteps-fig12": [REPRODUCED] * 3,
    "byteps-fig13": [REPRODUCED] * 2,
    "byteps-section8": [REPRODUCED, OPEN],
    "byteps-fig14": [REPRODUCED] * 2,
    "byteps-fig15": [OPEN] * 3,
    "byteps-fig16": [REPRODUCED, OPEN],
    "byteps-section74": [REPRODUCED, OPEN, REFUTED],
    "phub-table2": [REPRODUCED] * 4,
    "phub-fig19": [REPRODUCED, REPRODUCED, REFUTED],
    "phub-gloo": [REFUTED, OPEN],
    "netai-fig6": [REPRODUCED] * 3,
    "netai-fig7": [REPRODUCED],
    "netai-fig8": [REPRODUCED] * 3,
    "bytescheduler-order": [REPRODUCED, REFUTED],
    "autobyte-fig3": [REPRODUCED] * 2,
    "autobyte-fig5": [REFUTED],
    "autobyte-fig6": [REFUTED],
}


@pytest.fixture(scope="module")
def entries() -> dict[str, page.Entry]:
    """What the page shows of each case, each run once."""
    return {entry.case.name: entry for entry in page.entries()}


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Runs `sumpter reproduce` in this process: its exit code and what it printed."""
    monkeypatch.setenv("COLUMNS", "200")
    loaded = plugins.load
    own = {"reproduce": command.app}
    monkeypatch.setattr(plugins, "load", lambda name: own.get(name) or loaded(name))

    def run_command(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["reproduce", *map(str, arguments)])
        shown = capsys.readouterr()
        return int(end.value.code or 0), shown.out, shown.err

    return run_command


def test_every_exact_case_has_the_verdicts_that_it_had(entries: dict[str, page.Entry]) -> None:
    found = {
        name: [claim["verdict"] for claim in entry.result["claims"]]
        for name, entry in entries.items()
        if entry.case.how.is_exact
    }
    assert found == EXACT


def test_the_page_is_made_of_the_cases(entries: dict[str, page.Entry]) -> None:
    written = (ROOT / "docs" / "measurements" / "papers.md").read_text()
    made = page.page(list(entries.values()))
    assert written == made, (
        "run `python -m sumpter_lab.reproduce.page > docs/measurements/papers.md`"
    )


def test_cases_are_described_and_have_exactly_one_way() -> None:
    assert len({case.name for case in ALL}) == len(ALL)
    for case in ALL:
        assert case.paper in PAPERS and case.place and case.claim, case.name
        ways = [case.find, case.measurements and case.judge, case.absent]
        assert sum(map(bool, ways)) == 1, case.name
        assert (case.absent is not None) == (case.how is How.ABSENT), case.name


def test_what_differs_from_the_paper_says_why(entries: dict[str, page.Entry]) -> None:
    silent = [
        name
        for name, entry in entries.items()
        if entry.result and entry.result["verdict"] != REPRODUCED and not entry.result["why"]
    ]
    assert silent == []


def test_links_of_the_notes_lead_somewhere(entries: dict[str, page.Entry]) -> None:
    import re

    folder = ROOT / "docs" / "measurements"
    for target in re.findall(r"\]\(([^)#]+)", page.page(list(entries.values()))):
        assert (folder / target).exists(), target


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        ([REPRODUCED, REPRODUCED], REPRODUCED),
        ([REFUTED], REFUTED),
        ([OPEN, OPEN], OPEN),
        ([REPRODUCED, REFUTED], PARTLY),
        ([REPRODUCED, OPEN], PARTLY),
        ([REFUTED, OPEN], REFUTED),
    ],
)
def test_a_case_is_as_its_claims(verdicts: list[Verdict], whole: Verdict) -> None:
    assert verdict_of([Claim("", "", "", one) for one in verdicts]) is whole


def test_a_plan_that_is_not_optimal_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = byteps_plan.plan

    def worse(**request: Any) -> dict[str, Any]:
        report = asked(**request)
        if report.get("share_gpu"):
            report["time_s"] *= 1.01
        return report

    monkeypatch.setattr(byteps_plan, "plan", worse)
    found = byteps_plan.theorem1(Asked(quick=True))
    refuted = [claim.text for claim in found.claims if claim.verdict is REFUTED]
    assert any("Theorem 1" in text for text in refuted)
    assert "no other split takes less" in refuted


def scaled(field: str, factor: float, only: Callable[[dict], bool] = lambda row: True):
    def change(tables: list[list[dict]]) -> None:
        for table in tables:
            for row in table:
                if isinstance(row.get(field), float) and only(row):
                    row[field] *= factor

    return change


def stragglers_help(tables: list[list[dict]]) -> None:
    for pattern in tables[0][0]["rows"]:
        after = pattern["after_last_s"]
        after["gloo"] = [1.1 * seconds for seconds in after["gloo"]]


def an_unfair_tenant(tables: list[list[dict]]) -> None:
    tables[1][0]["jobs"][0]["part"] = 0.5


def orders_help(tables: list[list[dict]]) -> None:
    for table in tables:
        for cell in table:
            cell["systems"]["credit"]["iterations_per_s"] *= 1.2


def tuner_helps(tables: list[list[dict]]) -> None:
    (run,) = (run for run in tables[0] if run["tuner"] == "autobyte")
    run["periods_s"] = [seconds / 1.2 for seconds in run["periods_s"]]


def loopback_is_fast(tables: list) -> None:
    for row in tables[0]:
        row["goodput_gb_per_s"] *= 2 if row["step"].endswith("by the network") else 1


@pytest.mark.parametrize(
    ("name", "change", "claim", "before"),
    [
        ("byteps-fig12-emulated", scaled("optimum_fraction", 0.9), 0, REPRODUCED),
        ("byteps-fig12-emulated", scaled("gain_over_gloo", 1.1), 2, REFUTED),
        ("byteps-section8-emulated", stragglers_help, 0, REFUTED),
        ("byteps-fig9", scaled("cores_for_100_gb_per_s", 5), 0, REPRODUCED),
        ("byteps-fig9", scaled("of_summation", 1.2), 1, REPRODUCED),
        ("byteps-table2", loopback_is_fast, 0, REPRODUCED),
        ("phub-fig5", scaled("gain", 0.5), 0, REPRODUCED),
        ("phub-affinity", scaled("gain", 0.8), 0, REPRODUCED),
        ("phub-fig15", scaled("goodput_ratio", 1.2), 0, REFUTED),
        ("phub-optimizer", scaled("sgd_goodput_ratio", 1.3), 0, REFUTED),
        ("phub-fig18", an_unfair_tenant, 1, REPRODUCED),
        ("netai-utilization", scaled("link_idle_median_workers", 100), 1, REPRODUCED),
        ("bytescheduler-order-emulated", orders_help, 1, REFUTED),
        ("autobyte-fig7", tuner_helps, 0, REFUTED),
    ],
)
def test_other_rows_turn_a_measured_verdict(
    name: str, change: Callable[[list], None], claim: int, before: Verdict
) -> None:
    case = find(name)
    files = [newest(one, RECORDS) for one in case.measurements]
    tables = [read(file) for file in files if file is not None]
    assert len(tables) == len(files), "a record is missing"
    assert case.judge is not None
    assert case.judge(tables).claims[claim].verdict is before
    changed = copy.deepcopy(tables)
    change(changed)
    after = case.judge(changed).claims[claim].verdict
    assert {before, after} == {REPRODUCED, REFUTED}


def test_a_measured_case_runs_its_instrument(tmp_path: Path) -> None:
    case = find("phub-affinity")
    (small,) = case.measurements
    words = (*small.command, "--bytes", "1MiB", "--chunk-bytes", "16KiB", "--rounds", "1")
    noted: list[str] = []
    result = run(replace(case, measurements=(replace(small, command=words),)), note=noted.append)
    assert noted[0] == f"sumpter {' '.join(words)}"
    assert [row["threads"] for row in result["rows"]] == [1, 2]
    assert result["verdict"] in (REPRODUCED, REFUTED)


def test_an_instrument_runs_once_for_all_cases_and_its_file_is_kept(tmp_path: Path) -> None:
    case = find("phub-affinity")
    (small,) = case.measurements
    words = (*small.command, "--bytes", "1MiB", "--chunk-bytes", "16KiB", "--rounds", "1")
    case = replace(case, measurements=(replace(small, command=words),))
    instruments, noted = Instruments(tmp_path), []
    first = run(case, note=noted.append, instruments=instruments)
    again = replace(case, name="another")
    second = run(again, note=noted.append, instruments=instruments)
    assert second["rows"] == first["rows"]
    assert f"{noted[0]}: has run for a case before" in noted
    (kept,) = (tmp_path / "rows").iterdir()
    assert kept.name == "phub-affinity.csv"
    assert case.judge is not None
    assert list(case.judge([read(kept)]).rows) == first["rows"]


@pytest.mark.parametrize(("name", "is_measured"), [("phub-affinity", True), ("phub-table2", False)])
def test_a_busy_machine_is_declared_where_it_matters(
    name: str, is_measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sumpter_lab.local.report.busy_share", lambda seconds: 0.7)
    case = find(name)
    if is_measured:
        found = Found("", [undecided("", "")])
        case = replace(case, measurements=(), judge=None, find=lambda asked: found)
    noted: list[str] = []
    declared = run(case, note=noted.append)["declared"]
    assert any("70 % of the cores" in text for text in declared) == is_measured
    assert bool(noted) == is_measured


def test_an_instrument_that_fails_is_named() -> None:
    broken = Measurement(("bench", "ablate", "nothing"), "--csv")
    case = replace(find("phub-affinity"), measurements=(broken,))
    with pytest.raises(Failure, match="`sumpter bench ablate nothing` ended with code 2"):
        run(case)


def test_every_instrument_has_the_options_that_it_is_given() -> None:
    for case in ALL:
        for one in case.measurements:
            parse(["sumpter", *one.command, one.output, f"rows{one.suffix}"])


def test_the_newest_record_counts_and_none_is_no_result(tmp_path: Path) -> None:
    case = find("phub-affinity")
    assert judged_record(case, tmp_path) is None
    folder = tmp_path / "ablations"
    folder.mkdir()
    head = "ablation,threads,key_to_lane_gb_per_s,worker_to_lane_gb_per_s,gain,equal_results\n"
    for date, gain in (("2026-11-24", 0.9), ("2026-11-25", 1.4)):
        (folder / f"{date}-affinity.csv").write_text(f"{head}affinity,2,1.0,1.0,{gain},True\n")
    judged = judged_record(case, tmp_path)
    assert judged is not None
    found, files = judged
    assert found.verdict is REPRODUCED and files[0].name.startswith("2026-11-25")


def test_theorem_2_is_refuted_by_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    rows = [{"rank": rank, "optimizer": "SGD", "equal": rank != 1} for rank in range(3)]
    monkeypatch.setattr(theorem2, "_job", lambda folder, steps: rows)
    found = theorem2.theorem2(Asked(quick=True))
    assert found.verdict is REFUTED and "2 of 3" in found.claims[0].ours


def test_without_a_case_all_are_listed(run_command) -> None:
    code, out, _ = run_command()
    assert code == 0
    for case in ALL:
        assert f"{case.name} " in out
    code, out, _ = run_command("--json")
    assert [one["name"] for one in json.loads(out)] == [case.name for case in ALL]


def test_a_case_is_printed_and_kept(run_command, tmp_path: Path) -> None:
    folder = tmp_path / "papers"
    code, out, err = run_command("phub-table2", "-o", folder)
    assert (code, err) == (0, "")
    for words in ("setup: N = 8", "1232 Gb/s", "pure model", "verdict: reproduced"):
        assert words in out
    (kept,) = REPRODUCE.read(folder / "phub-table2.json")
    assert kept["verdict"] == "reproduced" and len(kept["rows"]) == 4 and kept["commit"] is not None
    pytest.importorskip("matplotlib")
    assert (folder / "phub-table2.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_not_here_says_why(run_command) -> None:
    code, out, _ = run_command("byteps-overheads")
    assert code == 0
    assert "verdict: not reproducible here" in out and "not available as text" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["byteps-fg12"], "there is no case 'byteps-fg12': did you mean byteps-fig12"),
        (["?"], "`sumpter reproduce` lists them"),
        (["--all", "phub-table2"], "leave out the names"),
        (["--quick"], "name a case, or give --all"),
    ],
)
def test_wrong_use_is_one_line(arguments: list[str], said: str, run_command) -> None:
    code, out, err = run_command(*arguments)
    assert (code, out) == (2, "")
    assert said in err and err.count("\n") == 1


def test_all_go_on_after_one_that_fails(run_command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(asked: Asked) -> Found:
        raise Failure("no luck")

    good, lost = find("phub-table2"), find("byteps-theorem2")
    emulated = find("phub-fig18")
    chosen = (replace(lost, find=fails), emulated, good)
    monkeypatch.setattr("sumpter_lab.reproduce.cases.ALL", chosen)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    code, out, err = run_command("--all")
    assert code == 1
    assert "byteps-theorem2: no luck" in err and "1 of 3 cases failed: byteps-theorem2" in err
    assert "phub-fig18: left out, it builds an emulated cluster, which needs root" in err
    assert "1 cases: 1 reproduced" in out


def test_quick_leaves_measurements_out(run_command, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = (find("phub-table2"), find("phub-affinity"), find("phub-fig18"), find("phub-table4"))
    monkeypatch.setattr("sumpter_lab.reproduce.cases.ALL", chosen)
    code, out, _ = run_command("--all", "--quick", "--json")
    assert code == 0
    assert [one["name"] for one in json.loads(out)] == ["phub-table2", "phub-table4"]


def test_an_emulated_case_alone_needs_root(run_command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    code, _, err = run_command("phub-fig18")
    assert code == 1 and "phub-fig18: it builds an emulated cluster, which needs root" in err


def test_a_clone_is_needed_for_logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sumpter_lab.reproduce.netai._LOGS", tmp_path)
    with pytest.raises(Failure, match="run it in a clone"):
        run(find("netai-fig6"))


def test_the_report_has_all_cases_of_all_files(
    entries: dict[str, page.Entry], tmp_path: Path
) -> None:
    pytest.importorskip("plotly")
    names = ("byteps-fig12", "byteps-section74", "phub-table2", "phub-table4")
    for name in names:
        save(entries[name].result, tmp_path)
    made = report.make([tmp_path / f"{name}.json" for name in names])
    assert [section.title for section in made.sections] == list(PAPERS[:2])
    assert made.sections[0].findings == ("2 cases: 1 reproduced, 1 reproduced in part.",)
    assert len(made.sections[0].figures) == 2
    for name in names:
        assert name in made.html


def test_a_file_of_cases_that_is_not_one_is_refused(
    entries: dict[str, page.Entry], tmp_path: Path
) -> None:
    pytest.importorskip("plotly")
    file = tmp_path / "case.json"
    good = entries["phub-table2"].result
    plots = [{**good["plots"][0], "lines": [{"label": "x", "x": [1], "y": [], "reference": False}]}]
    for change, said in (
        ({"plots": plots}, "plots: expected a list of plots"),
        ({"verdict": ""}, "verdict: expected a text"),
        ({"claims": [{"text": "x"}]}, "expected, but there is no such field"),
    ):
        REPRODUCE.write(file, [{**good, **change}])
        with pytest.raises(DocumentError, match=said):
            report.make([file])


def test_names_that_are_near_are_suggested() -> None:
    assert isinstance(find("netai-fig8"), Case)
    with pytest.raises(UsageError, match="netai-fig6"):
        find("netai-fig9")
    with pytest.raises(UsageError, match="autobyte-fig7 or"):
        find("autobyte")


def test_notes_are_plain_in_a_terminal() -> None:
    assert plain("**Fitted**, see [Page](page.md#part).") == (
        "Fitted, see Page (docs/measurements/page.md#part)."
    )
    assert judged("a", "b", "c", True).verdict is REPRODUCED
    assert undecided("a", "b").ours == "-"
