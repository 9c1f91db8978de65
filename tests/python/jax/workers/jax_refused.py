"""Calls on pytrees that one rank cannot make, inside and outside of jit: an error on all ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from refusing import ODD, RANK, WORLD_SIZE, refused, refused_at_once

if RANK == ODD:
    # Others have one device, which is what a rank should have.
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import jax.numpy as jnp
import numpy as np
import optax

import sumpter.jax as sj
from sumpter._core.reduction import Adasum

ONES = jnp.ones(3)
EVERY = {"a": ONES, "b": ONES}
ROWS = jnp.ones((2 * WORLD_SIZE, 2))
FLOAT0 = np.zeros(3, jax.dtypes.float0)


def odd(leaf: Any) -> dict[str, Any]:
    return {"a": ONES, "b": leaf}


def reduce_jitted(tree: Any, name: str | None) -> Any:
    return jax.block_until_ready(jax.jit(lambda tree: sj.all_reduce(tree, name=name))(tree))


def reduce_mapped(name: str | None) -> Callable[[Any], Any]:
    return jax.pmap(lambda x: sj.all_reduce(x, name=name))


def step(gradients: Any, name: str) -> Any:
    optimizer = sj.distribute(optax.sgd(0.1), name=name)
    return optimizer.update(gradients, optimizer.init(EVERY))


def integer_gradients() -> Any:
    """As jax.grad gives them of integers, if it is told to."""
    return jax.grad(lambda of: of["a"].sum(), allow_int=True)(odd(jnp.arange(3)))


Call = Callable[[str | None], object]
# What one rank calls, what the others call, and what is wrong.
CASES: dict[str, tuple[Call, Call, str]] = {
    "float0": (
        lambda name: sj.all_reduce(odd(FLOAT0), name=name),
        lambda name: sj.all_reduce(EVERY, name=name),
        "leaf 'b' is float0",
    ),
    "float0 inside jit": (
        lambda name: jax.jit(lambda tree: sj.all_reduce(odd(FLOAT0), name=name))(EVERY),
        lambda name: reduce_jitted(EVERY, name),
        "leaf 'b' is float0",
    ),
    "optimizer": (
        lambda name: step(integer_gradients(), name or "gradients"),
        lambda name: step(EVERY, name or "gradients"),
        "leaf 'b' is float0",
    ),
    "strings": (
        lambda name: sj.all_reduce(odd("text"), name=name),
        lambda name: reduce_jitted(EVERY, name),
        "leaf 'b' is str",
    ),
    "type": (
        lambda name: reduce_jitted(odd(ONES * 1j), name),
        lambda name: sj.all_reduce(EVERY, name=name),
        "leaf 'b' has elements of type complex64",
    ),
    "operator": (
        lambda name: sj.all_reduce(ONES, Adasum, name=name),
        lambda name: sj.all_reduce(ONES, name=name),
        "no Adasum",
    ),
    "codec": (
        lambda name: jax.block_until_ready(
            jax.jit(lambda x: sj.all_reduce(x, name=name, compression="int8"))(jnp.arange(3))
        ),
        lambda name: sj.all_reduce(jnp.arange(3), name=name),
        "int32",
    ),
    "traced root": (
        lambda name: jax.jit(lambda x, root: sj.broadcast(x, root, name=name))(ONES, 0),
        lambda name: jax.block_until_ready(
            jax.jit(lambda x: sj.broadcast(x, ODD, name=name))(ONES)
        ),
        "root_rank is a value that JAX traces",
    ),
    "root": (
        lambda name: sj.broadcast(EVERY, -1, name=name),
        lambda name: sj.broadcast(EVERY, ODD, name=name),
        "root_rank is -1",
    ),
    "gather": (
        lambda name: sj.all_gather(odd(FLOAT0), name=name),
        lambda name: sj.all_gather(EVERY, name=name),
        "leaf 'b' is float0",
    ),
    "scatter": (
        lambda name: sj.reduce_scatter(jnp.ones((2 * WORLD_SIZE + 1, 2)), name=name),
        lambda name: sj.reduce_scatter(ROWS, name=name),
        "cannot be shared out evenly",
    ),
    "devices": (
        lambda name: reduce_mapped(name)(jnp.ones((2, 3))),
        lambda name: reduce_jitted(ONES, name),
        "local devices would be called by each of them",
    ),
    "devices inside jit": (
        lambda name: jax.jit(reduce_mapped(name))(jnp.ones((2, 3))),
        lambda name: reduce_jitted(ONES, name),
        "local devices would be called by each of them",
    ),
}  # fmt: skip


def check_later(name: str | None) -> None:
    """The next calls match, under the same name and others."""
    sj.barrier()
    total = sum(range(WORLD_SIZE))
    for again in (name, "another", None):
        for found in (
            sj.all_reduce({"a": ONES * RANK, "b": ONES}, sj.Sum, name=again)["a"],
            jax.jit(lambda x, again=again: sj.all_reduce(x, sj.Sum, name=again))(ONES * RANK),
            sj.broadcast(ONES * RANK, 1, name=again) * total,
        ):
            np.testing.assert_array_equal(found, np.full(3, total))


sj.init()
if sys.argv[1] == "named":
    for word, (bad, good, reason) in CASES.items():
        refused_at_once(
            lambda bad=bad, word=word: bad(word),
            lambda good=good, word=word: good(word),
            reason,
            sj.barrier,
        )
        check_later(word)
else:
    for word in ("float0 inside jit", "type"):
        bad, good, reason = CASES[word]
        refused(lambda bad=bad: bad(None), lambda good=good: good(None), reason, sj.barrier)
        check_later(None)
sj.shutdown()
