"""Two jobs that do not trust each other, on one coordinator and one server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from jobs import WORKERS
from sumpter import _native
from sumpter.cli import main
from sumpter.launch.attendant import free_port

PATIENCE_S = 120.0
SECRETS = {name: f"the secret of {name}, for tests" for name in ("cluster", "red", "blue")}
TENANTS = """
[[job]]
name = "red"
token_file = "red.token"
weight = 3
max_bytes = "16MiB"

[[job]]
name = "blue"
token_file = "blue.token"
max_workers = 2
"""


class Cluster:
    """A coordinator with tenants, a server, and workers, each a process with a log of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        for name, secret in SECRETS.items():
            (folder / f"{name}.token").write_text(secret + "\n")
        (folder / "tenants.toml").write_text(TENANTS)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        listen = ("--listen", self.address, "--tenants", str(folder / "tenants.toml"))
        self.start("coordinator", "cluster", "coordinator", *listen)
        self.start("server", "cluster", "serve", "--lanes", "1", SUMPTER_MACHINE="cpu")

    def start(self, name: str, token: str, *command: str, **variables: str) -> None:
        """Starts a command of sumpter, or a script, that holds a token."""
        script = command[0].endswith(".py")
        own = {k: v for k, v in os.environ.items() if not k.startswith(("SUMPTER_", "RANK"))}
        environment = {
            **own,
            "SUMPTER_COORDINATOR": self.address,
            "SUMPTER_TOKEN_FILE": str(self.folder / f"{token}.token"),
            "SUMPTER_LOG": "debug",
            "TEST_FOLDER": str(self.folder),
            **variables,
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *(() if script else ("-m", "sumpter")), *command],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def start_worker(self, job: str, rank: int, token: str, address: str = "") -> str:
        name = f"{job}.{rank}.{token}"
        variables = {"SUMPTER_JOB": job, "RANK": str(rank), "WORLD_SIZE": "2"}
        variables |= {"SUMPTER_SERVERS": "1", "SUMPTER_MACHINE": f"gpu-{job}-{rank}"}
        variables |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        if address:
            variables["SUMPTER_COORDINATOR"] = address
        self.start(name, token, str(WORKERS["tenant.py"]), **variables)
        return name

    def end_of(self, name: str) -> int:
        try:
            return self.processes[name].wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            pytest.fail(self.report(f"{name} did not end"))

    def wait_for(self, *files: str) -> None:
        """Waits until the workers have made these files."""
        limit = time.monotonic() + PATIENCE_S
        while missing := [file for file in files if not (self.folder / file).exists()]:
            if time.monotonic() > limit:
                pytest.fail(self.report(f"missing: {missing}"))
            time.sleep(0.05)

    def wait_until(self, name: str, text: str) -> None:
        """Waits until a process has logged a text."""
        limit = time.monotonic() + PATIENCE_S
        while text not in self.log(name):
            if time.monotonic() > limit or self.processes[name].poll() is not None:
                pytest.fail(self.report(f"{name} did not say {text!r}"))
            time.sleep(0.05)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def report(self, what: str) -> str:
        return "\n".join([what, *(f"--- {name}\n{self.log(name)}" for name in self.processes)])

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def recorder(target: str) -> Iterator[tuple[str, bytearray]]:
    """A relay to `target` for one connection that keeps what the client said."""
    said = bytearray()
    host, port = target.split(":")
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, sink: socket.socket, record: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if record is not None:
                    record.extend(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def relay() -> None:
        client, _ = listener.accept()
        server = socket.create_connection((host, int(port)))
        threading.Thread(target=pump, args=(server, client, None), daemon=True).start()
        pump(client, server, said)

    threading.Thread(target=relay, daemon=True).start()
    with listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}", said


def answer_to(address: str, said: bytes) -> bytes:
    """What a peer answers, until it hangs up, to recorded bytes."""
    host, port = address.split(":")
    heard = bytearray()
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(said)
        with contextlib.suppress(ConnectionError):
            while b"the tokens differ" not in heard and (data := connection.recv(1 << 16)):
                heard.extend(data)
    return bytes(heard)


def jobs_of(settings: Mapping[str, str], job: str | None = None) -> list[str]:
    return [row["name"] for row in json.loads(_native.status(dict(settings), job))["jobs"]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        yield cluster
    finally:
        cluster.stop()


def test_two_tenants_train_at_once_and_all_others_are_refused(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.wait_until("coordinator", "coordinating at")
    with recorder(cluster.address) as (relay, said):
        workers = [cluster.start_worker("red", 0, "red", relay)]
        workers.append(cluster.start_worker("red", 1, "red"))
        workers += [cluster.start_worker("blue", rank, "blue") for rank in range(2)]
        cluster.wait_for(*(f"{job}.{rank}.busy" for job in ("red", "blue") for rank in range(2)))
        # Both are under way: now others try.
        refused = [cluster.start_worker("red", 1, "blue"), cluster.start_worker("none", 0, "red")]
        refused.append(cluster.start_worker("blue", 0, "cluster"))
        for name in refused:
            assert cluster.end_of(name) != 0
            assert "token refused" in cluster.log(name), cluster.report(name)
        assert b"the tokens differ" in answer_to(cluster.address, bytes(said))

        tokens = {name: {"token": SECRETS[name]} for name in SECRETS}
        for settings in tokens.values():
            settings["coordinator"] = cluster.address
        assert jobs_of(tokens["cluster"]) == ["blue", "red"]
        assert jobs_of(tokens["red"], "red") == ["red"]
        for job in (None, "blue", "none"):
            with pytest.raises(_native.AuthError):
                jobs_of(tokens["red"], job)
        rows = listed(cluster, capsys)

        (lane,) = json.loads(_native.status(tokens["cluster"]))["servers"][0]["lanes"]
        assert answer_to(lane, os.urandom(4096)) == b""
        (cluster.folder / "stop").touch()
        assert [cluster.end_of(name) for name in workers] == [0] * 4, cluster.report("failed")
    red, blue = rows["red"], rows["blue"]
    assert (red["state"], red["workers"], red["n"], red["k"]) == ("running", 2, 2, 1)
    assert (red["weight"], blue["weight"], red["max_bytes"]) == (3, 1, 16 << 20)
    cluster.stop()
    for name in cluster.processes:
        log = cluster.log(name)
        assert not [secret for secret in SECRETS.values() if secret in log]


def listed(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    """What `sumpter jobs --json` lists, by name; its table has the same jobs."""
    where = (
        "--coordinator",
        cluster.address,
        "--token-file",
        str(cluster.folder / "cluster.token"),
    )
    texts = []
    for arguments in ((), ("--json",)):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["jobs", *where, *arguments])
        assert not ended.value.code
        texts.append(capsys.readouterr().out)
    rows = json.loads(texts[1])
    assert all(row["name"] in texts[0] for row in rows)
    return {row["name"]: row for row in rows}


def test_a_mistake_in_the_file_of_tenants_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, secret in SECRETS.items():
        (tmp_path / f"{name}.token").write_text(secret)
    tenants = tmp_path / "tenants.toml"
    tenants.write_text('[[job]]\nname = "red"\ntoken_file = "cluster.token"\n')
    token = ("--token-file", str(tmp_path / "cluster.token"))
    with pytest.raises(SystemExit) as ended:
        main(["coordinator", "--listen", "127.0.0.1:0", *token, "--tenants", str(tenants)])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert "job 'red' has the cluster's token" in " ".join(error.split())
