"""The dictionary by which BytePS' users choose a compressor."""

from __future__ import annotations

from collections.abc import Mapping

from sumpter._core.compression.codecs import Codec, canonical
from sumpter._errors import ConfigError


def from_byteps(parameters: Mapping[str, object]) -> str:
    """The codec that a dictionary of BytePS describes; empty if it names none.

    Keys may have the prefixes with which BytePS passes them on. ConfigError names a key or a value
    that it does not know.
    """
    given: dict[str, object] = {}
    for key, value in parameters.items():
        word = _PREFIXED.get(key, key)
        if word not in _KEYS:
            raise ConfigError(f"compression has no key {key!r}: give {', '.join(_KEYS)}")
        if value is not None:
            given[word] = value
    name = given.pop("compressor", None)
    half = given.pop("fp16", False)
    if not name:
        if given:
            raise ConfigError(f"compression: {', '.join(given)} without a compressor: name one")
        return canonical("fp16") if _truth("fp16", half) else ""
    if name not in _COMPRESSORS:
        raise ConfigError(
            f"compression: compressor is {name!r}: BytePS has {', '.join(_COMPRESSORS)}"
        )
    arguments: dict[str, object] = {"ef": _algorithm(given, "ef", "vanilla")}
    if _algorithm(given, "momentum", "nesterov"):
        arguments["momentum"] = _momentum(given)
    given = {key: value for key, value in given.items() if key not in ("ef", "momentum", "mu")}
    if name == "onebit":
        arguments["scaling"] = _truth("scaling", given.pop("scaling", False))
    unused = [key for key in given if key not in _COMPRESSORS[name]]
    if unused:
        raise ConfigError(f"compression: {name} takes no {', '.join(unused)}")
    for key, value in given.items():
        arguments[key] = _NUMBERED.get(key, {}).get(str(value), value)
    return canonical(Codec(str(name), **arguments).text)


# The keys of BytePS' dictionary, `mu` beside them for the factor of momentum, and what BytePS
# calls them where it passes them on.
_KEYS = (
    *("compressor", "k", "scaling", "ef", "momentum", "mu", "seed", "partition", "normalize"),
    "fp16",
)
_PREFIXED = {
    "byteps_compressor_type": "compressor",
    "byteps_compressor_k": "k",
    "byteps_compressor_onebit_scaling": "scaling",
    "byteps_ef_type": "ef",
    "byteps_error_feedback_type": "ef",
    "byteps_momentum_type": "momentum",
    "byteps_momentum_mu": "mu",
    "byteps_seed": "seed",
    "byteps_dithering_partition": "partition",
    "byteps_dithering_normalize": "normalize",
}
_COMPRESSORS: dict[str, tuple[str, ...]] = {
    "onebit": (),
    "topk": ("k",),
    "randomk": ("k", "seed"),
    "dithering": ("k", "seed", "partition", "normalize"),
}
# BytePS passes these on as numbers.
_NUMBERED = {
    "partition": {"0": "linear", "1": "natural"},
    "normalize": {"0": "max", "1": "l2"},
}


def _algorithm(given: Mapping[str, object], key: str, word: str) -> bool:
    """Whether a key is set: to BytePS' only word for it, a truth value, or a number."""
    value = given.get(key, False)
    if isinstance(value, str) and value not in ("", word):
        raise ConfigError(f"compression: {key} is {value!r}: BytePS has {word!r}")
    return bool(value)


def _momentum(given: Mapping[str, object]) -> object:
    """The factor: BytePS takes that of the optimizer, which then must have none of its own."""
    value = given["momentum"]
    factor = given.get("mu") if isinstance(value, str | bool) else value
    if factor is None:
        raise ConfigError(
            f"compression: momentum is {value!r} and mu is missing: give the optimizer's factor as "
            "mu, and 0 to the optimizer"
        )
    return factor


def _truth(key: str, value: object) -> bool:
    words = {"true": True, "1": True, "false": False, "0": False}
    truth = words.get(str(value).lower())
    if truth is None:
        raise ConfigError(f"compression: {key} is {value!r}: give true or false")
    return truth
