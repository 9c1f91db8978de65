"""What the command line raises, and which exit code each known error deserves."""

from __future__ import annotations

from typer import TyperException

from sumpter import _native

USAGE = 2
FAILURE = 1


class UsageError(TyperException):
    """The command was used wrongly: an argument is missing, malformed or contradicts another."""

    exit_code = USAGE


class Failure(TyperException):
    """The command was used rightly and could not do its work."""

    exit_code = FAILURE


def exit_code_of(error: Exception) -> int | None:
    """The exit code of an error whose cause is known; None for any other."""
    if isinstance(error, TyperException):
        return error.exit_code
    if isinstance(error, _native.ConfigError):
        return USAGE
    return FAILURE if isinstance(error, _native.SumpterError) else None


def message_of(error: Exception) -> str:
    """One sentence about a known error."""
    if isinstance(error, TyperException):
        return error.format_message()
    return str(error) or type(error).__name__
