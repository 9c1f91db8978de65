"""The JAX primitive that every collective is: how it is traced, differentiated, mapped and run.

It has the ordered effect of JAX's own host callbacks: a compiled program runs its collectives in
the order in which the function called them, one program after the other, and calls outside of
programs wait for those. On CPU calls go through XLA's foreign function interface (`programs`), else
through Python callbacks. All ranks run the same functions, so no two ranks wait in different
collectives, whatever XLA makes of the programs, and calls without a name are matched by their
order. None is dropped because its result is unused, merged with another, or run twice.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from sumpter._calls.collective import ALL_GATHER, REDUCE_SCATTER, Collective
from sumpter._calls.refusals import Checking
from sumpter._calls.rounds import perform
from sumpter._core import membership
from sumpter._errors import UnsupportedError
from sumpter.jax import programs

# The functions of JAX that trace for such a pmap, outside and inside of jit.
_OF_PMAP = ("stage_parallel_callable", "process_map")

collective_p = Primitive("sumpter")
collective_p.multiple_results = True


def bind(collective: Collective, arrays: Sequence[Any]) -> list[Any]:
    """Runs a collective, or adds it to the function that JAX traces."""
    return collective_p.bind(*arrays, collective=collective)


@functools.cache
def _ordered_effects() -> frozenset[Any]:
    """What JAX says of a function with an ordered callback."""
    traced = jax.make_jaxpr(lambda: io_callback(lambda: None, None, ordered=True))()
    return frozenset(traced.effects)


@collective_p.def_impl
def _run(*arrays: Any, collective: Collective) -> list[Any]:
    """Without compilation, in the calling thread, after all programs that were begun before."""
    settle()
    results = perform(collective, [np.asarray(array) for array in arrays])
    return [_placed(result, like) for result, like in zip(results, arrays, strict=True)]


def settle() -> None:
    """Waits for the programs that were begun before, whose collectives others may wait for."""
    try:
        jax.effects_barrier()
    except RuntimeError:
        # What goes wrong with a program is raised where its results are used, and there alone.
        forget_failures()


membership.before_close.append(settle)


def _placed(result: np.ndarray, like: Any) -> Any:
    """A result on the devices of its array, and free to move if that is: a program is compiled
    anew for arguments that are not."""
    # Older versions of JAX have it under a name of their own.
    is_bound = getattr(like, "committed", getattr(like, "_committed", True))
    if not isinstance(like, jax.Array) or not is_bound:
        return jax.numpy.asarray(result)
    if result.shape == like.shape:
        return jax.device_put(result, like.sharding)
    return jax.device_put(result, next(iter(like.devices())))


@collective_p.def_effectful_abstract_eval
def _abstract(*arrays: Any, collective: Collective) -> tuple[list[Any], frozenset[Any]]:
    if _is_traced_by_pmap():
        with Checking.of(collective):
            raise _called_by_each("pmap over")
    results = [
        array.update(shape=collective.result_shape(array.shape), weak_type=False)
        for array in arrays
    ]
    return results, _ordered_effects()


def _lowered(ctx: Any, *arrays: Any, collective: Collective, on_host: bool = False) -> Any:
    with Checking.of(collective):
        _check_one_device(ctx.module_context.axis_context)

    def run(*given: Any) -> tuple[np.ndarray, ...]:
        return tuple(perform(collective, [np.asarray(array) for array in given]))

    devices = getattr(ctx.module_context.axis_context, "num_devices", None) or 1
    (effect,) = _ordered_effects()
    if not programs.why_callbacks(ctx.avals_in, on_host, devices):
        return programs.lower(ctx, arrays, collective, effect)
    if devices > 1:
        return _by_io_callback(ctx, run, arrays)
    # As io_callback does, but for a copy of each array that JAX makes for it.
    held = ctx.tokens_in.get(effect)
    token = held[0] if isinstance(held, tuple) else held
    results, token, _ = mlir.emit_python_callback(
        *(ctx, run, token, list(arrays), ctx.avals_in, ctx.avals_out), has_side_effect=True
    )
    tokens = mlir.TokenSet({effect: (token,) if isinstance(held, tuple) else token})
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(tokens))
    return results


def _by_io_callback(ctx: Any, run: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    """For a program of several devices, which gives the arrays to one of them."""
    results = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in ctx.avals_out]

    def call(*given: Any) -> Any:
        return io_callback(run, results, *given, ordered=True)

    return mlir.lower_fun(call, multiple_results=True)(ctx, *arrays)


mlir.register_lowering(collective_p, _lowered)
mlir.register_lowering(collective_p, functools.partial(_lowered, on_host=True), platform="cpu")


def forget_failures() -> None:
    """Lets programs begin anew where one has failed, whose error the next would get by its token.

    Nothing that was begun may be under way.
    """
    # JAX has no other way to drop a token that holds an error.
    from jax._src import dispatch

    dispatch.runtime_tokens.clear()


def _check_one_device(context: Any) -> None:
    """Raises UnsupportedError where a program runs once on each of several local devices."""
    mesh = getattr(context, "mesh", None)
    replicas = getattr(getattr(context, "axis_env", None), "nreps", 1)
    count = getattr(mesh, "size", replicas)
    if count > 1:
        raise _called_by_each(f"shard_map or pmap over {count}")


def _is_traced_by_pmap() -> bool:
    """Whether a pmap traces that is not made of shard_map, as those of older versions are not.

    It refuses ordered effects after this, in words that no other rank would get. What is traced
    does not say for whom: axes with names are those of vmap as well.
    """
    frame = sys._getframe()
    while frame is not None:
        of_jax = frame.f_globals.get("__name__", "").startswith("jax.")
        if of_jax and frame.f_code.co_name in _OF_PMAP:
            return True
        frame = frame.f_back
    return False


def _called_by_each(mapped: str) -> UnsupportedError:
    return UnsupportedError(
        f"a collective inside {mapped} local devices would be called by each of them: reduce over "
        "the devices first (jax.lax.psum), and call it outside"
    )


def _batched(
    arrays: Sequence[Any], axes: Sequence[Any], *, collective: Collective
) -> tuple[list[Any], list[Any]]:
    """One collective on all elements of a vmap; rows stay the first dimension."""
    by_rows = collective.kind in (ALL_GATHER, REDUCE_SCATTER)
    given, placed = [], []
    for array, axis in zip(arrays, axes, strict=True):
        if by_rows and axis is not None:
            last = array.ndim - 1
            array, axis = jax.numpy.moveaxis(array, axis, last), last
        given.append(array)
        placed.append(axis)
    return bind(collective, given), placed


batching.primitive_batchers[collective_p] = _batched


def _differentiated(
    primals: Sequence[Any], tangents: Sequence[Any], *, collective: Collective
) -> tuple[list[Any], list[Any]]:
    results = bind(collective, primals)
    changed = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]
    if changed and not collective.is_linear():
        raise UnsupportedError(
            f"{collective.kind} with op={collective.op.name.capitalize()} has no gradient: use Sum "
            "or Average, or jax.lax.stop_gradient"
        )
    # Of those that do not change; only the shape of a result may be another.
    derived = [
        None if i in changed else ad.Zero(tangent.aval.update(shape=results[i].shape))
        for i, tangent in enumerate(tangents)
    ]
    if changed:
        given = [tangents[i] for i in changed]
        for i, tangent in zip(changed, bind(collective.tangent(changed), given), strict=True):
            derived[i] = tangent
    return results, derived


ad.primitive_jvps[collective_p] = _differentiated


def _transposed(cotangents: Sequence[Any], *arrays: Any, collective: Collective) -> list[Any]:
    given = [i for i, one in enumerate(cotangents) if not isinstance(one, ad.Zero)]
    gradients: list[Any] = [ad.Zero(array.aval) for array in arrays]
    if given:
        called = collective.transposed(given)
        for i, one in zip(given, bind(called, [cotangents[i] for i in given]), strict=True):
            gradients[i] = one
    return gradients


ad.primitive_transposes[collective_p] = _transposed
