"""Who may read the page and who may press its buttons.

Reading needs a request that names this machine (a page of another site, whose name was made to
point here, does not). Pressing needs, besides, a page of the console itself and the secret that it
got for the job's token or for the code that `sumpter console` prints. The secret travels in a
header of its own, never in a cookie: other servers of this machine would get that, and other sites'
pages could have it sent.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from sumpter import _native
from sumpter._failure import Failure

SECRET_HEADER = "X-Sumpter-Secret"
# So many wrong tokens within so many seconds are taken; a guess at the code, which has 40 bits,
# would take longer than any job.
TRIES, TRIES_S = 10, 60.0
SESSIONS, SESSION_S = 32, 12 * 3600.0
LONGEST_TOKEN = 4096
# Letters and digits that do not look like others.
_ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"


class Refused(Failure):
    """A request that is not answered, and the HTTP status that says so."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Access:
    """Decides about requests.

    `own` is how the console reaches its coordinator, `check` raises what is wrong with other
    settings, and `names` are this machine's, beside its addresses.
    """

    def __init__(
        self,
        own: Callable[[], dict[str, str]],
        check: Callable[[dict[str, str]], object],
        *,
        read_only: bool,
        loopback: bool,
        names: frozenset[str] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.read_only = read_only
        self.code = "-".join(_letters(4) for _ in range(2))
        self._own = own
        self._check = check
        self._loopback = loopback
        self._names = frozenset(name.lower() for name in names) | {"localhost"}
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[str, tuple[float, dict[str, str]]] = {}
        self._wrong: list[float] = []

    def may_read(self, headers: Mapping[str, str]) -> None:
        """Refused unless the request names this machine."""
        host = _host(headers.get("Host", ""))
        if not self._is_here(host):
            raise Refused(421, "this console is not reached under that name: use its address")

    def may_act(self, headers: Mapping[str, str]) -> None:
        """Refused unless the request comes from the console's own page."""
        if self.read_only:
            raise Refused(403, "this console is read-only")
        scheme, _, place = headers.get("Origin", "").partition("://")
        if scheme not in ("http", "https") or place != headers.get("Host"):
            raise Refused(403, "only the console's own page may ask for this")

    def unlock(self, word: str) -> str:
        """A session's secret, in exchange for the code or the job's token."""
        if not 0 < len(word) <= LONGEST_TOKEN:
            raise Refused(400, "give the job's token, or the code that `sumpter console` printed")
        with self._lock:
            now = self._clock()
            self._wrong = [at for at in self._wrong if at > now - TRIES_S]
            if len(self._wrong) >= TRIES:
                raise Refused(429, f"{TRIES} wrong tokens in a minute: wait a minute")
            # Counted until it is known to be right, so that tries at once are counted as well.
            self._wrong.append(now)
        given: dict[str, str] = {}
        if not hmac.compare_digest(_plain(word).encode(), _plain(self.code).encode()):
            given = {"token": word}
            self._prove(given, now)
        secret = secrets.token_urlsafe(32)
        with self._lock:
            self._wrong.remove(now)
            while len(self._sessions) >= SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[secret] = (now + SESSION_S, given)
        return secret

    def _prove(self, given: dict[str, str], tried: float) -> None:
        """Raises the coordinator's words if it refuses the token."""
        try:
            self._check(self._with(given))
        except _native.AuthError:
            raise
        except Exception:
            # Not the token's fault.
            with self._lock:
                self._wrong.remove(tried)
            raise

    def lock(self, headers: Mapping[str, str]) -> None:
        """Forgets a page's secret."""
        with self._lock:
            self._sessions.pop(headers.get(SECRET_HEADER, ""), None)

    def settings(self, headers: Mapping[str, str]) -> dict[str, str]:
        """How a page that has been unlocked reaches the coordinator."""
        secret = headers.get(SECRET_HEADER, "")
        with self._lock:
            until, given = self._sessions.get(secret, (0.0, {}))
            if until <= self._clock():
                self._sessions.pop(secret, None)
                raise Refused(401, "locked: give the job's token first")
        return self._with(given)

    def _with(self, given: dict[str, str]) -> dict[str, str]:
        own = self._own()
        if given:
            own = {name: value for name, value in own.items() if name != "token_file"}
        return own | given

    def _is_here(self, host: str) -> bool:
        if host in self._names:
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        # No other site's page can be behind an address.
        return address.is_loopback or not self._loopback


def _host(place: str) -> str:
    """The host of `HOST:PORT`; empty for what is neither."""
    try:
        return (urlsplit(f"//{place}").hostname or "").lower()
    except ValueError:
        return ""


def _letters(count: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(count))


def _plain(code: str) -> str:
    return code.replace("-", "").replace(" ", "").upper()
