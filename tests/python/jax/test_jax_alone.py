"""sumpter.jax in a job of one rank, in the process of the test."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import sumpter

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'sumpter[jax]'")
optax = pytest.importorskip("optax", reason="optax is not installed: pip install 'sumpter[jax]'")

import sumpter.jax as sj  # noqa: E402
from sumpter import _native  # noqa: E402
from sumpter._calls.collective import ALL_GATHER, ALL_REDUCE, BARRIER, Collective  # noqa: E402
from sumpter._calls.started import Programs, describe, describe_barrier  # noqa: E402
from sumpter._core.process_sets import ProcessSet  # noqa: E402
from sumpter.jax import programs as programs_of_jax  # noqa: E402
from sumpter.jax.programs import JAX  # noqa: E402
from sumpter.jax.version import foreign_version  # noqa: E402


def gradients_of(params: object) -> object:
    return jax.tree.map(lambda value: value * 0 + 1, params)


@pytest.mark.usefixtures("alone")
def test_an_optimizer_keeps_the_state_and_the_arguments_of_its_own() -> None:
    params = {"w": np.ones((2, 3), np.float32), "b": np.zeros(3, np.float32)}
    own = optax.adamw(1e-2)
    distributed = sj.distribute(own)
    assert jax.tree.structure(distributed.init(params)) == jax.tree.structure(own.init(params))
    for called in (lambda function: function, jax.jit):
        mine, _ = called(distributed.update)(gradients_of(params), own.init(params), params)
        theirs, _ = own.update(gradients_of(params), own.init(params), params)
        for one, other in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
    # Arguments beyond those of all optimizers reach the one that takes them.
    by_value = sj.distribute(optax.scale_by_backtracking_linesearch(max_backtracking_steps=3))
    with pytest.raises(TypeError, match="value"):
        by_value.update(gradients_of(params), by_value.init(params), params)


@pytest.mark.usefixtures("alone")
def test_a_result_is_bound_to_a_device_only_if_its_array_is() -> None:
    """A program is compiled anew for arguments of which one is bound and one is not."""
    free, bound = jax.numpy.ones(3), jax.device_put(jax.numpy.ones(3), jax.devices()[0])
    step = jax.jit(lambda params, state: (params + state, 2 * state))
    params, state = sj.broadcast_parameters({"w": free})["w"], free
    for _ in range(3):
        params, state = step(params, state)
    assert step._cache_size() == 1
    assert sj.broadcast(bound).sharding == bound.sharding


@pytest.mark.usefixtures("alone")
def test_an_optimizer_works_within_others() -> None:
    params = np.ones(4, np.float32)
    accumulating = optax.MultiSteps(sj.distribute(optax.sgd(1.0)), every_k_schedule=2)
    chained = optax.chain(optax.clip_by_global_norm(1.0), sj.distribute(optax.sgd(1.0)))
    for optimizer, expected in ((accumulating, 0.0), (chained, -0.5)):
        update = jax.jit(optimizer.update)
        updates, _ = update(gradients_of(params), optimizer.init(params), params)
        np.testing.assert_allclose(updates, np.full(4, expected), atol=1e-6)


@pytest.mark.usefixtures("alone")
def test_only_large_matrices_are_compressed(caplog: pytest.LogCaptureFixture) -> None:
    params = {"bias": np.zeros(3, np.float32), "weights": np.zeros((300, 300), np.float32)}
    with caplog.at_level(logging.INFO, logger="sumpter"):
        optimizer = sj.distribute(optax.sgd(1.0), compression="int8")
        optimizer.update(params, optimizer.init(params), params)
    assert "1 of 2 gradients are left as they are" in caplog.text
    assert "bias" in caplog.text and "/weights" not in caplog.text
    names = {
        tensor.name: tensor.description.compression
        for tensor in sumpter._core.membership.current().declared()
    }
    assert names["allreduce.gradients/weights"].startswith("int8")
    assert names["allreduce.gradients/bias"] == ""


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("compression", ["powersgd", "powersgd:rank=2"])
def test_a_codec_of_whole_matrices_is_refused(compression: str) -> None:
    optimizer = sj.distribute(optax.sgd(1.0), compression=compression)
    with pytest.raises(sj.ConfigError, match="powersgd.*sumpter.torch"):
        optimizer.update(np.ones((3, 3)), optimizer.init(np.ones((3, 3))))


def test_a_program_of_another_jobs_size_says_so(
    unlaunched: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = jax.jit(lambda x: sj.all_gather(x))
    sj.init()
    try:
        function(np.ones(3)).block_until_ready()
        with monkeypatch.context() as patch:
            patch.setattr(sumpter._core.membership.current(), "world_size", 2)
            with pytest.raises(Exception, match="compiled for 1 ranks.*there are 2.*clear_caches"):
                function(np.ones(3)).block_until_ready()
    finally:
        sj.shutdown()
    with pytest.raises(sj.NotInitializedError, match="init"):
        sj.all_reduce(np.ones(3))


def called(collective: Collective, array: np.ndarray) -> tuple[Programs, list[int], np.ndarray]:
    """What a program has started on an array, and the memory for its result."""
    programs = Programs(JAX)
    text = describe(collective, 0, array.shape, array.dtype)
    return programs, [programs.start(text, array.ctypes.data)], np.zeros_like(array)


@pytest.mark.usefixtures("alone")
def test_an_xla_without_futures_waits_for_its_rounds() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    collective = Collective(JAX, ALL_REDUCE, ("/w",), "g", codecs=("",))
    programs, numbers, result = called(collective, array)
    programs.finish(b"", numbers, [result.ctypes.data], None)
    np.testing.assert_array_equal(result, array)
    empty = np.empty((0, 3), np.float32)
    programs, numbers, result = called(collective, empty)
    programs.finish(b"", numbers, [0], None)
    barrier = describe_barrier(Collective(JAX, BARRIER))
    programs.finish(barrier, [], [], None)


@pytest.mark.usefixtures("alone")
def test_what_goes_wrong_at_the_start_is_said_where_results_are_needed() -> None:
    collective = Collective(JAX, ALL_GATHER, ("",), "g", size=4, codecs=("",))
    programs, numbers, result = called(collective, np.ones(3, np.float32))
    with pytest.raises(sumpter.UnsupportedError, match="compiled for 4 ranks, and there are 1 now"):
        programs.finish(b"", numbers, [result.ctypes.data], None)
    among = Collective(JAX, ALL_REDUCE, ("",), "g", process_set=ProcessSet([0]), codecs=("",))
    programs, numbers, result = called(among, np.ones(3, np.float32))
    with pytest.raises(ValueError, match="was not added: call add_process_set"):
        programs.finish(b"", numbers, [result.ctypes.data], None)


@pytest.mark.usefixtures("unlaunched")
def test_what_no_program_has_waited_for_ends_with_its_job() -> None:
    array = np.ones(3, np.float32)
    collective = Collective(JAX, ALL_REDUCE, ("",), "g", codecs=("",))
    sumpter.init()
    programs, numbers, result = called(collective, array)
    sumpter.shutdown()
    sumpter.init()
    try:
        text = describe(collective, 0, array.shape, array.dtype)
        later = [programs.start(text, array.ctypes.data)]
        with pytest.raises(sumpter.ClosedError, match="the job has ended"):
            programs.finish(b"", numbers, [result.ctypes.data], None)
        programs.finish(b"", later, [result.ctypes.data], None)
    finally:
        sumpter.shutdown()
    np.testing.assert_array_equal(result, array)


def test_handlers_are_for_known_versions_of_xlas_interface_only() -> None:
    for version in ((0, 0), (0, 99), (1, 1)):
        assert _native.xla_handlers(version, print, print) is None
    is_there = jax.__version_info__ >= (0, 5)
    assert is_there == (not programs_of_jax._unavailable), (
        f"{foreign_version()} is not in the list of known versions in crates/python/src/xla.rs"
    )
