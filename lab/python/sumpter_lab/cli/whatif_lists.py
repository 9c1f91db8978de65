"""Reads the lists of `sumpter whatif`: text with commas. Errors name the option and the entry."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sumpter._failure import UsageError
from sumpter._sizes import parse_size

if TYPE_CHECKING:
    from sumpter_lab.whatif import CodecRate

MOST_MACHINES = 100_000
MOST_BYTES = 1 << 60


def entries(text: str, option: str) -> list[str]:
    """The parts between commas, each once."""
    return list(dict.fromkeys(_divided(text, option)))


def _divided(text: str, option: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise UsageError(f"{option} '{text}': an entry of the list is empty")
    return parts


def words(text: str | None, option: str) -> list[str]:
    from sumpter_lab.whatif import ARCHITECTURES

    found = [] if text is None else entries(text, option)
    for word in found:
        if word not in ARCHITECTURES:
            raise UsageError(f"{option} {word}: expected {', '.join(ARCHITECTURES)}")
    return found


def counts(text: str, option: str, least: int) -> list[int]:
    found = []
    for part in entries(text, option):
        count = int(part) if part.isascii() and part.isdigit() and len(part) < 12 else -1
        if not least <= count <= MOST_MACHINES:
            expected = f"a whole number from {least} to {MOST_MACHINES}"
            raise UsageError(f"{option} {part}: expected {expected}")
        found.append(count)
    return list(dict.fromkeys(found))


def numbers(text: str, option: str) -> list[float]:
    found = []
    for part in entries(text, option):
        try:
            number = float(part)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise UsageError(f"{option} {part}: expected a number")
        found.append(number)
    return list(dict.fromkeys(found))


def compressions(text: str) -> list[float | str]:
    """Ratios and codecs."""
    from sumpter_lab.whatif import codecs

    found: list[float | str] = []
    for entry in codecs.joined(_divided(text, "--compression")):
        try:
            ratio = float(entry)
        except ValueError:
            found.append(entry)
            continue
        if not math.isfinite(ratio):
            raise UsageError(f"--compression {entry}: expected a ratio, or a codec as int8")
        found.append(ratio)
    return list(dict.fromkeys(found))


def codec_rates(text: str | None) -> list[CodecRate | None]:
    """Bytes per second, or None for those of this machine."""
    from sumpter_lab.whatif import CodecRate

    if text is None:
        return [None]
    found: list[CodecRate | None] = []
    for part in entries(text, "--codec-rate"):
        rates = [_positive(each, f"--codec-rate {part}") for each in part.split("/")]
        if len(rates) not in (1, 3):
            expected = "one number of GB/s, or three: encoding, decoding, decoding and adding"
            raise UsageError(f"--codec-rate {part}: expected {expected}")
        encode, decode, add = rates if len(rates) == 3 else 3 * rates
        found.append(CodecRate(1e9 * encode, 1e9 * decode, 1e9 * add))
    return list(dict.fromkeys(found))


def _positive(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise UsageError(f"{what}: expected numbers above 0")
    return number


def credits(text: str) -> list[int | None]:
    """Sizes, or None for what a job takes by itself."""
    parts = entries(text, "--credit-bytes")
    found = (None if part == "auto" else sizes(part, "--credit-bytes")[0] for part in parts)
    return list(dict.fromkeys(found))


def rates(text: str | None) -> list[float | None]:
    """Bytes per second, or None for no updates on servers."""
    if text is None:
        return [None]
    return [1e9 * gigabytes for gigabytes in numbers(text, "--update-gb-per-s")]


def local_reductions(text: str, lists: dict[str, str]) -> list[str]:
    from sumpter_lab.whatif import LOCAL_REDUCTIONS

    parts = entries(text, "--local-reduction")
    for part in parts:
        if part not in LOCAL_REDUCTIONS and not part.startswith("roots="):
            expected = f"{', '.join(LOCAL_REDUCTIONS)} or roots=GPU+GPU"
            raise UsageError(f"--local-reduction {part}: expected {expected}")
    if not lists and parts != ["rule"]:
        raise UsageError(f"--local-reduction {text} needs --machines with devices")
    return parts


def orders(text: str) -> list[str | None]:
    from sumpter_lab.whatif import ORDERS

    parts = entries(text, "--order")
    for part in parts:
        if part not in ("auto", *ORDERS):
            raise UsageError(f"--order {part}: expected auto, {' or '.join(ORDERS)}")
    return [None if part == "auto" else part for part in parts]


def sizes(text: str, option: str) -> list[int]:
    found = [parse_size(part, option) for part in entries(text, option)]
    for size in found:
        if size > MOST_BYTES:
            raise UsageError(f"{option} {size}: expected at most {MOST_BYTES} bytes")
    return list(dict.fromkeys(found))
