"""Cuts a process' output into lines that may be prefixed and mixed with others'.

A pure function of the bytes and the time: no stream, no clock.
"""

from __future__ import annotations

# How often a bar that redraws itself with carriage returns becomes a line of the log: often enough
# to see it move, rarely enough not to bury the rest.
PROGRESS_INTERVAL_S = 2.0

# A line longer than this is cut, so that a process cannot fill the launcher's memory.
LINE_LIMIT_BYTES = 64 * 1024


class LineSplitter:
    """Whole lines out of a byte stream; text before a carriage return was overwritten."""

    def __init__(self) -> None:
        self._partial = b""
        self._shown_s: float | None = None

    def feed(self, data: bytes, now_s: float) -> list[bytes]:
        """The lines completed by `data`, and at times the state of a progress bar."""
        *whole, self._partial = (self._partial + data).split(b"\n")
        lines = [_last_state(line) for line in whole]
        lines.extend(self._progress(now_s))
        if len(self._partial) > LINE_LIMIT_BYTES:
            lines.extend(self.finish())
        return lines

    def finish(self) -> list[bytes]:
        """What remains when the stream ends without a newline."""
        rest, self._partial = _last_state(self._partial), b""
        return [rest] if rest else []

    def _progress(self, now_s: float) -> list[bytes]:
        overwritten, carriage_return, current = self._partial.rpartition(b"\r")
        if not carriage_return:
            return []
        state = _last_state(overwritten)
        # Older states are gone from a terminal too; a lone state must outlive a `\r` that ends it.
        self._partial = (state if not current else b"") + b"\r" + current
        if self._shown_s is None:
            self._shown_s = now_s
        if not state or now_s - self._shown_s < PROGRESS_INTERVAL_S:
            return []
        self._shown_s = now_s
        return [state]


def _last_state(line: bytes) -> bytes:
    """What a terminal would show of a line with carriage returns, to a good approximation."""
    states = [state for state in line.split(b"\r") if state.strip()]
    return states[-1] if states else b""
