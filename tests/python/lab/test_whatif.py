"""`sumpter whatif`: published figures, grids, advice, and one clear line for every wrong use."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from sumpter import _native
from sumpter._sizes import parse_size
from sumpter.cli import main
from sumpter.profiles import Layer, Profile, Tensor, file, save
from sumpter_lab import profiles, whatif
from sumpter_lab.scaffold.results.document import DocumentError
from sumpter_lab.whatif import replayed
from sumpter_lab.whatif.advice import in_words

ROOT = Path(__file__).resolve().parents[3]
NETAI = ROOT / "tests" / "data" / "netai"
RESNET50 = NETAI / "resnet50.bk.log"
ADDITIONS = NETAI / "cuda_vec_add.log"
BATCH_S = 0.12808580219559176
OBJECT = [
    "workers",
    "servers",
    "architecture",
    "bandwidth_gbps",
    "compression",
    "scaling_factor",
    "iteration_time_s",
    "overhead_s",
    "bottleneck",
]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Runs `sumpter whatif` in this process: its exit code and what it printed."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            main(["whatif", *map(str, arguments)])
        captured = capsys.readouterr()
        return int(exit_info.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def netai(run):
    """The objects that it prints for the NetAI log of ResNet-50."""

    def netai(*arguments: object) -> list[dict]:
        files = ("--profile", RESNET50, "--format", "netai", "--add-estimate", ADDITIONS)
        code, out, err = run(*files, "--batch-time-s", BATCH_S, *arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return netai


@pytest.fixture
def profile_file(tmp_path: Path) -> Path:
    path = tmp_path / "resnet18.profile.json"
    save(profiles.published("resnet18"), path)
    return path


def resnet50() -> Profile:
    loaded = profiles.load(RESNET50, "netai", iteration_s=BATCH_S)
    return replace(loaded, add=profiles.additions(ADDITIONS))


def test_netai_table_is_reproduced_to_four_decimals(netai) -> None:
    cases = netai("--workers", "16,32,64", "--bandwidth-gbps", "1,10,25,40,100")
    assert [list(case) for case in cases] == [OBJECT] * 15
    assert [f"{case['scaling_factor']:.4f}" for case in cases] == (
        "0.0798 0.5718 0.9702 0.9983 0.9987 "
        "0.0773 0.5545 0.9423 0.9971 0.9975 "
        "0.0760 0.5397 0.9103 0.9943 0.9946"
    ).split()
    for case in cases:
        assert case["iteration_time_s"] == pytest.approx(BATCH_S + case["overhead_s"])
        assert case["scaling_factor"] == pytest.approx(BATCH_S / case["iteration_time_s"])
        limited = case["scaling_factor"] < 0.99
        assert case["bottleneck"] == ("network" if limited else "none")


def test_netai_compression_is_reproduced_to_four_decimals(netai) -> None:
    ratios = "1,2,5,10,50,100"
    cases = netai("--workers", 64, "--bandwidth-gbps", 10, "--compression", ratios)
    factors = [f"{case['scaling_factor']:.4f}" for case in cases]
    assert factors == "0.5397 0.8169 0.9944 0.9946 0.9948 0.9948".split()


def test_a_list_in_any_argument_makes_a_grid(run, profile_file: Path) -> None:
    lists = {
        "--workers": "4,8",
        "--servers": "0,4",
        "--bandwidth-gbps": "1,10",
        "--compression": "1,2",
        "--transport-efficiency": "0.3,1",
        "--fusion-bytes": "16MiB,64MiB",
        "--fusion-timeout-ms": "1,5",
        "--partition-bytes": "256KiB,1MiB",
        "--credit-bytes": "256KiB,4MiB",
        "--batch-time-s": "0.2,0.3",
    }
    least = {"--workers": "4", "--bandwidth-gbps": "1"}
    for option, texts in lists.items():
        options = {**least, option: texts}
        given = [part for pair in options.items() for part in pair]
        code, out, err = run("--profile", profile_file, *given, "--json")
        assert code == 0, err
        assert len(json.loads(out)) == 2, option
        assert run("--profile", profile_file, *given)[0] == 0
    code, out, _ = run(
        "--profile", profile_file, "--workers", 4, "--bandwidth-gbps", 1, "--servers", "0,4",
        "--architecture", "allreduce,ps,sumpter", "--json",
    )  # fmt: skip
    found = [(case["servers"], case["architecture"]) for case in json.loads(out)]
    assert found == [(0, "allreduce"), (0, "sumpter"), (4, "ps"), (4, "sumpter")]


def test_the_table_shows_every_argument_that_varies(run, profile_file: Path) -> None:
    code, out, _ = run(
        "--profile", profile_file, "--workers", "8", "--bandwidth-gbps", "5",
        "--transport-efficiency", "0.5,1", "--overlap-forward", "--servers", "8",
    )  # fmt: skip
    assert code == 0
    assert "resnet18: 44.6 MiB of gradients" in out
    assert "efficiency" in out and "compression" not in out
    assert re.search(r"8 +8 +sumpter +5 +0.5 +0\.\d{4}", out), out


def test_helpers_and_overlap_save_what_the_plan_says() -> None:
    profile = resnet50()
    case = whatif.Case(workers=8, bandwidth_gbps=1.0)
    helped = replace(case, servers=8, architecture="sumpter")
    overlapped = replace(helped, overlap_forward=True)
    alone, with_helpers, best = whatif.simulate(
        replace(profile, add=None), [case, helped, overlapped]
    )
    # All-reduce sends 2(n-1)/n of the model, helped workers send it once: D/n^2 = 1.75.
    assert alone.overhead_s / with_helpers.overhead_s == pytest.approx(1.75, rel=0.1)
    assert best.overhead_s < with_helpers.overhead_s


def test_advice_is_what_the_simulation_gives() -> None:
    profile, case = resnet50(), whatif.Case(workers=64, bandwidth_gbps=10.0)
    now, advice = whatif.advise(profile, case)
    assert now == whatif.simulate(profile, [case])[0]
    assert [one.gain for one in advice] == sorted((one.gain for one in advice), reverse=True)
    bandwidth = [one for one in advice if one.case == replace(case, bandwidth_gbps=20.0)]
    assert len(bandwidth) == 1 and "20 Gb/s" in str(bandwidth[0])
    outcome = whatif.simulate(profile, [bandwidth[0].case])[0]
    gain = now.iteration_time_s / outcome.iteration_time_s - 1
    assert bandwidth[0].gain == pytest.approx(gain)
    for words in ("compression", "times the batch", "CPU machines"):
        assert any(words in one.change for one in advice), words


def test_a_larger_change_that_gives_no_more_is_not_advised() -> None:
    # Twice the bandwidth hides all communication: four times gives nothing more.
    profile = profiles.published("resnet50")
    assert profile is not None
    case = whatif.Case(workers=8, bandwidth_gbps=10.0)
    now, advice = whatif.advise(profile, case)
    bandwidths = {one.case.bandwidth_gbps for one in advice}
    assert bandwidths == {10.0, 20.0}
    ratios = {one.case.compression for one in advice if one.kind != "codec"}
    assert ratios == {1.0, 2.0}
    sentences = in_words(now, advice)
    assert [text.partition(":")[0] for text in sentences[1:]] == [
        *("Most would help", "About as much", "Less"),
    ]
    # Every change is said once, in the order of its gain.
    told = " ".join(sentences[1:])
    places = [told.index(one.change) for one in advice]
    assert places == sorted(places)
    assert all(told.count(one.change) == 1 for one in advice)


def test_advice_in_words(run, profile_file: Path) -> None:
    slow = ("--profile", profile_file, "--workers", 8, "--bandwidth-gbps", 1, "--advise")
    code, out, _ = run(*slow)
    assert code == 0
    assert re.search(r"Communication takes \d+\.\d% of an iteration; .* links\.", out)
    assert re.search(r"Most would help: .*: \d+% more samples per second", out)
    assert len(re.findall(r"(?m)^(Most would help|About as much|Less): ", out)) <= 3
    assert out.count("would help") == 1 and out.count("scaling factor") == 1
    code, out, _ = run(*slow, "--json")
    document = json.loads(out)
    assert list(document["case"]) == OBJECT
    plain = [one["case"] for one in document["advice"] if "codec" not in one["change"]]
    assert plain and all(list(case) == OBJECT for case in plain)
    (codec,) = [one["case"] for one in document["advice"] if "codec" in one["change"]]
    assert list(codec) == [*OBJECT[:5], "codec_rate", "codec_cores", *OBJECT[5:]]
    code, out, _ = run("--profile", profile_file, "--workers", 1, *slow[4:])
    assert code == 0 and "not the bottleneck" in out and "Nothing tried would gain" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--workers", "0"), "--workers 0: expected a whole number from 1"),
        (("--workers", "4,,8"), "an entry of the list is empty"),
        (("--workers", "many"), "--workers many: expected a whole number"),
        (("--workers", "1000000"), "--workers 1000000: expected a whole number from 1 to 100000"),
        (("--servers", "-1"), "--servers -1: expected a whole number from 0"),
        (("--bandwidth-gbps", "-10"), "bandwidth_gbps is -10; expected a number of Gb/s"),
        (("--bandwidth-gbps", "nan"), "--bandwidth-gbps nan: expected a number"),
        (("--compression", "0.5"), "compression is 0.5; expected a ratio from 1"),
        (("--transport-efficiency", "0"), "transport_efficiency is 0; expected"),
        (("--transport-efficiency", "1.5"), "transport_efficiency is 1.5; expected"),
        (("--fusion-timeout-ms", "-1"), "fusion_timeout_s is -0.001; expected"),
        (("--fusion-bytes", "big"), "--fusion-bytes: 'big' is not a size"),
        (("--credit-bytes", "999999999TiB"), "--credit-bytes"),
        (("--partition-bytes", "100"), "partition_bytes is 100; expected a positive multiple"),
        (("--architecture", "ring"), "--architecture ring: expected allreduce, ps, sumpter"),
        (("--architecture", "ps"), "servers is 0; expected 1 or more"),
        (("--architecture", "allreduce", "--servers", "4"), "servers is 4; expected 0 with"),
        (("--architecture", "ps,sumpter"), "servers is 0; expected one that is 1 or more, for ps"),
        (("--format", "csv"), "--format csv: expected sumpter or netai"),
        (("--format", "netai"), "--format netai needs --batch-time-s"),
        (("--batch-time-s", "0"), "--batch-time-s 0: expected"),
        (("--batch-time-s", "1e-9"), "--batch-time-s 1e-09: backward_s"),
        (("--workers", "2,4", "--advise"), "--advise is about one case"),
        (("--add-estimate", "nowhere.log"), "nowhere.log: cannot be read"),
        (("--add-estimate", RESNET50), "resnet50.bk.log: line 1"),
        (("--partition", "0"), "--partition-bytes: '0' is too small"),
        (("--profile", "nowhere.json"), "nowhere.json: no such file, and the published"),
        (("--profile", RESNET50), "resnet50.bk.log: expected the JSON of a profile"),
    ],
)
def test_wrong_use_is_one_clear_line(run, profile_file: Path, arguments, words: str) -> None:
    given = ("--profile", profile_file, "--workers", "4", "--bandwidth-gbps", "10")
    code, out, err = run(*given, *arguments)
    assert code in (1, 2) and out == ""
    assert len(err.splitlines()) == 1 and words in err, err


def test_published_architectures_need_no_file(run) -> None:
    given = ("--profile", "bert-large", "--workers", "4", "--bandwidth-gbps", "10", "--json")
    code, out, _ = run(*given)
    (found,) = json.loads(out)
    assert code == 0
    case = whatif.Case(workers=4, bandwidth_gbps=10)
    (expected,) = whatif.simulate(profiles.published("bert-large"), [case])
    assert found["iteration_time_s"] == expected.iteration_time_s


def test_sizes_that_are_not_given_are_those_of_the_settings(run) -> None:
    defaults = {row["name"]: row["default"] for row in _native.settings()}
    names = ("partition_bytes", "credit_bytes")
    given = ("--profile", "resnet50", "--workers", 4, "--servers", 2, "--bandwidth-gbps", 10)
    explicit = [word for name in names for word in (f"--{name.replace('_', '-')}", defaults[name])]
    assert run(*given, "--json") == run(*given, *explicit, "--json")
    case = whatif.Case(workers=4)
    assert case.partition_bytes == parse_size(defaults["partition_bytes"])
    assert (case.credit_bytes, defaults["credit_bytes"]) == (None, "auto")


@pytest.mark.parametrize("gbps", [0.2, 4, 100])
def test_the_credit_is_that_of_a_job_on_such_links(run, gbps: float) -> None:
    given = ("--profile", "vgg16", "--workers", 4, "--servers", 2, "--bandwidth-gbps", gbps)
    credit = str(_native.default_credit(gbps))
    assert run(*given, "--json") == run(*given, "--json", "--credit-bytes", credit)


def test_cases_of_a_grid_do_not_depend_on_their_neighbours() -> None:
    # The credit decides how finely tensors are cut, and so where partitions are placed.
    cases = [
        whatif.Case(4, servers, "sumpter", 10, credit_bytes=credit, partition_bytes=1 << 20)
        for servers in (2, 4)
        for credit in (64 << 10, 8 << 20, None)
    ]
    profile = profiles.published("vgg16")
    alone = [whatif.simulate(profile, [case])[0] for case in cases]
    assert whatif.simulate(profile, cases) == alone
    assert len({one.iteration_time_s for one in alone}) == len(cases)


def test_profiles_that_are_cut_short_foreign_or_newer_are_refused(run, tmp_path: Path) -> None:
    document = json.loads(json.dumps(file.to_json(profiles.published("resnet18"))))
    contents = {
        "short.json": (json.dumps(document)[:-40], "cut short"),
        "foreign.json": ('{"traceEvents": []}', "format"),
        "newer.json": (json.dumps({**document, "version": 2}), "version"),
        "odd.json": (json.dumps({**document, "iteration_s": -1}), "iteration_s"),
    }
    for name, (content, field) in contents.items():
        path = tmp_path / name
        path.write_text(content)
        code, out, err = run("--profile", path, "--workers", 4, "--bandwidth-gbps", 10)
        assert code == 1 and out == "", name
        assert name in err and field in err and len(err.splitlines()) == 1, err
    log = RESNET50.read_text().splitlines()
    (tmp_path / "short.log").write_text("\n".join(log[:100]))
    code, _, err = run(
        "--profile", tmp_path / "short.log", "--format", "netai", "--batch-time-s", "0.1",
        "--workers", 4, "--bandwidth-gbps", 10,
    )  # fmt: skip
    assert code == 1 and "line 3 promises 161 tensors, but 97 lines follow" in err


def test_predictions_are_near_what_an_emulated_cluster_measured() -> None:
    records = sorted(ROOT.glob("lab/records/partition-credit/*.json"))
    records += sorted(ROOT.glob("lab/records/scheduling/*.json"))
    comparisons = [one for record in records for one in replayed.compare(record)]
    assert len(comparisons) >= 90
    as_run = [one for one in comparisons if one.system in ("credit", "overlap")]
    errors = sorted(abs(one.error) for one in as_run)
    assert statistics.median(errors) < 0.02, comparisons
    # Where sizes were not divided so far that what is in flight is a good part of the model.
    near = sorted(
        abs(one.error) for one in as_run if one.profile in ("resnet50", "vgg16", "alexnet")
    )
    assert len(near) >= 40 and near[-2] < 0.1, comparisons
    # One cell of the record is further off.
    assert near[-1] < 0.11, comparisons
    assert f"- all: {len(comparisons)} cells, median error" in replayed.as_markdown(comparisons)


def test_predictions_of_a_jobs_defaults_are_near_what_was_measured() -> None:
    records = sorted(ROOT.glob("lab/records/scheduling/*.json"))
    comparisons = [one for record in records for one in replayed.compare(record)]
    errors = sorted(abs(one.error) for one in comparisons if one.system == "paced")
    assert len(errors) >= 45
    assert statistics.median(errors) < 0.01 and errors[-1] < 0.1, errors
    assert sum(error < 0.05 for error in errors) >= 0.95 * len(errors), errors


def test_the_order_of_partitions_is_a_jobs_own_unless_one_is_asked_for(
    run, profile_file: Path
) -> None:
    plain = whatif.Case(workers=4, servers=2, architecture="sumpter", bandwidth_gbps=1.0)
    profile = resnet50()

    def times(**fields: object) -> list[float]:
        cases = [replace(plain, **fields, order=order) for order in (None, *whatif.ORDERS)]
        return [one.iteration_time_s for one in whatif.simulate(profile, cases)]

    default, readiness, forward = times()
    assert default == readiness != forward
    default, readiness, forward = times(overlap_forward=True)
    assert default == forward < readiness
    given = ("--profile", profile_file, "--workers", 4, "--servers", 2, "--bandwidth-gbps", 1)
    code, _, err = run(*given, "--order", "alphabet")
    assert code == 2 and "--order alphabet: expected auto, readiness or forward" in err
    code, out, _ = run(*given, "--order", "readiness,forward")
    assert code == 0 and "order" in out and "readiness" in out


def test_files_that_are_no_replay_are_refused(tmp_path: Path, profile_file: Path) -> None:
    with pytest.raises(DocumentError, match="resnet18.*format: expected 'sumpter-replay'"):
        list(replayed.compare(profile_file))
    newer = tmp_path / "newer.json"
    newer.write_text('{"format": "sumpter-replay", "version": 9, "cells": []}')
    with pytest.raises(DocumentError, match="newer.json: version: expected 1"):
        list(replayed.compare(newer))
    newer.write_text('{"format": "sumpter-replay", "version": 1}')
    with pytest.raises(DocumentError, match="newer.json: cells: expected a list"):
        list(replayed.compare(newer))


def test_five_thousand_machines_with_a_hundred_layers_have_an_answer() -> None:
    layers = tuple(Layer(f"layer{i}", 0.0005, 0.001) for i in range(100))
    tensors = tuple(
        Tensor(f"layer{i}.weight", i, 400_000 + 10_000 * i, "float32", 0.1 - 0.001 * i)
        for i in range(100)
    )
    profile = Profile("deep", "published", None, 32, 0.15, 0.1, layers, tensors, add=None)
    cases = [
        whatif.Case(workers=5000, bandwidth_gbps=10.0),
        whatif.Case(workers=5000, servers=1000, architecture="sumpter", bandwidth_gbps=10.0),
    ]
    assert all(0.1 < outcome.scaling_factor < 1 for outcome in whatif.simulate(profile, cases))
