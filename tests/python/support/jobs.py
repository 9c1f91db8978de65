"""Starts whole jobs for tests: a coordinator here, ranks and servers as child processes.

The children come from a fork server that has imported torch already, where it is installed, since
the import takes seconds and a job has up to six processes. Each child is a fresh process otherwise:
it reads its settings from its own environment, writes to its own file, and runs one of the scripts
below */workers/ from top to bottom.
"""

from __future__ import annotations

import atexit
import importlib.util
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from sumpter import _native
from sumpter.launch.attendant import free_port

SUPPORT = Path(__file__).parent
# The scripts that ranks run, by name; each lies in the room of the test that starts it.
_SCRIPTS = sorted(SUPPORT.parent.glob("*/workers/**/*.py"))
WORKERS = {script.name: script for script in _SCRIPTS}
assert len(WORKERS) == len(_SCRIPTS), "two scripts have one name: a test would start the other's"
TOKEN = "a token that only tests use"
# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 200.0
# After that time a job goes on that has computed so long within a window: on a busy machine it is
# slow. One that hangs sends heartbeats, which take a hundredth of that.
COMPUTES_S = 2.0
WINDOW_S = 60.0
MOST_WINDOWS = 15
# What the coordinator must have of a job's settings, where they are given.
SHARED = ("peer_timeout_s", "start_timeout_s", "tls_cert", "tls_key", "tls_ca")
# How long a busy machine may leave a member without a turn, and a job without its last member.
PATIENCE = {"peer_timeout_s": 40, "start_timeout_s": 300}
# Mismatches are found by heartbeats, of which there are four in this time.
FINDS_MISMATCHES_S = 8
_context = multiprocessing.get_context("forkserver")
# The first optimizer imports torch._dynamo, which takes as long as torch itself.
_context.set_forkserver_preload(["torch", "torch._dynamo", "sumpter.torch"])

# What a rank must not inherit from the environment of the tests.
_FOREIGN = ("SUMPTER_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_")


class Job:
    """One job: its coordinator, its ranks, its servers, and what they wrote."""

    def __init__(
        self,
        folder: Path,
        ranks: int,
        servers: int = 0,
        *,
        repeated: bool = False,
        returns: bool = False,
        of_servers: Sequence[Mapping[str, str]] = (),
        **settings: object,
    ) -> None:
        self.folder = folder
        self.ranks = ranks
        settings = {**PATIENCE, **settings}
        own = {name: _text(settings[name]) for name in SHARED if name in settings}
        self._own = {"token": TOKEN, **own}
        self._repeated = repeated
        # Another coordinator can take its place: no process takes the port meanwhile.
        port = free_port() if returns else 0
        self._coordinator = self._coordinate(f"127.0.0.1:{port}")
        self.address = self._coordinator.address
        self._settings = as_variables(settings)
        self._settings["SUMPTER_SERVERS"] = str(servers)
        self._processes: dict[str, BaseProcess] = {}
        for index in range(servers):
            name = f"server{index}"
            environment = {"SUMPTER_MACHINE": name, "SUMPTER_LANES": "2"}
            environment |= of_servers[index] if of_servers else {}
            self._start(name, _serve, (), {**self._common(), **environment})

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            if process.is_alive():
                process.kill()
            process.join()
        self._coordinator.stop()

    def start(self, script: str, *arguments: str) -> Job:
        """Starts `script`, by name or by path, on every rank."""
        for rank in range(self.ranks):
            self.start_rank(rank, script, *arguments)
        return self

    def start_rank(
        self,
        rank: int,
        script: str,
        *arguments: str,
        python: Path | None = None,
        **variables: str,
    ) -> None:
        """Starts `script` on one rank, with `variables` in its environment, by another `python`
        than that of the tests if one is given."""
        environment = {
            **self._common(),
            "RANK": str(rank),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(self.ranks),
            # Each rank plays a machine of its own, so that the planner has something to plan.
            "SUMPTER_MACHINE": f"worker{rank}",
            "TEST_FOLDER": str(self.folder),
            **variables,
        }
        path = str(WORKERS.get(script, script))
        if python is None:
            self._start(f"rank{rank}", _run, (path, *arguments), environment)
        else:
            self._start(f"rank{rank}", _execute, (str(python), path, *arguments), environment)

    def finish(self) -> None:
        """Waits for all ranks; fails unless each ended well."""
        codes = {rank: self.exit_code(rank) for rank in range(self.ranks)}
        assert not any(codes.values()), self.report(f"exit codes {codes}")

    def exit_code(self, rank: int) -> int:
        """Waits for one rank to end; fails if the job hangs."""
        process = self._processes[f"rank{rank}"]
        begun = time.monotonic()
        ended = connection.wait([process.sentinel], HANG_S)
        for _ in range(MOST_WINDOWS):
            before = self._computed_s()
            ended = ended or connection.wait([process.sentinel], WINDOW_S)
            if ended or not _goes_on(before, self._computed_s()):
                break
        after = time.monotonic() - begun
        assert ended, self.report(f"rank {rank} has not ended after {after:.0f} s")
        process.join()
        assert process.exitcode is not None
        return process.exitcode

    def _computed_s(self) -> list[float | None]:
        """The processor time of each process; None for one that has ended."""
        return [processor_time_s(process.pid) for process in self._processes.values()]

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Sends a signal to one rank."""
        pid = self._processes[f"rank{rank}"].pid
        assert pid is not None
        os.kill(pid, number)

    def server_pid(self, index: int) -> int:
        """The process of a server."""
        pid = self._processes[f"server{index}"].pid
        assert pid is not None
        return pid

    def wait_for(self, name: str) -> None:
        """Waits until a rank has opened the named pipe `name` for writing."""
        with (self.folder / name).open("rb") as pipe:
            pipe.read()

    def make_pipe(self, name: str) -> None:
        """Makes a named pipe for wait_for()."""
        os.mkfifo(self.folder / name)

    def restart_coordinator(self) -> None:
        """Ends the coordinator and starts another, which knows nothing, at the same address."""
        self.stop_coordinator()
        self.start_coordinator()

    def outlive_coordinators(self, start: Callable[[], object]) -> None:
        """Runs `coordinator_returns.py`, which `start` starts on every rank, while the coordinator
        goes away and comes back, twice."""
        for turn in range(2):
            self.make_pipe(f"at_work{turn}")
            self.make_pipe(f"worked_on{turn}")
        start()
        for turn in range(2):
            self.wait_for(f"at_work{turn}")
            self.stop_coordinator()
            (self.folder / f"away{turn}").touch()
            self.wait_for(f"worked_on{turn}")
            self.start_coordinator()
        self.finish()

    def stop_coordinator(self) -> None:
        """Ends the coordinator."""
        self._coordinator.stop()

    def start_coordinator(self) -> None:
        """Starts another coordinator, which knows nothing, where the last one was."""
        self._coordinator = self._coordinate(self.address)

    def output(self, rank: int) -> str:
        """What a rank wrote to standard output and standard error."""
        return self._output(f"rank{rank}").read_text()

    def result(self, rank: int) -> bytes:
        """What a rank left as its result."""
        return (self.folder / f"result.{rank}").read_bytes()

    def report(self, what: str) -> str:
        """`what`, and what every process wrote."""
        parts = [what]
        for name in self._processes:
            parts.append(f"--- {name}\n{self._output(name).read_text()}")
        return "\n".join(parts)

    def _coordinate(self, address: str) -> _native.Coordinator:
        return _native.Coordinator(address, self._own, repeated=self._repeated)

    def _common(self) -> dict[str, str]:
        own = {name: text for name, text in os.environ.items() if not name.startswith(_FOREIGN)}
        return {
            **own,
            **self._settings,
            "SUMPTER_COORDINATOR": self.address,
            "SUMPTER_TOKEN": TOKEN,
        }

    def _output(self, name: str) -> Path:
        return self.folder / f"{name}.txt"

    def _start(
        self, name: str, target: object, arguments: tuple[str, ...], environment: Mapping[str, str]
    ) -> None:
        output = self._output(name)
        process = _context.Process(
            target=_child, args=(target, arguments, dict(environment), str(output)), daemon=True
        )
        self._processes[name] = process
        output.touch()
        process.start()


def _goes_on(before: Sequence[float | None], after: Sequence[float | None]) -> bool:
    """Whether processes whose processor time is known at two moments compute, or one has ended."""
    taken = [
        COMPUTES_S if now is None else now - then
        for then, now in zip(before, after, strict=True)
        if then is not None
    ]
    return sum(taken) >= COMPUTES_S


def processor_time_s(pid: int | None) -> float | None:
    """The processor time that a process has taken; None once it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # After the name, which may hold anything: proc_pid_stat(5).
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _child(
    target: object, arguments: tuple[str, ...], environment: dict[str, str], output: str
) -> None:
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        target(*arguments)  # type: ignore[operator]
    finally:
        # Children of multiprocessing skip what a script started by hand would do at its end.
        atexit._run_exitfuncs()


def _run(script: str, *arguments: str) -> None:
    sys.path[:0] = [str(Path(script).parent), str(SUPPORT)]
    sys.argv = [script, *arguments]
    # An environment of another framework may lack it.
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)
    runpy.run_path(script, run_name="__main__")


def _execute(python: str, script: str, *arguments: str) -> None:
    """Replaces this process by one of another environment, with other packages."""
    paths = [str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    os.execve(python, [python, script, *arguments], {**os.environ, **variables})


def _serve() -> None:
    _native.serve({})


def as_variables(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings as a process finds them in its environment."""
    return {f"SUMPTER_{name.upper()}": _text(value) for name, value in settings.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
