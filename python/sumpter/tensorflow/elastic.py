"""Training that goes on when workers die or join, in the words of Horovod's elastic API.

state = elastic.TensorFlowKerasState(model, optimizer, step=0)

@elastic.run
def train(state):
    while state.step < STEPS:
        ...
        state.step += 1
        state.commit()

train(state)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import tensorflow as tf

from sumpter._elastic.loop import cause_in, going_on
from sumpter._elastic.loop import run as _run
from sumpter._elastic.state import ObjectState, State
from sumpter._elastic.variables import ModelState, VariablesState
from sumpter._errors import HostsUpdatedInterrupt, UnsupportedError

__all__ = [
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "run",
]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_S = TypeVar("_S", bound=State)


class TensorFlowState(VariablesState):
    """A state of TensorFlow's variables and of Python's objects, which become attributes.

    `session` is Horovod's, of TensorFlow 1. A copy of all is kept in memory.
    """

    def __init__(
        self, variables: Sequence[tf.Variable] | None = None, session: object = None, **kwargs: Any
    ) -> None:
        if session is not None:
            raise UnsupportedError("TensorFlow 1's sessions are not supported: leave it out")
        if not variables:
            raise ValueError("give the variables: TensorFlow 2 has no list of all of them")
        self.variables = list(variables)
        super().__init__("variables", **kwargs)

    def held_variables(self) -> Sequence[tf.Variable]:
        """Those that were given."""
        return self.variables


class TensorFlowKerasState(ModelState):
    """A state of a model and an optimizer of Keras 3, and of Python's objects.

    `model`, `optimizer` (that of the model if it is not given) and every other keyword become
    attributes. A copy of all is kept in memory. `backend` is Horovod's and changes nothing.
    ValueError for a model that is not built, or that has no optimizer when none is given.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: object = None, **kwargs: Any
    ) -> None:
        super().__init__(model, optimizer, **kwargs)


def run(func: Callable[Concatenate[_S, _P], _T]) -> Callable[Concatenate[_S, _P], _T]:
    return going_on(func, cause_in)


run.__doc__ = _run.__doc__
