"""The parameter tensors of published architectures, for rounds with a real model's sizes.

Generated from each architecture's rule, in forward order, as (name, shape). Only shapes: there
is no code to run the models.

- ResNet: He et al., "Deep Residual Learning for Image Recognition", table 1.
- VGG: Simonyan and Zisserman, "Very Deep Convolutional Networks", table 1, configuration D.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

Shape = tuple[int, ...]
Parameter = tuple[str, Shape]

CLASSES = 1000
_STAGE_WIDTHS = (64, 128, 256, 512)
_VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def shapes(name: str) -> list[Parameter]:
    """Name and shape of every parameter of the model, in forward order."""
    if name not in MODELS:
        raise ValueError(f"model '{name}' is unknown; choose {', '.join(MODELS)}")
    return list(MODELS[name]())


def elements(shape: Shape) -> int:
    """How many elements a tensor of this shape has."""
    return math.prod(shape)


def model_bytes(name: str, element_bytes: int = 4) -> int:
    """The bytes of all gradients of the model."""
    return element_bytes * sum(elements(shape) for _, shape in shapes(name))


def _convolution(name: str, inputs: int, outputs: int, kernel: int) -> Parameter:
    return f"{name}.weight", (outputs, inputs, kernel, kernel)


def _affine(name: str, shape: Shape) -> Iterator[Parameter]:
    """A weight and a bias with one entry per output: batch norms and linear layers."""
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]


def _resnet(depths: tuple[int, ...], kernels: tuple[int, ...], expansion: int) -> Iterator:
    """A residual network; `kernels` are the convolutions of a block, the last one expands."""
    yield _convolution("stem.conv", 3, 64, 7)
    yield from _affine("stem.norm", (64,))
    inputs = 64
    for stage, (depth, width) in enumerate(zip(depths, _STAGE_WIDTHS, strict=True), 1):
        for block in range(depth):
            name, outputs = f"stage{stage}.{block}", width * expansion
            channels = inputs
            for index, kernel in enumerate(kernels):
                after = outputs if index == len(kernels) - 1 else width
                yield _convolution(f"{name}.conv{index + 1}", channels, after, kernel)
                yield from _affine(f"{name}.norm{index + 1}", (after,))
                channels = after
            # The shortcut needs a projection where the width or the resolution changes.
            if block == 0 and (stage > 1 or inputs != outputs):
                yield _convolution(f"{name}.shortcut.conv", inputs, outputs, 1)
                yield from _affine(f"{name}.shortcut.norm", (outputs,))
            inputs = outputs
    yield from _affine("classifier", (CLASSES, inputs))


def _vgg16() -> Iterator[Parameter]:
    inputs = 3
    for stage, (width, depth) in enumerate(_VGG16, 1):
        for index in range(depth):
            name = f"stage{stage}.conv{index + 1}"
            yield _convolution(name, inputs, width, 3)
            yield f"{name}.bias", (width,)
            inputs = width
    yield from _affine("classifier1", (4096, inputs * 7 * 7))
    yield from _affine("classifier2", (4096, 4096))
    yield from _affine("classifier3", (CLASSES, 4096))


MODELS: dict[str, Callable[[], Iterator[Parameter]]] = {
    "resnet18": lambda: _resnet((2, 2, 2, 2), (3, 3), 1),
    "resnet50": lambda: _resnet((3, 4, 6, 3), (1, 3, 1), 4),
    "vgg16": _vgg16,
}
