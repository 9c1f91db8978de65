"""`sumpter whatif --compression`: ratios as NetAI'20 has them, and codecs with their time."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from sumpter import ConfigError, _native
from sumpter.cli import main
from sumpter.profiles import Layer, Profile, Tensor
from sumpter_lab import profiles, whatif
from sumpter_lab.whatif import codecs
from sumpter_lab.whatif.advice import in_words

MIB = 1 << 20
FREE = whatif.CodecRate(1e18, 1e18, 1e18)
INT8 = 4096 / 1028  # bytes of a block of float32 over those of its code
GIVEN = ("--profile", "vgg16", "--workers", 4, "--servers", 4, "--bandwidth-gbps", 10)


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


def model(dtype: str = "float32") -> Profile:
    """Eight gradients of 16 MiB that are ready at the end of a backward pass of a moment."""
    layers = (Layer("all", 0.001, 0.001),)
    tensors = tuple(Tensor(f"w{i}", 0, 16 * MIB, dtype, 0.001) for i in range(8))
    return Profile("model", "published", None, 32, 0.002, 0.001, layers, tensors, add=None)


def overhead(case: whatif.Case, profile: Profile | None = None) -> float:
    return whatif.simulate(profile or model(), [case])[0].overhead_s


def test_ten_times_compression_is_enough_for_vgg16_at_10_gbps() -> None:
    """NetAI'20, section 4: of the ratio, without the time of a codec."""
    vgg16 = profiles.published("vgg16")
    assert vgg16 is not None
    # With batches of 32 on a device as fast as their V100 on ResNet-50, and one 3.5 times as fast.
    for profile in (vgg16, vgg16.slower(1 / 3.5)):
        for workers in (8, 64):
            case = whatif.Case(workers=workers, bandwidth_gbps=10.0)
            plain, ten = whatif.simulate(profile, [case, replace(case, compression=10.0)])
            assert plain.scaling_factor < 0.6
            assert ten.scaling_factor >= 0.99, workers


def test_a_codec_without_time_is_its_ratio() -> None:
    for servers, architecture in ((0, "allreduce"), (0, "sumpter"), (4, "sumpter"), (4, "ps")):
        case = whatif.Case(4, servers, architecture, 10.0, codec_rate=FREE)
        for codec, ratio in (("bf16", 2.0), ("int8", INT8), ("onebit", 4096 / 132)):
            by_codec = overhead(replace(case, compression=codec))
            by_ratio = overhead(replace(case, compression=ratio))
            assert by_codec == pytest.approx(by_ratio, rel=2e-3), (architecture, codec)


def test_slow_cores_make_a_codec_worse_than_none() -> None:
    case = whatif.Case(4, 4, "sumpter", 10.0)
    plain = overhead(case)
    at = [
        overhead(replace(case, compression="int8", codec_rate=whatif.CodecRate(r, r, r)))
        for r in (1e8, 1e9, 1e10)
    ]
    assert at[0] > at[1] > at[2] and at[0] > 5 * plain and at[2] < 0.5 * plain
    slow = replace(case, compression="int8", codec_rate=whatif.CodecRate(1e9, 1e9, 1e9))
    assert overhead(replace(slow, codec_cores=4)) == pytest.approx(at[1] / 4, rel=0.1)
    assert whatif.simulate(model(), [slow])[0].bottleneck == "codec"


def test_element_types_and_small_tensors_count() -> None:
    case = whatif.Case(4, 4, "sumpter", 10.0, codec_rate=FREE)
    coded = replace(case, compression="bf16")
    # Half the bytes of float32, and all of those that have 16 bits already.
    assert overhead(coded) == pytest.approx(0.5 * overhead(case), rel=0.01)
    narrow = model("bfloat16")
    assert overhead(coded, narrow) == pytest.approx(overhead(case, narrow), rel=0.01)
    left_alone = replace(coded, codec_min_bytes=16 * MIB + 1)
    assert overhead(left_alone) == overhead(case)
    arguments = replace(case, compression="topk:k=0.01,two_way=false")
    assert overhead(arguments) > 10 * overhead(replace(case, compression="topk:k=0.01"))


def test_rates_that_are_not_given_are_those_of_this_machine() -> None:
    rate = codecs.measured("int8")
    assert rate == codecs.measured("int8") == _native.codec_rates("int8")[:3]
    assert all(1e6 < each < 1e13 for each in rate)
    assert _native.codec_rates("int8")[3] == pytest.approx(INT8)
    case = whatif.Case(4, 4, "sumpter", 10.0, compression="int8")
    assert overhead(case) == overhead(replace(case, codec_rate=rate))
    with pytest.raises(ConfigError, match="no codec is called 'int9'"):
        overhead(replace(case, compression="int9"))


def test_lists_mix_ratios_and_codecs_with_arguments(run) -> None:
    text = "1,10,int8,topk:k=0.01,two_way=false,bf16"
    code, out, err = run(*GIVEN, "--compression", text, "--codec-rate", "5,4/8/6", "--json")
    assert code == 0, err
    found = json.loads(out)
    shown = [case["compression"] for case in found[::2]]
    assert shown == [1.0, 10.0, "int8", "topk:k=0.01,two_way=false", "bf16"]
    assert "codec_rate" not in found[0]
    rates = [case["codec_rate"] for case in found if case["compression"] == "int8"]
    assert rates == [
        {"encode": 5e9, "decode": 5e9, "decode_add": 5e9},
        {"encode": 4e9, "decode": 8e9, "decode_add": 6e9},
    ]
    code, out, _ = run(*GIVEN, "--compression", text)
    assert code == 0 and out.count("(measured here)") == 3
    assert re.search(r"int8: a core encodes \d.*GB/s of float32", out), out
    assert re.search(r"4 +4 +sumpter +10 +topk:k=0.01,two_way=false +0\.\d{4}", out), out
    assert codecs.joined(["int8", "ef=false"]) == ["int8", "ef=false"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--compression", "int9"), "no codec is called 'int9': give one of fp16, bf16"),
        (("--compression", "topk:k=2,K=3"), "codec topk takes no argument 'K'"),
        (("--compression", "int8,,bf16"), "an entry of the list is empty"),
        (("--compression", "inf"), "--compression inf: expected a ratio, or a codec as int8"),
        (("--compression", "topk:k=99999999999"), "codec topk: k=99999999999: give 1 to"),
        (("--codec-rate", "5"), "--codec-rate is for codecs: name one in --compression"),
        (("--compression", "int8", "--codec-rate", "4/8"), "expected one number of GB/s, or three"),
        (("--compression", "int8", "--codec-rate", "0"), "--codec-rate 0: expected numbers above"),
        (("--compression", "int8", "--codec-rate", "x/1/1"), "expected numbers above 0"),
        (("--compression", "int8", "--codec-cores", "0"), "codec cores is 0; expected a number"),
        (("--compression", "int8", "--codec-min-bytes", "few"), "--codec-min-bytes: 'few' is not"),
    ],
)
def test_wrong_use_is_one_clear_line(run, arguments, words: str) -> None:
    code, out, err = run(*GIVEN, *arguments)
    assert code in (1, 2) and out == ""
    assert len(err.splitlines()) == 1 and words in err, err


def test_advice_names_the_best_codec_and_that_it_changes_numerics(run) -> None:
    fast = whatif.CodecRate(1e12, 1e12, 1e12)
    case = whatif.Case(8, bandwidth_gbps=1.0, codec_rate=fast)
    now, advice = whatif.advise(model(), case)
    (codec,) = [one for one in advice if one.kind == "codec"]
    # On a slow link and cores that are fast, bytes are all that counts.
    assert codec.change == "the codec powersgd:rank=4, which changes numerics"
    assert codec.gain == pytest.approx(now.iteration_time_s / codec.outcome.iteration_time_s - 1)
    assert codec.outcome == whatif.simulate(model(), [codec.case])[0]
    assert codec.change in " ".join(in_words(now, advice))

    # Where 16 bits hide all communication, nothing that loses more is named.
    vgg16 = profiles.published("vgg16")
    assert vgg16 is not None
    hidden = whatif.Case(8, 4, "sumpter", 10.0, codec_rate=fast)
    (codec,) = [one for one in whatif.advise(vgg16, hidden)[1] if one.kind == "codec"]
    assert codec.case.compression == "fp16" and codec.gain > 0.4

    # A ratio stands for a codec; and slow cores gain nothing.
    kinds = {one.kind for one in whatif.advise(model(), replace(case, compression=4.0))[1]}
    assert "codec" not in kinds and "compression" in kinds
    crawling = replace(case, codec_rate=whatif.CodecRate(1e6, 1e6, 1e6))
    assert "codec" not in {one.kind for one in whatif.advise(model(), crawling)[1]}

    code, out, err = run(*GIVEN, "--advise", "--codec-rate", 1000)
    assert code == 0, err
    assert re.search(r"the codec \S+, which changes numerics", out), out
    code, out, _ = run(*GIVEN, "--advise", "--compression", "bf16", "--codec-rate", 1000, "--json")
    document = json.loads(out)
    assert code == 0 and document["case"]["compression"] == "bf16"


def test_a_profile_of_another_element_type_is_read_as_such(tmp_path: Path) -> None:
    half = model("float16")
    assert half.bytes == model().bytes
    case = whatif.Case(4, bandwidth_gbps=10.0, compression="int8", codec_rate=FREE)
    assert overhead(case, half) == pytest.approx(2 * overhead(case), rel=1e-6)
