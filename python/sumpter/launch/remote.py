"""How to reach a machine: directly, or by the user's ssh; and what ssh's complaints mean."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sumpter._failure import Failure, UsageError

# With an end of its own when the machine is silent: TCP would wait for hours.
DEFAULT_SHELL = "ssh -o BatchMode=yes -o ServerAliveInterval=10 -o ServerAliveCountMax=3"

# Reads the attendant's source: its length in a line, then that many bytes and not one more. In
# one line, since some login shells take no quoted line breaks.
_LOADER = "import sys; i = sys.stdin.buffer.raw; n = int(i.readline()); "
_LOADER += 's = b"".join(i.read(1) for _ in range(n)); exec(compile(s, "attendant.py", "exec"))'

_ADVICE = (
    ("host key verification failed", "add its key to known_hosts: connect once by hand"),
    ("permission denied", "ssh must get in without a password: set up a key, or --ssh-identity"),
    ("could not resolve", "check the name"),
    ("connection refused", "check that sshd runs there, and --ssh-port"),
    ("timed out", "check that it is up and reachable"),
    ("no route to host", "check that it is up and reachable"),
)


@dataclass(frozen=True)
class RemoteShell:
    """The command that runs a command on another machine: `COMMAND [options] HOST TEXT`."""

    command: str = DEFAULT_SHELL
    port: int | None = None
    identity: Path | None = None

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise UsageError(f"--ssh {self.command}: {str(error).lower()}") from error
        if not words:
            raise UsageError("--ssh names no command")

    def arguments(self, host: str, python: str) -> list[str]:
        """What to run here so that a Python over there waits for the attendant's source."""
        options = [] if self.port is None else ["-p", str(self.port)]
        options += [] if self.identity is None else ["-i", str(self.identity)]
        text = f"exec {shlex.join(loader(python))}"
        return [*shlex.split(self.command), *options, host, text]


def loader(python: str) -> list[str]:
    """A Python that waits for the attendant's source, isolated from the user's environment."""
    return [python, "-I", "-c", _LOADER]


def attendant_source() -> bytes:
    """The attendant as `loader` expects it."""
    source = Path(__file__).with_name("attendant.py").read_bytes()
    return b"%d\n%b" % (len(source), source)


def unreachable(host: str, python: str, code: int, words: Sequence[str]) -> Failure:
    """Why no attendant runs on a host, from the exit code and last words of the remote shell."""
    said = "; ".join(words[-3:])
    lowered = said.lower()
    advice = next((advice for words, advice in _ADVICE if words in lowered), "")
    if not advice and (code == 127 or "no such file" in lowered):
        return Failure(f"{host}: there is no {python} over there; --python names another ({said})")
    reason = said or f"the remote shell ended with code {code}"
    return Failure(f"cannot reach {host}: {reason}" + (f" ({advice})" if advice else ""))
