"""What one check found, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sumpter.doctor.probe import Probe

OK = "ok"
# Worth knowing: nothing fails, but something is not as it could be.
NOTE = "note"
# Something will be slow, or fail in a likely case.
WARNING = "warning"
# Jobs will fail.
ERROR = "error"

STATES = (OK, NOTE, WARNING, ERROR)


@dataclass(frozen=True)
class Finding:
    """One line of the report. Whatever is not ok says in `remedy` what to do: never empty then."""

    check: str
    state: str
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"{self.state!r} is not one of {STATES}")
        if self.state != OK and not self.remedy:
            raise ValueError(f"{self.check}: a finding that is not ok needs its remedy")

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


Check = Callable[["Probe"], list[Finding]]


def ok(check: str, found: str) -> Finding:
    return Finding(check, OK, found)


def note(check: str, found: str, remedy: str) -> Finding:
    return Finding(check, NOTE, found, remedy)


def warning(check: str, found: str, remedy: str) -> Finding:
    return Finding(check, WARNING, found, remedy)


def error(check: str, found: str, remedy: str) -> Finding:
    return Finding(check, ERROR, found, remedy)
