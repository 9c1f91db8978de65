"""Every collective against NumPy, eagerly and compiled, under JAX's transformations.

With the argument `callbacks` compiled programs cannot use XLA's foreign function interface.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator

os.environ["JAX_ENABLE_X64"] = "1"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import sumpter
import sumpter.jax as sj
from sumpter._core import membership
from sumpter.jax import programs

# Versions before 0.6 check replication by rules, of which there are none for other primitives.
shard_map = getattr(jax, "shard_map", None) or functools.partial(
    importlib.import_module("jax.experimental.shard_map").shard_map, check_rep=False
)

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

SUMMED = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
# Without a kernel: they are moved as bytes.
MOVED = ("bool", "int16", "uint32", "complex64", "float8_e4m3fn")


def whole(dtype: str, shape: tuple[int, ...] = (4, 3)) -> list[np.ndarray]:
    """Every rank's array, of small integers: their sums are exact in every type."""
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    count = int(np.prod(shape))
    return [((np.arange(count) + rank) % 5).astype(kind).reshape(shape) for rank in range(SIZE)]


def expect(actual: object, expected: np.ndarray) -> None:
    assert isinstance(actual, jax.Array), type(actual)
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    assert np.asarray(actual).tobytes() == expected.tobytes(), (actual, expected)


@contextlib.contextmanager
def raises(
    kind: type[BaseException] | tuple[type[BaseException], ...], *parts: str
) -> Iterator[None]:
    try:
        yield
    except kind as error:
        missing = [part for part in parts if part not in str(error)]
        assert not missing, f"{missing} not in: {error}"
    else:
        raise AssertionError(f"expected {kind}")


def rounds_of(part: str) -> int:
    """How many rounds have begun of the tensors with `part` in their names."""
    declared = membership.current().declared()
    return sum(tensor.rounds for tensor in declared if part in tensor.name)


def reduced(arrays: list[np.ndarray], op: sj.ReduceOp) -> np.ndarray:
    wide = [array.astype(np.float64) for array in arrays]
    if op is sj.Average:
        average = sum(wide) / SIZE
        is_whole = np.issubdtype(arrays[0].dtype, np.integer)
        return (np.floor(average) if is_whole else average).astype(arrays[0].dtype)
    two = {sj.Sum: np.add, sj.Min: np.minimum, sj.Max: np.maximum, sj.Product: np.multiply}[op]
    return functools.reduce(two, wide).astype(arrays[0].dtype)


def check_types(called: Callable[[Callable], Callable]) -> None:
    """Every element type; `called` is jax.jit, or nothing."""
    summed = {dtype: whole(dtype) for dtype in SUMMED}
    own = {dtype: arrays[RANK] for dtype, arrays in summed.items()}
    for op in (sj.Sum, sj.Average, sj.Min, sj.Max, sj.Product):
        results = called(lambda x, op=op: sj.all_reduce(x, op))(own)
        for dtype, arrays in summed.items():
            expect(results[dtype], reduced(arrays, op))
    shares = called(lambda x: sj.reduce_scatter(x, sj.Average))(own)
    for dtype, arrays in summed.items():
        expect(shares[dtype], reduced(arrays, sj.Average).reshape(SIZE, -1, 3)[RANK])
    moved = {dtype: whole(dtype) for dtype in (*SUMMED, *MOVED)}
    own = {dtype: arrays[RANK] for dtype, arrays in moved.items()}
    for root in (0, SIZE - 1):
        results = called(lambda x, root=root: sj.broadcast(x, root))(own)
        for dtype, arrays in moved.items():
            expect(results[dtype], arrays[root])
    gathered = called(sj.all_gather)(own)
    for dtype, arrays in moved.items():
        expect(gathered[dtype], np.concatenate(arrays))
    anywhere = called(lambda x: sj.all_reduce(x, sj.Max))(moved["bool"][RANK])
    expect(anywhere, functools.reduce(np.logical_or, moved["bool"]))


def check_trees(called: Callable[[Callable], Callable]) -> None:
    tree = {
        "layers": [np.float32(RANK), np.full((2, 2), RANK, np.int32)],
        "empty": np.zeros((0, 3), np.float32),
        "none": None,
    }
    result = called(lambda x: sj.all_reduce(x, sj.Sum, name="tree"))(tree)
    total = SIZE * (SIZE - 1) // 2
    expect(result["layers"][0], np.asarray(total, np.float32))
    expect(result["layers"][1], np.full((2, 2), total, np.int32))
    expect(result["empty"], tree["empty"])
    assert result["none"] is None
    assert rounds_of("tree/layers/1"), "the tensor is not named after its path"
    expect(called(sj.all_gather)(np.float32(RANK)), np.arange(SIZE, dtype=np.float32))
    assert called(sj.all_reduce)({}) == {}


def check_scan() -> None:
    @jax.jit
    def run(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def body(carry: jax.Array, one: jax.Array) -> tuple[jax.Array, jax.Array]:
            reduced = sj.all_reduce(one * (RANK + 1), sj.Sum, name="scan")
            return carry + reduced, reduced

        return jax.lax.scan(body, jnp.zeros(2), x, unroll=2)

    x = np.arange(12.0).reshape(6, 2)
    factor = SIZE * (SIZE + 1) / 2
    before = rounds_of("scan")
    last, each = run(x)
    expect(each, x * factor)
    expect(last, (x * factor).sum(0))
    assert rounds_of("scan") - before == 6

    @jax.jit
    def loop(x: jax.Array) -> jax.Array:
        halve = lambda x: sj.all_reduce(x, name="while") / 2  # noqa: E731
        x = jax.lax.while_loop(lambda x: x[0] > 1, halve, x)
        return jax.lax.cond(x[0] > 0, lambda x: sj.all_reduce(x, sj.Sum), lambda x: x, x)

    expect(loop(np.full(3, 8.0)), np.full(3, 1.0 * SIZE))


def check_vmap() -> None:
    x = np.arange(24.0).reshape(2, 3, 4) + RANK
    offset = sum(range(SIZE))

    def both(x: jax.Array, shared: jax.Array) -> tuple[jax.Array, jax.Array]:
        return sj.all_reduce((x, shared), sj.Sum, name="vmap")

    for axis in range(3):
        mapped = jax.vmap(both, in_axes=(axis, None), out_axes=(axis, None))
        for called in (mapped, jax.jit(mapped)):
            before = rounds_of("vmap/0")
            reduced, shared = called(x, np.ones(2))
            expect(reduced, (x - RANK) * SIZE + offset)
            expect(shared, np.full(2, 1.0 * SIZE))
            assert rounds_of("vmap/0") - before == 1, "one call for all elements"
    rows = np.arange(24.0).reshape(3, 4, 2) + 100 * RANK
    gathered = jax.jit(jax.vmap(sj.all_gather))(rows)
    everyone = [rows - 100 * RANK + 100 * rank for rank in range(SIZE)]
    expect(gathered, np.concatenate(everyone, axis=1))
    scattered = jax.jit(jax.vmap(lambda x: sj.reduce_scatter(x, sj.Sum)))(rows)
    share = sum(everyone).reshape(3, SIZE, -1, 2)[:, RANK]
    expect(scattered, share)


def check_shard_map() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    spec = jax.sharding.PartitionSpec("data")
    mapped = shard_map(
        lambda x: sj.all_reduce(x, sj.Sum, name="sharded"), mesh=mesh, in_specs=spec, out_specs=spec
    )
    x = np.arange(4.0)
    expect(jax.jit(mapped)(x), x * SIZE)


def check_devices() -> None:
    """Arrays that lie on two local devices are reduced as a whole; no device calls by itself."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    spec = jax.sharding.PartitionSpec("data")
    x = jax.device_put(np.arange(8.0), jax.sharding.NamedSharding(mesh, spec))
    # Older versions of JAX refuse side effects in programs of several devices.
    wrappers = (lambda function: function, jax.jit)
    for called in wrappers if jax.__version_info__ >= (0, 10) else wrappers[:1]:
        before = rounds_of("devices")
        result = called(lambda x: sj.all_reduce(x, sj.Sum, name="devices"))(x)
        expect(result, np.arange(8.0) * SIZE)
        assert rounds_of("devices") == before + 1
    each = shard_map(sj.all_reduce, mesh=mesh, in_specs=spec, out_specs=spec)
    with raises(sj.UnsupportedError, "2 local devices", "psum"):
        jax.jit(each)(x)
    # JAX' own error in versions in which pmap is not a shard_map.
    with raises((sj.UnsupportedError, ValueError), "pmap"):
        jax.pmap(sj.all_reduce)(np.ones((2, 3)))


def check_effects() -> None:
    """A call counts once, whether its result is used never, once or twice."""
    unused = jax.jit(lambda x: (sj.all_reduce(x, name="unused"), x + 1)[1])
    twice = jax.jit(lambda x: (y := sj.all_reduce(x, name="twice")) * y + y)
    same = jax.jit(lambda x: sj.all_reduce(x, name="a.same") + sj.all_reduce(x, name="b.same"))
    for step in range(1, 4):
        for function, name, calls in (
            (unused, "unused", 1),
            (twice, "twice", 1),
            (same, "same", 2),
        ):
            jax.block_until_ready(function(jnp.ones(3)))
            assert rounds_of(name) == step * calls, (name, rounds_of(name), step)

    @jax.jit
    def waits(x: jax.Array) -> jax.Array:
        sj.barrier("compiled")
        return x

    before = rounds_of("barrier.compiled")
    jax.block_until_ready(waits(jnp.ones(3)))
    jax.effects_barrier()
    assert rounds_of("barrier.compiled") == before + 1
    sj.barrier()


def check_order() -> None:
    """Independent calls, whose arrays are ready in another order on each rank."""

    @jax.jit
    def run(x: jax.Array) -> list[jax.Array]:
        results = []
        for index in range(8):
            own = x + index
            for _ in range(4 * ((index + RANK) % 3)):
                own = own @ jnp.eye(len(x))
            results.append(sj.all_reduce(own, sj.Sum))
        return results

    # Programs that do not depend on each other, begun before the ones before have ended.
    begun = [run(jnp.full((64, 64), float(step))) for step in range(6)]
    for step, results in enumerate(begun):
        for index, result in enumerate(results):
            expect(result, np.full((64, 64), float(step + index) * SIZE))


def check_sets() -> None:
    ranks = sorted({1, SIZE - 1})
    pair = sj.add_process_set(ranks)
    if pair.included():
        x = np.full(4, float(RANK + 1))
        added = jax.jit(lambda x: sj.all_reduce(x, sj.Sum, process_set=pair))(x)
        expect(added, np.full(4, sum(rank + 1.0 for rank in ranks)))
        gathered = jax.jit(lambda x: sj.all_gather(x, process_set=pair))(x)
        expect(gathered, np.repeat([rank + 1.0 for rank in ranks], 4))
    else:
        with raises(ValueError, f"rank {RANK} is not in"):
            sj.all_reduce(np.ones(3), process_set=pair)
    sj.remove_process_set(pair)


def check_refused() -> None:
    unsupported = sj.UnsupportedError
    with raises(unsupported, "'step'", "float0"):
        sj.all_reduce({"step": np.zeros(3, jax.dtypes.float0)})
    with raises(unsupported, "'name'", "str"):
        sj.all_reduce({"name": "digits"})
    with raises(unsupported, "complex64", ".real"):
        jax.jit(sj.all_reduce)(np.ones(3, np.complex64))
    with raises(unsupported, "int16"):
        sj.all_reduce(np.ones(3, np.int16))
    with raises(unsupported, "bool", "op=Max"):
        sj.all_reduce(np.ones(3, bool))
    with raises(unsupported, "key_data"):
        sj.broadcast(jax.random.key(1))
    with raises(unsupported, "Adasum"):
        sj.all_reduce(np.ones(3), sumpter._core.reduction.Adasum)
    with raises(unsupported, "root_rank", "static_argnames"):
        jax.jit(sj.broadcast)(np.ones(3), 0)
    with raises(unsupported, "name is a int"):
        sj.all_reduce(np.ones(3), name=3)
    with raises(NotImplementedError, "checkpoint"):
        jax.grad(jax.checkpoint(lambda x: jnp.sin(sj.all_reduce(x)).sum()))(np.ones(3))
    with raises(ValueError, "root_rank is 99"):
        sj.broadcast(np.ones(3), 99)
    with raises(ValueError, "rows", f"{SIZE} ranks"):
        sj.reduce_scatter(np.ones(SIZE + 1))
    with raises(ValueError, "scalar"):
        sj.reduce_scatter(1.0)
    with raises(unsupported, "op=Max", "no gradient"):
        jax.grad(lambda x: sj.all_reduce(x, sj.Max).sum())(np.ones(3))
    with raises(sj.ConfigError, "powersgd"):
        sj.all_reduce(np.ones(3), compression="powersgd")
    with raises(TypeError, "int"):
        jax.grad(lambda x: sj.all_reduce(x, sj.Sum).sum())(np.ones(3, np.int32))


def check_reasons() -> None:
    """Each reason for callbacks is logged once, and what goes through them arrives."""
    packed = [(np.arange(8) % 4 + rank).astype(ml_dtypes.int4) for rank in range(SIZE)]
    # XLA of older versions has no packed elements in calls.
    for _ in range(2 if jax.__version_info__ >= (0, 5) else 0):
        for root in range(SIZE):
            found = jax.jit(lambda x, root=root: sj.broadcast(x, root))(packed[RANK])
            expect(found, packed[root])
    expected = {"a program runs on 2 devices"} if jax.__version_info__ >= (0, 10) else set()
    expected.add(programs._unavailable or "elements of int4 are less than a byte")
    said = [record.getMessage().split("callbacks: ")[-1] for record in logged]
    assert sorted(said) == sorted(expected), said


def check_front() -> None:
    """The bytes of NumPy's front, for which this job is deterministic."""
    x = np.random.default_rng(RANK).normal(size=(1000, 7)).astype(np.float32)
    expected = sumpter.push_pull(x, name="numpy")
    expect(jax.jit(lambda x: sj.all_reduce(x, name="jax"))(x), expected)
    expect(sj.all_reduce(x, name="jax.eager"), expected)
    coded = sumpter.push_pull(x, name="numpy.coded", compression="int8")
    expect(jax.jit(lambda x: sj.all_reduce(x, name="coded", compression="int8"))(x), coded)


# Why, or nothing.
CALLBACKS = "the test wants it" if "callbacks" in sys.argv else ""
logged: list[logging.LogRecord] = []
watch = logging.Handler()
watch.emit = logged.append
watch.addFilter(lambda record: "Python callbacks" in record.msg)
logging.getLogger("sumpter").addHandler(watch)
logging.getLogger("sumpter").setLevel(logging.INFO)
if CALLBACKS:
    programs._unavailable = CALLBACKS
sj.init()
assert (sj.rank(), sj.size()) == (RANK, SIZE)
for wrapper in (lambda function: function, jax.jit):
    check_types(wrapper)
    check_trees(wrapper)
for check in (
    *(check_scan, check_vmap, check_shard_map, check_devices, check_effects, check_order),
    *(check_sets, check_refused, check_reasons, check_front),
):
    check()
sj.shutdown()
