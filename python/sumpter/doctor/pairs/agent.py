"""What measures on each machine: one end listens during the run, the other connects to it.

    python -m sumpter.doctor.pairs.agent listen '{...}'    prints what it is, then serves
    python -m sumpter.doctor.pairs.agent measure '{...}'   prints figures of the way to a listener

Both are started by the launcher's attendant, which ends them with the run. Each end proves to the
other that it knows the run's token before anything else is said; the token itself is never sent.
Whatever does not answer is given up after a few seconds, so that both end by themselves.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sumpter import _native
from sumpter.doctor import job
from sumpter.doctor.pairs import datagrams
from sumpter.doctor.probe import Interface, Probe

# Longer than a TCP connection takes whose first packet was lost twice (1 s, then 2 s).
CONNECT_S = 4.0
# An open connection on which nothing moves for so long is stalled.
SILENCE_S = 3.0
# What is not counted at first: TCP's slow start.
WARM_UP_S = 0.25
# Exchanges of clock readings; the one with the shortest round trip counts.
EXCHANGES = 20
# Connections at once for the speed: a single one is often bound by a core of the receiver.
MOST_STREAMS = 4
# What one stream sends at most.
MOST_BYTES = 8 << 30
# Of a range of ports, so many are tried.
MOST_PORTS = 64
_CHUNK = 1 << 20
_NONCE_BYTES = 16
_LINE_BYTES = 4096
_CLOCKS = struct.Struct(">qq")

REFUSED = "refused"
SILENT = "silent"
STRANGER = "stranger"


class Stranger(OSError):
    """The other end does not know the run's token."""


def proof(token: str, purpose: bytes, nonce: bytes) -> bytes:
    """What only an end with the token can say."""
    return hmac.digest(token.encode(), purpose + nonce, hashlib.sha256)


# Describing this machine.


def describe(probe: Probe, towards: list[str]) -> dict[str, Any]:
    """This machine's address for the others, the interface that has it, and versions."""
    address = _address(probe, towards)
    if address is None:
        return {"problem": f"it has no route to any of {', '.join(towards)}"}
    interface = next((each for each in probe.interfaces() if address in each.addresses), None)
    name = interface.name if interface else ""
    mtu = probe.read(f"/sys/class/net/{name}/mtu") if name else None
    stated = probe.environment.get("SUMPTER_BANDWIDTH_GBPS", "")
    speed = interface.speed_mbit if interface else None
    with contextlib.suppress(ValueError):
        speed = round(float(stated) * 1000)
    versions = {"wire format": str(getattr(_native, "WIRE_VERSION", "unknown"))}
    versions |= {"sumpter": _native.__version__, "python": probe.python_version()}
    for package in ("numpy", "torch"):
        copies = probe.installed(package)
        versions[package] = copies[0].version if copies else "not installed"
    return {
        "problem": "",
        "address": address,
        "interface": name,
        "mtu": int(mtu) if mtu else 0,
        "speed_mbit": speed or 0,
        "tls": bool(probe.environment.get("SUMPTER_TLS_CERT")),
        "cores": probe.cores()[1],
        "versions": versions,
    }


def _address(probe: Probe, towards: list[str]) -> str | None:
    """As Sumpter chooses it: the interface that is set, else by the routing table."""
    wanted = probe.environment.get("SUMPTER_INTERFACES", "").split(",")[0].strip()
    for each in probe.interfaces() if wanted else ():
        if each.addresses and wanted == each.name:
            return _first(each)
        if wanted in each.addresses:
            return wanted
    found = [probe.own_address(address) for host in towards for address in probe.resolve(host)]
    known = [address for address in found if address]
    # Loopback only if there is nothing else: the others are on this machine, too.
    return next((a for a in known if not a.startswith(("127.", "::1"))), next(iter(known), None))


def _first(interface: Interface) -> str:
    """IPv4 before IPv6, of which a link-local address would need a scope."""
    return next((a for a in interface.addresses if ":" not in a), interface.addresses[0])


def wanted_ports(probe: Probe) -> list[int]:
    """The ports that SUMPTER_PORT and SUMPTER_LANES give to lanes; none if any free one will do."""
    first = job.number(probe.environment, "port")
    lanes = job.number(probe.environment, "lanes") or probe.cores()[1]
    return list(range(first, min(first + min(lanes, MOST_PORTS), 1 << 16))) if first else []


# The end that listens.


class Listener:
    """Sockets on this machine's address that serve those who know the token."""

    def __init__(self, token: str, address: str, ports: list[int]) -> None:
        self._token = token
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.busy: list[int] = []
        self._sockets: list[socket.socket] = []
        for port in ports:
            try:
                self._sockets.append(_listening(family, address, port))
            except OSError as failure:
                if failure.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                self.busy.append(port)
        if not self._sockets:
            self._sockets.append(_listening(family, address, 0))
        self.ports = [each.getsockname()[1] for each in self._sockets]
        self._echo = socket.socket(family, socket.SOCK_DGRAM)
        try:
            self._echo.bind((address, self.ports[0]))
        except OSError:
            self._echo.bind((address, 0))
        self.udp = self._echo.getsockname()[1]

    def serve(self) -> None:
        """Serves until the process is ended."""
        threading.Thread(target=datagrams.echo, args=(self._echo, self._token), daemon=True).start()
        others = [
            threading.Thread(target=self._accept, args=(each,), daemon=True)
            for each in self._sockets
        ]
        for thread in others:
            thread.start()
        for thread in others:
            thread.join()

    def close(self) -> None:
        """Accepts nothing more."""
        for each in (*self._sockets, self._echo):
            with contextlib.suppress(OSError):
                # Wakes a thread that waits in it.
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        # Whatever a stranger or a broken connection does ends with the connection.
        with connection, contextlib.suppress(OSError, ValueError, KeyError):
            _prepare(connection)
            nonce = os.urandom(_NONCE_BYTES)
            connection.sendall(nonce)
            said = exactly(connection, 32)
            if not hmac.compare_digest(said, proof(self._token, b"measure", nonce)):
                return
            connection.sendall(proof(self._token, b"listen", exactly(connection, _NONCE_BYTES)))
            order = read_line(connection)
            if order["do"] == "clock":
                for _ in range(min(int(order["count"]), 1000)):
                    exactly(connection, 1)
                    arrived = time.time_ns()
                    connection.sendall(_CLOCKS.pack(arrived, time.time_ns()))
            elif order["do"] == "receive":
                write_line(connection, receive(connection, float(order["seconds"])))
                _drain(connection)
            elif order["do"] == "send":
                send(connection, float(order["seconds"]))
                _drain(connection)


def _listening(family: int, address: str, port: int) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        # As Sumpter listens: connections that ended a moment ago do not matter.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen(64)
    except OSError:
        listening.close()
        raise
    return listening


# What both ends say over a connection.


def _prepare(connection: socket.socket) -> None:
    connection.settimeout(SILENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes; ConnectionResetError if the other end closes before."""
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionResetError(errno.ECONNRESET, "the other end closed the connection")
        data += part
    return data


def read_line(connection: socket.socket) -> dict[str, Any]:
    """A JSON object that ends with a line break."""
    line = b""
    # Byte by byte, since what follows the line is not text.
    while not line.endswith(b"\n") and len(line) < _LINE_BYTES:
        line += exactly(connection, 1)
    return json.loads(line)


def write_line(connection: socket.socket, said: dict[str, Any]) -> None:
    """Sends what `read_line` reads."""
    connection.sendall(json.dumps(said).encode() + b"\n")


def send(connection: socket.socket, seconds: float) -> None:
    """Sends for so long, or until the other end has enough."""
    data = memoryview(os.urandom(_CHUNK))
    left = MOST_BYTES
    deadline = time.monotonic() + WARM_UP_S + seconds
    with contextlib.suppress(OSError):
        while left > 0 and time.monotonic() < deadline:
            left -= connection.send(data[:left])
        connection.shutdown(socket.SHUT_WR)


def receive(connection: socket.socket, seconds: float) -> dict[str, float]:
    """Bytes and the seconds in which they came, after the warm-up; no bytes if it stalls."""
    buffer = bytearray(_CHUNK)
    began = time.monotonic()
    counted_from, counted, now = began, 0, began
    try:
        while now < began + WARM_UP_S + seconds:
            length = connection.recv_into(buffer)
            if length == 0:
                break
            now = time.monotonic()
            if now < began + WARM_UP_S:
                counted_from = now
            else:
                counted += length
    except OSError:
        return {"bytes": 0, "seconds": SILENCE_S}
    return {"bytes": counted, "seconds": max(now - counted_from, 1e-6)}


def _drain(connection: socket.socket) -> None:
    """Takes what is still under way, so that closing does not reset the other end."""
    deadline = time.monotonic() + SILENCE_S
    while time.monotonic() < deadline and connection.recv(_CHUNK):
        pass


# The end that connects.


class Measurer:
    """Connects to one listener and measures the way there and back."""

    def __init__(self, token: str, target: str) -> None:
        self._token = token
        self._target = target

    def open(self, port: int) -> socket.socket:
        """A connection whose other end has proved that it is the listener."""
        connection = socket.create_connection((self._target, port), CONNECT_S)
        try:
            _prepare(connection)
            nonce = os.urandom(_NONCE_BYTES)
            try:
                said = proof(self._token, b"measure", exactly(connection, _NONCE_BYTES))
                connection.sendall(said + nonce)
                theirs = exactly(connection, 32)
            except TimeoutError:
                raise Stranger("it accepts the connection and says nothing") from None
            except ConnectionError:
                raise Stranger("it accepts the connection and closes it") from None
            if not hmac.compare_digest(theirs, proof(self._token, b"listen", nonce)):
                raise Stranger("it does not know this run's token")
        except BaseException:
            connection.close()
            raise
        return connection

    def reach(self, port: int) -> tuple[str, str]:
        """Why a port cannot be reached, as one of a few words and in the system's; "" if it can."""
        try:
            self.open(port).close()
        except Stranger as failure:
            return STRANGER, str(failure)
        except TimeoutError:
            return SILENT, "no answer"
        except ConnectionRefusedError as failure:
            return REFUSED, failure.strerror
        except OSError as failure:
            return "unreachable", failure.strerror or str(failure)
        return "", ""

    def clock(self, port: int) -> dict[str, float]:
        """How far the other clock is ahead, by NTP's four times, and the shortest round trip."""
        best, offset = float("inf"), 0.0
        with self.open(port) as connection:
            write_line(connection, {"do": "clock", "count": EXCHANGES})
            for _ in range(EXCHANGES):
                sent, began = time.time_ns(), time.perf_counter_ns()
                connection.sendall(b"?")
                arrived, answered = _CLOCKS.unpack(exactly(connection, _CLOCKS.size))
                trip = time.perf_counter_ns() - began
                round_trip = trip - (answered - arrived)
                if round_trip < best:
                    best = round_trip
                    offset = ((arrived - sent) + (answered - sent - trip)) / 2
        return {"offset_s": offset / 1e9, "round_trip_s": max(best, 0) / 1e9}

    def speeds(self, port: int, streams: int, seconds: float) -> dict[str, float]:
        """Gb/s there, back, and each way while both are busy; zero where it stalls."""

        def there() -> float:
            with self.open(port) as connection:
                write_line(connection, {"do": "receive", "seconds": seconds})
                send(connection, seconds)
                return _gbps(read_line(connection))

        def back() -> float:
            with self.open(port) as connection:
                write_line(connection, {"do": "send", "seconds": seconds})
                return _gbps(receive(connection, seconds))

        # Processor time over all streams, to see whether the cores or the link are measured.
        began, busy = time.monotonic(), time.process_time()
        found = {"to": sum(_at_once([there] * streams)), "from": sum(_at_once([back] * streams))}
        used = (time.process_time() - busy) / (time.monotonic() - began)
        both = _at_once([there] * streams + [back] * streams)
        found |= {"both_to": sum(both[:streams]), "both_from": sum(both[streams:])}
        return found | {"cores_used": used}


def _gbps(counted: dict[str, Any]) -> float:
    return counted["bytes"] * 8e-9 / counted["seconds"]


def _at_once(actions: list[Callable[[], float]]) -> list[float]:
    """What each returns; nothing moved where one fails."""

    def attempt(action: Callable[[], float]) -> float:
        try:
            return action()
        except (OSError, ValueError, KeyError):
            return 0.0

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(attempt, actions))


def measure(token: str, order: dict[str, Any]) -> dict[str, Any]:
    """Everything about the way to one listener. Speeds only if `streams` are wanted."""
    measurer = Measurer(token, order["target"])
    ports = order["ports"]
    with ThreadPoolExecutor(min(len(ports), MOST_PORTS)) as pool:
        reached = list(pool.map(measurer.reach, ports))
    found: dict[str, Any] = {
        "ports": [[port, *why] for port, why in zip(ports, reached, strict=True)],
        "source": Probe().own_address(order["target"]),
    }
    open_ports = [port for port, why in zip(ports, reached, strict=True) if not why[0]]
    try:
        if open_ports:
            found["clock"] = measurer.clock(open_ports[0])
        trip = found["clock"]["round_trip_s"] if open_ports else 0.0
        if order["mtu"]:
            found["mtu"] = datagrams.probe_size(
                token, order["target"], order["udp"], order["mtu"], trip
            )
        if open_ports and order["streams"]:
            found["speeds"] = measurer.speeds(open_ports[0], order["streams"], order["seconds"])
    except OSError as failure:
        found["problem"] = f"the connection broke: {failure}"
    return found


def main(arguments: list[str]) -> None:
    """Does what the launcher asks for and prints JSON, a line for each answer."""
    action, text = arguments
    order = json.loads(text)
    # Whatever happens to those that started it, it does not stay.
    signal.setitimer(signal.ITIMER_REAL, order["lifetime_s"])
    probe = Probe()
    token = probe.environment["SUMPTER_TOKEN"]
    if action == "measure":
        print(json.dumps(measure(token, order)), flush=True)
        return
    described = describe(probe, order["towards"])
    if described["problem"]:
        print(json.dumps(described), flush=True)
        return
    fixed = wanted_ports(probe)
    listener = Listener(token, described["address"], fixed)
    described |= {"ports": listener.ports, "busy": listener.busy, "udp": listener.udp}
    described["fixed"] = not set(fixed).isdisjoint(listener.ports)
    print(json.dumps(described), flush=True)
    listener.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
