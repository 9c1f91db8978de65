"""The description of a job's layers that a tuner gets."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from sumpter import ConfigError
from sumpter._core.session import Session
from sumpter._core.tensor import TensorUse, ready_times
from sumpter.profiles import Profile
from sumpter.tuning import driver
from sumpter.tuning.driver import Driver
from sumpter.tuning.layers import Summed, in_each_step, of_profile, of_tensors, with_bytes
from sumpter.tuning.network import layer_features, numbers
from sumpter.tuning.points import BUCKETS, GRID, Job, link_bytes
from sumpter_lab import profiles


def tensors(*sizes: int) -> list[Summed]:
    """The last one is the most urgent."""
    return [Summed(size, priority) for priority, size in enumerate(sizes)]


def test_layers_have_the_tensors_sizes_in_the_order_of_priority() -> None:
    sizes = [1000 * (i + 1) for i in range(BUCKETS)]
    layers = of_tensors(tensors(*sizes), compute_s=0.3)
    np.testing.assert_allclose(layers[:, 2], sizes[::-1])
    np.testing.assert_allclose(layers[:, 0].sum(), 0.1)
    np.testing.assert_allclose(layers[:, 1], 0.2 / BUCKETS)
    # As they got ready, unless they were put into an order.
    ready = [Summed(size, 0) for size in sizes]
    np.testing.assert_allclose(of_tensors(ready, compute_s=0.3)[:, 2], sizes[::-1])
    # Any number of tensors; none is a job of which nothing is known.
    assert of_tensors(tensors(5, 7), 0.3)[:, 2].sum() == pytest.approx(12)
    assert of_tensors([], 0.3).shape == (BUCKETS, 3)


def test_what_is_summed_once_in_a_while_is_no_layer() -> None:
    uses = [
        TensorUse((3, 4), "float32", 2, 10),
        TensorUse((5,), "bfloat16", 1, 9),
        TensorUse((), "float64", 0, 1),
    ]
    assert in_each_step(uses, 10) == [Summed(48, 2), Summed(10, 1)]


def test_layers_of_a_profile_have_its_times_and_the_jobs_bytes() -> None:
    profile = profiles.published("vgg16", 32)
    layers = of_profile(profile)
    assert layers[:, :2].sum() == pytest.approx(profile.iteration_s, rel=1e-6)
    assert layers[:, 2].sum() == pytest.approx(profile.bytes)
    half = with_bytes(layers, profile.bytes / 2)
    assert half[:, 2].sum() == pytest.approx(profile.bytes / 2)
    np.testing.assert_array_equal(half[:, :2], layers[:, :2])


class FakeWorker:
    """A job that runs at 10 steps a second."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []

    def tune(self, changes: dict[str, str], *, epoch: int | None = None) -> int:
        self.asked.append(changes)
        return 2

    def plan(self, epoch: int = 0) -> str:
        return json.dumps({"epoch": 2})


def counters_of(*workers: tuple[str, dict[str, float]]) -> driver.Counters:
    return {(machine, rank): moved for rank, (machine, moved) in enumerate(workers)}


def driver_of(worker: FakeWorker, profile: Profile | None = None) -> Driver:
    session = SimpleNamespace(worker=worker, profile=profile)
    return Driver(cast(Session, session))


def moved(compute_s: float, link_gbps: float, steps: int = 10) -> dict[str, float]:
    """The counters of steps that send 400 MB each over such a link after their compute."""
    sent = steps * 400e6
    queued = sent * 8e-9 / link_gbps
    return {
        "elapsed_s": queued + steps * compute_s,
        "busy_s": queued + steps * 0.001,
        "wait_send_s": queued,
        "drained_bytes": sent,
        "bytes_sent_away": sent,
        "bytes_received_away": sent,
    }


def told(profile: Profile | None, architecture: str = "sumpter") -> Job:
    """The description that a tuner gets of a job whose link carries 2 Gb/s."""
    plan = {"machines": {"gpu": 4, "cpu": 2}, "architecture": architecture}
    gbps = driver.bandwidths_gbps({}, counters_of(("a", moved(compute_s=0.1, link_gbps=2.0))))
    return driver_of(FakeWorker(), profile)._job(plan, 10.0, gbps, tensors(100, 300))


@pytest.mark.parametrize("compute_s", [0.0, 0.1, 10.0])
@pytest.mark.parametrize("link_gbps", [1.0, 10.0, 25.0])
def test_a_tuner_is_told_the_links_bandwidth_at_any_share_of_compute(
    compute_s: float, link_gbps: float
) -> None:
    up, down = driver.bandwidths_gbps({}, counters_of(("a", moved(compute_s, link_gbps))))
    assert (up, down) == pytest.approx((link_gbps, link_gbps))


def test_the_slowest_machine_counts_and_workers_of_a_machine_share_its_link() -> None:
    shares = [("a", moved(0.1, 2.0)), ("a", moved(0.1, 3.0)), ("b", moved(0.1, 8.0))]
    assert driver.bandwidths_gbps({}, counters_of(*shares)) == pytest.approx((5.0, 5.0))
    slow = counters_of(*shares, ("c", moved(0.1, 1.0)))
    assert driver.bandwidths_gbps({}, slow) == pytest.approx((1.0, 1.0))
    # A worker that has not reported yet.
    early = counters_of(*shares, ("c", {}))
    assert driver.bandwidths_gbps({}, early) == pytest.approx((5.0, 5.0))
    # What the coordinator knows of it has not changed.
    still = {key: counters for key, counters in slow.items() if key[0] == "c"}
    assert driver.bandwidths_gbps(still, slow) == pytest.approx((5.0, 5.0))


def test_bytes_that_hardly_queue_give_a_lower_bound() -> None:
    counters = moved(1.0, 10.0) | {"wait_send_s": 0.001, "drained_bytes": 1e9, "busy_s": 5.0}
    up, _ = driver.bandwidths_gbps({}, counters_of(("a", counters)))
    assert up == pytest.approx(4e9 * 8e-9 / 5.0)
    idle = dict.fromkeys(counters, 0.0) | {"elapsed_s": 1.0}
    assert driver.bandwidths_gbps({}, counters_of(("a", idle))) == (
        driver.ASSUMED_GBPS,
        driver.ASSUMED_GBPS,
    )


@pytest.mark.parametrize("architecture", ["sumpter", "allreduce", "ps"])
def test_training_and_serving_compute_the_same_features(architecture: str) -> None:
    profile = profiles.published("alexnet", 32)
    served = told(profile, architecture)
    layers = with_bytes(of_profile(profile), 400)
    trained = Job(4, 2, 2.0, 2.0, True, layers, architecture)
    np.testing.assert_allclose(numbers(served, GRID[3]), numbers(trained, GRID[3]))
    np.testing.assert_allclose(layer_features(served), layer_features(trained))


def test_the_busiest_link_depends_on_the_architecture() -> None:
    carried = {
        name: link_bytes(Job(4, 2, architecture=name)) for name in ("sumpter", "allreduce", "ps")
    }
    assert carried["allreduce"] == pytest.approx(2 * 3 / 4)
    assert carried["ps"] == 2, "each of two servers receives half of what four workers send"
    assert 1 < carried["sumpter"] < carried["allreduce"]
    assert link_bytes(Job(4, 8, architecture="ps")) == 1


def test_a_tuner_is_told_the_real_sizes() -> None:
    job = told(None)
    assert (job.workers, job.servers) == (4, 2)
    assert (job.up_gbps, job.down_gbps) == pytest.approx((2.0, 2.0))
    assert job.layers[:, 2].sum() == pytest.approx(400)
    assert job.layers[0, 2] > job.layers[-1, 2], "the most urgent tensor is the larger one"
    assert job.compute_s == pytest.approx(driver.ASSUMED_COMPUTE / 10)


def test_a_tuner_is_told_a_profiles_times() -> None:
    profile = profiles.published("alexnet", 32)
    job = told(profile)
    assert job.compute_s == pytest.approx(profile.iteration_s, rel=1e-6)
    assert job.layers[:, 2].sum() == pytest.approx(400)


def test_a_tuner_that_cannot_begin_leaves_the_sizes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(name: str) -> Any:
        if name != "fixed":
            raise ConfigError("tuner autobyte: f is of version 99, this is version 1")
        return real(name)

    real = driver.make
    monkeypatch.setattr(driver, "make", refuse)
    worker = FakeWorker()
    assert driver_of(worker)._changed("autobyte").name == "fixed"
    assert worker.asked == [{"tuner": "fixed"}], "no size may change"
    assert "is of version 99" in capsys.readouterr().err


class Native:
    """A tensor of the native module, which counts its rounds."""

    is_empty = False
    rounds = 0
    priority = 0

    def submit(self, send: int, receive: int, priority: int, *_: object) -> str:
        self.rounds, self.priority = self.rounds + 1, priority
        return "handle"


def test_a_session_tells_which_tensors_were_reduced_in_a_time() -> None:
    session = object.__new__(Session)
    session.world_size, session.rank = 2, 0
    session.worker = cast(Any, SimpleNamespace(declare=lambda *_, **__: Native()))
    session._declared, session.begun, session.restored = {}, None, {}
    weight = session.declare("weight", "all_reduce", (3, 4), "float32")
    other = session.declare("other", "all_reduce", (5,), "float32")
    copied = session.declare("copied", "broadcast", (2,), "float32")
    assert session.declare("weight", "all_reduce", [3, 4], "float32") is weight
    other.submit(0, 0, keep=None)
    before = session.rounds()
    for priority in (1, 2):
        assert weight.submit(0, 0, keep=None, priority=priority) == "handle"
        copied.submit(0, 0, keep=None)
    late = session.declare("late", "all_reduce", (), "float64")
    late.submit(0, 0, keep=None)
    session.declare("variable", "update", (6,), "float32", rule="lion").submit(0, 0, keep=None)
    assert session.uses_since(before) == [
        TensorUse((3, 4), "float32", 2, 2),
        TensorUse((), "float64", 0, 1),
        TensorUse((6,), "float32", 0, 1),
    ]
    session.begun = []
    for _ in range(3):
        other.submit(0, 0, keep=None)
        weight.submit(0, 0, keep=None)
    ready = [use.ready_s for use in session.uses_since(before) if use.shape]
    assert ready[1] == 0.0 and ready[0] is not None and 0 < ready[0] < 1, "in order of declaration"


def test_tensors_are_ready_after_the_first_of_their_step() -> None:
    cut = [("loss", -2.0), ("b", -1.0), ("a", -0.5)]
    steps = [(name, step + at) for step in (0.0, 10.0) for name, at in (("b", 0.1), ("a", 0.4))]
    late = [("b", 20.0), ("a", 21.7), ("b", 30.0)]
    ready = ready_times([*late, *steps, *cut])
    assert ready == pytest.approx({"b": 0.0, "a": 0.3})
    assert ready_times([]) == {}
    assert ready_times([("a", 3.0)]) == {"a": 0.0}


def test_layers_have_the_times_between_their_tensors() -> None:
    sizes, ready = (1000, 2000, 3000), (0.0, 0.1, 0.4)
    in_order_of_backward = [Summed(size, 0, at) for size, at in zip(sizes, ready, strict=True)]
    layers = of_tensors(in_order_of_backward, compute_s=99.0)
    np.testing.assert_allclose(layers[:, 2].sum(), sum(sizes))
    # 0.3 and 0.1 for what was ready after another, their average for the first to be ready.
    np.testing.assert_allclose(layers[:, 1].sum(), 0.6)
    np.testing.assert_allclose(layers[:, 0].sum(), 0.3)
    assert layers[0, 1] > layers[-1, 1]
    unknown = [Summed(one.bytes, 0) for one in in_order_of_backward]
    np.testing.assert_allclose(of_tensors(unknown, 0.3)[:, :2].sum(), 0.3)
    at_once = [Summed(one.bytes, 0, 0.0) for one in in_order_of_backward]
    np.testing.assert_allclose(of_tensors(at_once, 0.3)[:, :2].sum(), 0.3)


@pytest.mark.parametrize("model", ["resnet50", "vgg16", "bert-large"])
def test_the_times_of_a_jobs_tensors_are_those_of_its_profile(model: str) -> None:
    profile = profiles.published(model)
    first = min(tensor.ready_s for tensor in profile.tensors)
    count = len(profile.tensors)
    seen = [
        Summed(tensor.bytes, count - at, tensor.ready_s - first)
        for at, tensor in enumerate(profile.tensors)
    ]
    served, trained = of_tensors(seen, 99.0), of_profile(profile)
    assert served[:, 1].sum() == pytest.approx(trained[:, 1].sum(), rel=0.2)
    assert served[:, 0].sum() == pytest.approx(trained[:, 0].sum(), rel=0.25)
