"""The profile of a training iteration, checked when it is made. No files here, and no clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from sumpter._errors import ProfileError
from sumpter.profiles import checks

SOURCES = ("recorded", "netai", "published")
ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Layer:
    """One layer of a model."""

    name: str
    forward_s: float | None  # None if only the backward pass was observed
    backward_s: float

    def __post_init__(self) -> None:
        checks.text("name", self.name)
        if self.forward_s is not None:
            checks.seconds("forward_s", self.forward_s)
        checks.seconds("backward_s", self.backward_s)


@dataclass(frozen=True)
class Tensor:
    """One parameter, or its gradient."""

    name: str
    layer: int  # index of the first layer that uses it
    bytes: int
    dtype: str
    ready_s: float  # when its gradient is complete, since the backward pass began

    def __post_init__(self) -> None:
        checks.text("name", self.name)
        checks.count("layer", self.layer, least=0)
        checks.count("bytes", self.bytes)
        checks.choice("dtype", self.dtype, tuple(ELEMENT_BYTES))
        if self.bytes % ELEMENT_BYTES[self.dtype]:
            raise checks.refuse("bytes", f"whole elements of {self.dtype}", self.bytes)
        checks.seconds("ready_s", self.ready_s)


@dataclass(frozen=True)
class Profile:
    """One iteration of a model on one device. Layers and tensors are in forward order.

    Raises ProfileError, which names the field, for what cannot be.
    """

    name: str
    source: str  # one of SOURCES
    device: str | None
    batch_size: int | None
    iteration_s: float  # without communication
    backward_s: float
    layers: tuple[Layer, ...]
    tensors: tuple[Tensor, ...]
    # Bytes and seconds of the addition of two arrays, by ascending size.
    add: tuple[tuple[int, float], ...] | None = None

    def __post_init__(self) -> None:
        checks.text("name", self.name)
        checks.choice("source", self.source, SOURCES)
        if self.device is not None:
            checks.text("device", self.device)
        if self.batch_size is not None:
            checks.count("batch_size", self.batch_size)
        checks.seconds("iteration_s", self.iteration_s, positive=True)
        checks.seconds("backward_s", self.backward_s)
        if self.backward_s > self.iteration_s:
            expected = f"at most iteration_s, {self.iteration_s:g}"
            raise checks.refuse("backward_s", expected, self.backward_s)
        if not self.layers:
            raise ProfileError("layers: expected at least one layer")
        if not self.tensors:
            raise ProfileError("tensors: expected at least one tensor")
        self._check_tensors()
        if self.add is not None:
            check_additions(self.add)

    @cached_property
    def bytes(self) -> int:
        """The bytes of all gradients."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def forward_s(self) -> float:
        """What an iteration spends outside its backward pass."""
        return self.iteration_s - self.backward_s

    @cached_property
    def forward_times_s(self) -> tuple[float, ...]:
        """The time of each layer in the forward pass; together they last forward_s.

        Known times keep their proportions. Where one is not known, all are taken in proportion
        to the backward pass, since both passes multiply by the same matrices.
        """
        known = [layer.forward_s for layer in self.layers if layer.forward_s is not None]
        complete = len(known) == len(self.layers) and sum(known) > 0
        weights = known if complete else [layer.backward_s for layer in self.layers]
        total = sum(weights)
        if total == 0:
            return (self.forward_s / len(self.layers),) * len(self.layers)
        return tuple(self.forward_s * weight / total for weight in weights)

    @cached_property
    def ready_order(self) -> tuple[int, ...]:
        """Indices of the tensors in the order in which their gradients get ready."""
        # Of those that get ready at once, the last in forward order first, as in a real pass.
        last_first = reversed(range(len(self.tensors)))
        return tuple(sorted(last_first, key=lambda index: self.tensors[index].ready_s))

    def slower(self, factor: float) -> Profile:
        """The same model on a device that takes `factor` times as long; sizes stay."""
        layers = (
            replace(
                layer,
                forward_s=None if layer.forward_s is None else layer.forward_s * factor,
                backward_s=layer.backward_s * factor,
            )
            for layer in self.layers
        )
        tensors = (replace(tensor, ready_s=tensor.ready_s * factor) for tensor in self.tensors)
        return replace(
            self,
            iteration_s=self.iteration_s * factor,
            backward_s=self.backward_s * factor,
            layers=tuple(layers),
            tensors=tuple(tensors),
        )

    def _check_tensors(self) -> None:
        names: set[str] = set()
        layer = 0
        for index, tensor in enumerate(self.tensors):
            with checks.within(f"tensors[{index}]"):
                if tensor.name in names:
                    raise checks.refuse("name", "a name that no other tensor has", tensor.name)
                if not layer <= tensor.layer < len(self.layers):
                    expected = f"{layer} to {len(self.layers) - 1}, in forward order"
                    raise checks.refuse("layer", expected, tensor.layer)
                if tensor.ready_s > self.backward_s:
                    expected = f"at most backward_s, {self.backward_s:g}"
                    raise checks.refuse("ready_s", expected, tensor.ready_s)
            names.add(tensor.name)
            layer = tensor.layer


def check_additions(points: tuple[tuple[int, float], ...]) -> None:
    """Raises unless these are bytes and seconds by ascending size."""
    if not points:
        raise ProfileError("add: expected null or at least one [bytes, seconds]")
    before = 0
    for index, point in enumerate(points):
        if len(point) != 2:
            raise checks.refuse(f"add[{index}]", "[bytes, seconds]", point)
        size, duration_s = point
        checks.count(f"add[{index}][0]", size, least=before + 1)
        checks.seconds(f"add[{index}][1]", duration_s)
        before = size
