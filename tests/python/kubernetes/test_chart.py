"""The Helm chart: what it renders, whether a cluster would take it, and what it refuses."""

from __future__ import annotations

import base64
import ipaddress
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from manifests import (
    CHART,
    GUIDE,
    ROOT,
    VERSIONS,
    Resource,
    faults,
    helm,
    load,
    needs,
    only,
    pod_specs,
    refusal,
    render,
)
from needs import SERVER, server
from sumpter import _native

RULES = ROOT / "examples" / "monitoring" / "rules.yml"
FULL = str(Path(__file__).parent / "full.yaml")
LABELS = {"app.kubernetes.io/name": "sumpter", "app.kubernetes.io/instance": "sumpter"}
SETTINGS = {row["name"]: row["env"] for row in _native.settings()}

VARIANTS = {
    "default": (),
    "everything": ("--values", FULL),
    "own certificates": (
        *("--set", "tls.enabled=true,tls.certManager.enabled=false"),
        *("--set", "tls.coordinatorSecret=a,tls.serverSecret=b"),
    ),
    "an issuer of one's own": (*("--set", "tls.enabled=true,tls.certManager.issuerRef.name=site"),),
    "a Secret of one's own": ("--set", "token.existingSecret=mine,token.key=secret"),
    "names that are numbers": ("--set-json", 'servers.pools=[{"name":"1"},{"name":"true"}]'),
    "workers on their nodes' networks only": (
        *("--set-json", "networkPolicy.workers=[]"),
        *("--set", "networkPolicy.nodes={10.0.0.0/16}"),
    ),
    "no policies": ("--set", "networkPolicy.enabled=false,podDisruptionBudget.enabled=false"),
}
variants = pytest.mark.parametrize("arguments", VARIANTS.values(), ids=list(VARIANTS))


@variants
def test_a_cluster_would_take_every_resource(arguments: tuple[str, ...]) -> None:
    found = [fault for resource in render(*arguments) for fault in faults(resource)]
    assert not found, "\n".join(found)


def test_the_schemas_find_a_field_that_does_not_exist() -> None:
    resource = only(render(), "StatefulSet")
    resource["spec"]["template"]["spec"]["containers"][0]["imagine"] = 1
    assert len(faults(resource)) == len(VERSIONS)
    custom = only(render("--values", FULL), "Certificate", "sumpter-server")
    custom["spec"]["privateKey"]["imagine"] = 1
    assert len(faults(custom)) == 1


def test_helm_finds_nothing_to_complain_of() -> None:
    done = helm("lint", "--strict", str(CHART), "--values", FULL)
    assert done.returncode == 0, done.stdout + done.stderr


@variants
def test_the_server_takes_every_command_line(arguments: tuple[str, ...], tmp_path: Path) -> None:
    for resource in render(*arguments):
        for spec in pod_specs(resource):
            (container,) = spec["containers"]
            line = [word.replace("$(POD_IP)", "127.0.0.1") for word in container["args"]]
            assert container["command"] == ["sumpter-server"]
            # There is no token at this place: it is what a line that is right so far lacks.
            done = subprocess.run(
                [str(server()), *line], capture_output=True, text=True, timeout=60, check=False
            )
            assert "token_file" in done.stderr and "/etc/sumpter/token/token" in done.stderr


def test_a_command_line_with_an_unknown_setting_is_refused() -> None:
    done = subprocess.run(
        [str(server()), "serve", "--set", "max_job_byte=1GiB"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2 and "max_job_bytes" in done.stderr


@pytest.mark.parametrize("arguments", [(), ("--values", FULL)], ids=["default", "everything"])
def test_pods_may_do_as_little_as_possible(arguments: tuple[str, ...]) -> None:
    specs = [spec for resource in render(*arguments) for spec in pod_specs(resource)]
    assert len(specs) >= 2
    for spec in specs:
        (container,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False


@pytest.mark.parametrize("release", ["sumpter", "shared"])
def test_no_service_sets_a_setting_of_other_pods(release: str) -> None:
    for resource in render("--values", FULL, release=release):
        if resource["kind"] == "Service":
            prefix = resource["metadata"]["name"].upper().replace("-", "_")
            made = {f"{prefix}_PORT", f"{prefix}_SERVICE_HOST", f"{prefix}_SERVICE_PORT"}
            assert not made & set(SETTINGS.values())


def test_tokens_are_in_secrets_only() -> None:
    resources = render("--values", FULL)
    tokens = {
        base64.b64decode(one["data"]["token"]).decode()
        for one in resources
        if one["kind"] == "Secret"
    }
    assert all(len(token) >= 16 for token in tokens)
    others = yaml.safe_dump_all(one for one in resources if one["kind"] != "Secret")
    assert not [token for token in tokens if token in others]


def test_the_secret_of_a_tenant_is_the_same_where_its_workers_are() -> None:
    secrets = [one for one in render("--values", FULL) if one["kind"] == "Secret"]
    made = {
        one["metadata"]["namespace"]: one["data"]["token"]
        for one in secrets
        if one["metadata"]["name"] == "sumpter-tenant-vision-697be61a"
    }
    assert set(made) == {"sumpter", "team-vision"} and len(set(made.values())) == 1


def test_the_secret_of_a_tenant_follows_from_its_name() -> None:
    def names(tenants: str) -> dict[str, str]:
        return {
            one["metadata"]["annotations"]["sumpter/job"]: one["metadata"]["name"]
            for one in render("--set-json", f"tenants={tenants}")
            if one["kind"] == "Secret" and "sumpter/job" in one["metadata"].get("annotations", {})
        }

    first = names('[{"name":"vision-*"},{"name":"speech"},{"name":"*"},{"name":"Vision/"}]')
    assert len(set(first.values())) == 4
    assert names('[{"name":"speech"}]') == {"speech": first["speech"]}


def test_whole_numbers_of_a_file_are_written_out(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        "coordinator: {settings: {peer_timeout_s: 2.5}}\n"
        "servers: {settings: {max_job_bytes: 12884901888}}\n"
    )
    resources = render("--values", str(values))
    words = [
        w for one in resources for spec in pod_specs(one) for w in spec["containers"][0]["args"]
    ]
    assert "max_job_bytes=12884901888" in words and "peer_timeout_s=2.5" in words


def test_a_secret_of_ones_own_is_used_and_none_made() -> None:
    resources = render("--set", "token.existingSecret=mine,token.key=secret")
    assert not [one for one in resources if one["kind"] == "Secret"]
    for kind in ("StatefulSet", "Deployment"):
        (spec,) = pod_specs(only(resources, kind))
        (volume,) = spec["volumes"]
        assert volume["secret"]["secretName"] == "mine"
        assert volume["secret"]["items"] == [{"key": "secret", "path": "token"}]


def test_a_pool_has_its_own_values_and_those_of_all() -> None:
    resources = render("--values", FULL)
    rack, everywhere = only(resources, "Deployment"), only(resources, "DaemonSet")
    (spec,) = pod_specs(rack)
    assert spec["nodeSelector"] == {"example.com/rack": "a"}
    assert {"rack=a", "trunk_gbps=25", "bandwidth_gbps=25"} <= set(spec["containers"][0]["args"])
    (spec,) = pod_specs(everywhere)
    words = spec["containers"][0]["args"]
    assert spec["hostNetwork"] and "eth0,eth1" in words
    assert {"max_bytes=16GiB", "max_job_bytes=12GiB", "bandwidth_gbps=25"} <= set(words)
    by_name = {one["name"]: one for one in spec["containers"][0]["env"]}
    path = by_name["SUMPTER_RACK"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.labels['topology.kubernetes.io/zone']"


def test_an_autoscaler_owns_the_number_of_servers() -> None:
    resources = render("--values", FULL)
    deployment, scaler = only(resources, "Deployment"), only(resources, "HorizontalPodAutoscaler")
    assert "replicas" not in deployment["spec"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    metric = scaler["spec"]["metrics"][0]["external"]["metric"]["name"]
    # The page says how an adapter makes it of a recording rule, which exists.
    (rule,) = re.findall(rf"(sumpter:\w+:\w+)[^\n]*\n[^`]*as: {metric}", GUIDE.read_text())
    groups = yaml.safe_load(RULES.read_text())["groups"]
    assert rule in {one.get("record") for group in groups for one in group["rules"]}


@pytest.mark.parametrize(
    "pools",
    [
        '[{"name":"a"}]',
        '[{"name":"a"},{"name":"b"},{"name":"all","kind":"DaemonSet"}]',
        '[{"name":"all","kind":"DaemonSet"}]',
    ],
)
def test_a_disruption_budget_is_of_the_pods_of_one_deployment(pools: str) -> None:
    """With others among them, Kubernetes cannot tell how many there should be, and evicts none."""
    resources = render("--set-json", f"servers.pools={pools}")
    templates = {
        (one["kind"], one["metadata"]["name"]): one["spec"]["template"]["metadata"]["labels"]
        for one in resources
        if one["kind"] in ("Deployment", "DaemonSet", "StatefulSet")
    }
    budgets = [one["spec"] for one in resources if one["kind"] == "PodDisruptionBudget"]
    selected = [
        [who for who, labels in templates.items() if _selects(one["selector"], labels)]
        for one in budgets
    ]
    assert sorted(selected) == sorted([who] for who in templates if who[0] == "Deployment")
    assert all(one["maxUnavailable"] == 1 for one in budgets)


def test_dashboard_and_alerts_are_those_of_the_project() -> None:
    resources = render("--values", FULL)
    dashboard = only(resources, "ConfigMap", "sumpter-dashboard")["data"]["sumpter.json"]
    assert dashboard.rstrip() == (RULES.parent / "dashboard.json").read_text().rstrip()
    groups = yaml.safe_load(RULES.read_text())["groups"]
    assert only(resources, "PrometheusRule")["spec"]["groups"] == groups
    # The alert for an unreachable coordinator counts on this name of the scrape job.
    monitor = only(resources, "ServiceMonitor")
    label = only(resources, "Service")["metadata"]["labels"][monitor["spec"]["jobLabel"]]
    assert f'up{{job="{label}"}}' in RULES.read_text()
    ports = {port["name"] for port in only(resources, "Service")["spec"]["ports"]}
    assert {one["port"] for one in monitor["spec"]["endpoints"]} <= ports


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "image.repository is not set"),
        (("--set", "image.repository=x,servers.lanes=0"), "lanes"),
        (("--set", "image.repository=x,servers.lane=2"), "lane"),
        (("--set", "image.repository=x,coordinator.port=80"), "port"),
        (("--set", "image.repository=x,image.digest=latest"), "digest"),
        (("--set", "image.repository=x,tenants[0].weight=2"), "name"),
        (("--set", "image.repository=x,tenants[0].name=a b"), "name"),
        (
            ("--set", "image.repository=x,tenants[0].name=a,tenants[1].name=a"),
            'tenants: "a" is listed twice',
        ),
        (("--set", "image.repository=x,servers.pools[0].name=A"), "name"),
        (
            ("--set", "image.repository=x,servers.kind=DaemonSet,servers.autoscaling.enabled=true"),
            "servers pool cpu: autoscaling needs kind Deployment",
        ),
        (
            ("--set", "image.repository=x,servers.rack=a,servers.rackFromPodLabel=b"),
            "servers pool cpu: give rack or rackFromPodLabel, not both",
        ),
        (
            ("--set", "image.repository=x,servers.hostNetwork=true"),
            "servers pool cpu: hostNetwork needs networkPolicy.nodes",
        ),
        (("--set", "image.repository=x,networkPolicy.nodes={10.0.0.7}"), "nodes"),
        (
            ("--set", "image.repository=x,tls.enabled=true,tls.certManager.enabled=false"),
            "or a Secret with tls.crt, tls.key and ca.crt in tls.",
        ),
    ],
)
def test_values_that_make_no_sense_are_refused(arguments: tuple[str, ...], said: str) -> None:
    assert said in refusal(*arguments)


class Policies:
    """Which connections the policies of some resources admit, by the rules of NetworkPolicy v1.

    These leave pods with hostNetwork to the network plugin: it takes them for pods as any
    (`known`), or, as most do, for their node: no policy selects them, and only blocks of addresses
    admit them.
    """

    def __init__(self, resources: list[Resource], *, known: bool) -> None:
        self.all = [one for one in resources if one["kind"] == "NetworkPolicy"]
        self.known = known

    def admit(self, source: Resource, target: Resource, port: int) -> bool:
        """Whether a pod may connect to a port of another; see `pod`."""
        leaves = self._allows("Egress", "to", source, target, port)
        return leaves and self._allows("Ingress", "from", target, source, port)

    def _allows(self, kind: str, side: str, pod: Resource, peer: Resource, port: int) -> bool:
        policies = [
            one
            for one in self.all
            if kind in one["spec"]["policyTypes"]
            and self._is_pod(pod)
            and one["metadata"]["namespace"] == pod["namespace"]
            and _selects(one["spec"]["podSelector"], pod["labels"])
        ]
        rules = [rule for one in policies for rule in one["spec"].get(kind.lower(), ())]
        return not policies or any(
            any(self._is_peer(one, peer, pod["namespace"]) for one in rule.get(side, [{}]))
            and any(_has(one, port) for one in rule.get("ports", [{}]))
            for rule in rules
        )

    def _is_pod(self, pod: Resource) -> bool:
        return self.known or not pod["hostNetwork"]

    def _is_peer(self, rule: Resource, pod: Resource, own: str) -> bool:
        if block := rule.get("ipBlock"):
            assert set(block) == {"cidr"}
            return ipaddress.ip_address(pod["address"]) in ipaddress.ip_network(block["cidr"])
        if not rule:
            return True
        names = {"kubernetes.io/metadata.name": pod["namespace"]}
        where = rule.get("namespaceSelector")
        here = pod["namespace"] == own if where is None else _selects(where, names)
        return here and self._is_pod(pod) and _selects(rule.get("podSelector", {}), pod["labels"])


def _selects(selector: Resource, labels: dict[str, str]) -> bool:
    assert set(selector) <= {"matchLabels"}
    return all(labels.get(name) == text for name, text in selector.get("matchLabels", {}).items())


def _has(rule: Resource, port: int) -> bool:
    return "port" not in rule or rule["port"] <= port <= rule.get("endPort", rule["port"])


def pod(namespace: str, *, node: str = "", **labels: str) -> Resource:
    """A pod with an address of its own, or with that of its node."""
    return {
        **{"namespace": namespace, "labels": labels},
        **{"address": node or "10.244.0.7", "hostNetwork": bool(node)},
    }


def component(name: str, pool: str = "", node: str = "") -> Resource:
    labels = {**LABELS, "app.kubernetes.io/component": name}
    return pod("sumpter", node=node, **labels, **({"sumpter/pool": pool} if pool else {}))


def connections() -> Iterator[tuple[Resource, Resource, int, bool]]:
    coordinator, one, other = (
        component("coordinator"),
        component("server", "rack-a"),
        component("server", "rack-b"),
    )
    worker, stranger = pod("team-vision", app="train"), pod("team-red", app="train")
    prometheus = pod("monitoring", app="prometheus")
    yield from ((one, coordinator, 7700, True), (worker, coordinator, 7700, True))
    yield from ((worker, one, 7800, True), (worker, one, 7803, True), (worker, one, 7804, False))
    yield from ((one, other, 7800, True), (one, worker, 34567, True))
    yield from ((stranger, one, 7800, False), (stranger, coordinator, 7700, False))
    yield from ((prometheus, coordinator, 9464, True), (prometheus, coordinator, 7700, False))
    yield from ((worker, coordinator, 9464, False), (coordinator, one, 7800, False))
    yield from ((one, stranger, 443, False), (one, pod("kube-system", app="dns"), 53, True))
    # On the network of their nodes, which the values list, and of nodes of other networks.
    for host in (component("server", "all", "10.1.2.3"), component("server", "all", "fd00:1::7")):
        yield from ((host, coordinator, 7700, True), (host, one, 7800, True))
        yield from ((one, host, 7800, True), (host, one, 9464, False), (worker, host, 7800, True))
        yield from ((host, coordinator, 9464, False), (coordinator, host, 7800, False))
    elsewhere = pod("team-red", node="10.2.2.3", app="train")
    yield from ((elsewhere, coordinator, 7700, False), (elsewhere, one, 7800, False))


@pytest.mark.parametrize("known", [True, False], ids=["pods", "nodes"])
def test_policies_admit_members_of_jobs_and_no_one_else(known: bool) -> None:
    """With pods on their nodes' network taken for pods, and for their nodes."""
    policies = Policies(render("--values", FULL), known=known)
    wrong = [
        (source, target, port)
        for source, target, port, admitted in connections()
        if policies.admit(source, target, port) is not admitted
    ]
    assert not wrong


def test_servers_on_nodes_that_no_policy_admits_do_not_reach_their_coordinator() -> None:
    resources = render("--values", FULL, "--set-json", 'networkPolicy.nodes=["10.9.0.0/16"]')
    host = component("server", "all", "10.1.2.3")
    assert not Policies(resources, known=False).admit(host, component("coordinator"), 7700)


def test_the_chart_is_of_the_version_of_the_project() -> None:
    chart = load((CHART / "Chart.yaml").read_text())[0]
    (version,) = re.findall(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert chart["appVersion"] == version
    assert chart["kubeVersion"] == f">={VERSIONS[0]}.0-0"


def test_a_package_of_the_chart_is_complete(tmp_path: Path) -> None:
    done = helm("package", str(CHART), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.glob("*.tgz")
    listed = subprocess.run(["tar", "tzf", package], capture_output=True, text=True, check=True)
    assert {"sumpter/files/rules.yml", "sumpter/files/dashboard.json"} <= set(listed.stdout.split())


def test_what_is_missing_is_named() -> None:
    with pytest.raises(pytest.skip.Exception, match="no-such-tool is missing.*make kubernetes"):
        needs(SERVER.parent / "no-such-tool")
