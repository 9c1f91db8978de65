"""Optimizers of Keras that update by all ranks' gradients."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Protocol

import keras

from sumpter._calls.codecs import CompressionLike
from sumpter._core.compression.codecs import Compression
from sumpter._core.process_sets import ProcessSet, global_process_set
from sumpter._core.reduction import Average, ReduceOp
from sumpter._errors import UnsupportedError


class Reduction(Protocol):
    """What a backend does with gradients; those at the places `local` stay this rank's own."""

    def __call__(
        self, gradients: Sequence[Any], local: Collection[int] = (), scales_local: bool = True
    ) -> list[Any]: ...


class _Distributed:
    """What an optimizer of Keras gets in front of its own class."""

    _sumpter_reduction: Reduction
    _sumpter_local: set[int]
    _sumpter_scales_local: bool

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        reduced = self._reduced(grads, trainable_variables)
        return super().apply(reduced, trainable_variables)  # type: ignore[misc]

    def _reduced(self, grads: Any, trainable_variables: Any) -> list[Any]:
        variables = trainable_variables
        if variables is None:
            variables = self._trainable_variables  # type: ignore[attr-defined]
        local = [
            place for place, variable in enumerate(variables) if id(variable) in self._sumpter_local
        ]
        return self._sumpter_reduction(list(grads), local, self._sumpter_scales_local)

    def __setattr__(self, name: str, value: Any) -> None:
        # What a LossScaleOptimizer does with an optimizer that it takes.
        if name == "loss_scale_factor" and value is None and hasattr(self, "_sumpter_reduction"):
            raise UnsupportedError(
                "a LossScaleOptimizer around a distributed optimizer, as model.compile() makes it "
                "with the policy mixed_float16: each rank would decide by itself whether it skips "
                "a step. Give DistributedOptimizer a keras.optimizers.LossScaleOptimizer instead, "
                "or compile(auto_scale_loss=False)"
            )
        super().__setattr__(name, value)

    def register_local_var(self, variable: Any) -> None:
        """Leaves the gradient of a variable as it is on each rank."""
        self._sumpter_local.add(id(variable))
        if isinstance(variable, keras.Variable):
            # TensorFlow's own may be given with gradients as well.
            self._sumpter_local.add(id(variable.value))


class _DistributedScaled(_Distributed):
    """In front of a LossScaleOptimizer, whose stateless_apply() does not call apply().

    What is looked at for infinities is the sum, so all ranks skip the same steps.
    """

    def register_local_var(self, variable: Any) -> None:
        """Refused: an infinity in a gradient that is not summed is one rank's alone."""
        raise UnsupportedError(
            f"{variable.name} has a gradient of its own on each rank: with a LossScaleOptimizer "
            "a rank whose gradient overflows would skip a step that the others take: train such "
            "layers without loss scaling, as with the policy mixed_bfloat16"
        )

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        # They are values here, and the order is that of the variables.
        reduced = self._reduced(grads, None)
        return super().stateless_apply(  # type: ignore[misc]
            optimizer_variables, reduced, trainable_variables
        )


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressionLike = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """An optimizer like the given one that reduces gradients over all ranks, in one call a step.

    It is of a class of the same name, so that a model saved with it is an ordinary one; its state
    is the given one's. Optimizers of different models in one job need different names. The
    arguments that DistributedGradientTape takes for Horovod's sake are taken here too. Gradients of
    variables given to `register_local_var` are not reduced, and with `scale_local_gradients`
    divided by the number of ranks. Raises UnsupportedError for `backward_passes_per_step`: Keras
    has `gradient_accumulation_steps`. `average_aggregated_gradients` is about those passes, and
    changes nothing with one. A LossScaleOptimizer belongs inside: around it, where compile() puts
    one with the policy mixed_float16, it raises UnsupportedError.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UnsupportedError(
            f"a {type(optimizer).__module__}.{type(optimizer).__name__} is no optimizer of Keras 3"
        )
    if backward_passes_per_step != 1:
        raise UnsupportedError(
            f"backward_passes_per_step={backward_passes_per_step}: give the optimizer "
            "gradient_accumulation_steps instead, which is Keras' own"
        )
    kind = type(optimizer)
    if issubclass(kind, _Distributed):
        raise ValueError("the optimizer is distributed already")
    reduction = _reduction_of_backend()(
        name or "gradients",
        *(op, compression, sparse_as_dense, gradient_predivide_factor, process_set),
    )
    scaled = issubclass(kind, keras.optimizers.LossScaleOptimizer)
    front = _DistributedScaled if scaled else _Distributed
    made_of = type(kind.__name__, (front, kind), {"__module__": kind.__module__})
    # As it is, and not by its configuration, which lacks what exclude_from_weight_decay() has set,
    # and from which Keras makes no learning rates of classes that it does not know.
    made = made_of.__new__(made_of)
    made.__dict__.update(optimizer.__dict__)
    made._sumpter_reduction, made._sumpter_local = reduction, set()
    made._sumpter_scales_local = scale_local_gradients
    return made


def PartialDistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressionLike = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """A DistributedOptimizer that leaves the gradients of `local_layers` as they are on each rank.

    `local_layers` is a layer of Keras, or several, which must be built. With
    `scale_local_gradients` their gradients are divided by the number of ranks, as if the other
    ranks' were zero.
    """
    made = DistributedOptimizer(
        *(optimizer, name, device_dense, device_sparse, compression, sparse_as_dense),
        *(gradient_predivide_factor, op, backward_passes_per_step, average_aggregated_gradients),
        *(num_groups, groups, process_set, scale_local_gradients),
    )
    for variable in variables_of(local_layers):
        made.register_local_var(variable)
    return made


def variables_of(layers: Any) -> list[Any]:
    """The trainable variables of a layer of Keras, or of several."""
    listed = layers if isinstance(layers, Iterable) else [] if layers is None else [layers]
    found = []
    for layer in listed:
        if not isinstance(layer, keras.layers.Layer):
            raise ValueError(f"local_layers has a {type(layer).__name__}, which is no layer")
        if not layer.built:
            raise ValueError(f"layer {layer.name} has no variables yet: build the model first")
        found += layer.trainable_variables
    return found


def _reduction_of_backend() -> Any:
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from sumpter.tensorflow.gradients import GradientReduction

        return GradientReduction
    if backend == "jax":
        from sumpter.jax.training import GradientReduction

        return GradientReduction
    advice = "use sumpter.torch, or " if backend == "torch" else ""
    raise UnsupportedError(
        f"Keras runs on {backend} here: {advice}set KERAS_BACKEND to tensorflow or jax"
    )
