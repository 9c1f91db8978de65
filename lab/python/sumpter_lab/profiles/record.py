"""Records the profile of a model while it trains: see `sumpter.profiles`.

    with record(model, "run.profile.json"):
        train(model)

Hooks note when each layer's forward pass begins and ends, when its backward pass begins, and when
each gradient is complete. That takes time, so of every second iteration only its own time is noted.
They are removed as soon as enough iterations have been seen.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from sumpter._errors import ProfileError
from sumpter.profiles import Profile, save
from sumpter.profiles.model import ELEMENT_BYTES
from sumpter_lab.profiles import observed

ITERATIONS = 5
WARMUP = 2

_log = logging.getLogger("sumpter")


class Recorder:
    """Watches a model until it has seen enough iterations of training.

    Those of the warm-up do not count. Of each two after them, the layers of one are watched, and
    the other shows how long an iteration lasts where they are not.

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
        self._names = {module: path or self._name for path, module in model.named_modules()}
        self._current: _Raw | None = None
        self._watched: _Raw | None = None  # the current one, if its layers are watched
        self._seen: list[_Raw] = []
        self._profile: Profile | None = None
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
    def profile(self) -> Profile:
        """The profile; raises ProfileError until enough iterations have been seen."""
        if self._profile is None:
            raise ProfileError(
                f"seen {max(0, len(self._seen) - self._warmup)} of {2 * self._wanted} iterations "
                f"after {self._warmup} of warm-up (the layers of every second one are watched); an "
                "iteration ends when the model is called again"
            )
        return self._profile

    def close(self) -> None:
        """Stops watching."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._current = self._watched = None

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
        raw, self._current, self._watched = self._current, None, None
        if raw is not None and raw.ready:
            raw.end = now
            self._seen.append(raw)
            if len(self._seen) == self._warmup + 2 * self._wanted:
                self._finish()
                return
        if not (module.training and torch.is_grad_enabled()):
            # An evaluation, which is part of no iteration.
            return
        if self._batch_size is None:
            given = next((one for one in (*args, *kwargs.values()) if _is_batch(one)), None)
            self._batch_size = None if given is None else len(given)
        self._current = _Raw(now)
        if _is_watched(len(self._seen) - self._warmup):
            self._watched = self._current

    # What follows runs for each layer of each iteration, so it does as little as it can.

    def _begin_layer(self, module: torch.nn.Module, args: tuple) -> None:
        raw = self._watched
        if raw is not None:
            raw.forward.append(module)
            raw.forward.append(self._stamp())

    def _end_layer(self, module: torch.nn.Module, args: tuple, output: object) -> None:
        raw = self._watched
        if raw is None:
            return
        raw.forward.append(None)
        raw.forward.append(self._stamp())
        for tensor in (output,) if isinstance(output, torch.Tensor) else _tensors(output):
            node = tensor.grad_fn
            if node is not None:
                # A tenth of what a hook of the tensor costs.
                node.register_prehook(self._at_backward(raw, module))
            elif tensor.requires_grad:
                tensor.register_hook(self._at_backward(raw, module))

    def _at_backward(self, raw: _Raw, module: torch.nn.Module) -> Callable[[object], None]:
        stamp, note = self._stamp, raw.backward.append

        def backward_begins(gradients: object) -> None:
            note(module)
            note(stamp())

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
        watched, alone = [], []
        for number, raw in enumerate(self._seen[self._warmup :]):
            (watched if _is_watched(number) else alone).append(raw)
        used = dict.fromkeys(x for raw in watched for x in raw.forward[::2] if x is not None)
        layers = {module: index for index, module in enumerate(used)}
        iterations = [
            dataclasses.replace(raw.timed(layers), seconds=plain.seconds)
            for raw, plain in zip(watched, alone, strict=True)
        ]
        complete = set.intersection(*(set(one.ready) for one in iterations))
        parameters = self._describe(complete, layers)
        numbers = {old: new for new, old in enumerate(sorted(complete))}
        iterations = [
            dataclasses.replace(one, ready={numbers[old]: one.ready[old] for old in numbers})
            for one in iterations
        ]
        self._profile = observed.profile_of(
            *(self._name, [self._names[module] for module in layers], parameters, iterations),
            device=_device_name(self._device),
            batch_size=self._batch_size,
            add=observed.measure_additions(),
        )
        if self._output is not None:
            save(self._profile, self._output)
            _log.info("wrote the profile of %s to %s", self._name, self._output)

    def _describe(
        self, complete: set[int], layers: dict[torch.nn.Module, int]
    ) -> list[observed.Parameter]:
        """The parameters that always got a gradient, each with the first layer that has it."""
        layer_of: dict[torch.Tensor, int] = {}
        for module, layer in layers.items():
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
    # By turns what a stamp is of, and the stamp: tuples would make the garbage collector run.
    # A layer where its forward pass begins; None where that of the last one to begin ends.
    forward: list[Any] = field(default_factory=list)
    # A layer where its backward pass begins.
    backward: list[Any] = field(default_factory=list)
    ready: dict[int, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self._since_begin(self.end)

    def timed(self, layers: dict[torch.nn.Module, int]) -> observed.Iteration:
        """The same in seconds since its begin, with the numbers of layers."""
        calls: list[observed.Forward] = []
        running: list[int] = []
        for module, stamp in _pairs(self.forward):
            moment_s = self._since_begin(stamp)
            if module is not None:
                parent = running[-1] if running else None
                running.append(len(calls))
                # Where activations are computed anew, torch leaves the last call without its end.
                calls.append(observed.Forward(layers[module], parent, moment_s, moment_s))
            elif running:
                last = running.pop()
                calls[last] = dataclasses.replace(calls[last], ended_s=moment_s)
        return observed.Iteration(
            self.seconds,
            tuple(calls),
            tuple((layers[x], self._since_begin(at)) for x, at in _pairs(self.backward)),
            {index: self._since_begin(stamp) for index, stamp in self.ready.items()},
        )

    def _since_begin(self, stamp: Any) -> float:
        if isinstance(stamp, float):
            return stamp - self.begin
        return self.begin.elapsed_time(stamp) / 1000


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

    `recorder.profile` has it after `warmup` iterations, which do not count, and twice `iterations`:
    of half of them layers are watched, the other half shows how long one lasts without that.
    """
    return Recorder(
        model, output, iterations=iterations, warmup=warmup, name=name, batch_size=batch_size
    )


def _is_watched(number: int) -> bool:
    """Whether the layers of this iteration after the warm-up are watched; one of each two is.

    First the first one, then the second one: a script may step after every other iteration only.
    """
    return number >= 0 and number % 4 in (0, 3)


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


def _pairs(flat: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


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
