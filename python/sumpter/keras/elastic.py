"""Elastic training with `model.fit`, under Horovod's names.

state = elastic.KerasState(model, batch=0, epoch=0)

@elastic.run
def train(state):
    while state.epoch < EPOCHS:
        rest = STEPS - state.batch
        model.fit(batches_from(state), steps_per_epoch=rest, epochs=1, callbacks=[
            elastic.UpdateBatchStateCallback(state),
            elastic.UpdateEpochStateCallback(state),
            elastic.CommitStateCallback(state, batches_per_commit=10),
        ])

train(state)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import keras

from sumpter._elastic.loop import cause_in, going_on
from sumpter._elastic.loop import run as _run
from sumpter._elastic.state import ObjectState, State
from sumpter._elastic.variables import ModelState
from sumpter._errors import HostsUpdatedInterrupt

__all__ = [
    "CommitStateCallback",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "State",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_S = TypeVar("_S", bound=State)


def run(func: Callable[Concatenate[_S, _P], _T]) -> Callable[Concatenate[_S, _P], _T]:
    return going_on(func, cause_in)


run.__doc__ = _run.__doc__


class KerasState(ModelState):
    """A state of a model and its optimizer, and of Python's objects, which become attributes.

    A copy of all is kept in memory. ValueError for a model that is not built or not compiled.
    """

    def reset(self) -> None:
        """Has Keras compile its steps anew, for the workers that are there now."""
        super().reset()
        if keras.backend.backend() == "jax":
            from sumpter.jax.primitive import forget_failures

            forget_failures()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Has `state.batch` tell how many batches of the epoch are done: what fit() is to leave out.

    (Horovod's is the number of the last batch, which would be trained on again.)
    """

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state
        self._before = 0

    def on_train_begin(self, logs: Any = None) -> None:
        # The first epoch of this fit() goes on from there.
        self._before = self.state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state.batch = self._before + batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.batch = self._before = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Has `state.epoch` tell how many epochs are done, since the first fit()."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch += 1


class CommitStateCallback(keras.callbacks.Callback):
    """Commits `state` every `batches_per_commit` batches, and at the end of each epoch.

    It comes after the callbacks that update the state. The commit of an epoch's last batch is that
    of its end.
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        if batches_per_commit < 1:
            raise ValueError(f"batches_per_commit is {batches_per_commit}: it must be at least 1")
        self.state, self.batches_per_commit = state, batches_per_commit
        self._rest = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        # Ranks that begin anew count alike.
        self._rest = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._rest -= 1
        if self._rest <= 0 and batch + 1 != (self.params or {}).get("steps"):
            self._commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._commit()

    def _commit(self) -> None:
        self._rest = self.batches_per_commit
        self.state.commit()
