"""Keeps Dynamo away from the backend's own Python code.

A compiled model calls the backend from inside (DDP broadcasts buffers before each step), and Dynamo
would compile that frame by frame. Marking code objects costs nothing per call and, unlike a
decorator of Dynamo's, does not import it.
"""

import types
from collections.abc import Iterator


def never_trace(*modules: types.ModuleType) -> None:
    """Marks all functions that the modules define, and with them what they call."""
    try:
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )
    except ImportError:
        return  # a torch without Dynamo, or with another one: code is traced, and works
    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    for module in modules:
        for code in _codes(vars(module).values(), module.__name__):
            set_code_exec_strategy(code, skip)


def _codes(values: object, module: str) -> Iterator[types.CodeType]:
    """The code of functions and of classes of `module`, and what is nested in it."""
    for value in values:
        if isinstance(value, types.CodeType):
            yield value
            yield from _codes(value.co_consts, module)
        elif isinstance(value, property):
            yield from _codes([value.fget], module)
        elif isinstance(value, (staticmethod, classmethod)):
            yield from _codes([value.__func__], module)
        elif isinstance(value, types.FunctionType) and value.__module__ == module:
            yield from _codes([value.__code__], module)
        elif isinstance(value, type) and value.__module__ == module:
            yield from _codes(list(vars(value).values()), module)
