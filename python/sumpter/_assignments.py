"""Settings as texts: from `NAME=VALUE`, and from values of Python."""

from __future__ import annotations

from collections.abc import Container, Mapping

from sumpter._failure import UsageError


def parse_assignments(assignments: list[str] | None, option: str = "--set") -> dict[str, str]:
    """Settings from `name=value` texts; the receiver checks names and values."""
    settings: dict[str, str] = {}
    for assignment in assignments or []:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{option} {assignment}: write NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings


def check_free(
    settings: Mapping[str, str],
    decided: Container[str],
    option: str = "--set ",
    decider: str = "this command",
) -> None:
    """Raises UsageError for a setting that does not exist or that `decider` sets by itself.

    ConfigError for a value that is out of its range. Messages begin with `option`.
    """
    from sumpter import _native

    known = {row["name"]: row["env"] for row in _native.settings()}
    for name in settings:
        if name in decided:
            raise UsageError(f"{option}{name}: {decider} decides it")
        if name not in known:
            raise UsageError(f"{option}{name}: there is no such setting; see `sumpter config`")
    _native.check_environment({known[name]: text for name, text in settings.items()})


def setting_text(value: object) -> str:
    """The text of a setting's value: true and false in lower case, lists with commas between."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
