"""The option that names a profile: a file, or a published architecture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sumpter._failure import UsageError

if TYPE_CHECKING:
    from sumpter.profiles import Profile

ProfileOption = Annotated[
    str,
    typer.Option(
        "--profile",
        "-p",
        metavar="FILE|NAME",
        help="A profile's file, or a published architecture: alexnet, bert-large, gpt2, resnet18, "
        "resnet50, resnet101 or vgg16.",
    ),
]


def published(text: str, batch_size: int | None = None) -> Profile | None:
    """The published architecture of that name; None if it is a file, which goes first."""
    from sumpter_lab import profiles

    if Path(text).exists():
        return None
    if text in profiles.NAMES:
        return profiles.published(text, batch_size)
    raise UsageError(
        f"--profile {text}: no such file, and the published architectures are "
        f"{', '.join(profiles.NAMES)}"
    )
