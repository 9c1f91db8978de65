"""Tables of measurements hold what their records hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from documents import name_of
from sumpter._failure import Failure
from sumpter_lab.tables import builders
from sumpter_lab.tables.page import PAGES, rewritten
from sumpter_lab.tables.record import Record, records
from sumpter_lab.tables.table import Table, percent, significant, size

ALL = sorted(PAGES.glob("*.md"))
MARKED = "<!-- table: {} -->\n\n| old |\n|---|\n| 1 |\n\nAfter it.\n"
# Pages that also have tables of what is no record: of instruments, of virtual time, of conclusions.
BY_HAND = {
    "README.md",
    "benchmarks.md",
    "benchmarks-local.md",
    "byteps-evaluation.md",
    "chaos.md",
    "costs.md",
    "cuda.md",
    "design-choices.md",
    "interfaces.md",
    "kernels.md",
    "latency.md",
    "papers.md",
    "scaling.md",
    "scheduling.md",
    "trees.md",
    "tuning.md",
    "update-rules.md",
    "virtual-time.md",
    "whatif.md",
}


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_tables_are_those_of_the_records(page: Path) -> None:
    text = page.read_text()
    assert rewritten(text, page.name) == text, "run `python -m sumpter_lab.tables`"


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_tables_are_made_from_records(page: Path) -> None:
    if page.name in BY_HAND:
        return
    measured = re.sub(r"^## Method.*?(?=^## |\Z)", "", page.read_text(), flags=re.M | re.S)
    for before in re.findall(r"([^\n]*)\n\n\|[^\n]*\n\|---", measured):
        assert before.endswith("-->"), f"a table without a record, after {before!r}"


def test_every_builder_has_a_page() -> None:
    texts = "".join(page.read_text() for page in ALL)
    unused = [name for name in builders.ALL if f"<!-- table: {name} " not in texts]
    assert not unused


def test_another_figure_is_another_table(tmp_path: Path) -> None:
    text = MARKED.format("emulated-share-by-k deterministic/2026-11-28-emulated.csv")
    made = rewritten(text, "page.md")
    assert "| old |" not in made and made.endswith("|\n\nAfter it.\n")
    assert "| n | k = 0 | k = 1 |" in made
    assert rewritten(made, "page.md") == made
    (file,) = records(["deterministic/2026-11-28-emulated.csv"])
    changed = tmp_path / "changed.csv"
    changed.write_text(file.file.read_text().replace("0.99", "0.88"))
    build = builders.ALL["emulated-share-by-k"]
    assert build([Record(changed)]) != build([file])


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("no-such-table sum/*.csv", "page.md: table no-such-table .*no table is called"),
        ("kernels sum/none.csv", "lab/records has no file sum/none.csv"),
        ("kernels sum", "expected a file of lab/records first, got 'sum'"),
        ("kernels costs/*.json", "page.md: table kernels .*KeyError: 'table'"),
        ("replay-scales scheduling/*-gpt2.json 2", "page.md: table replay-scales .*ValueError"),
        ("stragglers sum/*.csv", "page.md: table stragglers"),
        ("memory-worker tune/*-still.json", "2 fields are lists of rows, not one"),
    ],
)
def test_a_table_that_cannot_be_made_says_why(marker: str, message: str) -> None:
    with pytest.raises(Failure, match=message):
        rewritten(MARKED.format(marker), "page.md")


def test_nothing_stands_right_below_a_table() -> None:
    # It would be read as more rows.
    marked = "<!-- table: sum-numpy sum/none.csv -->\n\n| old |\n|---|\n    1 |\n| 2 |\n"
    with pytest.raises(Failure, match=r"page.md: table sum-numpy .*: put an empty line below it"):
        rewritten(marked, "page.md")


def test_labels_and_long_markers() -> None:
    found = list(records(["sum/*.csv", "jax/*.csv", "two runs"]))
    assert [record.label for record in found if record.file.parent.name == "sum"][0] == ""
    assert {record.label for record in found if record.file.parent.name == "jax"} == {"two runs"}
    one_line = 'server-throughput server/*-75-rounds.csv "ResNet-18, 62 tensors"'
    made = rewritten(MARKED.format(one_line), "page.md")
    assert "| ResNet-18, 62 tensors | 2 | 1 |" in made
    again = rewritten(MARKED.format(one_line.replace(", ", ",\n    ")), "page.md")
    assert again.split("-->")[1] == made.split("-->")[1]


def test_columns_show_what_they_hold() -> None:
    table = Table(["what", "GB/s", "n"], [["a", "1.2", "-"], ["b", "-", "-"]])
    assert table.markdown() == "| what | GB/s |\n|---|---:|\n| a | 1.2 |\n| b | - |\n"
    assert [significant(value, 3) for value in (0.5804, 12.345, 1234.5, None)] == [
        "0.580",
        "12.3",
        "1234",
        "-",
    ]
    assert [size(count) for count in (4, 4096, 26214400)] == ["4 B", "4 KiB", "25 MiB"]
    assert [percent(share, 1) for share in (0.123, None)] == ["12.3 %", "-"]
