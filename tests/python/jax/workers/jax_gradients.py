"""Gradients of every collective against finite differences of the sum of all ranks' losses."""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ["JAX_ENABLE_X64"] = "1"

import jax
import jax.numpy as jnp
import numpy as np

import sumpter
import sumpter.jax as sj

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
EPSILON = 1e-6

Loss = Callable[[jax.Array], jax.Array]


def total(loss: Loss, x: np.ndarray) -> float:
    """The sum of all ranks' losses."""
    own = np.asarray(loss(x), np.float64).reshape(1)
    return float(sumpter.push_pull(own, average=False)[0])


def expect_gradient(loss: Loss, x: np.ndarray) -> None:
    """The gradient of the whole job's loss, by this rank's array."""
    compiled = jax.jit(loss)
    found = np.asarray(jax.jit(jax.grad(loss))(x))
    np.testing.assert_array_equal(found, np.asarray(jax.grad(loss)(x)))
    expected = np.zeros_like(x)
    for rank in range(SIZE):
        for place in np.ndindex(*x.shape):
            step = np.zeros_like(x)
            step[place] = EPSILON * (rank == RANK)
            change = total(compiled, x + step) - total(compiled, x - step)
            if rank == RANK:
                expected[place] = change / (2 * EPSILON)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def weights(shape: tuple[int, ...]) -> np.ndarray:
    """Other ones on each rank."""
    return np.random.default_rng(10 + RANK).normal(size=shape)


def check_collectives() -> None:
    x = np.random.default_rng(RANK).normal(size=(SIZE, 2))
    for op in (sj.Sum, sj.Average):
        expect_gradient(lambda x, op=op: (sj.all_reduce(x, op) ** 2 * weights(x.shape)).sum(), x)
        expect_gradient(lambda x, op=op: (sj.reduce_scatter(x, op) ** 2 * weights((1, 2))).sum(), x)
    for root in range(SIZE):
        expect_gradient(
            lambda x, root=root: (sj.broadcast(x, root) ** 2 * weights(x.shape)).sum(), x
        )
    expect_gradient(lambda x: (sj.all_gather(x) ** 2 * weights((SIZE * SIZE, 2))).sum(), x)
    # A pytree of which a part is used, and one that has integers.
    expect_gradient(lambda x: sj.all_reduce({"a": x, "b": x * 2, "c": 3})["b"].prod(), x)


def check_transformations() -> None:
    x = np.random.default_rng(RANK).normal(size=(SIZE, 2))

    def scanned(x: jax.Array) -> jax.Array:
        def body(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
            return jnp.sin(carry) + sj.all_reduce(row * carry, sj.Sum, name="scan"), None

        return jax.lax.scan(body, jnp.ones(2), x)[0].sum()

    expect_gradient(scanned, x)
    expect_gradient(lambda x: (jax.vmap(sj.all_gather, in_axes=1)(x) ** 3).sum(), x)
    each = jax.vmap(jax.grad(lambda row: (sj.all_reduce(row, sj.Sum) ** 2).sum()))(x)
    whole = jax.grad(lambda x: (sj.all_reduce(x, sj.Sum) ** 2).sum())(x)
    np.testing.assert_array_equal(np.asarray(each), np.asarray(whole))

    # A derivative of a derivative: of y**3, where y is the sum of all ranks' x.
    def cubed(x: jax.Array) -> jax.Array:
        return (sj.all_reduce(x, sj.Sum) ** 3).sum()

    second = jax.grad(lambda x: jax.grad(cubed)(x).sum())(x)
    y = sumpter.push_pull(x, average=False)
    np.testing.assert_allclose(second, 6 * y * SIZE**2, rtol=1e-12)
    # Forward mode.
    value, tangent = jax.jvp(lambda x: sj.all_reduce(x, sj.Sum) ** 2, (x,), (np.ones_like(x),))
    np.testing.assert_allclose(value, y**2)
    np.testing.assert_allclose(tangent, 2 * y * SIZE)
    transposed = jax.linear_transpose(lambda x: sj.all_gather(x), x)
    (back,) = transposed(np.ones((SIZE * SIZE, 2)))
    np.testing.assert_array_equal(np.asarray(back), np.full_like(x, SIZE))


def check_named() -> None:
    """A gradient has a name of its own, so that it can be found in traces."""
    jax.jit(jax.grad(lambda x: sj.all_reduce(x, name="loss").sum()))(np.ones(3))
    declared = {tensor.name for tensor in sumpter._core.membership.current().declared()}
    assert any("loss.gradient" in name for name in declared), declared


sj.init()
check_collectives()
check_transformations()
check_named()
sj.shutdown()
