"""The chart and the manifests in a control plane of Kubernetes: what it takes, and what it does.

It has no kubelets, so pods do not run: test_pods.py runs them as processes. It has no network
plugin, so NetworkPolicies are stored as they are and not enforced: test_chart.py evaluates them.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from control_plane import PROGRAMS, ControlPlane, control_plane, is_ready
from manifests import (
    CHART,
    EXAMPLES,
    HELM,
    IMAGE,
    ROOT,
    TOOLS,
    Resource,
    definitions,
    example,
    needs,
    only,
    pod_specs,
    quotations,
    released,
)
from pods import eventually

BUILD = ROOT / "tests" / "kubernetes" / "build.py"
FULL = Path(__file__).parent / "full.yaml"
DEFAULT = ("--set", IMAGE)
TENANT = "team-vision"
# The Secret that the chart makes for the tenant vision-* of full.yaml.
VISION = "sumpter-tenant-vision-697be61a"
EVENTS = "/api/v1/namespaces/{}/events"
BUDGETS = "/apis/policy/v1/namespaces/{}/poddisruptionbudgets"
# Two pools of servers on nodes of their own, and a server on each node of a third kind.
POOLS = [
    {"name": "a", "nodeSelector": {"pool": "cpu"}},
    {"name": "b", "nodeSelector": {"pool": "cpu"}},
    {"name": "all", "kind": "DaemonSet", "nodeSelector": {"pool": "storage"}},
]
MIXED = (*DEFAULT, "--set-json", f"servers.pools={json.dumps(POOLS)}")
HOST = {"name": "host", "kind": "DaemonSet", "hostNetwork": True}
ON_THE_HOST = (
    *(*DEFAULT, "--set", "networkPolicy.nodes={10.0.0.0/16}"),
    *("--set-json", f"servers.pools={json.dumps([{'name': 'cpu'}, HOST])}"),
)


@dataclass
class Started:
    plane: ControlPlane
    # What Helm said before there were custom resources.
    early: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    needs(HELM)
    for file in ("cert-manager.io_certificates", "jobset.x-k8s.io_jobsets"):
        needs(TOOLS / f"{file}.crd.json")
    with control_plane(tmp_path_factory.mktemp("control-plane")) as plane:
        early = plane.helm("install", "early", str(CHART), "--values", str(FULL))
        for one in definitions():
            plane.define(one)
        for index in range(6):
            zone = {"topology.kubernetes.io/zone": f"zone-{index}", "example.com/rack": "a"}
            plane.node(f"node-{index}", pool="storage" if index > 3 else "cpu", **zone)
        plane.namespace(TENANT)
        yield Started(plane, early)


@pytest.fixture
def plane(started: Started) -> ControlPlane:
    return started.plane


def differences(sent: object, stored: object, path: str = "") -> list[str]:
    """What was sent and is not stored; defaults that were added do not count."""
    if isinstance(sent, dict) and isinstance(stored, dict):
        return [
            one
            for key, value in sent.items()
            if value is not None and (value != [] or key in stored)
            for one in differences(value, stored.get(key), f"{path}.{key}")
        ]
    if isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        pairs = enumerate(zip(sent, stored, strict=True))
        return [one for i, pair in pairs for one in differences(*pair, f"{path}[{i}]")]
    return [] if sent == stored else [f"{path}: {sent!r} is stored as {stored!r}"]


def servers(plane: ControlPlane, namespace: str, pool: str = "") -> list[Resource]:
    found = plane.pods(namespace, "server")
    return [one for one in found if pool in ("", one["metadata"]["labels"]["sumpter/pool"])]


def settled(plane: ControlPlane, namespace: str, number: int) -> list[Resource]:
    """Waits until there are so many servers, and all are ready."""

    def ready() -> bool:
        plane.settle(namespace)
        found = servers(plane, namespace)
        return len(found) == number and all(map(is_ready, found))

    eventually(ready, lambda: f"{number} of {servers(plane, namespace)}")
    return servers(plane, namespace)


def budgets(plane: ControlPlane, namespace: str) -> dict[str, Resource]:
    """The budgets whose state is of what they ask for now."""
    return {
        one["metadata"]["name"]: one["status"]
        for one in plane.items(BUDGETS.format(namespace))
        if one.get("status", {}).get("observedGeneration") == one["metadata"]["generation"]
    }


def allowed(plane: ControlPlane, namespace: str) -> dict[str, int]:
    return {name: one["disruptionsAllowed"] for name, one in budgets(plane, namespace).items()}


def token(plane: ControlPlane, namespace: str, name: str = "sumpter-token") -> str:
    data = plane.done("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")["data"]
    return base64.b64decode(data["token"]).decode()


def tenant_tokens(plane: ControlPlane, namespace: str) -> dict[str, str]:
    """The token of each tenant that has a Secret of the chart's in a namespace."""
    return {
        one["metadata"]["annotations"]["sumpter/job"]: token(
            plane, namespace, one["metadata"]["name"]
        )
        for one in plane.items(f"/api/v1/namespaces/{namespace}/secrets")
        if "sumpter/job" in one["metadata"].get("annotations", {})
    }


def uninstall(plane: ControlPlane, release: str, namespace: str) -> str:
    """Takes a release away; what Helm says."""
    done = plane.helm("uninstall", release, "--namespace", namespace)
    assert done.returncode == 0, done.stderr
    return done.stdout


def quoted(message: str, part: str) -> None:
    """The guide's Troubleshooting has the message under words of it."""
    (said,) = quotations(part)
    assert re.search(said, message, re.DOTALL), f"{said}: {message}"


@pytest.mark.parametrize("arguments", [DEFAULT, ("--values", str(FULL))], ids=["default", "all"])
def test_everything_of_the_chart_is_stored_as_sent(
    plane: ControlPlane, arguments: tuple[str, ...]
) -> None:
    namespace = "stored"
    sent = plane.install("sumpter", namespace, *arguments)
    kinds = {one["kind"] for one in sent}
    assert kinds >= {"Deployment", "StatefulSet", "Service", "Secret", "PodDisruptionBudget"}
    found = {
        f"{one['kind']} {one['metadata']['name']}": differences(one, plane.stored(one))
        for one in sent
    }
    assert not {name: faults for name, faults in found.items() if faults}
    if "--values" in arguments:
        assert kinds >= {"Certificate", "Issuer", "ServiceMonitor", "PrometheusRule", "DaemonSet"}
        assert token(plane, TENANT, VISION) == token(plane, namespace, VISION)
    uninstall(plane, "sumpter", namespace)


def test_policies_mean_what_they_meant_when_sent(plane: ControlPlane) -> None:
    """The API server stores NetworkPolicies, and adds nothing that would change them. It does not
    enforce them: that is what a network plugin does, which is not there."""
    sent = plane.install("policies", "policies", *MIXED)
    policies = [one for one in sent if one["kind"] == "NetworkPolicy"]
    assert len(policies) == 1 + len(POOLS)
    for one in policies:
        # A list of rules that is empty is left out, and `policyTypes` counts.
        asked = {key: value for key, value in one["spec"].items() if value != []}
        assert plane.stored(one)["spec"] == asked
    uninstall(plane, "policies", "policies")


def test_the_printed_installation_upgrade_and_removal(plane: ControlPlane) -> None:
    done = plane.helm("install", "sumpter", str(CHART), *released("install"))
    assert done.returncode == 0, done.stderr
    settled(plane, "sumpter", 2)
    made = token(plane, "sumpter")
    assert len(made) == 48

    done = plane.helm("upgrade", "sumpter", str(CHART), *released("upgrade"))
    assert done.returncode == 0, done.stderr
    sent, ready = plane.sent("sumpter", "sumpter"), []

    def replaced() -> bool:
        ready.append(sum(map(is_ready, servers(plane, "sumpter"))))
        plane.settle("sumpter")
        pods = plane.pods("sumpter")
        images = [one["spec"]["containers"][0]["image"] for one in pods]
        return len(pods) == 3 and all(image.endswith(":0.2.0") for image in images)

    eventually(replaced, lambda: json.dumps(plane.pods("sumpter")))
    # One after the other.
    assert min(ready) >= 1, ready
    assert token(plane, "sumpter") == made
    only(sent, "NetworkPolicy", "sumpter-server-cpu")

    assert "sumpter-token" in uninstall(plane, "sumpter", "sumpter")
    for one in sent:
        if one["kind"] != "Secret":
            status, _ = plane.ask("GET", plane.path(one))
            assert status == 404, one

    def gone() -> bool:
        plane.settle("sumpter")
        kinds = ("pods", "replicasets", "controllerrevisions")
        return not any(
            plane.items(f"{root}/namespaces/sumpter/{kind}")
            for root, kind in zip(("/api/v1", "/apis/apps/v1", "/apis/apps/v1"), kinds, strict=True)
        )

    eventually(gone, lambda: json.dumps(plane.pods("sumpter")))
    left = plane.items("/api/v1/namespaces/sumpter/secrets")
    assert [one["metadata"]["name"] for one in left] == ["sumpter-token"]
    # Jobs that hold the token go on with the next installation.
    done = plane.helm("install", "sumpter", str(CHART), *released("install"))
    assert done.returncode == 0, done.stderr
    assert token(plane, "sumpter") == made
    uninstall(plane, "sumpter", "sumpter")


def test_a_drain_takes_one_server_of_each_deployment_at_a_time(plane: ControlPlane) -> None:
    namespace = "drained"
    plane.install("sumpter", namespace, *MIXED)
    settled(plane, namespace, 2 + 2 + 2)
    one_each = {"sumpter-server-a": 1, "sumpter-server-b": 1}
    eventually(
        lambda: allowed(plane, namespace) == one_each, lambda: str(budgets(plane, namespace))
    )
    (first, second), (other, _) = (servers(plane, namespace, pool) for pool in "ab")
    assert plane.evict(first)[0] == 201
    status, why = plane.evict(second)
    assert status == 429 and "disruption budget" in why
    # Those of another pool are counted apart.
    assert plane.evict(other)[0] == 201
    # The drain goes on when another server is ready in place of the first.
    settled(plane, namespace, 2 + 2 + 2)
    eventually(
        lambda: allowed(plane, namespace) == one_each, lambda: str(budgets(plane, namespace))
    )
    assert plane.evict(second)[0] == 201
    uninstall(plane, "sumpter", namespace)


def test_one_budget_over_deployments_and_daemonsets_would_let_none_go(plane: ControlPlane) -> None:
    """Why the chart has one for each Deployment: the same release, with one for all servers."""
    namespace = "one-budget"
    plane.install("sumpter", namespace, *MIXED, "--set", "podDisruptionBudget.enabled=false")
    assert not plane.items(BUDGETS.format(namespace))
    settled(plane, namespace, 2 + 2 + 2)
    selector = {"matchLabels": {"app.kubernetes.io/component": "server"}}
    budget = {
        **{"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"},
        **{"metadata": {"name": "all"}, "spec": {"maxUnavailable": 1, "selector": selector}},
    }
    plane.apply(budget, namespace)
    eventually(lambda: "all" in failing(plane, namespace), lambda: str(budgets(plane, namespace)))
    status, why = plane.evict(servers(plane, namespace, "a")[0])
    assert status == 429 and "disruption budget" in why
    uninstall(plane, "sumpter", namespace)


def failing(plane: ControlPlane, namespace: str) -> list[str]:
    """The budgets that the controller cannot compute, which therefore allow nothing."""
    return [
        one["metadata"]["name"]
        for one in plane.items(BUDGETS.format(namespace))
        for condition in one.get("status", {}).get("conditions") or ()
        if condition["reason"] == "SyncFailed" and one["status"]["disruptionsAllowed"] == 0
    ]


@pytest.mark.parametrize("level", ["restricted", "baseline", "privileged"])
def test_pods_fit_the_level_of_pod_security_that_the_guide_names(
    plane: ControlPlane, level: str
) -> None:
    plane.namespace(level, **{"pod-security.kubernetes.io/enforce": level})
    plane.install("sumpter", level, *ON_THE_HOST)
    on_hosts = 6 if level == "privileged" else 0

    def made() -> bool:
        return (
            len(plane.pods(level, "coordinator")) == 1
            and len(servers(plane, level, "cpu")) == 2
            and len(servers(plane, level, "host")) == on_hosts
            and (on_hosts > 0 or bool(refused(plane, level)))
        )

    eventually(made, lambda: json.dumps([plane.pods(level), plane.items(EVENTS.format(level))]))
    for message in refused(plane, level):
        assert "sumpter-server-host-" in message
        quoted(message, "violates PodSecurity")
    uninstall(plane, "sumpter", level)


def refused(plane: ControlPlane, namespace: str) -> list[str]:
    """Pods that controllers could not make for what the pods may do."""
    said = [one["message"] for one in plane.items(EVENTS.format(namespace))]
    return [message for message in said if "violates PodSecurity" in message]


def test_of_the_jobset_all_but_the_nodes_fit_the_restricted_level(plane: ControlPlane) -> None:
    """What runs in a node's pod is the user's, and so is what it may do."""
    namespace = "restricted-jobset"
    plane.namespace(namespace, **{"pod-security.kubernetes.io/enforce": "restricted"})
    for job in only(example("jobset.yaml"), "JobSet")["spec"]["replicatedJobs"]:
        (spec,) = pod_specs(job)
        pod = {"metadata": {"name": job["name"]}, "spec": spec}
        path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
        eventually(
            lambda path=path, pod=pod: "service account" not in str(plane.ask("POST", path, pod)),
            lambda: "the namespace has its service account",
        )
        status, answer = plane.ask("POST", path, pod)
        assert status == (403 if job["name"] == "node" else 201), answer


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_every_manifest_is_stored_as_sent(plane: ControlPlane, name: str) -> None:
    for one in example(name):
        assert not differences(one, plane.apply(one))


def test_pods_of_the_plain_job_have_the_names_and_the_label_that_it_counts_on(
    plane: ControlPlane,
) -> None:
    namespace = "plain-job"
    plane.namespace(namespace)
    for one in example("job.yaml"):
        plane.apply(one, namespace)
    eventually(lambda: len(plane.pods(namespace)) == 2, lambda: str(plane.pods(namespace)))
    for index, one in enumerate(sorted(plane.pods(namespace), key=lambda pod: str(pod["spec"]))):
        number = one["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
        assert one["spec"]["hostname"] == f"train-{number}"
        assert one["spec"]["subdomain"] == "train"
        # A scheduler's choice brings the zone of the node, which is SUMPTER_RACK.
        plane.bind(one, f"node-{index}")
    zones = {
        one["metadata"]["labels"].get("topology.kubernetes.io/zone")
        for one in plane.pods(namespace)
    }
    assert zones == {"zone-0", "zone-1"}


def test_custom_resources_that_are_not_installed_are_named(started: Started) -> None:
    assert started.early.returncode == 1
    quoted(started.early.stderr, "ensure CRDs are installed first")


def test_the_namespace_of_a_tenant_must_exist(plane: ControlPlane) -> None:
    namespace, where = "no-tenant", ("--namespace", "no-tenant", "--create-namespace")
    tenants = 'tenants=[{"name":"red-*","namespace":"team-red"}]'
    command = ("install", "sumpter", str(CHART), *where, *DEFAULT, "--set-json", tenants)
    done = plane.helm(*command)
    assert done.returncode == 1
    quoted(done.stderr, 'namespaces "')
    # What is left of it is in the way, and the guide says how to go on.
    done = plane.helm(*command)
    assert done.returncode == 1
    quoted(done.stderr, "cannot reuse a name")
    uninstall(plane, "sumpter", namespace)
    plane.namespace("team-red")
    done = plane.helm(*command)
    assert done.returncode == 0, done.stderr
    assert tenant_tokens(plane, "team-red").keys() == {"red-*"}
    uninstall(plane, "sumpter", namespace)


def test_a_tenant_keeps_its_token_when_another_is_taken_off_the_list(plane: ControlPlane) -> None:
    namespace = "tenants"
    plane.namespace(namespace)
    both = 'tenants=[{"name":"red-*"},{"name":"green"}]'
    plane.install("sumpter", namespace, *DEFAULT, "--set-json", both)
    before = tenant_tokens(plane, namespace)
    assert before.keys() == {"red-*", "green"} and len(set(before.values())) == 2
    done = plane.helm(
        *("upgrade", "sumpter", str(CHART), "--namespace", namespace),
        *(*DEFAULT, "--set-json", 'tenants=[{"name":"green"}]'),
    )
    assert done.returncode == 0, done.stderr
    # That of the other stays for when it comes back.
    assert tenant_tokens(plane, namespace) == before
    (mount,) = (
        source["secret"]["name"]
        for volume in plane.stored(only(plane.sent("sumpter", namespace), "StatefulSet"))["spec"][
            "template"
        ]["spec"]["volumes"]
        if volume["name"] == "tenants"
        for source in volume["projected"]["sources"]
        if "secret" in source
    )
    assert token(plane, namespace, mount) == before["green"]
    uninstall(plane, "sumpter", namespace)


def test_an_upgrade_in_the_wrong_namespace_is_refused(plane: ControlPlane) -> None:
    wrong = [word.replace("sumpter", "elsewhere") for word in released("upgrade")]
    assert wrong != released("upgrade")
    done = plane.helm("upgrade", "sumpter", str(CHART), *wrong)
    assert done.returncode == 1
    quoted(done.stderr, "has no deployed releases")


def build(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BUILD), str(folder)]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def test_the_programs_cannot_be_built_without_go_and_are_not_built_twice(tmp_path: Path) -> None:
    done = build(tmp_path, PATH="/nowhere")
    assert done.returncode == 1
    assert "MISSING the control plane of Kubernetes: `go` is not installed" in done.stderr
    if not (PROGRAMS / "pins").exists():
        pytest.skip("the control plane is missing: `make kubernetes-check`")
    for file in PROGRAMS.iterdir():
        (tmp_path / file.name).symlink_to(file)
    assert build(tmp_path, PATH="/nowhere").returncode == 0
    # Programs of other pins are not kept.
    (tmp_path / "pins").unlink()
    (tmp_path / "pins").write_text("others")
    assert build(tmp_path, PATH="/nowhere").returncode == 1
    assert not (tmp_path / "etcd").exists()
