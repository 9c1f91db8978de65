"""Starts, watches and ends a job's processes on one machine; the launcher speaks to it by pipes.

The launcher sends this file as text to a Python, here or over ssh, so that it needs nothing but
the standard library and is always of the launcher's own version. Orders come as lines of JSON on
standard input; what happens goes out as frames on standard output: a kind, the process' number,
a length, and that many bytes. When standard input ends, be it that the launcher was killed or
that the connection broke, everything that was started is ended. Each process leads a group of its
own, and the group ends with it.
"""

import json
import os
import random
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from functools import partial

HEADER = ">cII"

# Where the frames begin: a login shell may have said something before.
PREAMBLE = b"\0attendant\0"

# Between SIGTERM and SIGKILL when the launcher is gone.
GRACE_S = 1.5

# What a process leaves behind may hold its output open after it has ended; no one waits longer
# than this for its last words.
DRAIN_S = 1.0

# Below the ports that systems give to outgoing connections: one that is free stays free until rank
# 0 listens there, which takes as long as importing its framework.
PORTS = range(20_000, 30_000)
_marks = []

_READ_BYTES = 64 * 1024


class Process:
    """A process of the job and the pipes it still writes to."""

    def __init__(self, child):
        self.child = child
        self.pipes = {child.stdout: b"o", child.stderr: b"e"}
        self.over_at = None

    def signal(self, number):
        try:
            os.killpg(self.child.pid, number)
        except ProcessLookupError:
            return


class Attendant:
    """The event loop: orders, ends of children, and their output."""

    def __init__(self):
        self._selector = selectors.DefaultSelector()
        self._processes = {}
        self._orders = b""
        self._ending = False
        self._kill_at = None
        wake, woken = socket.socketpair()
        for end in (wake, woken):
            end.setblocking(False)
        signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        self._wake, self._woken = wake, woken
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self._end())
        # Handlers, unlike SIG_IGN, do not pass to what is started.
        for number in (signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self._selector.register(wake, selectors.EVENT_READ, lambda: wake.recv(_READ_BYTES))
        self._selector.register(0, selectors.EVENT_READ, self._read_orders)

    def run(self):
        self._write(PREAMBLE)
        while self._processes or not self._ending:
            for key, _ in self._selector.select(self._patience()):
                key.data()
            self._reap()

    def _patience(self):
        deadlines = [p.over_at for p in self._processes.values() if p.over_at is not None]
        if self._kill_at is not None:
            deadlines.append(self._kill_at)
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _read_orders(self):
        data = os.read(0, _READ_BYTES)
        if not data:
            self._selector.unregister(0)
            self._end()
            return
        *lines, self._orders = (self._orders + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            {"hello": self._hello, "start": self._start, "signal": self._signal}[order.pop("do")](
                **order
            )

    def _hello(self, folder, environment, package):
        os.environ.update(environment)
        connection = os.environ.get("SSH_CONNECTION", "").split()
        facts = {
            "cores": len(os.sched_getaffinity(0)),
            "host_name": socket.gethostname(),
            "port": free_port(),
            "client": connection[0] if len(connection) == 4 else "",
            "server": connection[2] if len(connection) == 4 else "",
            "problem": "",
        }
        try:
            os.chdir(folder)
        except OSError as error:
            facts["problem"] = f"cannot enter the folder {folder}: {error.strerror}"
        if package and not has_package(package):
            facts["problem"] = f"{sys.executable} has no package {package}"
        self._send(b"r", 0, json.dumps(facts).encode())

    def _start(self, index, command, defaults, variables):
        environment = {**defaults, **os.environ, **variables}
        environment = {name: text for name, text in environment.items() if text is not None}
        try:
            child = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            reason = "no such command" if missing else error.strerror or str(error)
            self._send(b"f", index, reason.encode())
            return
        process = self._processes[index] = Process(child)
        for pipe in process.pipes:
            pump = partial(self._pump, index, process, pipe)
            self._selector.register(pipe, selectors.EVENT_READ, pump)
        self._send(b"s", index, str(child.pid).encode())

    def _signal(self, index, number):
        if index in self._processes:
            self._processes[index].signal(number)

    def _pump(self, index, process, pipe):
        data = os.read(pipe.fileno(), _READ_BYTES)
        if data:
            self._send(process.pipes[pipe], index, data)
        else:
            self._close(process, pipe)

    def _close(self, process, pipe):
        self._selector.unregister(pipe)
        pipe.close()
        del process.pipes[pipe]

    def _reap(self):
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            for process in self._processes.values():
                process.signal(signal.SIGKILL)
        for index, process in list(self._processes.items()):
            code = process.child.poll()
            if code is None:
                continue
            if process.over_at is None:
                process.over_at = now if self._ending else now + DRAIN_S
            if not process.pipes or now >= process.over_at:
                process.signal(signal.SIGKILL)
                for pipe in list(process.pipes):
                    self._close(process, pipe)
                del self._processes[index]
                self._send(b"x", index, str(code if code >= 0 else 128 - code).encode())

    def _end(self):
        """No process is left to start, to read or to signal."""
        if not self._ending:
            self._ending = True
            self._kill_at = time.monotonic() + GRACE_S
            for process in self._processes.values():
                process.signal(signal.SIGTERM)

    def _send(self, kind, index, payload):
        self._write(struct.pack(HEADER, kind, index, len(payload)) + payload)

    def _write(self, data):
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            self._end()


def free_port():
    """A TCP port of this machine that is unused, also by other jobs until this process ends."""
    for port in random.sample(PORTS, len(PORTS)):
        # An abstract name: only one process can have it, and none has it once that has ended.
        mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            mark.bind(f"\0sumpter-port-{port}")
            with socket.socket() as probe:
                probe.bind(("", port))
        except OSError:
            mark.close()
        else:
            _marks.append(mark)
            return port
    raise RuntimeError(f"every port from {PORTS.start} to {PORTS.stop - 1} is in use")


def has_package(name):
    """Whether what is started with this Python would find a package."""
    import importlib.util
    import site

    # This process runs isolated from both.
    sys.path.extend(part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part)
    site.addsitedir(site.getusersitepackages())
    return importlib.util.find_spec(name) is not None


if __name__ == "__main__":
    Attendant().run()
