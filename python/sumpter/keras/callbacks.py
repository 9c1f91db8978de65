"""Callbacks for `model.fit`, under Horovod's names."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from sumpter._calls.collective import ALL_REDUCE
from sumpter._calls.objects import broadcast_variables, reduce_numbers
from sumpter._calls.refusals import Checking
from sumpter._calls.values import reduce_value
from sumpter._core import membership
from sumpter._core.compression.codecs import Compression
from sumpter._core.reduction import Average, Min
from sumpter._elastic.variables import settle
from sumpter._errors import MismatchError

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives weights and the optimizer's state rank `root_rank`'s values when training begins.

    `local_variables` keep their own. If the model of some rank is not built yet, all ranks get them
    after their first batch.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self._local = {id(variable) for variable in local_variables or ()}
        self._is_done = False

    def on_train_begin(self, logs: Any = None) -> None:
        self._is_done = False
        # Ranks may differ: a model that one of them has loaded is built already.
        (built,) = reduce_numbers([int(self.model.built)], Min, "broadcast.built")
        if built:
            optimizer = self.model.optimizer
            if optimizer is not None and not optimizer.built:
                optimizer.build(self.model.trainable_variables)
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._is_done:
            self._broadcast()

    def _broadcast(self) -> None:
        settle(self.model)
        optimizer = self.model.optimizer
        variables = [*self.model.weights, *(() if optimizer is None else optimizer.variables)]
        broadcast_variables([v for v in variables if id(v) not in self._local], self.root_rank)
        self._is_done = True


class MetricAverageCallback(keras.callbacks.Callback):
    """Replaces the metrics of an epoch by their averages over all ranks.

    It must come before callbacks that use them, such as ReduceLROnPlateau and ModelCheckpoint.
    MismatchError on all ranks if they have different metrics, such as those of a validation that
    only some ranks do.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        names = sorted(logs or ())
        mark = zlib.crc32(repr(names).encode()) >> 1
        least, most = reduce_numbers([mark, -mark], Min, "metrics.names")
        if least != -most:
            raise MismatchError(
                f"ranks have different metrics, and this one has {', '.join(names) or 'none'}: "
                "give all ranks or none validation data"
            )
        if not names:
            return
        word = "metrics." + ".".join(names)
        with Checking(ALL_REDUCE, word):
            own = np.array([float(logs[name]) for name in names])
        mean = reduce_value(own, Average, word, Compression.none)
        logs.update(zip(names, map(float, mean), strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to `initial_lr` times `multiplier`, a function of epochs or a number.

    `initial_lr` is by default the optimizer's rate when training first begins. A number is raised
    to the power of the epochs since `start_epoch`: exponential decay. The rate is set from
    `start_epoch` to before `end_epoch`; with `staircase` once an epoch, else in each batch, for
    which epochs have fractions. `steps_per_epoch` is found out if it is not given.
    `momentum_correction` changes nothing: Keras 3 has the momentum in the compiled step.
    """

    def __init__(
        self,
        initial_lr: float | None = None,
        multiplier: float | Callable[[float], float] | None = None,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if multiplier is None:
            raise ValueError("multiplier is None: give a number, or a function of epochs")
        self.initial_lr, self.steps_per_epoch = initial_lr, steps_per_epoch
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.staircase = staircase
        self._multiplier = (
            multiplier if callable(multiplier) else _decay_of(multiplier, start_epoch)
        )
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        if self.initial_lr is None:
            settle(self.model)
            self.initial_lr = float(self.model.optimizer.learning_rate)
        if self.steps_per_epoch is None:
            self.steps_per_epoch = (self.params or {}).get("steps")
        if not self.staircase and not self.steps_per_epoch:
            raise ValueError("the number of steps of an epoch is not known: give steps_per_epoch")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        if self.staircase:
            self._adjust(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self.staircase:
            self._adjust(self._epoch + batch / self.steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)

    def _adjust(self, epoch: float) -> None:
        if self.start_epoch <= epoch and (self.end_epoch is None or epoch < self.end_epoch):
            settle(self.model)
            self.model.optimizer.learning_rate = self.initial_lr * self._multiplier(epoch)


def _decay_of(multiplier: float, start_epoch: int) -> Callable[[float], float]:
    return lambda epoch: multiplier ** (epoch - start_epoch)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate over some epochs from `initial_lr` over all ranks' number to it.

    "Accurate, Large Minibatch SGD" (https://arxiv.org/abs/1706.02677), section 2.2. `initial_lr` is
    the rate after the warm-up, which is usually that of one rank times their number; by default it
    is the optimizer's rate when training first begins.
    """

    def __init__(
        self,
        initial_lr: float | None = None,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # Round numbers at the end of each epoch.
            epoch += 1.0 / self.steps_per_epoch
            ranks = membership.size()
            return (epoch * (ranks - 1) / warmup_epochs + 1) / ranks

        self.verbose = verbose
        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if epoch == self.end_epoch - 1 and self.verbose > 0:
            rate = float(self.model.optimizer.learning_rate)
            print(f"Epoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Saves the best model so far by a metric, on rank 0 only, to `filepath`.

    Horovod's has no `filepath` of its own: its estimators set it, as may be done here before fit().
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_weights_only: bool = False,
        save_freq: str | int = "epoch",
        filepath: Any = None,
    ) -> None:
        # Keras checks the ending of the name here.
        placeholder = "best.weights.h5" if save_weights_only else "best.keras"
        super().__init__(
            filepath or placeholder,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        if filepath is None:
            self.filepath = None

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.filepath:
            raise ValueError(
                "BestModelCheckpoint has no filepath: give one, or set it before fit()"
            )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if membership.rank() == 0:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if membership.rank() == 0:
            super().on_epoch_end(epoch, logs)
