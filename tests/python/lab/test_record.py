"""Recording profiles: what is made of observations, and what a model in training shows."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import time
from pathlib import Path

import pytest
import torch
import typer.testing
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.checkpoint import checkpoint

from sumpter._failure import UsageError
from sumpter.profiles import Profile, ProfileError, model
from sumpter_lab import profiles, whatif
from sumpter_lab.cli import record as command
from sumpter_lab.profiles import by_rounds, observed, record_script
from sumpter_lab.profiles.observed import Forward, Iteration, Parameter
from sumpter_lab.profiles.record import record


def iteration(slower: float = 1.0) -> Iteration:
    """An outer layer that calls an inner one, and the loss between forward and backward."""
    calls = (Forward(0, None, 0.0, 6.0 * slower), Forward(1, 0, 1.0 * slower, 5.0 * slower))
    backward = ((0, 8.0 * slower), (1, 9.0 * slower))
    return Iteration(20.0 * slower, calls, backward, {0: 10.0 * slower, 1: 14.0 * slower})


def test_a_profile_is_made_of_medians() -> None:
    parameters = [Parameter("a", 1, 8, "float32"), Parameter("b", 0, 4, "float32")]
    iterations = [iteration(), iteration(9.0), iteration()]
    profile = observed.profile_of("model", ["outer", "inner"], parameters, iterations)
    assert (profile.source, profile.iteration_s, profile.backward_s) == ("recorded", 20.0, 6.0)
    # A layer's own time, without that of what it calls.
    assert [layer.forward_s for layer in profile.layers] == [2.0, 4.0]
    # Until the next layer begins, and the last one until all gradients are ready.
    assert [layer.backward_s for layer in profile.layers] == [1.0, 5.0]
    # In forward order, whatever the order of the parameters.
    assert [(tensor.name, tensor.ready_s) for tensor in profile.tensors] == [("b", 6.0), ("a", 2.0)]


def test_medians_that_do_not_fit_together_still_make_a_profile() -> None:
    odd = [
        Iteration(1.0, (), (), {0: 0.1, 1: 0.9}),
        Iteration(0.2, (), (), {0: 0.1, 1: 0.15}),
        Iteration(0.3, (), (), {0: 0.0, 1: 0.29}),
    ]
    parameters = [Parameter("a", 0, 4, "float32"), Parameter("b", 0, 4, "float32")]
    profile = observed.profile_of("odd", ["all"], parameters, odd)
    assert profile.backward_s == profile.tensors[1].ready_s


def test_additions_are_measured_by_size() -> None:
    points = observed.measure_additions()
    model.check_additions(points)
    assert all(seconds > 0 for _, seconds in points)
    assert points[-1][1] > points[0][1]


class Net(nn.Module):
    """Layers that are declared in another order than used; one is frozen, one never called."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 1)
        self.idle = nn.Linear(3, 3)
        self.first = nn.Linear(4, 8)
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.relu(self.first(batch)) * self.scale
        return {"out": self.last(self.frozen(hidden))}


def train(model: nn.Module, iterations: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.arange(24, dtype=torch.float32).view(6, 4)
    for _ in range(iterations):
        optimizer.zero_grad()
        model(batch)["out"].square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            model(batch[:1])


def test_a_model_in_training_is_recorded_in_the_order_of_use(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net()
    with record(model, tmp_path / "net.json", iterations=3, warmup=1) as recorder:
        train(model, 5)
        assert not recorder.is_done
        with pytest.raises(ProfileError, match="seen 4 of 6 iterations after 1 of warm-up"):
            _ = recorder.profile
        train(model, 2)
    assert recorder.is_done
    profile = recorder.profile
    assert profiles.load(tmp_path / "net.json") == profile
    assert (profile.name, profile.source, profile.device) == ("Net", "recorded", "cpu")
    assert profile.batch_size == 6
    assert [layer.name for layer in profile.layers] == ["Net", "first", "frozen", "last"]
    tensors = {tensor.name: tensor for tensor in profile.tensors}
    assert list(tensors) == ["scale", "first.weight", "first.bias", "last.weight", "last.bias"]
    assert [tensor.layer for tensor in profile.tensors] == [0, 1, 1, 3, 3]
    assert tensors["first.weight"].bytes == 4 * 32
    assert tensors["last.weight"].ready_s < tensors["scale"].ready_s
    assert tensors["scale"].ready_s < tensors["first.weight"].ready_s
    assert all(layer.forward_s > 0 and layer.backward_s >= 0 for layer in profile.layers)
    assert profile.add is not None


def test_recording_changes_no_result_and_leaves_no_hooks() -> None:
    torch.manual_seed(0)
    model = Net()
    torch.manual_seed(0)
    plain = Net()
    recorder = record(model, iterations=2, warmup=0)
    train(model, 6)
    train(plain, 6)
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    assert recorder.is_done
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters() if p.requires_grad)


def test_what_watching_costs_is_not_in_the_time_of_an_iteration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = itertools.count()
    # A clock that only reading moves: as if to watch were all that takes time.
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with record(model, iterations=2, warmup=0) as recorder:
        for _ in range(5):
            model(torch.ones(1, 2)).sum().backward()
        monkeypatch.undo()
    profile = recorder.profile
    # Two gradients and the end; with its layers, 7 more.
    assert profile.iteration_s == 3.0
    assert [layer.forward_s for layer in profile.layers] == [1.0, 1.0]


def test_activations_that_are_computed_anew_are_no_obstacle() -> None:
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, batch, use_reentrant=False)

    model = Again()
    recorder = record(model, iterations=2, warmup=0)
    for _ in range(5):
        model(torch.ones(2, 4)).sum().backward()
    assert len(recorder.profile.tensors) == 4


def test_a_model_that_cannot_be_recorded_is_refused() -> None:
    with pytest.raises(ValueError, match="no parameter that gets a gradient"):
        record(nn.ReLU())
    with pytest.raises(ValueError, match="iterations must be 1 or more"):
        record(nn.Linear(1, 1), iterations=0)
    with pytest.raises(ProfileError, match="dtype: parameters of complex64"):
        record(nn.Linear(1, 1, dtype=torch.complex64))


SCRIPT = """
import sys
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
for _ in range(int(sys.argv[1])):
    model(torch.ones(2, 4)).sum().backward()
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def run_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def run(*arguments: str) -> int:
        options = (str(tmp_path / "out.json"), "3", "2", "toy")
        return record_script.main([*options, str(script), *arguments])

    return run


def test_a_script_is_recorded_from_outside(run_script, tmp_path: Path, capfd) -> None:
    assert run_script("9", "0") == 0
    assert f"wrote {tmp_path / 'out.json'}" in capfd.readouterr().err
    profile = profiles.load(tmp_path / "out.json")
    assert (profile.name, profile.batch_size) == ("toy", 2)
    assert [layer.name for layer in profile.layers] == ["0", "1", "2"]


def test_a_script_that_ends_too_early_leaves_no_profile(run_script, tmp_path, capfd) -> None:
    hooks = dict(torch_module._global_forward_pre_hooks)
    assert run_script("4", "0") == 1
    assert "was not written: seen 1 of 6 iterations" in capfd.readouterr().err
    assert run_script("0", "7") == 7
    assert "no module of PyTorch was called in training mode" in capfd.readouterr().err
    assert not (tmp_path / "out.json").exists()
    assert hooks == dict(torch_module._global_forward_pre_hooks)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "give a command"),
        (("python",), "give a command"),
        (("python", "none.py"), "'none.py' is no file"),
        (("python", "-m"), "needs a module"),
        (("python3", "-c", "pass"), "options of python are not supported, but -m: -c"),
    ],
)
def test_a_wrong_command_is_named(arguments, complaint) -> None:
    app = typer.Typer()
    app.command(context_settings={"allow_interspersed_args": False})(command.record)
    result = typer.testing.CliRunner().invoke(app, ["-o", "out.json", "--", *arguments])
    assert isinstance(result.exception, UsageError)
    assert complaint in str(result.exception)


# Two gradients a step, the last layer's first, and a tensor of another kind now and then.
ROUNDS_SCRIPT = """
import sys, time
import numpy as np
import sumpter
sumpter.init()
gradients = {"a": np.ones(4, np.float32), "b": np.ones(100, np.float64)}
for step in range(int(sys.argv[1])):
    time.sleep(0.004)
    for name in ("b", "a"):
        sumpter.push_pull(gradients[name], name=name)
    if step == 2:
        sumpter.push_pull(np.ones(3, np.float32), name="metric")
        sumpter.push_pull(np.ones(3, np.int64), name="count")
"""


def test_a_script_without_torch_is_recorded_by_its_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd, unlaunched
) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    script, out = tmp_path / "rounds.py", tmp_path / "out.json"
    script.write_text(ROUNDS_SCRIPT)
    assert record_script.main([str(out), "3", "2", "", str(script), "5"]) == 1
    said = capfd.readouterr().err
    assert "seen 2 of 3 iterations after 2 of warm-up" in said and not out.exists()
    assert record_script.main([str(out), "3", "2", "", str(script), "6"]) == 0
    profile = profiles.load(out)
    assert (profile.name, profile.source) == ("rounds", "recorded")
    known = [(tensor.name, tensor.bytes, tensor.dtype) for tensor in profile.tensors]
    assert [(name.split(".")[-1], *rest) for name, *rest in known] == [
        ("a", 16, "float32"),
        ("b", 800, "float64"),
    ]
    assert profile.iteration_s >= 0.004 and profile.layers[0].forward_s is None


def test_the_backward_pass_is_two_thirds_of_an_iteration(tmp_path: Path) -> None:
    """Steps of 12 ms, of which 1 ms is spent in rounds; gradients are 3 ms apart."""
    events = [
        {"name": "thread_name", "tid": 0, "args": {"name": "allreduce.last"}},
        {"name": "thread_name", "tid": 1, "args": {"name": "allreduce.first"}},
    ]
    for step in range(4):
        for tid, at in ((0, 1000), (1, 4000)):
            begun = 12_000 * step + at
            events.append({"name": "NEGOTIATE_ALLREDUCE", "tid": tid, "ts": begun, "dur": 200})
            what = {"bytes": 8, "dtype": "float32", "round": step}
            events.append(
                {"name": "ALLREDUCE", "tid": tid, "ts": begun + 200, "dur": 800, "args": what}
            )
    # A script that was killed leaves the list open.
    timeline = tmp_path / "timeline.json"
    timeline.write_text(json.dumps(events)[:-1])
    profile = by_rounds.profile_of(timeline, "toy", 2, 1)
    assert profile.iteration_s == pytest.approx(0.011)
    assert profile.backward_s == pytest.approx(0.011 * 2 / 3)
    ready = {tensor.name: tensor.ready_s for tensor in profile.tensors}
    assert ready["first"] == pytest.approx(profile.backward_s)
    assert ready["last"] == pytest.approx(profile.backward_s - 0.003)
    assert [layer.name for layer in profile.layers] == ["first", "last"]
    assert [layer.backward_s for layer in profile.layers] == pytest.approx(
        [0.003, profile.backward_s - 0.003]
    )
    with pytest.raises(ProfileError, match="seen 2 of 3 iterations"):
        by_rounds.profile_of(timeline, "toy", 3, 1)


def with_backward_share(profile: Profile, share: float) -> Profile:
    """The same iteration, of which the backward pass takes another share."""
    backward = share * profile.iteration_s / profile.backward_s
    forward = (1 - share) * profile.iteration_s / profile.forward_s
    return dataclasses.replace(
        profile,
        backward_s=backward * profile.backward_s,
        layers=tuple(
            dataclasses.replace(
                layer,
                backward_s=backward * layer.backward_s,
                forward_s=layer.forward_s and forward * layer.forward_s,
            )
            for layer in profile.layers
        ),
        tensors=tuple(
            dataclasses.replace(tensor, ready_s=backward * tensor.ready_s)
            for tensor in profile.tensors
        ),
    )


def by_its_rounds(profile: Profile, folder: Path) -> Profile:
    """What the rounds of four iterations of a profile show of it."""
    events = [
        {"name": "thread_name", "tid": tid, "args": {"name": f"allreduce.{tensor.name}"}}
        for tid, tensor in enumerate(profile.tensors)
    ]
    for step in range(4):
        for tid in profile.ready_order:
            tensor = profile.tensors[tid]
            at = step * profile.iteration_s + profile.forward_s + tensor.ready_s
            event = {"tid": tid, "ts": 1e6 * at, "dur": 0}
            what = {"bytes": tensor.bytes, "dtype": tensor.dtype, "round": step}
            events.append({"name": "NEGOTIATE_ALLREDUCE", **event})
            events.append({"name": "ALLREDUCE", "args": what, **event})
    timeline = folder / "timeline.json"
    timeline.write_text(json.dumps(events))
    seen = by_rounds.profile_of(timeline, profile.name, 2, 1)
    return dataclasses.replace(seen, add=profile.add)


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "bert-large"])
def test_the_share_of_the_backward_pass_matters_only_to_overlapped_forward_passes(
    name: str, tmp_path: Path
) -> None:
    """Predictions from rounds beside those from the whole profile, in virtual time.

    docs/measurements/whatif.md has these bounds.
    """
    cases = [
        whatif.Case(
            workers=8,
            servers=servers,
            architecture="sumpter" if servers else "allreduce",
            bandwidth_gbps=bandwidth,
            overlap_forward=overlap,
        )
        for servers, overlap in ((0, False), (8, False), (8, True))
        for bandwidth in (1, 10, 25, 100)
    ]
    for share in (0.5, 2 / 3, 0.8):
        whole = with_backward_share(profiles.published(name), share)
        outcomes = zip(
            cases,
            whatif.simulate(whole, cases, bottleneck=False),
            whatif.simulate(by_its_rounds(whole, tmp_path), cases, bottleneck=False),
            strict=True,
        )
        for case, expected, found in outcomes:
            error = found.iteration_time_s / expected.iteration_time_s - 1
            assert abs(error) <= (0.09 if case.overlap_forward else 0.03), (share, case, error)
