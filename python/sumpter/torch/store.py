"""The coordinator's address through torch's store."""

import concurrent.futures
import datetime
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch.distributed as dist

from sumpter import _environment
from sumpter._assignments import setting_text
from sumpter._core.rendezvous import Board, start_timeout_s
from sumpter._errors import StartError

_T = TypeVar("_T")
REPORT_EVERY_S = 5.0

_log = logging.getLogger("sumpter")


class StoreBoard:
    """A board on a torch store: rank 0 sets one key, the other ranks wait for it.

    The key counts the sessions of this process, which every rank opens equally often.
    """

    _sessions = 0

    def __init__(self, store: dist.Store) -> None:
        self._store = dist.PrefixStore("sumpter", store)
        self._key = f"coordinator.{StoreBoard._sessions}"
        StoreBoard._sessions += 1

    @property
    def host(self) -> str:
        store = self._store
        while isinstance(store, dist.PrefixStore):
            store = store.underlying_store
        # A store that is a file says nothing about the network.
        return getattr(store, "host", "") or os.environ.get("MASTER_ADDR", "localhost")

    def post(self, text: str) -> None:
        self._store.set(self._key, text)

    def read(self, timeout_s: float) -> str:
        self._store.set_timeout(datetime.timedelta(seconds=timeout_s))
        what = "announce a coordinator in torch's store"
        return _patiently(lambda: self._store.get(self._key), timeout_s, what).decode()


def board(settings: Mapping[str, object]) -> Callable[[], Board] | None:
    """Torch's store if there is one or if the environment says where to make one."""
    if dist.is_initialized():
        return lambda: StoreBoard(dist.distributed_c10d._get_default_store())
    given = {name: setting_text(value) for name, value in settings.items() if value is not None}
    environment = _environment.read(given)
    if environment.master_host and environment.master_port:
        return lambda: StoreBoard(_environment_store(environment))
    return None


def _environment_store(environment: _environment.Understood) -> dist.Store:
    """The store that torchrun's agent serves, or else rank 0, where the launcher says."""
    host, port = environment.master_host, int(environment.master_port)
    from_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = not from_agent and environment.rank == "0"

    def connect() -> dist.TCPStore:
        # Torch tries twice, with a pause as long as a try in between.
        limit = datetime.timedelta(seconds=timeout_s / 3)
        return dist.TCPStore(
            host, port, None, serves, limit, wait_for_workers=False, multi_tenant=True
        )

    if (host, port) not in _stores:
        timeout_s = start_timeout_s()
        what = f"serve torch's store at {host}:{port}"
        _stores[host, port] = _patiently(connect, timeout_s, what)
    return _stores[host, port]


def _patiently(call: Callable[[], _T], timeout_s: float, what: str) -> _T:
    """Runs a call that blocks inside torch for up to `timeout_s`.

    It runs in a thread of its own, since Ctrl-C does not interrupt torch.
    """
    outcome: concurrent.futures.Future[_T] = concurrent.futures.Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except Exception as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="sumpter-rendezvous", daemon=True).start()
    start = time.monotonic()
    while True:
        try:
            return outcome.result(REPORT_EVERY_S)
        except (dist.DistStoreError, dist.DistNetworkError) as error:
            raise StartError(
                f"rank 0 did not {what} within {timeout_s:g} s: is it running? "
                "(SUMPTER_START_TIMEOUT_S waits longer)"
            ) from error
        except TimeoutError:
            waited = time.monotonic() - start
            _log.warning("waiting for rank 0 to %s: %.0f s of %g s", what, waited, timeout_s)


# Rank 0 may serve the store from its own process: it has to outlive the other ranks' reading, and
# serves the next session as well.
_stores: dict[tuple[str, int], dist.Store] = {}
