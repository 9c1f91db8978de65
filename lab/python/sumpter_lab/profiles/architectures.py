"""The layers of published architectures: parameters, and multiply-adds for one sample.

Generated from each architecture's rule, in forward order. There is no code to run the models.
Biases, activations and pooling count as no arithmetic; the gradient of a matrix that is used twice
(the embedding, in the output as well) belongs to its first use.

- ResNet: He et al., "Deep Residual Learning for Image Recognition", table 1.
- VGG: Simonyan and Zisserman, "Very Deep Convolutional Networks", table 1, configuration D.
- AlexNet: Krizhevsky et al., "ImageNet Classification with Deep Convolutional Neural Networks",
  figure 2, whose two halves are groups here.
- BERT: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", section 3, with both
  pre-training heads, of which the language model sees the masked 15 % of 512 tokens.
- GPT-2: Radford et al., "Language Models are Unsupervised Multitask Learners", table 2, the
  smallest, on 1,024 tokens. The table says 117 M parameters; its weights have 124 M.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Shape = tuple[int, ...]
Parameter = tuple[str, Shape]

CLASSES = 1000
_STAGE_WIDTHS = (64, 128, 256, 512)
_VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
# Outputs, kernel, groups, and the side of the output and of what pooling makes of it.
_ALEXNET = ((96, 11, 1, 55, 27), (256, 5, 2, 27, 13), (384, 3, 1, 13, 13), (384, 3, 2, 13, 13))
_ALEXNET_LAST = (256, 3, 2, 13, 6)


@dataclass(frozen=True)
class Operation:
    """One layer: what autograd would see as one node with parameters, or without."""

    name: str
    multiply_adds: int  # of the forward pass, for one sample
    parameters: tuple[Parameter, ...] = ()


@dataclass(frozen=True)
class Architecture:
    """A model's layers, and a batch that fits into the memory of a GPU of its time."""

    layers: Callable[[], Iterator[Operation]]
    batch_size: int


def operations(name: str) -> tuple[Operation, ...]:
    """The layers of a model in forward order. Raises ValueError with the known names."""
    if name not in ARCHITECTURES:
        raise ValueError(f"model '{name}' is unknown; choose {', '.join(ARCHITECTURES)}")
    return tuple(ARCHITECTURES[name].layers())


def shapes(name: str) -> list[Parameter]:
    """Name and shape of every parameter of the model, in forward order."""
    return [parameter for layer in operations(name) for parameter in layer.parameters]


def elements(shape: Shape) -> int:
    """How many elements a tensor of this shape has."""
    return math.prod(shape)


def _convolution(
    name: str,
    channels: tuple[int, int],
    kernel: int,
    side: int,
    *,
    groups: int = 1,
    bias: bool = False,
) -> Operation:
    """A square convolution whose output has `side` pixels a side."""
    inputs, outputs = channels
    shape = (outputs, inputs // groups, kernel, kernel)
    parameters: list[Parameter] = [(f"{name}.weight", shape)]
    if bias:
        parameters.append((f"{name}.bias", (outputs,)))
    return Operation(name, elements(shape) * side * side, tuple(parameters))


def _linear(name: str, inputs: int, outputs: int, positions: int = 1) -> Operation:
    shape = (outputs, inputs)
    parameters = ((f"{name}.weight", shape), (f"{name}.bias", (outputs,)))
    return Operation(name, elements(shape) * positions, parameters)


def _norm(name: str, width: int, positions: int) -> Operation:
    parameters = ((f"{name}.weight", (width,)), (f"{name}.bias", (width,)))
    return Operation(name, width * positions, parameters)


def _embedding(name: str, entries: int, width: int) -> Operation:
    return Operation(name, 0, ((f"{name}.weight", (entries, width)),))


def _resnet(depths: tuple[int, ...], kernels: tuple[int, ...], expansion: int) -> Iterator:
    """A residual network; `kernels` are the convolutions of a block, the last one expands."""
    yield _convolution("stem.conv", (3, 64), 7, 112)
    yield _norm("stem.norm", 64, 112 * 112)
    inputs, side = 64, 56
    for stage, (depth, width) in enumerate(zip(depths, _STAGE_WIDTHS, strict=True), 1):
        # The first convolution of a stage halves the resolution, but pooling did it for stage 1.
        side = side if stage == 1 else side // 2
        for block in range(depth):
            name, outputs = f"stage{stage}.{block}", width * expansion
            channels = inputs
            for index, kernel in enumerate(kernels, 1):
                after = outputs if index == len(kernels) else width
                yield _convolution(f"{name}.conv{index}", (channels, after), kernel, side)
                yield _norm(f"{name}.norm{index}", after, side * side)
                channels = after
            # The shortcut needs a projection where the width or the resolution changes.
            if block == 0 and (stage > 1 or inputs != outputs):
                yield _convolution(f"{name}.shortcut.conv", (inputs, outputs), 1, side)
                yield _norm(f"{name}.shortcut.norm", outputs, side * side)
            inputs = outputs
    yield _linear("classifier", inputs, CLASSES)


def _vgg16() -> Iterator[Operation]:
    inputs, side = 3, 224
    for stage, (width, depth) in enumerate(_VGG16, 1):
        for index in range(depth):
            name = f"stage{stage}.conv{index}"
            yield _convolution(name, (inputs, width), 3, side, bias=True)
            inputs = width
        side //= 2
    yield from _classifiers(inputs * side * side)


def _alexnet() -> Iterator[Operation]:
    inputs = 3
    for index, (width, kernel, groups, side, after) in enumerate((*_ALEXNET, _ALEXNET_LAST), 1):
        name = f"conv{index}"
        yield _convolution(name, (inputs, width), kernel, side, groups=groups, bias=True)
        inputs, pooled = width, after
    yield from _classifiers(inputs * pooled * pooled)


def _classifiers(inputs: int) -> Iterator[Operation]:
    """The three linear layers of 4,096 neurons that AlexNet and VGG end with."""
    yield _linear("classifier1", inputs, 4096)
    yield _linear("classifier2", 4096, 4096)
    yield _linear("classifier3", 4096, CLASSES)


def _transformer(name: str, width: int, sequence: int, *, norm_first: bool) -> Iterator[Operation]:
    """A block of attention and of two linear layers, four times as wide between them."""
    attention = (
        _linear(f"{name}.qkv", width, 3 * width, sequence),
        # Scores, and the values mixed by them.
        Operation(f"{name}.attention", 2 * sequence * sequence * width),
        _linear(f"{name}.projection", width, width, sequence),
    )
    feed = (
        _linear(f"{name}.expand", width, 4 * width, sequence),
        _linear(f"{name}.contract", 4 * width, width, sequence),
    )
    for index, part in enumerate((attention, feed), 1):
        norm = _norm(f"{name}.norm{index}", width, sequence)
        yield from (norm, *part) if norm_first else (*part, norm)


def _bert_large() -> Iterator[Operation]:
    width, sequence, vocabulary = 1024, 512, 30522
    masked = round(0.15 * sequence)
    yield _embedding("embedding.word", vocabulary, width)
    yield _embedding("embedding.position", sequence, width)
    yield _embedding("embedding.segment", 2, width)
    yield _norm("embedding.norm", width, sequence)
    for index in range(24):
        yield from _transformer(f"layer{index}", width, sequence, norm_first=False)
    yield _linear("pooler", width, width)
    yield _linear("masked.transform", width, width, masked)
    yield _norm("masked.norm", width, masked)
    bias = (("masked.bias", (vocabulary,)),)
    yield Operation("masked.decoder", width * vocabulary * masked, bias)
    yield _linear("next_sentence", width, 2)


def _gpt2() -> Iterator[Operation]:
    width, sequence, vocabulary = 768, 1024, 50257
    yield _embedding("embedding.word", vocabulary, width)
    yield _embedding("embedding.position", sequence, width)
    for index in range(12):
        yield from _transformer(f"layer{index}", width, sequence, norm_first=True)
    yield _norm("norm", width, sequence)
    yield Operation("decoder", width * vocabulary * sequence)


ARCHITECTURES: dict[str, Architecture] = {
    "alexnet": Architecture(_alexnet, 128),
    "bert-large": Architecture(_bert_large, 8),
    "gpt2": Architecture(_gpt2, 8),
    "resnet18": Architecture(lambda: _resnet((2, 2, 2, 2), (3, 3), 1), 64),
    "resnet50": Architecture(lambda: _resnet((3, 4, 6, 3), (1, 3, 1), 4), 32),
    "resnet101": Architecture(lambda: _resnet((3, 4, 23, 3), (1, 3, 1), 4), 32),
    "vgg16": Architecture(_vgg16, 32),
}
