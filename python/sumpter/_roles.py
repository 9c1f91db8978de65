"""BytePS' roles besides the worker: a scheduler is a coordinator, a server a summation server.

Both run until their job is over.
"""

import signal
import sys
import threading

from sumpter import _environment, _native
from sumpter._byteps import Cluster
from sumpter._errors import AuthError, ConfigError

# BytePS' roles are started by hand or by a script on many machines, and wait for each other.
START_TIMEOUT_S = "600"


def run() -> None:
    """Runs the role that DMLC_ROLE names; raises ConfigError unless it is server or scheduler."""
    cluster = _environment.cluster()
    if cluster.role == "worker":
        raise ConfigError(
            "DMLC_ROLE must be 'server' or 'scheduler' here; workers run their script by "
            "`sumpter bpslaunch` or by themselves"
        )
    check_token()
    if threading.current_thread() is threading.main_thread():
        # Like Ctrl-C, SIGTERM lets the role announce that it leaves.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    settings = {**_environment.tuning(), **start_timeout()}
    if cluster.role == "server":
        _native.serve({**settings, "coordinator": cluster.root, "servers": str(cluster.servers)})
    else:
        _coordinate(cluster, settings)


def check_token() -> None:
    """Raises AuthError unless the environment holds the token, which BytePS had no word for."""
    if not any(_environment.own_variable(name) for name in ("token", "token_file")):
        raise AuthError(
            "there is no token: BytePS let anybody in, Sumpter does not. Make one with `sumpter "
            "token --file job.token`, copy the file to every machine and set "
            "SUMPTER_TOKEN_FILE=job.token for every role"
        )


def start_timeout() -> dict[str, str]:
    """The setting start_timeout_s for BytePS' roles, unless its own variable is set."""
    known = _environment.own_variable("start_timeout_s")
    return {} if known else {"start_timeout_s": START_TIMEOUT_S}


def _coordinate(cluster: Cluster, settings: dict[str, str]) -> None:
    # The address of the root may be one that only others see, as a service of Kubernetes has.
    host, _, port = cluster.root.rpartition(":")
    everywhere = "[::]" if host.startswith("[") else "0.0.0.0"
    coordinator = _native.Coordinator(f"{everywhere}:{port}", settings)
    try:
        coordinator.wait()
    finally:
        coordinator.stop()
