"""Settings as texts: from `NAME=VALUE`, and from values of Python."""

from __future__ import annotations

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


def setting_text(value: object) -> str:
    """The text of a setting's value: true and false in lower case, lists with commas between."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
