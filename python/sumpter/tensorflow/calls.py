"""How a call becomes an operation of TensorFlow: at once, or one of a graph, with a gradient."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from sumpter._arrays import SUMMABLE
from sumpter._calls.codecs import CompressionLike
from sumpter._calls.collective import Collective, Front
from sumpter._calls.refusals import Checking
from sumpter._calls.rounds import perform
from sumpter._core import membership
from sumpter._core.compression.choice import Limits, choose
from sumpter._core.compression.codecs import NoneCompressor
from sumpter._core.process_sets import ProcessSet, global_process_set, members
from sumpter._core.reduction import Adasum, ReduceOp, Sum, choose_op
from sumpter._errors import UnsupportedError

TENSORFLOW = Front("tensorflow", "trace the tf.function anew")


def call(
    kind: str,
    tensors: Sequence[tf.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    op: ReduceOp = Sum,
    root: int = 0,
    codecs: tuple[str, ...] = (),
) -> list[tf.Tensor]:
    """Carries out a collective on several tensors together."""
    if not tensors:
        return []
    paths, size = _paths(len(tensors)), len(members(process_set))
    called = Collective(
        *(TENSORFLOW, kind, paths, name, op, root, process_set, size),
        codecs or ("",) * len(tensors),
    )
    return _differentiable(called, tensors)


def checking(
    kind: str,
    tensors: Sequence[Any],
    name: str | None,
    process_set: ProcessSet = global_process_set,
) -> Checking:
    """The checks of a call() on so many tensors, before it."""
    return Checking(kind, name, process_set, lambda: dict.fromkeys(_paths(len(tensors))))


def _paths(count: int) -> tuple[str, ...]:
    """What the names of so many tensors of a call end with."""
    return ("",) if count == 1 else tuple(f".{index}" for index in range(count))


# What is here needs no rewriting into operations of a graph.
@tf.autograph.experimental.do_not_convert
def _differentiable(called: Collective, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    @tf.custom_gradient
    @tf.autograph.experimental.do_not_convert
    def function(*given: tf.Tensor) -> tuple[Any, Any]:
        @tf.autograph.experimental.do_not_convert
        def gradient(*upstream: Any) -> list[tf.Tensor]:
            if not called.is_linear():
                raise UnsupportedError(f"there is no gradient of a reduction by {called.op.value}")
            transposed = called.transposed(range(len(upstream)))
            return _differentiable(transposed, [tf.convert_to_tensor(one) for one in upstream])

        return _run(called, given), gradient

    return list(function(*tensors))


def _run(called: Collective, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """At once where TensorFlow runs eagerly, otherwise one operation of the graph."""
    if tf.executing_eagerly():
        results = perform(called, [tensor.numpy() for tensor in tensors])
        return [tf.convert_to_tensor(result) for result in results]

    with Checking.of(called):
        _check_not_compiled(called)

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        return perform(called, [np.asarray(array) for array in arrays])

    # Stateful: tf.function keeps the order of such operations, and removes none.
    results = tf.numpy_function(
        run,
        list(tensors),
        [tensor.dtype for tensor in tensors],
        # XLA's own message shows it, where a function was traced before another compiles it.
        name=f"sumpter.{called.kind}.needs_jit_compile_False",
    )
    for result, tensor in zip(results, tensors, strict=True):
        result.set_shape(_result_shape(called, tensor.shape))
    return list(results)


def _check_not_compiled(called: Collective) -> None:
    """Raises UnsupportedError while a function is traced for XLA, which cannot call Python.

    Nothing of a graph says so, but the function that is being traced is among the callers.
    """
    frame = sys._getframe(1)
    while frame is not None:
        function = frame.f_locals.get("self") if "self" in frame.f_code.co_varnames else None
        if isinstance(function, tf.types.experimental.PolymorphicFunction) and getattr(
            function, "_jit_compile", False
        ):
            traced = getattr(function, "__name__", "a function")
            raise UnsupportedError(
                f"{called.kind} of {described(called.name)} is within {traced}(), which XLA "
                "compiles, and its code cannot call Sumpter: leave out jit_compile=True of that "
                "tf.function, and pass jit_compile=False to Keras' model.compile(), whose default "
                "compiles on a GPU"
            )
        frame = frame.f_back


def _result_shape(called: Collective, shape: tf.TensorShape) -> tf.TensorShape:
    """The shape of a result, as far as that of its tensor is known."""
    if shape.rank is None:
        return shape
    known = called.result_shape(tuple(-1 if extent is None else extent for extent in shape))
    rest = [None if extent is None or extent < 0 else extent for extent in known]
    return tf.TensorShape([None if shape[0] is None else known[0], *rest[1:]] if rest else [])


def dense(tensor: Any, name: str | None = None) -> tf.Tensor:
    """A tensor of numbers; raises UnsupportedError for what has another form on each rank."""
    if isinstance(tensor, (tf.RaggedTensor, tf.SparseTensor)):
        raise UnsupportedError(
            f"{described(name)} is a {type(tensor).__name__} on rank {membership.rank()}, which "
            "may have another form on each: give a dense tensor"
        )
    made = tf.convert_to_tensor(tensor)
    if made.dtype in (tf.string, tf.resource, tf.variant):
        raise UnsupportedError(
            f"{described(name)} is of {made.dtype.name} on rank {membership.rank()}: give a tensor "
            "of numbers"
        )
    return made


def reducible(tensor: Any, name: str | None = None) -> tf.Tensor:
    """A tensor that the core can reduce."""
    made = dense(tensor, name)
    if made.dtype.name not in SUMMABLE:
        raise UnsupportedError(
            f"{described(name)} is of {made.dtype.name} on rank {membership.rank()}, which cannot "
            "be reduced: cast it first"
        )
    return made


def scaled(tensor: tf.Tensor, factor: float) -> tf.Tensor:
    """A tensor times a number; integers are rounded towards zero, as Horovod does."""
    if factor == 1.0:
        return tensor
    if tensor.dtype.is_floating:
        return tensor * tf.cast(factor, tensor.dtype)
    return tf.cast(tf.cast(tensor, tf.float64) * factor, tensor.dtype)


def described(name: str | None) -> str:
    """A tensor as messages show it."""
    return "the tensor" if name is None else f"tensor {name}"


def reduction(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    """The reduction that Horovod's two arguments for it say."""
    chosen = choose_op(op, average)
    if chosen is Adasum:
        raise UnsupportedError("there is no Adasum of TensorFlow's tensors: use Average")
    return chosen


def codecs_of(
    tensors: Sequence[tf.Tensor], compression: CompressionLike, op: ReduceOp, named: bool
) -> tuple[str, ...]:
    """By which codec each tensor travels."""
    choice = choose(compression)
    if choice.compressor is not NoneCompressor:
        raise UnsupportedError(
            f"allreduce of TensorFlow's tensors takes codecs of Compression, not {compression!r}: "
            "cast the tensors"
        )
    limits, sums = Limits.of(membership.current().worker), op.wire_name == "sum"
    found = []
    for tensor in tensors:
        if tensor.shape.is_fully_defined():
            shape = tuple(tensor.shape)
        elif choice.is_default and not limits.codec:
            shape = ()
        else:
            raise UnsupportedError(
                f"a codec needs the shape of a tensor when the function is traced, not "
                f"{tensor.shape}: give the function an input_signature, or compression='off'"
            )
        form = shape, tensor.dtype.name
        found.append(limits.codec_of(choice, *form, sums=sums, named=named))
    return tuple(found)
