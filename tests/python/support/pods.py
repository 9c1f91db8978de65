"""Pods without Kubernetes: a pod's template becomes a process in a network namespace of its own.

What a pod's process can see of its cluster is replayed as a kubelet makes it: address, host name,
the names of the pods and Services that exist at the moment, environment with `fieldRef`, Secrets
and `$(...)`, arguments, mounted files, the working folder, SIGTERM and the exit code. Not replayed:
images, limits, security contexts and policies.

Everything is on this machine: namespaces joined by one bridge, which is in a namespace too.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 200.0
_PREFIX = "smpk"
_NETWORK = "10.84.0"
_NODE = f"{_NETWORK}.254"
_ETC = Path("/etc/netns")
_NAMESPACES = Path("/run/netns")
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)")
_QUOTED_KEY = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")

Resource = dict[str, Any]


def needs_namespaces() -> None:
    """Skips a test where namespaces cannot be made, and says why."""
    missing = [tool for tool in ("ip", "unshare", "hostname") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found, so this checks nothing: install iproute2")
    if os.geteuid() != 0:
        pytest.skip("making network namespaces needs root, so this checks nothing")


@dataclass
class Pod:
    """A pod that runs, or has run."""

    name: str
    host: str  # the name by which others reach it, with its subdomain
    address: str
    folder: Path
    process: subprocess.Popen[bytes]
    container: Resource
    namespace: str = field(repr=False, default="")
    variables: Mapping[str, str] = field(repr=False, default_factory=dict)

    def log(self) -> str:
        """What it has written to standard output and standard error."""
        return (self.folder / "log").read_text(errors="replace")

    def wait(self) -> int:
        """Its exit code, as a kubelet reports it."""
        try:
            code = self.process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end:\n{self.log()}") from None
        return code if code >= 0 else 128 - code

    def running(self) -> bool:
        """Whether its process has not ended."""
        return self.process.poll() is None

    def evict(self) -> int:
        """SIGTERM, as for every deletion; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait_for(self, text: str) -> None:
        """Waits until it has written a text."""
        eventually(lambda: text in self.log(), lambda: f"{text!r} of {self.name}:\n{self.log()}")

    def probe(self) -> None:
        """Waits until its HTTP probes succeed, asked as by a kubelet from its node."""
        ports = {port.get("name"): port["containerPort"] for port in self.container["ports"]}
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            if asked := self.container.get(kind, {}).get("httpGet"):
                url = f"http://{self.address}:{ports[asked['port']]}{asked['path']}"
                # Any status but success raises.
                ask = f"import urllib.request; urllib.request.urlopen({url!r}, timeout=5)"
                command = ("ip", "netns", "exec", _bridge(), sys.executable, "-c", ask)
                eventually(
                    lambda c=command: subprocess.run(c, capture_output=True).returncode == 0,
                    lambda url=url: f"{url} of {self.name}:\n{self.log()}",
                )


@dataclass
class Cluster:
    """Pods on one network, Secrets and Services."""

    folder: Path
    programs: Mapping[str, Sequence[str]]  # what to run for the first word of a command
    files: Mapping[str, str] = field(default_factory=dict)  # in the working folder of every pod
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    maps: dict[str, dict[str, str]] = field(default_factory=dict)
    services: dict[str, str] = field(default_factory=dict)  # the name of the host behind each
    pods: list[Pod] = field(default_factory=list)

    def add(self, resource: Resource) -> None:
        """A Secret or a ConfigMap."""
        name, data = resource["metadata"]["name"], resource.get("data", {})
        if resource["kind"] == "Secret":
            decoded = {key: base64.b64decode(text).decode() for key, text in data.items()}
            self.secrets[name] = decoded
        else:
            self.maps[name] = data

    def start(
        self,
        template: Resource,
        name: str,
        *,
        host: str = "",
        namespace: str = "default",
        labels: Mapping[str, str] | None = None,
        index: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Pod:
        """Starts a pod of this template. `index` is that of an indexed Job; `environment` is what
        an operator adds."""
        number = len(self.pods) + 1
        address = address_of(number)
        folder = self.folder / f"{number}-{name}"
        folder.mkdir()
        own = _namespace(number)
        _connect(own, number, address)
        for file, text in self.files.items():
            (folder / file).write_text(text)
        metadata = template.get("metadata", {})
        (container,) = template["spec"]["containers"]
        facts = {
            "status.podIP": address,
            "metadata.name": name,
            "metadata.namespace": namespace,
            "labels": {**metadata.get("labels", {}), **(labels or {})},
            "annotations": dict(metadata.get("annotations", {})),
        }
        if index is not None:
            facts["annotations"]["batch.kubernetes.io/job-completion-index"] = str(index)
        mounts = self._mounted(template["spec"], container, folder)
        variables = self._variables(container, facts, environment or {}, index)
        words = [
            _localised(_expanded(word, variables), mounts)
            for word in (*container.get("command", ()), *container.get("args", ()))
        ]
        variables = {name: _localised(text, mounts) for name, text in variables.items()}
        command = [*self.programs[words[0]], *words[1:]]
        pod = Pod(name, host or name, address, folder, _run(own, name, command, variables, folder),
                  container, own, variables)  # fmt: skip
        self.pods.append(pod)
        self.publish()
        return pod

    def run_again(self, pod: Pod, *command: str) -> None:
        """Runs a command where another one has ended; the pod's log begins anew."""
        assert not pod.running()
        words = [*self.programs[command[0]], *command[1:]]
        pod.process = _run(pod.namespace, pod.name, words, pod.variables, pod.folder)

    def replace(self, pod: Pod) -> None:
        """Takes a pod that has ended off the network: its name and address are gone."""
        assert not pod.running()
        pod.host = ""
        self.publish()

    def publish(self) -> None:
        """Makes the names of the pods and Services known to all, as the cluster's DNS does."""
        named = {pod.host: pod.address for pod in self.pods if pod.host}
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in named.items())]
        lines += [f"{named[host]} {name}" for name, host in self.services.items() if host in named]
        for pod in self.pods:
            # In place: the file is mounted into the pod by its inode.
            (_ETC / pod.namespace / "hosts").write_text("\n".join(lines) + "\n")

    def report(self) -> str:
        """What all pods have written."""
        return "\n".join(f"--- {pod.name}\n{pod.log()}" for pod in self.pods)

    def stop(self) -> None:
        """Ends all pods."""
        for pod in self.pods:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pod.process.pid, signal.SIGKILL)
            pod.process.wait()

    def _mounted(self, spec: Resource, container: Resource, folder: Path) -> dict[str, str]:
        """The folders of a container's volumes, by where it has them."""
        mounts = {}
        for mount in container.get("volumeMounts", ()):
            volume = next(one for one in spec["volumes"] if one["name"] == mount["name"])
            target = folder / "volumes" / mount["name"]
            for source in volume.get("projected", {}).get("sources", [volume]):
                self._write(source, target)
            mounts[mount["mountPath"]] = str(target)
        return mounts

    def _write(self, source: Resource, target: Path) -> None:
        if secret := source.get("secret"):
            data = self.secrets[secret.get("secretName") or secret["name"]]
        else:
            secret = source["configMap"]
            data = self.maps[secret["name"]]
        items = secret.get("items") or [{"key": key, "path": key} for key in data]
        for item in items:
            file = target / item["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(data[item["key"]])

    def _variables(
        self,
        container: Resource,
        facts: Resource,
        environment: Mapping[str, str],
        index: int | None,
    ) -> dict[str, str]:
        found = {} if index is None else {"JOB_COMPLETION_INDEX": str(index)}
        found |= environment
        for one in container.get("env", ()):
            source = one.get("valueFrom", {})
            if reference := source.get("fieldRef"):
                found[one["name"]] = _field(reference["fieldPath"], facts)
            elif reference := source.get("secretKeyRef"):
                found[one["name"]] = self.secrets[reference["name"]][reference["key"]]
            else:
                found[one["name"]] = _expanded(one.get("value", ""), found)
        return found


def eventually(holds: Callable[[], object], what: Callable[[], str]) -> None:
    """Waits until something holds."""
    deadline = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < deadline, f"it did not come: {what()}"
        time.sleep(0.05)


@contextlib.contextmanager
def cluster(folder: Path, programs: Mapping[str, Sequence[str]], **more: Any) -> Iterator[Cluster]:
    """A cluster whose pods and namespaces are gone when the block is left."""
    needs_namespaces()
    _clean(lambda pid: pid == os.getpid() or not Path(f"/proc/{pid}").exists())
    folder.mkdir(exist_ok=True)
    made = Cluster(folder, programs, **more)
    try:
        _ip("netns", "add", _bridge())
        _ip("-n", _bridge(), "link", "set", "lo", "up")
        _ip("-n", _bridge(), "link", "add", "pods", "type", "bridge")
        _ip("-n", _bridge(), "addr", "add", f"{_NODE}/24", "dev", "pods")
        _ip("-n", _bridge(), "link", "set", "pods", "up")
        yield made
    finally:
        made.stop()
        _clean(lambda pid: pid == os.getpid())


def address_of(number: int) -> str:
    """The address of the pod that is started as this one, from 1."""
    return f"{_NETWORK}.{number}"


def _bridge() -> str:
    return _namespace(0)


def _namespace(number: int) -> str:
    return f"{_PREFIX}-{os.getpid()}-{number}"


def _clean(of: Callable[[int], bool]) -> None:
    """Removes namespaces and their files, of processes that `of` says."""
    for folder in (_NAMESPACES, _ETC):
        for path in folder.glob(f"{_PREFIX}-*") if folder.is_dir() else ():
            if of(int(path.name.split("-")[1])):
                if folder == _ETC:
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    # Another process may be about it as well.
                    subprocess.run(("ip", "netns", "del", path.name), capture_output=True)
                    assert not path.exists(), f"{path} is still there"


def _connect(namespace: str, number: int, address: str) -> None:
    _ip("netns", "add", namespace)
    port = f"pod{number}"
    _ip("link", "add", "eth0", "netns", namespace, "type", "veth", "peer", port, "netns", _bridge())
    _ip("-n", _bridge(), "link", "set", port, "master", "pods", "up")
    _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        _ip("-n", namespace, "link", "set", device, "up")
    etc = _ETC / namespace
    etc.mkdir(parents=True)
    (etc / "hosts").write_text("127.0.0.1 localhost\n")
    # A name that no pod has is unknown at once, as it is to the cluster's DNS.
    (etc / "nsswitch.conf").write_text("hosts: files\n")


def _run(
    namespace: str, name: str, command: Sequence[str], variables: Mapping[str, str], folder: Path
) -> subprocess.Popen[bytes]:
    own = {"PATH": os.environ["PATH"], "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    # One process all along, so that signals reach it: each word replaces itself by the next.
    inside = ("ip", "netns", "exec", namespace, "unshare", "--uts")
    named = ("sh", "-c", 'hostname "$0" && exec "$@"', name)
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [*inside, *named, *command],
            cwd=folder,
            env={**own, "PYTHONUNBUFFERED": "1", **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _ip(*arguments: str) -> None:
    done = subprocess.run(("ip", *arguments), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


def _field(path: str, facts: Resource) -> str:
    if quoted := _QUOTED_KEY.fullmatch(path):
        return str(facts[quoted[1]].get(quoted[2], ""))
    return str(facts[path])


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` replaced by the variable; left as it is where there is none, as by a kubelet."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] is None else variables.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def _localised(text: str, mounts: Mapping[str, str]) -> str:
    for path, folder in mounts.items():
        text = text.replace(path, folder)
    return text
