"""How compiled programs call: by XLA's foreign function interface, which Rust answers.

Each array is a call of its own that starts its rounds, as soon as the program has computed it, and
one more call waits for all of them; the program computes meanwhile what needs no result. Calls are
ordered by a token: those of one collective wait for the collective before it. Without a name its
arrays start in their order as well, since ranks match them by that.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from sumpter import _native
from sumpter._calls.collective import BARRIER, Collective, Front
from sumpter._calls.started import Programs, describe, describe_barrier
from sumpter.jax.version import foreign_version

JAX = Front("jax", "call jax.clear_caches()")

_START, _FINISH = "sumpter_start", "sumpter_finish"
# XLA keeps several elements of these in one byte.
_PACKED_BITS = 8

_log = logging.getLogger("sumpter")
_programs = Programs(JAX)


def _register() -> str:
    """Makes the handlers known to XLA; why that is not possible, or an empty text."""
    version = foreign_version()
    if version == (0, 0):
        return "JAX before 0.5 has no foreign function interface for them"
    handlers = _native.xla_handlers(version, _programs.start, _programs.finish)
    if handlers is None:
        return "version {}.{} of XLA's foreign function interface is not known".format(*version)
    for target, handler in zip((_START, _FINISH), handlers, strict=True):
        jax.ffi.register_ffi_target(target, handler, platform="cpu", api_version=1)
    return ""


_unavailable = _register()
# The reasons that have been logged.
_said: set[str] = set()


def why_callbacks(avals: Sequence[Any], on_host: bool, devices: int) -> str:
    """Why a program cannot start rounds of such arrays, and calls through Python callbacks instead.

    Each reason is logged once. Empty if the program can.
    """
    packed = [aval.dtype.name for aval in avals if _bits(aval.dtype) % _PACKED_BITS]
    reason = ""
    if devices > 1:
        reason = f"a program runs on {devices} devices"
    elif not on_host:
        reason = "a program runs on another device than the CPU"
    elif _unavailable:
        reason = _unavailable
    elif packed:
        reason = f"elements of {packed[0]} are less than a byte"
    if reason and reason not in _said:
        _said.add(reason)
        _log.info("compiled programs call through Python callbacks: %s", reason)
    return reason


def lower(ctx: Any, arrays: Sequence[Any], collective: Collective, effect: Any) -> list[Any]:
    """Adds the calls of a collective to the program that is compiled."""
    held = ctx.tokens_in.get(effect)
    token = held[0] if isinstance(held, tuple) else held
    token_aval, number_aval = _token_aval(), jax.core.ShapedArray((8,), np.uint8)
    given, numbers = token, []
    for index, (array, aval) in enumerate(zip(arrays, ctx.avals_in, strict=True)):
        text = describe(collective, index, tuple(aval.shape), np.dtype(aval.dtype))
        number, after = _call(
            ctx, _START, text, [given, array], [token_aval, aval], [number_aval, token_aval]
        )
        numbers.append(number)
        if collective.name is None:
            given = after
    text = describe_barrier(collective) if collective.kind == BARRIER else b""
    *results, token = _call(
        *(ctx, _FINISH, text, [given, *numbers]),
        [token_aval, *[number_aval] * len(numbers)],
        [*ctx.avals_out, token_aval],
    )
    tokens = mlir.TokenSet({effect: (token,) if isinstance(held, tuple) else token})
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(tokens))
    return results


def _call(
    ctx: Any,
    target: str,
    text: bytes,
    operands: Sequence[Any],
    given: Sequence[Any],
    results: Sequence[Any],
) -> Sequence[Any]:
    rule = jax.ffi.ffi_lowering(target, has_side_effect=True)
    within = ctx.replace(avals_in=given, avals_out=results)
    return rule(within, *operands, call=text.decode())


def _token_aval() -> Any:
    """The type of a token, which JAX has in one place or another."""
    from jax._src import core

    return core.abstract_token


def _bits(dtype: Any) -> int:
    if jax.dtypes.issubdtype(dtype, np.integer) and dtype.name != "bool":
        return jax.numpy.iinfo(dtype).bits
    if jax.dtypes.issubdtype(dtype, np.floating):
        return jax.numpy.finfo(dtype).bits
    return _PACKED_BITS
