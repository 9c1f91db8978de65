"""The jobs that `sumpter run` runs on this machine, as files by which other commands reach them.

A job has two files in a folder that only this user can enter: how to reach its coordinator, and
the token. The launcher holds a lock on the first for as long as it lives, so a file that somebody
else can lock is of a launcher that was killed; whoever finds such files deletes them.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from sumpter._failure import Failure
from sumpter.launch.environment import runtime_folder

# How `--job` names the job that was started last.
LAST = "last"


@contextmanager
def announced(coordinator: str, token: str, command: Sequence[str]) -> Iterator[Path]:
    """Lets other commands of this user find a job while it runs; gives the file of its token."""
    folder = _own_folder()
    # In the folder from the start, but under its name only once it is locked.
    number, name = tempfile.mkstemp(prefix=f".{os.getpid()}-", dir=folder)
    path = folder / f"{Path(name).name[1:]}.json"
    token_path = path.with_suffix(".token")
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        _write_private(token_path, token + "\n")
        said = {
            "coordinator": coordinator,
            "token_file": str(token_path),
            "command": list(command),
            "started": time.time(),
        }
        os.write(number, json.dumps(said).encode())
        os.replace(name, path)
        yield token_path
    finally:
        for left in (Path(name), path, token_path):
            left.unlink(missing_ok=True)
        os.close(number)


def last_settings() -> dict[str, str]:
    """The settings by which a command reaches the job that was started last and still runs."""
    found = [job for path in _own_folder().glob("*.json") if (job := _read(path)) is not None]
    if not found:
        raise Failure(
            f"--job {LAST}: no `sumpter run` of yours is running on this machine; another "
            "machine's job, or one of a launcher of its own, is reached by --coordinator"
        )
    newest = max(found, key=lambda job: float(str(job["started"])))
    return {name: str(newest[name]) for name in ("coordinator", "token_file")}


def _read(path: Path) -> dict[str, object] | None:
    """What a file says of a job that runs; None, and no file any more, for one that has ended."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return json.loads(file.read())
        for left in (path, path.with_suffix(".token")):
            left.unlink(missing_ok=True)
    return None


def _own_folder() -> Path:
    """The folder of this user's jobs, made if it is not there. Failure if others can enter it."""
    folder = runtime_folder()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        state = folder.lstat()
    except OSError as error:
        raise Failure(f"cannot make the folder {folder}: {error.strerror}") from error
    private = stat.S_ISDIR(state.st_mode) and not stat.S_IMODE(state.st_mode) & 0o077
    if not private or state.st_uid != os.getuid():
        raise Failure(
            f"{folder} must be a folder that belongs to you and that nobody else can enter: "
            "delete it, or set XDG_RUNTIME_DIR"
        )
    return folder


def _write_private(path: Path, text: str) -> None:
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "w") as file:
        file.write(text)
