"""The web server of `sumpter console`: four files, one document, and what buttons ask for.

It answers each request on a connection and a thread of its own, whose number is limited. The
page's policy (Content-Security-Policy) allows this package's script and style and no other host, so
that even an error in the page could not run a text of a job or send it anywhere.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import threading
from collections.abc import Callable
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from sumpter import _native
from sumpter._failure import Failure, UsageError, message_of
from sumpter.console import actions
from sumpter.console.access import Access, Refused
from sumpter.console.watch import Watcher

_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/chart.js": ("chart.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
CONNECTIONS = 64
# A browser on this machine, or one network away, needs less.
_PATIENCE_S = 10.0
_LONGEST_BODY = 16384
# What is read of a longer one before it is refused.
_LONGEST_READ = 1 << 20
_LENGTH_DIGITS = 12
_TUNABLE = ("partition", "credit", "chunk", "tuner")


class Address(NamedTuple):
    """Where the console listens."""

    host: str
    port: int

    @staticmethod
    def parse(text: str) -> Address:
        """`HOST:PORT`, `[V6]:PORT`, or a port of 127.0.0.1. UsageError for anything else."""
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
        if not port.isdecimal() or int(port) > 65535:
            raise UsageError(f"--listen {text}: write HOST:PORT, such as 127.0.0.1:7780")
        return Address(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def url(self) -> str:
        """What to type into a browser on this machine."""
        any_address = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}
        host = any_address.get(self.host, self.host)
        return f"http://[{host}]:{self.port}/" if ":" in host else f"http://{host}:{self.port}/"


class Console:
    """A server of the page, which listens from its making on."""

    def __init__(self, address: Address, watcher: Watcher, access: Access, **shown: Any) -> None:
        self._watcher = watcher
        self._threads: list[threading.Thread] = []
        try:
            self._server = _Server(address, watcher, access, shown)
        except OSError as error:
            why = error.strerror or str(error)
            raise Failure(
                f"cannot listen on {address.host}:{address.port}: {why}; choose another address "
                "with --listen HOST:PORT (port 0: any free one)"
            ) from error
        self.address = Address(address.host, self._server.server_address[1])

    def start(self) -> None:
        """Serves and watches in threads of its own until close()."""
        for work in (self._watcher.watch, self._server.serve_forever):
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Stops listening."""
        self._watcher.end()
        if self._threads:
            self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = CONNECTIONS
    block_on_close = False

    def __init__(
        self, address: Address, watcher: Watcher, access: Access, shown: dict[str, Any]
    ) -> None:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self.watcher = watcher
        self.access = access
        self.shown = shown
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(tuple(found[0][4][:2]), _Handler)

    def server_bind(self) -> None:
        # HTTPServer's own asks DNS for a name that is not used here.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "sumpter"
    sys_version = ""
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        # Read even if it is refused: a browser that still sends would not see the answer.
        self._sent = self._receive()
        self._answer(self._post)

    def log_message(self, format: str, *arguments: object) -> None:
        """A terminal is for what matters."""

    def _answer(self, work: Callable[[], tuple[bytes, str]]) -> None:
        status = 200
        try:
            self.server.access.may_read(self.headers)
            body, kind = work()
        except Exception as error:
            status, text = _refusal(error)
            body, kind = _json({"error": " ".join(text.split())})
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _get(self) -> tuple[bytes, str]:
        url = urlsplit(self.path)
        if url.path == "/view":
            asked = {name: values[0] for name, values in parse_qs(url.query).items()}
            after = asked.get("after", "0")
            document = self.server.watcher.document(
                asked.get("session", ""), int(after[:18]) if after.isdecimal() else 0
            )
            read_only = self.server.access.read_only
            return _json(document | self.server.shown | {"read_only": read_only})
        if url.path in _FILES:
            name, kind = _FILES[url.path]
            return _file(name), kind
        raise Refused(404, "there is nothing here")

    def _post(self) -> tuple[bytes, str]:
        access = self.server.access
        access.may_act(self.headers)
        asked = self._body()
        match urlsplit(self.path).path:
            case "/unlock":
                return _json({"secret": access.unlock(_text(asked, "token"))})
            case "/lock":
                access.lock(self.headers)
                return _json({"said": ["locked"]})
            case "/drain":
                done = actions.drain(_text(asked, "server"), access.settings(self.headers))
            case "/tune":
                settings = access.settings(self.headers)
                changes = {
                    name: text for name in _TUNABLE if (text := _text(asked, name, "").strip())
                }
                reset = asked.get("reset") is True
                if not changes and not reset:
                    raise Refused(400, "nothing to change: give a size or a tuner, or reset")
                done = actions.tune(changes, settings, job=_text(asked, "job"), reset=reset)
            case _:
                raise Refused(404, "there is nothing here")
        return _json({"said": done.lines})

    def _receive(self) -> bytes | None:
        """The body; None if it has no length, or is too long."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()) or len(length) > _LENGTH_DIGITS:
            return None
        size = int(length)
        if size <= _LONGEST_BODY:
            return self.rfile.read(size)
        self.rfile.read(min(size, _LONGEST_READ))
        return None

    def _body(self) -> dict[str, Any]:
        # Another site's form cannot send this type without asking first.
        if self.headers.get_content_type() != "application/json":
            raise Refused(415, "send a JSON document")
        if self._sent is None:
            raise Refused(413, f"send at most {_LONGEST_BODY} bytes, and say how many")
        try:
            document = json.loads(self._sent)
        except (ValueError, RecursionError):
            raise Refused(400, "send a JSON document") from None
        if not isinstance(document, dict):
            raise Refused(400, "send a JSON object")
        return document


def _text(document: dict[str, Any], name: str, default: str | None = None) -> str:
    value = document.get(name, default)
    # Half a surrogate pair is no text.
    if not isinstance(value, str) or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise Refused(400, f"{name}: send a text")
    return value


def _refusal(error: Exception) -> tuple[int, str]:
    """The HTTP status for an error, and its words."""
    if isinstance(error, Refused):
        return error.status, str(error)
    if isinstance(error, _native.AuthError):
        return 403, message_of(error)
    if isinstance(error, _native.ConfigError | UsageError):
        return 400, message_of(error)
    if isinstance(error, _native.SumpterError | Failure):
        return 502, message_of(error)
    return 500, f"{type(error).__name__}: {error}"


def _json(document: object) -> tuple[bytes, str]:
    return json.dumps(document).encode(), "application/json"


@cache
def _file(name: str) -> bytes:
    return files("sumpter.console").joinpath(name).read_bytes()
