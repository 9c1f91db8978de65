"""How pages call models and update rules."""

from __future__ import annotations

_SHOWN = {
    "alexnet": "AlexNet",
    "bert-large": "BERT-large",
    "gpt2": "GPT-2",
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "vgg16": "VGG-16",
    "sgd_momentum": "sgd, momentum",
    "sgd_nesterov": "sgd, Nesterov",
}


def shown(name: str) -> str:
    """The name in a paper, or what it is called otherwise."""
    return _SHOWN.get(name, name)
