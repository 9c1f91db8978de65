"""Lists of numbers, sizes and rates as people write them on a command line."""

from __future__ import annotations

from collections.abc import Collection

from sumpter._failure import UsageError
from sumpter._sizes import parse_size

# Below, a test of megabytes takes minutes; above, no queue of the emulation keeps its rate.
RATE_MBIT_RANGE = (1.0, 10_000.0)


def parse_counts(text: str, option: str, least: int) -> list[int]:
    """Whole numbers of at least `least` from `0,1,2`, in the given order, without repetition."""
    counts: list[int] = []
    for part in _parts(text, option):
        if not part.isascii() or not part.isdigit() or int(part) < least:
            raise UsageError(
                f"{option} {text}: '{part}' is not a whole number of {least} or more; "
                "write for example 2,4,8"
            )
        counts.append(int(part))
    return list(dict.fromkeys(counts))


def parse_cells(workers: str, servers: str, fewest_servers: int) -> list[tuple[int, int]]:
    """Numbers of workers and servers, in which `n` among the servers is as many as workers."""
    cells: list[tuple[int, int]] = []
    for n in parse_counts(workers, "--workers", 2):
        counts = parse_counts(servers.replace("n", str(n)), "--servers", fewest_servers)
        cells += [(n, k) for k in counts]
    return cells


def parse_sizes(text: str, option: str, multiple: int = 4) -> list[int]:
    """Sizes in bytes from `64MiB,16MiB`; each must hold whole elements of `multiple` bytes."""
    sizes = [parse_size(part, option) for part in _parts(text, option)]
    for size in sizes:
        if size % multiple:
            raise UsageError(f"{option} {text}: {size} bytes are not a multiple of {multiple}")
    return list(dict.fromkeys(sizes))


def parse_names(text: str | None, option: str, known: Collection[str]) -> tuple[str, ...]:
    """Names from `one,other`, in the given order, without repetition; none for None."""
    names = [] if text is None else _parts(text, option)
    for name in names:
        if name not in known:
            raise UsageError(f"{option} '{name}': known are {', '.join(known)}")
    return tuple(dict.fromkeys(names))


def parse_rates(text: str, option: str) -> list[float]:
    """Link rates in Mb/s from `200,200,100`."""
    return [check_rate(part, option) for part in _parts(text, option)]


def check_rate(text: str | float, option: str) -> float:
    """One link rate in Mb/s, within what the emulation can keep."""
    low, high = RATE_MBIT_RANGE
    try:
        rate = float(text)
    except ValueError:
        raise UsageError(f"{option}: '{text}' is not a rate in Mb/s") from None
    if not low <= rate <= high:
        raise UsageError(f"{option}: {rate:g} Mb/s is not within {low:g} to {high:g}")
    return rate


def rates_of(count: int, given: list[float] | None, common: float, option: str) -> list[float]:
    """The rate of each of `count` machines: those given, or the common one for all."""
    if given is None:
        return [common] * count
    if len(given) < count:
        raise UsageError(f"{option} lists {len(given)} rates for {count} machines; give one each")
    return given[:count]


def _parts(text: str, option: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise UsageError(f"{option} '{text}': an entry of the list is empty")
    return parts
