"""`sumpter bench replay`: what it plays, what it refuses, and one small run of everything."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer.testing

from sumpter import _native
from sumpter._failure import Failure, UsageError
from sumpter.profiles import Layer, Profile, ProfileError, Tensor, save
from sumpter_lab.cli import replay as command
from sumpter_lab.replay import report, surface, variants
from sumpter_lab.replay.play import Pace, periods, play
from sumpter_lab.replay.script import Script, script_of
from sumpter_lab.replay.spec import Spec, check
from sumpter_lab.scaffold.network import namespaces
from sumpter_lab.scaffold.results.document import REPLAY, DocumentError
from sumpter_lab.scaffold.results.figures import quartiles

# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 600.0


def small() -> Profile:
    """Three layers; the one in the middle has no parameters."""
    return Profile(
        name="small",
        source="recorded",
        device=None,
        batch_size=None,
        iteration_s=0.1,
        backward_s=0.06,
        layers=(Layer("in", 0.01, 0.02), Layer("mid", 0.01, 0.03), Layer("out", 0.02, 0.01)),
        tensors=(
            Tensor("in.weight", 0, 40_000, "float32", 0.06),
            Tensor("in.bias", 0, 4, "float32", 0.06),
            Tensor("out.weight", 2, 80_000, "float16", 0.01),
        ),
    )


def asked(**changes: Any) -> Spec:
    given: dict[str, Any] = {
        "profile": small(),
        "workers": [2],
        "servers": [0],
        "bandwidth_mbps": 200.0,
        "scale": 10.0,
        "network_gbps": 10.0,
        "ratios": [],
        "systems": ("off", "overlap"),
        "iterations": 2,
        "turns": 1,
    }
    return Spec(**(given | changes))


# --- scripts ---


def test_a_script_has_divided_sizes_and_multiplied_times() -> None:
    script = script_of(small(), scale=10, slowdown=5)
    assert script.shapes == ((1000,), (1,), (2000,))
    assert script.bytes == 4 * 3001
    assert script.tensors_of == ((0, 1), (), (2,))
    assert script.forward_s == pytest.approx((0.05, 0.05, 0.1))
    assert [index for index, _ in script.ready] == [2, 1, 0]
    assert [ready_s for _, ready_s in script.ready] == pytest.approx([0.05, 0.3, 0.3])
    assert script.compute_s == pytest.approx(5 * small().iteration_s)


def test_links_stand_for_a_network_when_sizes_and_times_make_up_for_the_difference() -> None:
    # Fifty times slower links: sizes are a tenth, so times are fivefold.
    assert asked().slowdown(None, allreduce_s=1.0) == pytest.approx(5)
    assert asked(scale=50.0).slowdown(None, allreduce_s=1.0) == pytest.approx(1)


def test_times_follow_a_ratio_of_communication_to_compute() -> None:
    wanted = asked(network_gbps=None, ratios=[2.0])
    script = wanted.script(2.0, allreduce_s=3.0)
    assert script.compute_s == pytest.approx(1.5)
    assert script.bytes == wanted.sized.bytes


def test_each_combination_of_a_grid_is_a_cell_with_settings_of_its_own() -> None:
    grid = {"partition_bytes": ["256KiB", "1MiB"], "credit_bytes": ["1MiB", "4MiB", "16MiB"]}
    wanted = asked(ratios=[0.5, 1.0], grid=grid, settings={"lanes": "1"})
    points = wanted.cells()
    assert len(points) == 12
    assert [point.ratio for point in points] == [0.5] * 6 + [1.0] * 6
    assert points[1].settings == {"partition_bytes": "256KiB", "credit_bytes": "4MiB"}
    settings = wanted.settings_at(points[1])
    assert (settings["credit_bytes"], settings["lanes"]) == ("4MiB", "1")


@pytest.mark.parametrize("scale", [1.0, 1.5, 10.0, 20.0, 1e6])
def test_settings_that_are_sizes_are_divided_and_stay_valid(scale: float) -> None:
    settings = variants.scaled(scale, {})
    probe = {**settings, "token": _native.generate_token()}
    _native.Coordinator("127.0.0.1:0", probe).stop()
    sizes = {name: int(text) for name, text in settings.items() if name.endswith("_bytes")}
    if scale == 1:
        assert sizes == {
            "partition_bytes": 1 << 18,
            "chunk_bytes": 1 << 18,
            "credit_bytes": 1 << 20,
            "compression_min_bytes": 64 << 10,
        }
    assert sizes["chunk_bytes"] <= sizes["partition_bytes"]


def test_settings_that_are_given_count() -> None:
    assert variants.scaled(20, {"credit_bytes": "64KiB"})["credit_bytes"] == "64KiB"


def test_the_unbounded_credit_is_the_most_that_can_be_set() -> None:
    probe = {"credit_bytes": variants.UNBOUNDED_CREDIT, "token": _native.generate_token()}
    _native.Coordinator("127.0.0.1:0", probe).stop()


# --- playing ---


class VirtualClock:
    """Time passes only where someone waits for it."""

    def __init__(self) -> None:
        self.time_s = 100.0

    def now_s(self) -> float:
        return self.time_s

    def sleep_until(self, moment_s: float) -> None:
        self.time_s = max(self.time_s, moment_s)


class Link:
    """Sums one tensor after the other, each for so long."""

    def __init__(self, clock: VirtualClock, sums_s: list[float]) -> None:
        self.clock, self.sums_s, self.free_s = clock, sums_s, 0.0
        self.submitted: list[tuple[int, float]] = []

    def submit(self, index: int) -> OnLink:
        self.submitted.append((index, self.clock.time_s - 100))
        self.free_s = max(self.free_s, self.clock.time_s) + self.sums_s[index]
        return OnLink(self.clock, self.free_s)


class OnLink:
    def __init__(self, clock: VirtualClock, done_s: float) -> None:
        self.clock, self.done_s = clock, done_s

    def poll(self) -> bool:
        return self.clock.time_s >= self.done_s

    def wait(self) -> None:
        self.clock.sleep_until(self.done_s)


def script() -> Script:
    """Forward 1 s and 2 s, backward 4 s; the second layer's gradient after 1 s."""
    return Script(
        forward_s=(1.0, 2.0),
        tensors_of=((0,), (1,)),
        shapes=((1,), (1,)),
        ready=((1, 1.0), (0, 3.0)),
        backward_s=4.0,
        scale=1.0,
    )


def played(sums_s: list[float], overlap: bool) -> tuple[list[float], Link]:
    clock = VirtualClock()
    link = Link(clock, sums_s)
    return periods(play(script(), link.submit, 3, Pace(clock), overlap=overlap)), link


def test_sums_begin_when_their_gradients_are_ready() -> None:
    _, link = played([0.0, 0.0], overlap=False)
    # An iteration of warm-up and three that count, of 7 s each.
    assert link.submitted[:4] == [(1, 4.0), (0, 6.0), (1, 11.0), (0, 13.0)]
    assert len(link.submitted) == 8


def test_sums_in_the_shadow_of_the_backward_pass_cost_nothing() -> None:
    assert played([0.5, 0.5], overlap=False)[0] == pytest.approx([7, 7, 7])


def test_without_overlap_the_forward_pass_waits_for_all_sums() -> None:
    # The sum of the second layer ends 2 s after its gradient, that of the first 3 s later.
    assert played([3.0, 2.0], overlap=False)[0] == pytest.approx([9, 9, 9])


def test_with_overlap_a_layer_waits_for_its_own_sums_only() -> None:
    # The first layer's sum is late by 2 s, and nothing of the next forward pass comes before it.
    assert played([3.0, 2.0], overlap=True)[0] == pytest.approx([9, 9, 9])
    # Only the second sum is late, by 3 s, of which the forward pass of the first layer hides one.
    late = replace(script(), ready=((0, 1.0), (1, 1.0)))

    def periods_of(*, overlap: bool) -> list[float]:
        clock = VirtualClock()
        link = Link(clock, [0.0, 6.0])
        return periods(play(late, link.submit, 3, Pace(clock), overlap=overlap))

    assert periods_of(overlap=True) == pytest.approx([9, 9, 9])
    assert periods_of(overlap=False) == pytest.approx([10, 10, 10])


def test_what_a_sleep_overshoots_is_made_up_for() -> None:
    class Late(VirtualClock):
        def sleep_until(self, moment_s: float) -> None:
            self.time_s = max(self.time_s, moment_s + 0.25)

    clock = Late()
    times = play(script(), Link(clock, [0.0, 0.0]).submit, 3, Pace(clock), overlap=False)
    assert periods(times) == pytest.approx([7, 7, 7])


class Stepping:
    """An optimizer whose steps, and decisions before them, take time."""

    def __init__(self, clock: VirtualClock, decision_s: float, step_s: float) -> None:
        self.clock, self.decision_s, self.step_s = clock, decision_s, step_s
        self.calls: list[tuple[str, float]] = []

    def decide(self) -> None:
        self.calls.append(("decide", self.clock.time_s - 100))
        self.clock.time_s += self.decision_s

    def step(self) -> None:
        self.calls.append(("step", self.clock.time_s - 100))
        self.clock.time_s += self.step_s


def test_an_optimizer_decides_after_the_backward_pass_and_steps_when_all_sums_are_there() -> None:
    clock = VirtualClock()
    # The first layer's sum ends 2 s after the backward pass.
    link, optimizer = Link(clock, [3.0, 2.0]), Stepping(clock, 0.0, 0.5)
    times = play(script(), link.submit, 3, Pace(clock), overlap=False, optimizer=optimizer)
    assert optimizer.calls[:3] == [("decide", 7.0), ("step", 9.0), ("decide", 16.5)]
    assert [name for name, _ in optimizer.calls] == ["decide", "step"] * 4
    assert periods(times) == pytest.approx([9.5, 9.5, 9.5])


def test_a_decision_takes_from_the_time_of_the_sums() -> None:
    clock = VirtualClock()
    link, optimizer = Link(clock, [3.0, 2.0]), Stepping(clock, 1.0, 0.0)
    times = play(script(), link.submit, 3, Pace(clock), overlap=False, optimizer=optimizer)
    assert periods(times) == pytest.approx([9, 9, 9])


def test_each_rule_is_played_in_all_places_that_torch_and_the_servers_have() -> None:
    assert list(variants.optimizing(["adam", "rmsprop"])) == [
        "adam@workers",
        "adam@workers-fused",
        "adam@servers",
        "adam@servers-deferred",
        "rmsprop@workers",
        "rmsprop@servers",
        "rmsprop@servers-deferred",
    ]


# --- reports ---


def test_quartiles_of_few_figures() -> None:
    assert quartiles([2.0]) == (2.0, 2.0, 2.0)
    assert quartiles([1.0, 2.0, 3.0]) == (1.5, 2.0, 2.5)


def cell(**changes: Any) -> dict[str, Any]:
    figures = {
        "iterations_per_s": 2.0,
        "iterations_per_s_quartiles": [1.9, 2.1],
        "share_of_bound": 0.8,
        "sent_bytes_by_worker": 1e6,
        "cores_idle": 0.5,
        "cores_steal": 0.0,
    }
    fast = {**figures, "iterations_per_s": 3.0}
    given = {"workers": 2, "servers": 0, "systems": {"off": figures, "overlap": fast}}
    return given | changes


def test_each_system_is_compared_with_off() -> None:
    rows = list(report.lines_of(cell()))
    assert [(row["system"], row["gain_over_off"]) for row in rows] == [
        ("off", 1.0),
        ("overlap", 1.5),
    ]
    alone = cell()
    del alone["systems"]["off"]
    assert [row["gain_over_off"] for row in report.lines_of(alone)] == [None]


def test_a_disturbed_cell_says_so() -> None:
    assert list(report.warnings_of(cell())) == []
    disturbed = cell()
    disturbed["systems"]["overlap"] |= {"cores_idle": 0.01, "cores_steal": 0.2}
    stolen, busy = report.warnings_of(disturbed)
    assert "took up to 20% of the cores' time" in stolen
    assert "up to 99% busy" in busy


def surface_cell(partition: str, credit: str, share: float) -> dict[str, Any]:
    grid = {"partition_bytes": partition, "credit_bytes": credit}
    systems = {"overlap": {"iterations_per_s": 2.0, "share_of_bound": share}}
    sizes = {"profile": "small", "ratio": 1.0, "scale": 8.0, "stands_for_gbps": 10.0}
    return cell(**sizes, grid=grid, systems=systems)


def test_a_grid_over_both_sizes_is_a_surface(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    cells = [
        surface_cell("8KiB", "16KiB", 0.9),
        surface_cell("8KiB", "32KiB", 0.8),
        surface_cell("16KiB", "32KiB", 0.7),
    ]
    (found,) = surface.of_cells(cells)
    assert found.shares == {(8192, 16384): 0.9, (8192, 32768): 0.8, (16384, 32768): 0.7}
    assert (found.axis(0), found.axis(1)) == ([8192, 16384], [16384, 32768])
    assert "small, n = 2, k = 0, overlap" in found.title
    assert surface.of_cells([cell(grid={"lanes": "1"})]) == []
    surface.draw([found] * 3, tmp_path / "surface.png")
    assert (tmp_path / "surface.png").read_bytes().startswith(b"\x89PNG")
    report.write(tmp_path / "replay.json", cells)
    assert surface.read(tmp_path / "replay.json") == [found]


def _cell(**fields: object) -> str:
    cell = {"profile": "a", "workers": 2, "servers": 0, "stands_for_gbps": 1, "systems": {}}
    return json.dumps({"format": "sumpter-replay", "version": 1, "cells": [cell | fields]})


def test_files_without_a_surface_are_named(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    for text, complaint in (
        (None, "other.json: cannot be read"),
        ("{", "other.json: expected the JSON of a bench, but .* cut short"),
        ('{"format": "sumpter-profile"}', "format: expected 'sumpter-replay', as `sumpter bench"),
        ('{"format": "sumpter-replay", "version": 9}', "version: expected 1, got 9: a newer"),
        ('{"format": "sumpter-replay", "version": 1, "cells": []}', "cells: expected a list"),
        (
            '{"format": "sumpter-replay", "version": 1, "cells": [{}]}',
            "row 1: profile: expected, but",
        ),
        (_cell(), "expected the field 'grid'"),
        (_cell(grid=3), "row 1: grid: expected an object of texts, or nothing, got 3"),
        (_cell(grid={}), "has no --grid over"),
    ):
        if text is not None:
            file.write_text(text)
        with pytest.raises((DocumentError, DocumentError, Failure), match=complaint):
            surface.read(file)


# --- refusals ---


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"scale": 0.5}, "--scale 0.5"),
        ({"scale": float("nan")}, "--scale nan"),
        ({"workers": [1]}, "--workers: with one worker"),
        ({"ratios": [1.0, 0.0], "network_gbps": None}, "--ratio 0"),
        ({"network_gbps": -1.0}, "--network-gbps -1"),
        ({"systems": ()}, "nothing is left to measure"),
        ({"systems": ("off", "magic")}, "'magic' is unknown; choose from --scheduling off"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, complaint) -> None:
    with pytest.raises(UsageError, match=complaint.replace(".", r"\.")):
        check(asked(**changes))


def replay(*arguments: str) -> typer.testing.Result:
    app = typer.Typer()
    app.command()(command.replay)
    return typer.testing.CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ("--profile", "lenet"),
            "lenet: no such file, and the published architectures are alexnet",
        ),
        (("--profile", "vgg16", "--ratio", "1", "--network-gbps", "10"), "exclude each other"),
        (("--profile", "vgg16", "--ratio", "1,x"), "--ratio 1,x: give numbers"),
        (("--profile", "vgg16", "--grid", "credit_bytes"), "--grid credit_bytes: write NAME=VALUE"),
        (
            ("--profile", "vgg16", "--grid", "lanes=1", "--set", "lanes=1"),
            "--grid and --set both give 'lanes'",
        ),
        (("--profile", "vgg16", "--set", "credit_bytes=auto"), "credit_bytes=auto: the model is"),
        (("--profile", "vgg16", "--grid", "credit_bytes=64KiB,auto"), "give the credit a size"),
        (("--profile", "vgg16", "--plot", "s.png", "--grid", "lanes=1"), "give --grid for both"),
        (("--profile", "vgg16", "--iteration-s", "1"), "the times of vgg16 are computed"),
        (("--profile", "vgg16", "--workers", "some"), "'some' is not a whole number"),
        (("--profile", "vgg16", "--bandwidth-mbps", "0"), "0 Mb/s is not within"),
        (("--profile", "vgg16", "--rules", "magic"), "--rules 'magic': known are sgd"),
    ],
)
def test_wrong_options_are_named(arguments, complaint) -> None:
    result = replay(*arguments)
    assert isinstance(result.exception, UsageError)
    assert complaint in str(result.exception)


def test_a_broken_profile_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"format": "sumpter-profile", "version": 9}')
    result = replay("--profile", str(broken))
    assert isinstance(result.exception, ProfileError)
    assert "version: expected at most 1, got 9" in str(result.exception)


# --- a run ---


@pytest.mark.exclusive
def test_a_small_run_plays_all_systems_and_cleans_up(tmp_path: Path) -> None:
    try:
        namespaces.check_tools()
    except Failure as failure:
        pytest.skip(f"cannot emulate a network here: {str(failure)}")
    save(small(), tmp_path / "small.json")
    output = tmp_path / "replay.json"
    arguments = ("--profile", str(tmp_path / "small.json"), "-n", "2", "-s", "1", "--scale", "1")
    options = ("--bandwidth-mbps", "50", "--ratio", "1", "--iterations", "2", "--turns", "2")
    options += ("--rules", "sgd_momentum,adam")
    call = [sys.executable, "-m", "sumpter", "bench", "replay", *arguments, *options]
    process = subprocess.Popen(
        [*call, "-o", str(output)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        out, err = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    if "too busy to emulate" in err:
        pytest.skip(err.strip().splitlines()[-1])
    assert process.returncode == 0, err
    assert not namespaces.of_run(f"{namespaces.PREFIX}-{process.pid}-")
    document = json.loads(output.read_text())
    assert (document["format"], document["version"]) == (REPLAY.format, REPLAY.version)
    (played,) = document["cells"]
    assert (played["workers"], played["servers"], played["bytes"]) == (2, 1, 120_004)
    assert played["ratio"] == pytest.approx(1)
    assert played["bound_seconds"] == max(played["compute_seconds"], played["optimum_seconds"])
    optimizing = variants.optimizing(["sgd_momentum", "adam"])
    names = [*variants.BY_NAME, *optimizing, variants.DDP]
    assert list(played["systems"]) == names
    assert all(name in out for name in names)
    for figures in played["systems"].values():
        assert [len(turn) for turn in figures["periods_s"]] == [2, 2]
        # Compute is waited for, so no iteration can be shorter.
        assert min(map(min, figures["periods_s"])) >= 0.999 * played["compute_seconds"]
        assert 0 < figures["share_of_bound"] < 1.1
        assert figures["sent_bytes_by_worker"] > 60_000
        # Of both workers at least; DDP sends nothing else.
        assert figures["sent_bytes_by_all"] > 1.99 * figures["sent_bytes_by_worker"]
        assert figures["cpu_seconds_by_all"] > 0
    # Only torch's steps are timed; all are checked.
    timed = [name for name, of in played["systems"].items() if of["step_seconds"] is not None]
    assert timed == [name for name in optimizing if "@workers" in name]
