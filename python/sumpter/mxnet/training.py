"""Gradients of a step, an optimizer that reduces them, and a trainer for gluon."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import mxnet as mx

from sumpter._calls.codecs import CompressionLike, choice_for, codecs_of_gradients
from sumpter._core import membership
from sumpter._core.compression.choice import Choice
from sumpter._core.compression.codecs import Compression
from sumpter._core.process_sets import ProcessSet, global_process_set, members
from sumpter._core.reduction import Average, Reduction, Sum
from sumpter._errors import UnsupportedError
from sumpter.mxnet.arrays import assign, check_reducible, dtype_name, is_sparse
from sumpter.mxnet.calls import checking, reduce_all
from sumpter.mxnet.functions import broadcast_values, is_deferred, values_of


class GradientReduction:
    """Reduces a step's gradients in place, in one call.

    Each is known by its number. The last layer's is begun first, since the backward pass computes
    it first; the first layer's is sent first, since the next forward pass needs it first.
    """

    def __init__(
        self, name: str, reduction: Reduction, choice: Choice, process_set: ProcessSet
    ) -> None:
        process_set.included()  # raises for a set that was not added
        if membership.current().worker.asynchronous:
            raise UnsupportedError(
                "the setting asynchronous (BYTEPS_ENABLE_ASYNC) is of sumpter.torch only: unset it"
            )
        self._name, self._reduction, self._choice = name, reduction, choice
        self._process_set = process_set

    def __call__(self, gradients: Mapping[int, Any]) -> None:
        """Replaces gradients, by their numbers, by what they are over all ranks."""
        # Of one rank as well, by whose rounds its iterations are recorded.
        if not self._process_set.included():
            return
        numbers = sorted(gradients, reverse=True)
        paths, all_given = [f".{number}" for number in numbers], [gradients[n] for n in numbers]
        with checking(all_given, self._name, self._process_set, paths):
            given = [check_reducible(gradients[n], f"{self._name}.{n}") for n in numbers]
            forms = {
                str(number): (tuple(array.shape), dtype_name(array))
                for number, array in zip(numbers, given, strict=True)
                if not is_sparse(array)
            }
            codecs = codecs_of_gradients(self._choice, forms)
        results = reduce_all(
            given,
            self._name,
            self._process_set,
            paths=paths,
            reduction=self._reduction,
            codecs=[codecs.get(str(number), "") for number in numbers],
            priorities=[-number for number in numbers],
        )
        for array, result in zip(given, results, strict=True):
            assign(array, result)


class DistributedOptimizer(mx.optimizer.Optimizer):
    """Updates by gradients averaged over all ranks; everything else is the given optimizer's own.

    For Module, and wherever an updater gets an optimizer; gluon has DistributedTrainer. Where the
    updater gives all gradients of a step at once, they are reduced in one call. `num_groups` is
    taken for Horovod's sake: gradients are cut by size anyway.
    """

    # What is not the given optimizer's own.
    _OWN = frozenset(["_optimizer", "_reduce", "aggregate_num"])

    def __init__(
        self,
        optimizer: mx.optimizer.Optimizer,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
        compression: CompressionLike = Compression.none,
    ) -> None:
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise TypeError(
                f"optimizer is a {type(optimizer).__name__}: give one of mx.optimizer, such as "
                "mx.optimizer.create('sgd')"
            )
        factor = _checked(gradient_predivide_factor)
        choice = choice_for(compression, "DistributedOptimizer")
        self._optimizer = optimizer
        reduction = Reduction(Average, 1.0 / factor, factor)
        self._reduce = GradientReduction("update", reduction, choice, process_set)
        # So that an updater gives all gradients of a step at once.
        self.aggregate_num = sys.maxsize

    def __getattr__(self, name: str) -> Any:
        # An instance that is being unpickled has no optimizer yet.
        if name in self._OWN or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OWN:
            super().__setattr__(name, value)
        else:
            setattr(self._optimizer, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)

    def create_state(self, index: Any, weight: Any) -> Any:
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._reduce_and(self._optimizer.update, index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._reduce_and(self._optimizer.update_multi_precision, index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Mapping[Any, float]) -> None:
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Mapping[Any, float]) -> None:
        self._optimizer.set_wd_mult(args_wd_mult)

    def _reduce_and(self, update: Any, index: Any, weight: Any, grad: Any, state: Any) -> None:
        if not isinstance(index, (list, tuple)):
            self._reduce({index: grad})
            update(index, weight, grad, state)
            return
        self._reduce(dict(zip(index, grad, strict=True)))
        # As many at once as the optimizer takes, as MXNet's updater gives them.
        most = self._optimizer.aggregate_num
        if most < 1:
            for one in zip(index, weight, grad, state, strict=True):
                update(*one)
            return
        for start in itertools.takewhile(lambda n: n < len(index), itertools.count(0, most)):
            part = slice(start, start + most)
            update(index[part], weight[part], grad[part], state[part])


class DistributedTrainer(mx.gluon.Trainer):
    """A trainer of gluon whose step() updates by the average of all ranks' gradients.

    The first step gives all ranks the parameters of `root_rank`, by default the first rank's, as
    BytePS does; where the first forward pass must be the same already, call broadcast_parameters()
    before it. allreduce_grads() leaves the sums of gradients, which update() averages, as Horovod
    has it.

    `compression` is a codec of Compression, by which gradients of two and more dimensions travel;
    `compression_params` is BytePS' dictionary of one. The latter's momentum takes the place of the
    optimizer's, whose factor it takes. Trainers of different models take different prefixes.
    `num_groups` is taken for Horovod's sake: gradients are cut by size anyway. BytePS' fourth and
    fifth argument, `root_rank` and `compression_params`, are understood there too.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Mapping[str, Any] | None = None,
        compression: CompressionLike | int = Compression.none,
        gradient_predivide_factor: Any = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
        root_rank: int | None = None,
        compression_params: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(compression, int):
            root_rank, compression = compression, Compression.none
        if gradient_predivide_factor is None or isinstance(gradient_predivide_factor, Mapping):
            compression_params, gradient_predivide_factor = gradient_predivide_factor, 1.0
        factor = _checked(gradient_predivide_factor)
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer takes the optimizer itself: it has been taken out of the "
                "DistributedOptimizer",
                stacklevel=2,
            )
            optimizer = optimizer._optimizer
        own = dict(optimizer_params or {})
        if compression_params:
            compression = _with_momentum(compression_params, own)
        choice = choice_for(compression, "DistributedTrainer")
        self._prefix, self._process_set = prefix or "", process_set
        name = f"gradient.{self._prefix}" if self._prefix else "gradient"
        reduction = Reduction(Sum, 1.0 / factor)
        self._reduce = GradientReduction(name, reduction, choice, process_set)
        super().__init__(params, optimizer, own, kvstore=None)
        self._check_parameters()
        self._root_rank = root_rank
        # Those that have not been given the root's value yet.
        self._own_start = list(range(len(self._params)))
        count = len(members(process_set)) if process_set.included() else 1
        self._scale *= factor / count

    def _check_parameters(self) -> None:
        if len(self._contexts) > 1:
            raise UnsupportedError(
                f"parameters are on {len(self._contexts)} devices of one process: start a process "
                "for each device, and initialize them on that one"
            )
        for parameter in self._params:
            if parameter._stype != "default":
                values_of(parameter)  # raises

    def _allreduce_grads(self) -> None:
        if not self._process_set.included():
            return
        if self._own_start:
            self._broadcast()
        self._reduce(
            {
                number: parameter.list_grad()[0]
                for number, parameter in enumerate(self._params)
                if parameter.grad_req != "null"
            }
        )

    def _broadcast(self) -> None:
        """Gives the root's values to what is initialized by now."""
        waiting = [number for number in self._own_start if is_deferred(self._params[number])]
        ready = [number for number in self._own_start if number not in waiting]
        root = members(self._process_set)[0] if self._root_rank is None else self._root_rank
        targets = {str(number): values_of(self._params[number]) for number in ready}
        broadcast_values(targets, root, f"trainer.{self._prefix}", self._process_set)
        self._own_start = waiting


def _checked(predivide: float) -> float:
    if not predivide > 0:
        raise ValueError(f"gradient_predivide_factor is {predivide}: give a number above 0")
    return float(predivide)


def _with_momentum(given: Mapping[str, Any], optimizer_params: dict[str, Any]) -> dict[str, Any]:
    """BytePS' dictionary with the optimizer's factor of momentum, which the optimizer then lacks.

    As in BytePS the codec has the momentum, so that it is part of what is encoded.
    """
    found = dict(given)
    if found.get("momentum") and found.get("mu") is None and "momentum" in optimizer_params:
        found["mu"] = optimizer_params.pop("momentum")
    return found
