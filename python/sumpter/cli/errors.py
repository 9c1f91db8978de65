"""Which exit code each known error deserves."""

from __future__ import annotations

from typer import TyperException

from sumpter import _failure, _native, _packages

USAGE = 2
FAILURE = 1


def exit_code_of(error: Exception) -> int | None:
    """The exit code of an error whose cause is known; None for any other."""
    if isinstance(error, TyperException):
        return error.exit_code
    if isinstance(error, _failure.UsageError | _native.ConfigError):
        return USAGE
    if isinstance(error, _failure.Failure):
        return FAILURE if error.exit_code is None else error.exit_code
    known = isinstance(error, _native.SumpterError) or _packages.missing(error) is not None
    return FAILURE if known else None


def message_of(error: Exception) -> str:
    """One sentence about a known error."""
    if (package := _packages.missing(error)) is not None:
        return _packages.advice(package, "this command")
    return (
        error.format_message() if isinstance(error, TyperException) else _failure.message_of(error)
    )


def is_help(error: Exception) -> bool:
    """Whether it is no error: a group of commands was called without one, so it shows its help."""
    # Typer exports the class under no name.
    return type(error).__name__ == "NoArgsIsHelpError"
