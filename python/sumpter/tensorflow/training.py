"""A gradient tape whose gradients are those of all ranks, and an optimizer that updates by them."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import keras
import tensorflow as tf

from sumpter._calls.codecs import CompressionLike
from sumpter._core.compression.codecs import Compression
from sumpter._core.process_sets import ProcessSet, global_process_set
from sumpter._core.reduction import Average, ReduceOp
from sumpter.keras import optimizer as of_keras
from sumpter.keras.optimizer import variables_of
from sumpter.tensorflow.gradients import GradientReduction


class DistributedGradientTape:
    """A tape whose gradients are reduced over all ranks, all in one call.

    Everything else is the tape's own. Tapes of different models in one job need different names.
    `device_dense`, `device_sparse`, `num_groups` and `groups` are taken for Horovod's sake: what
    they tune is done in another way. Gradients of sources given to `register_local_source` are not
    reduced, and with `scale_local_gradients` divided by the number of ranks.
    """

    def __init__(
        self,
        gradtape: tf.GradientTape,
        device_dense: str = "",
        device_sparse: str = "",
        compression: CompressionLike = Compression.none,
        sparse_as_dense: bool = False,
        op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "gradients",
    ) -> None:
        self._tape = gradtape
        self._local: set[int] = set()
        self._scales_local = scale_local_gradients
        self._reduction = GradientReduction(
            name, op, compression, sparse_as_dense, gradient_predivide_factor, process_set
        )

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tape.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        **more: Any,
    ) -> Any:
        """The reduced gradients, in the structure of `sources`; None where there is none.

        Their names are those of their places, whatever `use_generic_names` says.
        """
        found = self._tape.gradient(target, sources, output_gradients, **more)
        flat = tf.nest.flatten(found, expand_composites=False)
        asked = tf.nest.flatten(sources, expand_composites=False)
        local = [place for place, source in enumerate(asked) if id(source) in self._local]
        reduced = self._reduction(flat, local, self._scales_local)
        return tf.nest.pack_sequence_as(found, reduced)

    def register_local_source(self, source: Any) -> None:
        """Leaves the gradient of a source as it is on each rank."""
        self._local.add(id(source))
        # Of a variable of Keras either may be asked for.
        if isinstance(source, keras.Variable):
            self._local.add(id(source.value))


def PartialDistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressionLike = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    name: str = "gradients",
) -> DistributedGradientTape:
    """A DistributedGradientTape that leaves the gradients of `local_layers` as they are.

    `local_layers` is a layer of Keras, or several, which must be built.
    """
    made = DistributedGradientTape(
        *(gradtape, device_dense, device_sparse, compression, sparse_as_dense, op),
        *(gradient_predivide_factor, num_groups, groups, process_set, scale_local_gradients, name),
    )
    for variable in variables_of(local_layers):
        made.register_local_source(variable)
    return made


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressionLike = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """The DistributedOptimizer of sumpter.keras, with the arguments in the order of Horovod's here.

    `use_locking` is of TensorFlow 1's optimizers and changes nothing.
    """
    return of_keras.DistributedOptimizer(
        *(optimizer, name, device_dense, device_sparse, compression, sparse_as_dense),
        *(gradient_predivide_factor, op, backward_passes_per_step, average_aggregated_gradients),
        *(num_groups, groups, process_set, scale_local_gradients),
    )
