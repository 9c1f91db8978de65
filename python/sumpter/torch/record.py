"""Records the profile of a model while it trains: see `sumpter.profiles`.

    with sumpter.torch.record(model, "run.profile.json"):
        train(model)

Hooks note when each layer's forward pass begins and ends, when its backward pass begins, and when
each gradient is complete. They are removed as soon as enough iterations have been seen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from sumpter import profiles
from sumpter._errors import ProfileError
from sumpter.profiles import observed
from sumpter.profiles.model import ELEMENT_BYTES

ITERATIONS = 5
WARMUP = 2

_log = logging.getLogger("sumpter")


class Recorder:
    """Watches a model until it has seen enough iterations of training.

    An iteration begins with a forward pass of the model in training mode and with gradients, and
    lasts until its next forward pass of any kind. Its time is that of the process, with whatever it
    waits for: record with one worker.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        output: str | Path | None = None,
        *,
        iterations: int = ITERATIONS,
        warmup: int = WARMUP,
        name: str | None = None,
        batch_size: int | None = None,
    ) -> None:
        """Begins to watch. With `output` the profile is written there once it is complete.

        Without `batch_size` it is the first dimension of the first tensor that the model is given.
        """
        if iterations < 1 or warmup < 0:
            raise ValueError("iterations must be 1 or more, and warmup 0 or more")
        self._model, self._output = model, output
        self._wanted, self._warmup = iterations, warmup
        self._name, self._batch_size = name or type(model).__name__, batch_size
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not self._parameters:
            raise ValueError("the model has no parameter that gets a gradient")
        self._stamp, self._device = _clock(next(iter(self._parameters.values())))
        self._layers: dict[torch.nn.Module, int] = {}  # by first use
        self._names = {module: path or self._name for path, module in model.named_modules()}
        self._current: _Raw | None = None
        self._seen: list[_Raw] = []
        self._profile: profiles.Profile | None = None
        self._hooks = list(self._install())

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def is_done(self) -> bool:
        """Whether the profile is complete."""
        return self._profile is not None

    @property
    def profile(self) -> profiles.Profile:
        """The profile; raises ProfileError until enough iterations have been seen."""
        if self._profile is None:
            raise ProfileError(
                f"seen {max(0, len(self._seen) - self._warmup)} of {self._wanted} iterations after "
                f"{self._warmup} of warm-up; an iteration ends when the model is called again"
            )
        return self._profile

    def close(self) -> None:
        """Stops watching."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._current = None

    def _install(self) -> Iterator[Any]:
        # First, so that an iteration begins before its first layer does.
        yield self._model.register_forward_pre_hook(self._begin_iteration, with_kwargs=True)
        for module in self._model.modules():
            if next(module.children(), None) is None or module._parameters:
                yield module.register_forward_pre_hook(self._begin_layer)
                yield module.register_forward_hook(self._end_layer)
        for index, parameter in enumerate(self._parameters.values()):
            yield parameter.register_post_accumulate_grad_hook(self._at_gradient(index))

    def _begin_iteration(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        now = self._stamp()
        raw, self._current = self._current, None
        if raw is not None and raw.ready:
            raw.end = now
            self._seen.append(raw)
            if len(self._seen) == self._warmup + self._wanted:
                self._finish()
                return
        if not (module.training and torch.is_grad_enabled()):
            # An evaluation, which is part of no iteration.
            return
        if self._batch_size is None:
            given = next((one for one in (*args, *kwargs.values()) if _is_batch(one)), None)
            self._batch_size = None if given is None else len(given)
        self._current = _Raw(now)

    # What follows runs for each layer of each iteration, so it does as little as it can.

    def _begin_layer(self, module: torch.nn.Module, args: tuple) -> None:
        raw = self._current
        if raw is not None:
            layer = self._layers.setdefault(module, len(self._layers))
            parent = raw.open[-1] if raw.open else None
            raw.open.append(len(raw.calls))
            raw.calls.append([layer, parent, self._stamp(), None])

    def _end_layer(self, module: torch.nn.Module, args: tuple, output: object) -> None:
        raw = self._current
        if raw is None or not raw.open:
            return
        call = raw.calls[raw.open.pop()]
        call[3] = self._stamp()
        for tensor in (output,) if isinstance(output, torch.Tensor) else _tensors(output):
            node = tensor.grad_fn
            if node is not None:
                # A tenth of what a hook of the tensor costs.
                node.register_prehook(self._at_backward(raw, call[0]))
            elif tensor.requires_grad:
                tensor.register_hook(self._at_backward(raw, call[0]))

    def _at_backward(self, raw: _Raw, layer: int) -> Callable[[object], None]:
        stamp, note = self._stamp, raw.backward.append

        def backward_begins(gradients: object) -> None:
            note((layer, stamp()))

        return backward_begins

    def _at_gradient(self, index: int) -> Callable[[torch.Tensor], None]:
        stamp = self._stamp

        def gradient_ready(parameter: torch.Tensor) -> None:
            raw = self._current
            if raw is not None:
                raw.ready[index] = stamp()

        return gradient_ready

    def _finish(self) -> None:
        self.close()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        iterations = [raw.timed() for raw in self._seen[self._warmup :]]
        complete = set.intersection(*(set(one.ready) for one in iterations))
        parameters = self._describe(complete)
        kept = [
            observed.Iteration(
                one.seconds,
                one.calls,
                one.backward,
                {new: one.ready[old] for new, old in enumerate(sorted(complete))},
            )
            for one in iterations
        ]
        self._profile = observed.profile_of(
            *(self._name, [self._names[module] for module in self._layers], parameters, kept),
            device=_device_name(self._device),
            batch_size=self._batch_size,
            add=observed.measure_additions(),
        )
        if self._output is not None:
            profiles.save(self._profile, self._output)
            _log.info("wrote the profile of %s to %s", self._name, self._output)

    def _describe(self, complete: set[int]) -> list[observed.Parameter]:
        """The parameters that always got a gradient, each with the first layer that has it."""
        layer_of: dict[torch.Tensor, int] = {}
        for module, layer in self._layers.items():
            for parameter in module.parameters(recurse=False):
                layer_of.setdefault(parameter, layer)
        described = []
        for index, (name, parameter) in enumerate(self._parameters.items()):
            if index in complete:
                dtype = str(parameter.dtype).removeprefix("torch.")
                size = parameter.numel() * parameter.element_size()
                # Whose module was never called is used by another one, at the earliest the first.
                layer = layer_of.get(parameter, 0)
                described.append(observed.Parameter(name, layer, size, dtype))
        return described


@dataclass
class _Raw:
    """The stamps of one iteration."""

    begin: Any
    end: Any = None
    calls: list[list[Any]] = field(default_factory=list)
    open: list[int] = field(default_factory=list)
    backward: list[tuple[int, Any]] = field(default_factory=list)
    ready: dict[int, Any] = field(default_factory=dict)

    def timed(self) -> observed.Iteration:
        """The same in seconds since its begin."""

        def seconds(stamp: Any) -> float:
            if isinstance(stamp, float):
                return stamp - self.begin
            return self.begin.elapsed_time(stamp) / 1000

        # Where activations are computed anew, torch ends the last call as soon as it can.
        calls = [
            observed.Forward(layer, parent, seconds(begun), seconds(ended or begun))
            for layer, parent, begun, ended in self.calls
        ]
        return observed.Iteration(
            seconds(self.end),
            tuple(calls),
            tuple((layer, seconds(stamp)) for layer, stamp in self.backward),
            {index: seconds(stamp) for index, stamp in self.ready.items()},
        )


def record(
    model: torch.nn.Module,
    output: str | Path | None = None,
    *,
    iterations: int = ITERATIONS,
    warmup: int = WARMUP,
    name: str | None = None,
    batch_size: int | None = None,
) -> Recorder:
    """Records the profile of a model while it trains; returns the recorder, also as a context.

    `recorder.profile` has it after `warmup` iterations, which do not count, and `iterations`.
    """
    return Recorder(
        model, output, iterations=iterations, warmup=warmup, name=name, batch_size=batch_size
    )


def _clock(parameter: torch.Tensor) -> tuple[Callable[[], Any], torch.device]:
    """What makes stamps: on a GPU they are put into its stream, since the host runs ahead."""
    device = parameter.device
    element = str(parameter.dtype).removeprefix("torch.")
    if element not in ELEMENT_BYTES:
        raise ProfileError(f"dtype: parameters of {element} are not in the format of profiles")
    if device.type == "cpu":
        return time.perf_counter, device
    if device.type != "cuda":
        raise ProfileError(f"device: cannot take times on {device.type}, only on cpu and cuda")

    def stamp() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    return stamp, device


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _is_batch(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _tensors(output: object) -> Iterator[torch.Tensor]:
    """The tensors in what a layer returns."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _tensors(value)
