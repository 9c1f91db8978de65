"""States of variables, and of models that consist of them, in frameworks that assign in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sumpter._calls.objects import broadcast_arrays
from sumpter._elastic.state import OLDEST, ObjectState


class VariablesState(ObjectState):
    """A state of variables and of Python's objects; a copy of all is kept in memory.

    A variable has numpy() and assign(). `name` is what the variables of one state are known by.
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._name = name
        self._kept = self._values()

    def save(self) -> None:
        """Keeps copies of everything."""
        self._kept = self._values()
        super().save()

    def restore(self) -> None:
        """Takes everything back to the last save()."""
        self._assign(self._kept)
        super().restore()

    def sync(self) -> None:
        """Gives everything the state of the oldest rank, and keeps it."""
        self._assign(broadcast_arrays(self._values(), OLDEST, f"elastic.{self._name}"))
        super().sync()

    def held_variables(self) -> Sequence[Any]:
        """The variables, in an order that is the same on all ranks."""
        raise NotImplementedError

    def _values(self) -> list[np.ndarray]:
        return [np.array(variable.numpy()) for variable in self.held_variables()]

    def _assign(self, values: Sequence[np.ndarray]) -> None:
        for variable, value in zip(self.held_variables(), values, strict=True):
            variable.assign(value)


class ModelState(VariablesState):
    """A state of a model and an optimizer of Keras 3, and of Python's objects.

    ValueError for a model that is not built, or that has no optimizer when none is given. An
    optimizer that is not built gets its variables here.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not getattr(model, "built", True):
            raise ValueError("the model has no variables yet: call model.build(input_shape) first")
        optimizer = optimizer or getattr(model, "optimizer", None)
        if optimizer is None:
            raise ValueError("the model has no optimizer: compile it first, or give an optimizer")
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        self.model, self.optimizer = model, optimizer
        super().__init__("model", **kwargs)

    def held_variables(self) -> Sequence[Any]:
        """The model's weights and the optimizer's variables."""
        settle(self.model)
        return [*self.model.weights, *self.optimizer.variables]

    def reset(self) -> None:
        """Has Keras trace its steps anew, for the number of ranks that there is now."""
        for function in ("train_function", "test_function", "predict_function"):
            if hasattr(self.model, function):
                setattr(self.model, function, None)


def settle(model: Any) -> None:
    """Has a model of Keras hold its variables' values, which on JAX are elsewhere during fit()."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()
