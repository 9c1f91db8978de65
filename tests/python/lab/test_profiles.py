"""Profiles: what their files may hold, and how files that do not are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sumpter import SumpterError
from sumpter.profiles import Layer, Profile, ProfileError, Tensor, file, save
from sumpter_lab import profiles
from sumpter_lab.profiles import architectures

PLAYED = Path(__file__).resolve().parents[3] / "crates/engine/tests/network/profiles"
NETAI_LOG = """first col: time wait for previous layer; second col: param size in bytes
1
3
500.0,4000
0,8192
1500.0,64
"""


def small() -> Profile:
    return Profile(
        name="small",
        source="recorded",
        device="a device",
        batch_size=8,
        iteration_s=0.5,
        backward_s=0.3,
        layers=(Layer("first", 0.15, 0.2), Layer("second", 0.05, 0.1)),
        tensors=(
            Tensor("first.weight", 0, 400, "float32", 0.3),
            Tensor("first.bias", 0, 8, "float16", 0.3),
            Tensor("second.weight", 1, 800, "float32", 0.1),
        ),
        add=((64, 1e-6), (128, 2e-6)),
    )


def document(**changes: Any) -> dict[str, Any]:
    """The document of the small profile with some entries replaced, `layers__0__name` by path."""
    content = json.loads(json.dumps(file.to_json(small())))
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = content
        for step in parents:
            place = place[int(step) if step.isdigit() else step]
        place[int(last) if last.isdigit() else last] = value
    return content


def refusal(tmp_path: Path, content: str | bytes, **options: Any) -> str:
    """How a file with this content is refused; the file's name always comes first."""
    path = tmp_path / "some.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ProfileError) as refused:
        profiles.load(path, **options)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def test_a_saved_profile_is_loaded_again_as_it_was(tmp_path) -> None:
    for profile in (small(), file.from_json(document(add=None, device=None))):
        save(profile, tmp_path / "profile.json")
        assert profiles.load(tmp_path / "profile.json") == profile


def test_a_profile_knows_its_bytes_and_its_order() -> None:
    profile = small()
    assert profile.bytes == 1208
    # The second layer's gradient first; of the first layer's the last, since they are one moment.
    assert profile.ready_order == (2, 1, 0)
    assert profile.forward_times_s == pytest.approx((0.15, 0.05))


def test_unknown_forward_times_follow_the_backward_pass() -> None:
    profile = file.from_json(document(layers__0__forward_s=None))
    assert profile.forward_times_s == pytest.approx((0.2 * 2 / 3, 0.2 / 3))


def test_a_slower_device_takes_longer_for_everything_and_sizes_stay() -> None:
    slow = small().slower(10)
    assert (slow.iteration_s, slow.backward_s) == (5.0, 3.0)
    assert slow.layers[0] == Layer("first", 1.5, 2.0)
    assert slow.tensors[2] == Tensor("second.weight", 1, 800, "float32", 1.0)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"format": "another"}, "format: expected 'sumpter-profile', got 'another'"),
        ({"version": 2}, "version: expected at most 1, got 2"),
        ({"version": "1"}, "version: expected a whole number"),
        ({"source": "guessed"}, "source: expected one of recorded, netai, published"),
        ({"name": ""}, "name: expected a string"),
        ({"batch_size": 0}, "batch_size: expected a whole number of 1 or more, got 0"),
        ({"iteration_s": 0}, "iteration_s: expected a number of seconds above 0, got 0"),
        ({"iteration_s": "0.5"}, "iteration_s: expected a number of seconds above 0, got '0.5'"),
        ({"backward_s": 0.6}, "backward_s: expected at most iteration_s, 0.5, got 0.6"),
        ({"layers": []}, "layers: expected at least one"),
        ({"layers": {}}, "layers: expected a list"),
        ({"layers__1": 7}, "layers[1].layer: expected an object, got 7"),
        ({"layers__1__backward_s": -1}, "layers[1].backward_s: expected a number of seconds"),
        ({"tensors__0__bytes": 0}, "tensors[0].bytes: expected a whole number of 1 or more"),
        ({"tensors__0__bytes": 401}, "tensors[0].bytes: expected whole elements of float32"),
        ({"tensors__0__dtype": "complex"}, "tensors[0].dtype: expected one of float64, float32"),
        ({"tensors__1__name": "first.weight"}, "tensors[1].name: expected a name that no other"),
        ({"tensors__2__layer": 2}, "tensors[2].layer: expected 0 to 1, in forward order, got 2"),
        ({"tensors__0__layer": 1}, "tensors[1].layer: expected 1 to 1, in forward order, got 0"),
        ({"tensors__2__ready_s": 0.4}, "tensors[2].ready_s: expected at most backward_s, 0.3"),
        ({"add__1__0": 64}, "add[1][0]: expected a whole number of 65 or more, got 64"),
        ({"add__0": 3}, "add[0].point: expected [bytes, seconds], got 3"),
        ({"extra": 1}, "extra: version 1 has no such field"),
        ({"tensors__0__color": 1}, "tensors[0].color: version 1 has no such field"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_expected(tmp_path, changes, complaint) -> None:
    assert complaint in refusal(tmp_path, json.dumps(document(**changes)))


def test_a_missing_field_is_named(tmp_path) -> None:
    content = document()
    del content["layers"][1]["forward_s"]
    assert refusal(tmp_path, json.dumps(content)).startswith("layers[1].forward_s: expected")


def test_a_file_that_is_cut_short_says_so_and_where(tmp_path) -> None:
    text = json.dumps(document(), indent=1)
    half = "".join(text.splitlines(keepends=True)[:12])
    assert "line 13, column 1: it is cut short" in refusal(tmp_path, half)
    assert "cut short" in refusal(tmp_path, "")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[1, 2]", "format: expected 'sumpter-profile', but there is no such field"),
        ('{"traceEvents": []}', "format: expected 'sumpter-profile', but there is no such field"),
        ("a,b\n1,2\n", "expected the JSON of a profile, but at line 1"),
        (b"\x89PNG\xff", "expected a text file"),
        ("[" * 100_000, "nested too deep"),
        ('{"format": NaN}', "expected finite numbers, got NaN"),
    ],
)
def test_another_programs_file_is_refused(tmp_path, content, complaint) -> None:
    assert complaint in refusal(tmp_path, content)


def test_a_file_that_is_not_there_is_named(tmp_path) -> None:
    with pytest.raises(SumpterError, match=r"none\.json: cannot be read: No such file"):
        profiles.load(tmp_path / "none.json")
    with pytest.raises(ProfileError, match="format: expected one of sumpter, netai, got 'csv'"):
        profiles.load(tmp_path / "none.json", format="csv")


def test_a_netai_log_is_read_from_back_to_front(tmp_path) -> None:
    path = tmp_path / "log"
    path.write_text(NETAI_LOG)
    profile = profiles.load(path, "netai", iteration_s=0.01, batch_size=32)
    assert [tensor.bytes for tensor in profile.tensors] == [64, 8192, 4000]
    assert [tensor.ready_s for tensor in profile.tensors] == pytest.approx([2e-3, 5e-4, 5e-4])
    assert profile.ready_order == (2, 1, 0)
    assert profile.backward_s == profile.tensors[0].ready_s
    assert {layer.forward_s for layer in profile.layers} == {None}
    assert sum(profile.forward_times_s) == pytest.approx(0.008)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "expected a NetAI log of 3 lines"),
        (NETAI_LOG[:-10], "line 3 promises 3 tensors, but 2 lines follow"),
        (NETAI_LOG.replace("0,8192", "0;8192"), "line 5: expected two numbers with a comma"),
        (NETAI_LOG.replace("\n3\n", "\nthree\n"), "line 3, tensors: expected a whole number"),
        (NETAI_LOG.replace("500.0", "soon"), "line 4, microseconds: expected a number"),
        (NETAI_LOG.replace("500.0", "-1"), "line 4: backward_s: expected a number of seconds"),
        (NETAI_LOG.replace("4000", "4001"), "line 4: bytes: expected whole elements of float32"),
        (NETAI_LOG.replace("1500.0", "nan"), "line 6: backward_s: expected a number of seconds"),
        (NETAI_LOG.replace("1500.0", "1e9"), "backward_s: expected at most iteration_s"),
    ],
)
def test_a_wrong_netai_log_is_refused_with_the_line(tmp_path, content, complaint) -> None:
    assert complaint in refusal(tmp_path, content, format="netai", iteration_s=0.01)


def test_the_iteration_time_is_given_where_the_file_has_none(tmp_path) -> None:
    assert "give iteration_s" in refusal(tmp_path, NETAI_LOG, format="netai")
    assert "do not give them" in refusal(tmp_path, json.dumps(document()), iteration_s=1.0)


def test_a_log_of_additions_is_read(tmp_path) -> None:
    path = tmp_path / "add.log"
    path.write_text("40,1.0e-05\n80,9.5e-06\n")
    assert profiles.additions(path) == ((40, 1.0e-05), (80, 9.5e-06))
    path.write_text("40,1.0e-05\n40,9.5e-06\n")
    with pytest.raises(ProfileError, match=r"add\.log: add\[1\]\[0\]: expected"):
        profiles.additions(path)


@pytest.mark.parametrize(
    ("name", "tensors", "parameters"),
    [
        ("alexnet", 16, 60_965_224),
        # The paper says 340 M.
        ("bert-large", 302, 336_226_108),
        # The paper says 117 M, but the weights that its authors gave out have 124 M.
        ("gpt2", 148, 124_439_808),
        ("resnet18", 62, 11_689_512),
        ("resnet50", 161, 25_557_032),
        ("resnet101", 314, 44_549_160),
        ("vgg16", 32, 138_357_544),
    ],
)
def test_architectures_have_their_published_sizes(name, tensors, parameters) -> None:
    shapes = architectures.shapes(name)
    assert len(shapes) == len(dict(shapes)) == tensors
    assert sum(architectures.elements(shape) for _, shape in shapes) == parameters
    assert profiles.published(name).bytes == 4 * parameters


@pytest.mark.parametrize(
    ("name", "multiply_adds"),
    # He et al., table 1 and section 3.3; the authors of AlexNet give none, so its figure is the one
    # that is usually given.
    [
        *(("resnet18", 1.8e9), ("resnet50", 3.8e9), ("resnet101", 7.6e9)),
        *(("vgg16", 15.3e9), ("alexnet", 0.72e9)),
    ],
)
def test_architectures_have_their_published_arithmetic(name, multiply_adds) -> None:
    total = sum(layer.multiply_adds for layer in architectures.operations(name))
    assert total == pytest.approx(multiply_adds, rel=0.02)


def test_a_published_profile_takes_time_in_proportion_to_its_arithmetic() -> None:
    for name in profiles.NAMES:
        profile = profiles.published(name, batch_size=4, flops_per_s=1e12)
        total = sum(layer.multiply_adds for layer in architectures.operations(name))
        assert profile.iteration_s == pytest.approx(3 * 2 * total * 4 / 1e12)
        assert profile.backward_s == pytest.approx(profile.iteration_s * 2 / 3)
        assert sum(profile.forward_times_s) == pytest.approx(profile.forward_s)
        # Gradients get ready from the last layer to the first one.
        ready_s = [tensor.ready_s for tensor in profile.tensors]
        assert ready_s == sorted(ready_s, reverse=True)
        assert ready_s[0] == profile.backward_s
    half = profiles.published("vgg16", batch_size=2, flops_per_s=1e12)
    twice = profiles.published("vgg16", batch_size=4, flops_per_s=1e12)
    assert twice == replace(half.slower(2), batch_size=4)


def test_what_cannot_be_computed_is_refused() -> None:
    with pytest.raises(ProfileError, match="name: expected one of alexnet, bert-large, gpt2"):
        profiles.published("lenet")
    with pytest.raises(ProfileError, match="batch_size: expected a whole number of 1 or more"):
        profiles.published("vgg16", batch_size=0)
    with pytest.raises(ProfileError, match="flops_per_s: expected a number above 0, got 0"):
        profiles.published("vgg16", flops_per_s=0)


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "alexnet", "bert-large", "gpt2"])
def test_the_engine_plays_the_same_models_in_virtual_time(name: str) -> None:
    profile = profiles.published(name)
    lines = []
    for index, layer in enumerate(profile.layers):
        sizes = [tensor.bytes for tensor in profile.tensors if tensor.layer == index] or [0]
        # What a layer computes comes with its first tensor.
        lines.append(f"{layer.forward_s * 1e6:.1f} {layer.backward_s * 1e6:.1f} {sizes[0]}")
        lines += [f"0 0 {size}" for size in sizes[1:]]
    assert (PLAYED / f"{name}.txt").read_text().splitlines() == lines
