"""What the values of a profile may be; a complaint names the field and what was expected."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

from sumpter._errors import ProfileError

_SHOWN_CHARACTERS = 60


@contextlib.contextmanager
def within(place: object, separator: str = ".") -> Iterator[None]:
    """Says in a complaint from inside where the field is: a list's entry, or a file."""
    try:
        yield
    except ProfileError as error:
        raise ProfileError(f"{place}{separator}{error}") from None


def refuse(field: str, expected: str, value: object) -> ProfileError:
    """The complaint about a value."""
    shown = repr(value)
    if len(shown) > _SHOWN_CHARACTERS:
        shown = f"{shown[:_SHOWN_CHARACTERS]}..."
    return ProfileError(f"{field}: expected {expected}, got {shown}")


def text(field: str, value: object) -> None:
    """A string that is not empty."""
    if not isinstance(value, str) or not value:
        raise refuse(field, "a string that is not empty", value)


def choice(field: str, value: object, choices: tuple[str, ...]) -> None:
    """One of some words."""
    if value not in choices:
        raise refuse(field, f"one of {', '.join(choices)}", value)


def count(field: str, value: object, least: int = 1) -> None:
    """A whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise refuse(field, f"a whole number of {least} or more", value)


def seconds(field: str, value: object, *, positive: bool = False) -> None:
    """A finite number of seconds of at least 0, or above."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0 or (positive and value == 0):
        raise refuse(
            field, f"a number of seconds {'above' if positive else 'of at least'} 0", value
        )
