"""`sumpter whatif --machines`: racks, GPUs and NVLink; BytePS' figures; bad lists."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sumpter import _native
from sumpter._errors import ConfigError
from sumpter.cli import main
from sumpter_lab import profiles, whatif
from sumpter_lab.scaffold.results.document import DocumentError
from sumpter_lab.whatif import byteps, racks

ROOT = Path(__file__).resolve().parents[4]
CLUSTERS = ROOT / "examples" / "clusters"
NVLINK = CLUSTERS / "nvlink.toml"
RACKS = CLUSTERS / "racks.toml"
PLAIN = """
[[machine]]
role = "gpu"
count = 4
bandwidth_gbps = 10

[[machine]]
role = "cpu"
count = 2
bandwidth_gbps = 10
"""


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
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain.toml"
    path.write_text(PLAIN)
    return path


def test_a_list_of_equal_machines_is_what_the_numbers_say(run, plain: Path) -> None:
    common = ("--profile", "vgg16", "--architecture", "ps,sumpter", "--json")
    code, out, err = run(*common, "--machines", plain)
    assert code == 0, err
    listed = json.loads(out)
    assert {one.pop("machines") for one in listed} == {str(plain)}
    assert {one.pop("local_reduction") for one in listed} == {"rule"}
    numbers = ("--workers", 4, "--servers", 2, "--bandwidth-gbps", 10)
    assert listed == json.loads(run(*common, *numbers)[1])


def test_lists_bandwidths_and_local_reductions_make_a_grid(run) -> None:
    local = "rule,reduce-scatter,roots=gpu-0+gpu-1"
    given = ("--profile", "resnet50", "--bandwidth-gbps", "50,100", "--local-reduction", local)
    code, out, err = run(*given, "--machines", NVLINK, "--json")
    assert code == 0, err
    found = [(case["bandwidth_gbps"], case["local_reduction"]) for case in json.loads(out)]
    assert found == [(gbps, word) for gbps in (50, 100) for word in local.split(",")]
    code, out, _ = run(*given, "--machines", NVLINK)
    assert code == 0
    assert "32 GPU machines with 256 GPUs, 32 CPU machines; inside trainer-1: reduce" in out
    assert "roots=gpu-0+gpu-1" in out and "hop latency" not in out
    code, out, _ = run("--profile", "resnet18", "--machines", f"{RACKS},{CLUSTERS}/devices.toml")
    assert code == 0 and "8 GPU machines, 2 CPU machines, 2 racks" in out
    assert [line.split()[0] for line in out.splitlines()[-2:]] == ["racks", "devices"]


def test_a_narrow_trunk_takes_as_long_as_the_plan_says(run, tmp_path: Path) -> None:
    profile = byteps.round_profile()
    for ratio in (1, 2, 4, 8):
        text = RACKS.read_text().replace("oversubscription = 4", f"oversubscription = {ratio}")
        request = json.dumps({"machines": text, "bytes": profile.bytes})
        planned = json.loads(_native.plan(request))
        case = whatif.listed(text, architecture="sumpter")
        took = whatif.simulate(profile, [case])[0]
        job = planned["trees"]["job"]
        assert job["time_s"] / took.overhead_s == pytest.approx(0.97, abs=0.03)
        assert took.bottleneck == "network"


def test_predictions_for_racks_are_near_what_emulated_racks_took() -> None:
    records = sorted((ROOT / "lab" / "records" / "trees").glob("*.csv"))
    comparisons = [one for record in records for one in racks.compare(record)]
    assert {one.system for one in comparisons} == {"sumpter", "gloo"}
    assert len(comparisons) >= 8 and any(one.servers for one in comparisons)
    for one in comparisons:
        # Trunks carry headers, acknowledgements and what is sent again as well.
        assert -0.02 < one.bytes_error < 0, one
        assert abs(one.error) < 0.03, one
    shown = racks.as_markdown(comparisons)
    assert "- sumpter: 5 cells, median error 0." in shown


def test_records_without_racks_are_refused(tmp_path: Path) -> None:
    emulated = sorted((ROOT / "lab" / "records").glob("emulate*/*.csv"))[0]
    with pytest.raises(DocumentError, match=r"expected rows of `sumpter bench emulate --racks`"):
        list(racks.compare(emulated))
    other = tmp_path / "other.csv"
    other.write_text("one,two\n1,2\n")
    with pytest.raises(DocumentError, match="other.csv"):
        list(racks.compare(other))


def test_advice_for_a_list_is_about_links_and_not_helpers(run) -> None:
    given = ("--profile", "vgg16", "--machines", RACKS, "--bandwidth-gbps", 5, "--advise")
    code, out, err = run(*given)
    assert code == 0, err
    assert "2 times the bandwidth between machines, 10 Gb/s" in out
    assert "that help to sum" not in out
    document = json.loads(run(*given, "--json")[1])
    assert all(one["case"]["machines"] == str(RACKS) for one in document["advice"])


def test_links_inside_machines_are_named_as_the_bottleneck(run, tmp_path: Path) -> None:
    path = tmp_path / "slow.toml"
    path.write_text((CLUSTERS / "devices.toml").read_text().replace("gbps = 105", "gbps = 8"))
    code, out, _ = run("--profile", "vgg16", "--machines", path, "--advise")
    assert code == 0 and "inside" in out
    assert "most of it is waiting for links inside machines." in out


def test_latency_of_a_ring_and_a_server_s_optimizer_take_time(run, plain: Path) -> None:
    alone = ("--profile", "resnet18", "--workers", 8, "--bandwidth-gbps", 1, "--json")
    plain_s, late_s = (
        case["overhead_s"] for case in json.loads(run(*alone, "--hop-latency-us", "0,500")[1])
    )
    # 14 steps for each of the all-reduces.
    assert (late_s - plain_s) / (14 * 500e-6) == pytest.approx(round((late_s - plain_s) / 7e-3))
    assert late_s > plain_s
    with_servers = ("--profile", "resnet18", "--machines", plain, "--architecture", "ps", "--json")
    (slow,) = json.loads(run(*with_servers, "--update-gb-per-s", "0.01")[1])
    assert slow["bottleneck"] == "addition"
    assert slow["overhead_s"] > 44.6 * 2**20 / 2 / 0.01e9 - 0.2
    case = whatif.listed(PLAIN, architecture="ps", update_bytes_per_s=0.01e9)
    profile = profiles.published("resnet18")
    assert whatif.simulate(profile, [case])[0].overhead_s == slow["overhead_s"]


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        (PLAIN, ("--workers", 4), "--workers 4: leave it out beside --machines"),
        (PLAIN, ("--servers", 0), "--servers 0: leave it out beside --machines"),
        (PLAIN, ("--bandwidth-gbps", -1), "bandwidth_gbps is -1; expected a number of Gb/s"),
        (PLAIN, ("--architecture", "allreduce"), "servers is 2; expected 0 with architecture"),
        (PLAIN, ("--local-reduction", "ring"), "--local-reduction ring: expected rule, direct,"),
        (PLAIN, ("--local-reduction", "direct"), "local reduction is direct; expected rule, or"),
        (PLAIN, ("--hop-latency-us", -1), "hop_latency_s is -0.000001; expected a finite time"),
        (PLAIN, ("--update-gb-per-s", 0), "update_bytes_per_s is 0; expected a finite number"),
        (PLAIN, ("--hop-latency-us", 17), "--hop-latency-us is for all-reduce: add it to"),
        (PLAIN.replace("gpu", "gpus"), (), 'list.toml: machine 1 ("machine-1"): role is "gpus"'),
        (PLAIN.replace('role = "gpu"', 'role = "cpu"'), (), "none of the 6 machines has role"),
        (PLAIN.replace("= 10", "= 10\nrack = \"a\"", 1), (), "rack is \"a\"; expected no rack, or"),
        ("[[rack", (), "list.toml: the machine list is not valid"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_clear_line(run, tmp_path: Path, content, arguments, words: str) -> None:
    path = tmp_path / "list.toml"
    path.write_text(content)
    code, out, err = run("--profile", "resnet18", "--machines", path, *arguments)
    assert code in (1, 2) and out == ""
    assert words in err, err


def test_what_belongs_to_a_list_needs_one(run) -> None:
    for arguments, words in [
        (("--bandwidth-gbps", 10), "--workers is missing; give it, or --machines FILE"),
        (("--workers", 4), "--bandwidth-gbps is missing; give it, or --machines FILE"),
        (
            ("--workers", 4, "--bandwidth-gbps", 1, "--local-reduction", "direct"),
            "needs --machines",
        ),
        (("--machines", "nowhere.toml"), "--machines nowhere.toml: cannot be read"),
        (
            ("--workers", 4, "--bandwidth-gbps", 1, "--update-gb-per-s", 2),
            "--update-gb-per-s is for servers: give --architecture ps or sumpter",
        ),
    ]:
        code, out, err = run("--profile", "resnet18", *arguments)
        assert code == 2 and out == "" and words in err, err
    with pytest.raises(ConfigError, match='roots is "gpu-8"; expected gpu-0, gpu-1'):
        whatif.listed(NVLINK.read_text(), local_reduction="roots=gpu-8")
    lone = whatif.Case(workers=4, local_reduction="direct")
    with pytest.raises(ConfigError, match="local_reduction is direct; expected rule without"):
        whatif.simulate(profiles.published("resnet18"), [lone])


def test_the_order_of_roots_is_the_paper_s() -> None:
    rows = dict(byteps.by_roots())
    by_rule = rows["roots: the GPUs that share no switch with the NIC, in turn"]
    # BytePS, Fig. 14: roots away from the NIC before all GPUs, those before roots beside the NIC.
    for words in ("root: GPU 2", "roots: GPUs 2 and 3"):
        assert rows[words] == pytest.approx(by_rule, rel=1e-3)
    for helpers in (0, 1):
        times = [row[helpers] for row in rows.values()][2:]
        assert times == sorted(times)
    spread, beside = rows["reduce-scatter over all GPUs"], rows["root: GPU 0, beside the NIC"]
    # 1.25 / 105 and 2 / 105 against 1 / 100, with as many helpers as GPU machines.
    assert spread[1] / by_rule[1] == pytest.approx(1.25 / 1.05, rel=0.01)
    assert beside[1] / by_rule[1] == pytest.approx(2 / 1.05, rel=0.01)
    # Without helpers a NIC carries 1.75.
    assert spread[0] / by_rule[0] == pytest.approx(2 / 1.05 / 1.75, rel=0.04)


def test_the_gain_of_the_inside_is_one_of_the_paper_s_three() -> None:
    cases = [case for _, case in byteps.steps()]
    on_servers, by_workers, by_all, _ = (byteps.round_s(case) for case in cases)
    assert on_servers / by_workers - 1 < 0.01
    # CPU machines carry the model twice; then GPU machines 1984/1504 of it, and copies a quarter.
    assert by_workers / by_all == pytest.approx(2 / 100 / ((1984 / 1504 + 0.25) / 105), rel=0.06)
    text = byteps.machines(byteps.MACHINES, byteps.MACHINES)
    case = whatif.listed(text, architecture="sumpter")
    spread = replace(case, local_reduction="reduce-scatter")
    assert byteps.round_s(spread) / byteps.round_s(case) - 1 == pytest.approx(0.19, abs=0.005)


def test_resnet50_scales_as_printed_where_latency_is_fitted() -> None:
    rows = dict(byteps.scalability("resnet50"))
    ring, late, alone, helped = rows[256]
    assert late == pytest.approx(byteps.PAPER_ALLREDUCE, abs=2e-4)
    assert min(ring, alone, helped) > 0.99 > byteps.PAPER_BYTEPS
    assert 5e-6 < byteps.fitted_latency_s() < 20e-6
    late_by_size = [row[1] for row in rows.values()]
    # Latency grows with the ring.
    assert late_by_size == sorted(late_by_size, reverse=True)
