"""Processes on the machines of an emulated cluster, which get their commands over pipes.

They are forked from one fork server that has imported torch already: the import takes seconds
and half a gigabyte, and a cell has up to sixteen processes. Each enters its machine's namespace
before it makes any thread or socket. Pipes are no part of the emulated network, so telling the
processes to start a round costs the links nothing.

When the command dies, the fork server ends, and the kernel ends its children with it.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Sequence
from ctypes import c_long
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any, cast

from sumpter._failure import Failure
from sumpter_lab.scaffold.network import namespaces
from sumpter_lab.scaffold.network.cluster import Machine

_PR_SET_PDEATHSIG = 1
# How long a process may take to leave before it is killed.
LEAVE_TIMEOUT_S = 10.0

# By name, because this process must not import torch, which some of them need.
_KINDS = {
    "CodecTrainer": "sumpter_lab.convergence.rank",
    "Job": "sumpter_lab.tenants.job",
    "Learner": "sumpter_lab.diloco.rank",
    "Mesh": "sumpter_lab.scaffold.network.mesh",
    "Player": "sumpter_lab.replay.rank",
    "Probe": "sumpter_lab.scaffold.network.probe",
    "Relay": "sumpter_lab.diloco.relay",
    "Server": "sumpter_lab.scaffold.jobs.rank",
    "Stepper": "sumpter_lab.asynchronous_rank",
    "Trainer": "sumpter_lab.memory_rank",
    "Tuned": "sumpter_lab.tune.rank",
    "Worker": "sumpter_lab.scaffold.jobs.rank",
}

_context = multiprocessing.get_context("forkserver")
_PRELOADED = ("torch", "sumpter.torch", "sumpter_lab.scaffold.jobs.rank")


def preload(*more: str) -> None:
    """What the fork server imports for all processes; effective before the first one starts."""
    _context.set_forkserver_preload([*_PRELOADED, *more])


def counter() -> c_long:
    """A number that the command and its processes share, as an argument of a Remote."""
    return cast(c_long, _context.RawValue(c_long, -1))


class Remote:
    """An object that lives in a process of its own on one machine."""

    def __init__(self, machine: Machine, kind: str, *arguments: object) -> None:
        self.machine = machine
        self.name = f"{kind.lower()} on {machine.name}"
        self._pipe, theirs = _context.Pipe()
        self.process: BaseProcess = _context.Process(
            target=_live, args=(theirs, machine.namespace, kind, arguments), daemon=True
        )
        # Inherited by the fork server: torch warns of every host without a name.
        os.putenv("TORCH_CPP_LOG_LEVEL", "ERROR")
        self.process.start()
        # Only the child holds the other end, so that its death closes the pipe.
        theirs.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def send(self, method: str, *arguments: object) -> None:
        """Starts a call; gather() returns its result."""
        try:
            self._pipe.send((method, arguments))
        except OSError:
            raise Failure(f"the {self.name} ended early; its output says why") from None

    def answered(self) -> bool:
        """Whether the call under way has a result, good or bad."""
        return self._pipe.poll()

    def leave(self) -> None:
        """Closes the pipe: the process ends in its own way."""
        self._pipe.close()

    def end(self, timeout_s: float = 0.0) -> None:
        """Waits for the process to end, then kills it."""
        self._pipe.close()
        self.process.join(timeout_s)
        self.process.kill()
        self.process.join()

    def complaint(self) -> str:
        """Why a call under way has ended badly, if it has; empty while it goes on."""
        if not self._pipe.poll():
            return ""
        try:
            self._result()
        except Failure as failure:
            return str(failure)
        return f"the {self.name} ended before the job did"

    def _result(self) -> Any:
        try:
            well, value = self._pipe.recv()
        except (EOFError, OSError):
            self.process.join(1.0)
            raise Failure(
                f"the {self.name} ended early (exit code {self.process.exitcode})"
            ) from None
        if not well:
            raise Failure(f"the {self.name} failed: {value}")
        return value


def gather(remotes: Sequence[Remote], timeout_s: float) -> list[Any]:
    """The results of the calls under way, in the order of `remotes`; the first failure raises."""
    waiting = {remote._pipe: index for index, remote in enumerate(remotes)}
    results: list[Any] = [None] * len(remotes)
    deadline = time.monotonic() + timeout_s
    while waiting:
        ready = connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready:
            late = ", ".join(remotes[index].name for index in waiting.values())
            raise Failure(f"no answer within {timeout_s:.0f} s from: {late}")
        for pipe in ready:
            index = waiting.pop(pipe)  # type: ignore[arg-type]
            results[index] = remotes[index]._result()
    return results


def call_all(
    remotes: Sequence[Remote], timeout_s: float, method: str, *arguments: object
) -> list[Any]:
    """Calls a method on all and returns their results."""
    for remote in remotes:
        remote.send(method, *arguments)
    return gather(remotes, timeout_s)


def end_all(remotes: Sequence[Remote], timeout_s: float = LEAVE_TIMEOUT_S) -> None:
    """Lets all leave, then kills those that have not within the time."""
    for remote in remotes:
        remote.leave()
    deadline = time.monotonic() + timeout_s
    for remote in remotes:
        remote.end(max(0.0, deadline - time.monotonic()))


def _live(
    pipe: connection.Connection,
    namespace: str,
    kind: str,
    arguments: tuple[object, ...],
) -> None:
    """What the process runs: makes its object and serves calls until the pipe closes."""
    _die_with_parent()
    try:
        # A machine that only pretends to be one has no namespace.
        if namespace:
            namespaces.enter(namespace)
        make = getattr(importlib.import_module(_KINDS[kind]), kind)
        target = make(*arguments)
    except Exception as error:
        pipe.send((False, _describe(error)))
        return
    while True:
        try:
            method, given = pipe.recv()
        except (EOFError, OSError):
            break
        try:
            answer = (True, getattr(target, method)(*given))
        except Exception as error:
            answer = (False, _describe(error))
        try:
            pipe.send(answer)
        except OSError:
            break
    close = getattr(target, "close", None)
    if close is not None:
        close()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(1)
    # Ctrl-C and a closed terminal reach the whole group; the command itself ends its processes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _describe(error: Exception) -> str:
    """One line about an error that has to cross a pipe."""
    where = traceback.extract_tb(error.__traceback__)
    line = f" ({os.path.basename(where[-1].filename)}:{where[-1].lineno})" if where else ""
    return f"{type(error).__name__}: {error}{line}"
