"""Failures of commands, which the command line reports in one line."""

from __future__ import annotations


class UsageError(Exception):
    """The command was used wrongly: an argument is missing, malformed or contradicts another."""


class Failure(Exception):
    """The command was used rightly and could not do its work.

    `exit_code` is the process's, where another than that of every failure is customary.
    """

    exit_code: int | None = None


def message_of(error: Exception) -> str:
    """One sentence about a known error."""
    return str(error) or type(error).__name__
