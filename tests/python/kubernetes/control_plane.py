"""A control plane of Kubernetes on loopback ports: etcd, kube-apiserver, kube-controller-manager.

Its programs are those that `make kubernetes-check` builds. There is no scheduler and no kubelet:
`settle` writes through the API what these would. There is no network plugin either, so nothing
enforces a NetworkPolicy, and containers do not run.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from manifests import CHART, HELM, ROOT, Resource, needs
from pods import eventually
from sumpter.launch.attendant import free_port

PROGRAMS = ROOT / "target" / "tools" / "control-plane"
NAMES = ("etcd", "kube-apiserver", "kube-controller-manager")
# Those that act on what the chart and the manifests make.
CONTROLLERS = (
    *("daemonset", "deployment", "disruption", "garbage-collector", "job", "namespace"),
    *("replicaset", "serviceaccount", "statefulset"),
)
MERGE, APPLY = "application/merge-patch+json", "application/apply-patch+yaml"
# Only so that a hang fails instead of blocking.
HANG_S = 120


@dataclass
class ControlPlane:
    folder: Path
    url: str
    token: str
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _plurals: dict[tuple[str, str], Resource] = field(default_factory=dict)

    def ask(
        self, method: str, path: str, body: object = None, kind: str = "application/json"
    ) -> tuple[int, Resource]:
        """The status and the text of an answer."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        trusted = ssl.create_default_context(cafile=str(self.folder / "apiserver.crt"))
        try:
            with urllib.request.urlopen(request, context=trusted, timeout=HANG_S) as answer:
                return answer.status, _resource(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, _resource(error.read())

    def done(self, *arguments: object) -> Resource:
        """The text of an answer to what must succeed; see `ask`."""
        status, answer = self.ask(*arguments)  # type: ignore[arg-type]
        assert status < 300, f"{arguments[:2]}: {status}: {answer}"
        return answer

    def items(self, path: str) -> list[Resource]:
        return self.done("GET", path)["items"]

    def path(self, resource: Resource, namespace: str = "") -> str:
        """Where the API has a resource."""
        version, kind = resource["apiVersion"], resource["kind"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, kind) not in self._plurals:
            listed = self.done("GET", root)["resources"]
            self._plurals |= {
                (version, one["kind"]): one for one in listed if "/" not in one["name"]
            }
        known = self._plurals[version, kind]
        namespace = resource["metadata"].get("namespace", namespace)
        within = f"/namespaces/{namespace}" if known["namespaced"] else ""
        return f"{root}{within}/{known['name']}/{resource['metadata']['name']}"

    def apply(self, resource: Resource, namespace: str = "default") -> Resource:
        """As `kubectl apply --server-side` does."""
        asked = "fieldManager=kubectl&fieldValidation=Strict"
        return self.done("PATCH", f"{self.path(resource, namespace)}?{asked}", resource, APPLY)

    def stored(self, resource: Resource, namespace: str = "default") -> Resource:
        return self.done("GET", self.path(resource, namespace))

    def namespace(self, name: str, **labels: str) -> None:
        metadata = {"name": name, "labels": labels}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    def define(self, definition: Resource) -> None:
        """Adds a custom resource definition, and waits until its resources can be made."""
        path = self.path(definition)
        self.done("POST", path.rpartition("/")[0], definition)

        def established() -> bool:
            # They are null at first.
            conditions = self.done("GET", path).get("status", {}).get("conditions") or ()
            return any((c["type"], c["status"]) == ("Established", "True") for c in conditions)

        eventually(established, lambda: f"{path} is established")

    def node(self, name: str, **labels: str) -> None:
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}
        self.done("POST", "/api/v1/nodes", {"metadata": metadata})
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        self.done("PATCH", f"/api/v1/nodes/{name}/status", ready, MERGE)

    def pods(self, namespace: str, component: str = "") -> list[Resource]:
        """The pods that are not about to end; of all components, or of one."""
        name = "app.kubernetes.io/component"
        return [
            one
            for one in self.items(f"/api/v1/namespaces/{namespace}/pods")
            if component in ("", one["metadata"]["labels"].get(name))
            and "deletionTimestamp" not in one["metadata"]
        ]

    def settle(self, namespace: str) -> None:
        """Binds pods as a scheduler, starts and ends them as kubelets: each takes all at once."""
        found = self.items(f"/api/v1/namespaces/{namespace}/pods")
        taken = {one["spec"].get("nodeName") for one in found if _stays_apart(one)}
        for one in found:
            path = f"/api/v1/namespaces/{namespace}/pods/{one['metadata']['name']}"
            if "deletionTimestamp" in one["metadata"]:
                self.ask("DELETE", path, {"gracePeriodSeconds": 0})
                continue
            if "nodeName" not in one["spec"]:
                target = _node_of_daemon(one) or self._node_for(one, taken)
                if target is None:
                    continue  # pending, until another pod is gone
                self.bind(one, target)
                if _stays_apart(one):
                    taken.add(target)
            if not is_ready(one):
                ready = [{"type": "Ready", "status": "True"}]
                status = {"status": {"phase": "Running", "conditions": ready}}
                self.ask("PATCH", f"{path}/status", status, MERGE)

    def bind(self, pod: Resource, node: str) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding"
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        self.done("POST", path, {"metadata": {"name": metadata["name"]}, "target": target})

    def _node_for(self, pod: Resource, taken: set[str]) -> str | None:
        wanted = pod["spec"].get("nodeSelector", {}).items()
        free = (
            one["metadata"]["name"]
            for one in self.items("/api/v1/nodes")
            if wanted <= one["metadata"]["labels"].items()
            and not (_stays_apart(pod) and one["metadata"]["name"] in taken)
        )
        return next(free, None)

    def evict(self, pod: Resource) -> tuple[int, str]:
        """What `kubectl drain` asks for each pod: the status, and what is said."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        status, answer = self.ask("POST", path, body)
        return status, json.dumps(answer)

    def helm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs Helm, which finds this control plane, from the project's folder."""
        needs(HELM)
        variables = {name: text for name, text in os.environ.items() if "HELM_" not in name}
        variables |= {f"HELM_{name}_HOME": str(self.folder) for name in ("CACHE", "CONFIG", "DATA")}
        return subprocess.run(
            [str(HELM), *arguments],
            **{"cwd": ROOT, "env": {**variables, "KUBECONFIG": str(self.folder / "kubeconfig")}},
            **{"capture_output": True, "text": True, "timeout": HANG_S, "check": False},
        )

    def install(self, release: str, namespace: str, *arguments: str) -> list[Resource]:
        """Installs the chart; the resources that Helm has sent."""
        where = ("--namespace", namespace)
        done = self.helm("install", release, str(CHART), *where, "--create-namespace", *arguments)
        assert done.returncode == 0, done.stderr
        return self.sent(release, namespace)

    def sent(self, release: str, namespace: str) -> list[Resource]:
        done = self.helm("get", "manifest", release, "--namespace", namespace)
        assert done.returncode == 0, done.stderr
        return [one for one in yaml.safe_load_all(done.stdout) if one]

    def start(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [str(PROGRAMS / name), *arguments]
            self.running.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder))

    def report(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in logs)

    def is_up(self) -> bool:
        assert all(one.poll() is None for one in self.running), self.report()
        try:
            return self.ask("GET", "/readyz")[0] == 200
        except OSError:  # it has no certificate yet, or does not listen
            return False

    def stop(self) -> None:
        for one in reversed(self.running):
            one.terminate()
            try:
                one.wait(HANG_S)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()


def _resource(text: bytes) -> Resource:
    """An answer, or words such as those of /readyz."""
    return json.loads(text) if text.startswith(b"{") else {"message": text.decode()}


def is_ready(pod: Resource) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)


def _stays_apart(pod: Resource) -> bool:
    """Whether a pod has a node for itself, as servers have."""
    return "podAntiAffinity" in pod["spec"].get("affinity", {})


def _node_of_daemon(pod: Resource) -> str:
    """The node for which a DaemonSet has made a pod."""
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in required.get("nodeSelectorTerms", ()):
        for one in term.get("matchFields", ()):
            return one["values"][0]
    return ""


@contextlib.contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """A control plane without custom resources and nodes, which ends with the block."""
    missing = [name for name in NAMES if not (PROGRAMS / name).exists()]
    if missing:
        pytest.skip(f"{missing[0]} is missing, so this checks nothing: `make kubernetes-check`")
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing, so this checks nothing: apt-get install openssl")
    clients, peers, api = (free_port() for _ in range(3))
    plane = ControlPlane(folder, f"https://127.0.0.1:{api}", secrets.token_hex(16))
    key, config = folder / "accounts.key", folder / "kubeconfig"
    generate = ["openssl", "genrsa", "-out", str(key), "2048"]
    subprocess.run(generate, check=True, capture_output=True)
    (folder / "tokens.csv").write_text(f"{plane.token},admin,admin,system:masters\n")
    certificate = str(folder / "apiserver.crt")
    cluster = {"server": plane.url, "certificate-authority": certificate}
    known = {
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": plane.token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    config.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **known}))
    config.chmod(0o600)
    etcd = f"http://127.0.0.1:{clients}"
    try:
        plane.start(
            *("etcd", "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync"),
            *("--listen-client-urls", etcd, "--advertise-client-urls", etcd),
            *("--listen-peer-urls", f"http://127.0.0.1:{peers}"),
        )
        plane.start(
            *("kube-apiserver", "--etcd-servers", etcd, "--cert-dir", str(folder)),
            *("--bind-address", "127.0.0.1", "--secure-port", str(api)),
            *("--token-auth-file", str(folder / "tokens.csv"), "--authorization-mode", "RBAC"),
            *("--service-account-issuer", plane.url, "--service-account-key-file", str(key)),
            *("--service-account-signing-key-file", str(key)),
            *("--service-cluster-ip-range", "10.0.0.0/24"),
            # A controller that watches nodes' heartbeats would take its taint away.
            *("--disable-admission-plugins", "TaintNodesByCondition"),
        )
        eventually(plane.is_up, plane.report)
        plane.start(
            *("kube-controller-manager", "--kubeconfig", str(config), "--leader-elect=false"),
            *("--controllers", ",".join(f"{name}-controller" for name in CONTROLLERS)),
            *("--secure-port", "0"),
        )
        yield plane
    finally:
        plane.stop()
