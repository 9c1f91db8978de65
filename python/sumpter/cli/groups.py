"""The help of `sumpter`: its commands by what one wants to do."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

# Every command is in exactly one; a test compares.
GROUPS: dict[str, tuple[str, ...]] = {
    "Run": ("run", "serve", "coordinator", "token", "bpslaunch"),
    "Observe and change a running job": (
        *("status", "jobs", "top", "console", "trace", "tune", "drain"),
        "report",
    ),
    "Plan": ("plan", "record", "whatif"),
    "Check and measure": ("doctor", "bug-report", "config", "bench", "reproduce"),
}


class GroupedCommands(TyperGroup):
    """Lists commands under headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes a list for each heading, in columns of one width."""
        widest = max(len(name) for names in GROUPS.values() for name in names)
        for title, names in GROUPS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            rows = [
                (name.ljust(widest), command.get_short_help_str(formatter.width - 6 - widest))
                for name, command in commands
                if command is not None
            ]
            with formatter.section(title):
                formatter.write_dl(rows)
