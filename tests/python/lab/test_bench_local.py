"""`sumpter bench sum`, `server` and `ablate`: run small, each with its keys and checked results.

Of the instruments of costs, what they refuse, and that they wait for no job that has ended.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from sumpter import _native
from sumpter._failure import Failure
from sumpter.cli import main
from sumpter_lab import _native as lab_native
from sumpter_lab import costs, overhead, stragglers
from sumpter_lab.local import codecs, kernels, memory
from sumpter_lab.local.ablations import ABLATIONS
from sumpter_lab.local.report import busy_note, busy_share
from sumpter_lab.scaffold.network.counters import CoreTicks

SMALL = ("--bytes", "1MiB", "--chunk-bytes", "16KiB", "--rounds", "1", "--contributions", "3")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Bench = Callable[..., Result]


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("COLUMNS", "250")

    def run(*arguments: str) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            main(["bench", *arguments])
        captured = capsys.readouterr()
        return Result(int(exit_info.value.code or 0), captured.out, captured.err)

    return run


def rows_of(result: Result) -> list[dict]:
    assert result.code == 0, result.err
    return json.loads(result.out)


def check_file(file: Path, rows: list[dict], tmp_path: Path) -> None:
    """The file has every row, and `sumpter report` makes a page of it."""
    with file.open() as stream:
        assert len(list(csv.DictReader(stream))) == len(rows)
    page = tmp_path / "page.html"
    with pytest.raises(SystemExit) as exit_info:
        main(["report", str(file), "-o", str(page)])
    assert not exit_info.value.code
    assert page.exists()


def positive(row: dict, *names: str) -> None:
    for name in names:
        assert row[name] > 0, (name, row)


def test_sum_measures_each_kernel_in_both_places_beside_its_rivals(
    bench: Bench, tmp_path: Path
) -> None:
    file = tmp_path / "sum.csv"
    types = "float32,float16,bfloat16,int8"
    sizes = ("--bytes-cache", "4KiB", "--bytes-memory", "64KiB")
    coded = ("--codec", "int8", "--codec", "topk:k=0.01", "--codec", "powersgd:rank=2")
    output = ("--csv", str(file), "--json")
    result = bench("sum", "--dtypes", types, *sizes, "--rounds", "1", *coded, *output)
    rows = rows_of(result)
    measured = [row for row in rows if row["table"] == "kernel"]
    keys = {(row["place"], row["dtype"], row["op"]) for row in measured}
    assert len(keys) == len(measured) == 2 * (4 * 4 + 2)
    for row in measured:
        in_float32 = row["op"] == "sum in float32"
        positive(row, "gb_per_s", "of_copy_limit", "copy_gb_per_s")
        assert row["correct"] is True
        lacking = in_float32 or row["dtype"] == "bfloat16"
        assert (row["numpy_gb_per_s"] is None) == lacking
        assert (row["over_best_rival"] is None) == (row["torch_gb_per_s"] is None) == in_float32
        assert (row["of_float32"] is None) == (row["dtype"] in ("float32", "int8"))
    cycles = [row for row in rows if row["table"] == "cycle"]
    assert [row["dtype"] for row in cycles] == 4 * ["float32", "float16", "bfloat16"]
    assert [row["contributions"] for row in cycles] == 2 * [2, 2, 2, 8, 8, 8]
    assert [row["place"] for row in cycles] == 6 * ["cache"] + 6 * ["memory"]
    for row in cycles:
        positive(row, "contribution_gb_per_s", "of_float32")
        cores = row["cores_for_100_gb_per_s"]
        assert cores * row["contribution_gb_per_s"] == pytest.approx(12.5)
    for row in cycles[:6]:
        positive(row, "torch_contribution_gb_per_s")
    checksums = [row for row in rows if row["table"] == "checksum"]
    assert [row["place"] for row in checksums] == ["cache", "memory"]
    for row in checksums:
        positive(row, "payload_gb_per_s", "copied_gb_per_s", "of_copy")
    coded = [row for row in rows if row["table"] == "codec"]
    assert [row["codec"] for row in coded] == ["int8", "topk:k=0.01", "powersgd:rank=2"]
    assert [row["encoded_bytes"] for row in coded] == [1028, 66, 512]
    for row in coded:
        phases = ("encode", "encode_feedback", "decode", "decode_add")
        positive(row, *(f"{phase}_gb_per_s" for phase in phases), "copied_gb_per_s")
        positive(row, "encode_of_copy", "decode_add_of_copy", "norm_lost")
    check_file(file, rows, tmp_path)


@pytest.mark.parametrize("codec", codecs.CODECS)
def test_every_codec_is_measured_and_one_that_is_wrong_is_found(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = codecs.measure([codec], 16384, 1)
    assert row["codec"] == codec
    assert row["encoded_bytes"] < row["bytes"]
    monkeypatch.setattr(lab_native, "bench_codec", lambda *_, **__: (1, float("nan"), [(1.0,) * 5]))
    with pytest.raises(kernels.WrongResult, match="loses nan of the norm"):
        codecs.measure([codec], 16384, 1)


def test_a_codec_that_there_is_not_is_refused() -> None:
    for codec, message in (
        ("gzip", "no codec is called 'gzip'"),
        ("topk:k=5000", "k=5000: give 1 to 4096"),
        ("powersgd:rank=65", "rank=65: give 1 to 64"),
    ):
        with pytest.raises(_native.ConfigError, match=message):
            codecs.measure([codec], 16384, 1)


def test_sum_without_torch_leaves_its_columns_empty(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sumpter_lab.local.rivals.load_torch", lambda: None)
    sizes = ("--bytes-cache", "4KiB", "--bytes-memory", "8KiB", "--rounds", "1")
    result = bench("sum", "--dtypes", "int64", "--ops", "max", *sizes)
    assert result.code == 0, result.err
    assert "torch is not installed" in result.out
    assert "int64" in result.out and "NO" not in result.out


@pytest.mark.parametrize("dtype", memory.SIZES)
@pytest.mark.parametrize("op", (*kernels.OPS, "accumulate"))
def test_a_kernel_that_is_wrong_is_found(
    op: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels._verify(op, dtype)
    monkeypatch.setattr(lab_native, "bench_steps", lambda steps, repeats: 1.0)
    with pytest.raises(kernels.WrongResult, match=f"{op} of {dtype}"):
        kernels._verify(op, dtype)


def test_a_checksum_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels._verify_checksum()
    monkeypatch.setattr(lab_native, "bench_steps", lambda steps, repeats: 1.0)
    with pytest.raises(kernels.WrongResult, match="checksum"):
        kernels._verify_checksum()


def test_steps_refuse_unknown_kernels_and_memory_that_overlaps() -> None:
    array = np.ones(64, dtype=np.float32)
    address = array.ctypes.data
    for step, message in (
        (("mean", "float32", address, address + 128, 0, 32), "'mean' is no kernel"),
        (("sum", "float8", address, address + 128, 0, 32), "'float8' is no dtype"),
        (("sum", "float32", address, address + 64, 0, 32), "overlapping"),
        (("last", "float16", address, address + 64, address + 32, 32), "overlapping"),
        (("sum", "float32", address, 0, 0, 32), "null"),
    ):
        with pytest.raises(_native.ConfigError, match=message):
            lab_native.bench_steps([step], 1)
    assert (array == 1).all()


def test_server_loads_every_cell_and_relates_it_to_no_summation_and_raw_tcp(
    bench: Bench, tmp_path: Path
) -> None:
    file = tmp_path / "server.csv"
    counts = ("--workers", "1,3", "--lanes", "1,2", "--rounds", "2")
    rows = rows_of(bench("server", *counts, "--bytes", "2MiB", "--csv", str(file), "--json"))
    cells = [(row["workers"], row["lanes"]) for row in rows]
    assert cells == [(1, 1), (1, 2), (3, 1), (3, 2)]
    for row in rows:
        assert row["correct"] is True and row["bytes"] == 2 << 20
        for variant in ("", "without_summation_", "raw_tcp_", "summing_tcp_"):
            positive(row, f"{variant}goodput_gb_per_s", f"{variant}worker_cpu_s_per_gb")
        positive(row, "goodput_ratio", "cpu_ratio_to_raw_tcp", "server_calls_per_gb")
        positive(row, "goodput_ratio_to_summing_tcp", "cpu_ratio_to_summing_tcp")
        assert row["goodput_ratio_low"] <= row["goodput_ratio_high"]
    check_file(file, rows, tmp_path)


def test_server_relates_rounds_that_update_to_sums(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "rules.csv"
    small = ("--workers", "1,2", "--lanes", "2", "--rounds", "2", "--bytes", "1MiB")
    rules = ("--rules", "sgd,sgd_nesterov,adam")
    rows = rows_of(bench("server", *small, *rules, "--csv", str(file), "--json"))
    assert [row["workers"] for row in rows] == [1, 2]
    for row in rows:
        assert row["correct"] is True
        for rule in ("sgd", "sgd_nesterov", "adam"):
            positive(row, f"{rule}_goodput_gb_per_s", f"{rule}_worker_cpu_s_per_gb")
            for over in ("", "_to_deterministic"):
                positive(row, f"{rule}_goodput_ratio{over}", f"{rule}_cpu_ratio{over}")
                low, high = (f"{rule}_goodput_ratio{over}_{end}" for end in ("low", "high"))
                assert row[low] <= row[f"{rule}_goodput_ratio{over}"] <= row[high]
    check_file(file, rows, tmp_path)
    table = bench("server", *small, "--rules", "lion")
    assert table.code == 0, table.err
    assert "rounds that update" in table.out and "lion" in table.out


def test_server_takes_the_tensors_of_a_model(bench: Bench) -> None:
    (row,) = rows_of(bench("server", "--workers", "1", "--lanes", "1", "--rounds", "1", "--json"))
    assert row["bytes"] == 11_689_512 * 4
    table = bench("server", "--workers", "1", "--lanes", "1", "--rounds", "1", "--bytes", "1MiB")
    assert table.code == 0 and "workers that compute nothing" in table.out


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_measures_both_ways_with_equal_results(bench: Bench, name: str) -> None:
    rows = rows_of(bench("ablate", name, *SMALL, "--threads", "1,2", "--json"))
    assert len(rows) >= 2
    for row in rows:
        assert row["ablation"] == name and row["equal_results"] is True
        figures = [row[key] for key in row if key.endswith("_per_s")]
        assert figures and all(figure > 0 for figure in figures), row


def test_ablations_are_listed(bench: Bench) -> None:
    listed = bench("ablate", "--list")
    assert listed.code == 0
    assert all(name in listed.out for name in ABLATIONS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sum", "--dtypes", "float8"), "--dtypes 'float8': known are float32"),
        (("sum", "--ops", "mean"), "--ops 'mean'"),
        (("sum", "--bytes-cache", "1GiB"), "--bytes-cache must be smaller"),
        (("sum", "--bytes-cache", "100"), "multiple of 64"),
        (("sum", "--rounds", "0"), "--rounds 0"),
        (("sum", "--contributions", "1"), "--contributions 1"),
        (("server", "--workers", "0"), "--workers 0"),
        (("server", "--workers", "two"), "--workers two"),
        (("server", "--workers", "65", "--bytes", "1MiB"), "workers: 65 is not from 1 to 64"),
        (("server", "--lanes", "99", "--bytes", "1MiB"), "lanes: 99"),
        (("server", "--model", "resnet19"), "--model resnet19"),
        (("server", "--rules", "sgd,newton"), "--rules 'newton': known are adagrad, adam,"),
        (("server", "--model", "resnet18", "--bytes", "1MiB"), "exclude each other"),
        (("ablate",), "give the name of an ablation"),
        (("ablate", "everything"), "no ablation is called 'everything'"),
        (("ablate", "fused", "--bytes", "1MiB"), "at least 64 times --chunk-bytes"),
    ],
)
def test_wrong_use_is_one_clear_line(
    bench: Bench, arguments: tuple[str, ...], message: str
) -> None:
    result = bench(*arguments)
    assert result.code == 2, result
    assert message in result.err
    assert len(result.err.strip().splitlines()) <= 2, result.err


@pytest.mark.parametrize("arguments", [("server", "--bytes", "60GiB", "--workers", "64")])
def test_more_than_the_memory_is_refused_before_it_is_used(
    bench: Bench, arguments: tuple[str, ...]
) -> None:
    result = bench(*arguments)
    assert result.code == 1
    assert "GB of memory" in result.err and "fewer --workers" in result.err


def test_optimizers_without_torch_say_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sumpter_lab.local.rivals.load_torch", lambda: None)
    result = bench("ablate", "optimizers", *SMALL)
    assert result.code == 1
    assert "torch, which is not installed" in result.err


def test_a_csv_file_that_cannot_be_written_is_named(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "missing" / "rows.csv"
    result = bench("ablate", "affinity", *SMALL, "--csv", str(file))
    assert result.code == 1
    assert f"cannot write {file}" in result.err


def test_only_what_runs_now_makes_a_machine_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([CoreTicks(1000, 100, 0), CoreTicks(1100, 190, 0)])
    monkeypatch.setattr("sumpter_lab.scaffold.network.counters.core_ticks", lambda: next(ticks))
    assert busy_share(0.0) == pytest.approx(0.1)
    for share, noted in ((0.05, False), (0.5, True)):
        monkeypatch.setattr("sumpter_lab.local.report.busy_share", lambda _, share=share: share)
        assert (busy_note() is not None) == noted


def test_a_job_that_does_not_start_is_a_failure() -> None:
    with pytest.raises(Failure, match="no_such=1 -- ended with code 2"):
        with overhead.job(["--set", "no_such=1"]):
            pytest.fail("it has started")


@pytest.mark.parametrize(
    "instrument",
    [lambda words: overhead.main(["trace", *words]), stragglers.main, costs.main],
    ids=["overhead", "stragglers", "costs"],
)
def test_a_result_that_could_not_be_written_is_refused_before_anything_runs(
    instrument: Callable[[Sequence[str]], None], tmp_path: Path
) -> None:
    with pytest.raises(Failure, match="the folder .* does not exist"):
        instrument(["-o", str(tmp_path / "missing" / "x.json")])


def test_one_pair_has_a_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    overhead.print_ratios([{"with": {"step ms": 2.0}, "without": {"step ms": 1.0}}])
    assert "+100.00%" in capsys.readouterr().out
