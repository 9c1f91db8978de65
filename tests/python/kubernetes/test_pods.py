"""The manifests' pods as processes: late pods, evictions, and what must go on meanwhile."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from manifests import Resource, example, only, quotations, render
from needs import server
from pods import Cluster, Pod, cluster, eventually
from sumpter import _native

TRAIN = (Path(__file__).parent / "workers" / "train.py").read_text()
FULL = str(Path(__file__).parent / "full.yaml")
JOBSET = "train"
SUM = """\
import numpy as np, sumpter
sumpter.init()
print("sum", sumpter.push_pull(np.ones(1000) + sumpter.rank(), average=False, name="x")[0])
sumpter.shutdown()
"""


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Cluster]:
    programs = {
        "sumpter-server": (str(server()),),
        "torchrun": (sys.executable, "-m", "torch.distributed.run"),
        "python": (sys.executable,),
        "sumpter": (sys.executable, "-m", "sumpter"),
    }
    with cluster(tmp_path / "pods", programs, files={"train.py": TRAIN}) as made:
        yield made


@dataclass
class Nodes:
    """The nodes of a job, which write down their steps."""

    pods: Cluster
    folder: Path

    def step(self) -> int:
        """The last step that both nodes have written down."""
        files = [self.folder / f"step.{rank}" for rank in range(2)]
        texts = [file.read_text() if file.exists() else "" for file in files]
        return min(int(text or 0) for text in texts)

    def goes_on(self, nodes: list[Pod]) -> None:
        """Waits until the nodes, in the processes that they were, have taken further steps."""
        before = self.step()
        eventually(
            lambda: self.step() > before + 40 or not all(node.running() for node in nodes),
            self.pods.report,
        )
        assert all(node.running() for node in nodes), self.pods.report()

    def finish(self, nodes: list[Pod]) -> None:
        """Ends the job, of which each node has checked every sum."""
        (self.folder / "enough").touch()
        assert [node.wait() for node in nodes] == [0, 0], self.pods.report()
        for rank, node in enumerate(nodes):
            assert f"rank {rank} of 2 took" in node.log()


class JobSet(Nodes):
    """A JobSet's pods, each as its Job starts and replaces it."""

    def start(self, role: str, index: int) -> Pod:
        spec = only(example("jobset.yaml"), "JobSet")["spec"]
        templates = {
            one["name"]: one["template"]["spec"]["template"] for one in spec["replicatedJobs"]
        }
        host = f"{JOBSET}-{role}-0-{index}"
        return self.pods.start(
            templates[role],
            host,
            host=f"{host}.{JOBSET}",
            labels={
                "jobset.sigs.k8s.io/jobset-name": JOBSET,
                "topology.kubernetes.io/zone": f"zone-{index}",
            },
            index=index,
            environment={"TEST_FOLDER": str(self.folder)},
        )


def status(pods: Cluster, **variables: str) -> Resource:
    """What `sumpter status` says, in a pod of its own."""
    show = worker(0, **variables)
    show["spec"]["containers"][0]["command"] = ["sumpter", "status", "--json"]
    shown = pods.start(show, "status")
    assert shown.wait() == 0, shown.log()
    return json.loads(shown.log())


def racks(members: list[Resource]) -> dict[str, str]:
    return {one["host"]: one["rack"] for one in members}


def test_a_jobset_outlives_evicted_servers_and_coordinators(pods: Cluster, tmp_path: Path) -> None:
    pods.secrets["sumpter-token"] = {"token": _native.generate_token()}
    jobset = JobSet(pods, tmp_path)
    # Pods start in any order; names exist when their pods do.
    nodes, servers = [jobset.start("node", 0)], [jobset.start("server", 0)]
    servers[0].wait_for(f"waiting for the coordinator at {JOBSET}-coordinator-0-0.{JOBSET}:7700")
    coordinator = jobset.start("coordinator", 0)
    coordinator.probe()
    servers.append(jobset.start("server", 1))
    nodes.append(jobset.start("node", 1))
    for one in servers:
        one.wait_for("summing for job")
    jobset.goes_on(nodes)
    # The label of each pod is the rack that the coordinator plans with.
    told = status(
        pods,
        SUMPTER_COORDINATOR=f"{JOBSET}-coordinator-0-0.{JOBSET}:7700",
        SUMPTER_TOKEN=pods.secrets["sumpter-token"]["token"],
    )
    (job,) = told["jobs"]
    for role, members in (("server", told["servers"]), ("node", job["workers"])):
        assert racks(members) == {f"{JOBSET}-{role}-0-{i}": f"zone-{i}" for i in range(2)}, told

    # Another pod under the same name has another address.
    assert coordinator.evict() == 128 + signal.SIGTERM, pods.report()
    pods.replace(coordinator)
    jobset.goes_on(nodes)
    jobset.start("coordinator", 0).probe()

    # 128 + 15: a Job takes 0 for work that is done, and starts no other pod. That nothing uses the
    # server any more is what the new coordinator has told it: it knows the members.
    assert servers[0].evict() == 128 + signal.SIGTERM, pods.report()
    assert "no job uses this server any more" in servers[0].log(), pods.report()
    pods.replace(servers[0])
    jobset.goes_on(nodes)
    servers[0] = jobset.start("server", 0)
    servers[0].wait_for("summing for job")
    jobset.goes_on(nodes)

    jobset.finish(nodes)
    # Servers wait for the next job until the JobSet, which is done, deletes them.
    assert all(one.running() for one in servers)


def test_a_plain_job_trains_on_the_charts_servers(pods: Cluster, tmp_path: Path) -> None:
    resources = render()
    pods.add(only(resources, "Secret"))
    pods.services["sumpter-coordinator.sumpter.svc"] = "sumpter-coordinator-0"
    coordinator, one = (
        pods.start(only(resources, kind)["spec"]["template"], name, namespace="sumpter")
        for kind, name in (("StatefulSet", "sumpter-coordinator-0"), ("Deployment", "server-x"))
    )
    job, nodes = only(example("job.yaml"), "Job"), Nodes(pods, tmp_path)
    name, spec = job["metadata"]["name"], job["spec"]
    ranks = [
        pods.start(
            spec["template"],
            f"{name}-{index}",
            host=f"{name}-{index}.{spec['template']['spec']['subdomain']}",
            labels={"topology.kubernetes.io/zone": f"zone-{index}"},
            index=index,
            environment={"TEST_FOLDER": str(tmp_path)},
        )
        # The one that the others look for comes last.
        for index in reversed(range(spec["completions"]))
    ][::-1]
    one.wait_for("summing for job")
    nodes.goes_on(ranks)
    told = status(
        pods,
        SUMPTER_COORDINATOR="sumpter-coordinator.sumpter.svc:7700",
        SUMPTER_TOKEN=pods.secrets["sumpter-token"]["token"],
    )
    (seen,) = told["jobs"]
    assert seen["name"] == name
    assert racks(seen["workers"]) == {f"{name}-{i}": f"zone-{i}" for i in range(2)}, told
    assert [server["host"] for server in told["servers"]] == ["server-x"]
    nodes.finish(ranks)
    assert all(still.running() for still in (coordinator, one))


def test_members_that_look_in_the_wrong_namespace_say_so_and_end(pods: Cluster) -> None:
    token, address = _native.generate_token(), "sumpter-coordinator.team-red.svc:7700"
    rank = worker(
        0,
        **{"SUMPTER_COORDINATOR": address, "SUMPTER_TOKEN": token, "WORLD_SIZE": "2"},
        **{"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "SUMPTER_START_TIMEOUT_S": "5"},
    )
    words = ["serve", "--join", address, "--token", token, "--set", "start_timeout_s=5"]
    container = {"name": "server", "command": ["sumpter-server"], "args": words}
    server_pod = {"spec": {"containers": [container]}}
    said = quotations("failed to lookup address information")
    assert len(said) == 2
    for one in (pods.start(rank, "rank"), pods.start(server_pod, "server")):
        assert one.wait() == 1, one.log()
        assert f"no way to the coordinator at {address} in 5 s" in one.log(), one.log()
        assert all(re.search(quoted, one.log()) for quoted in said), one.log()


def certificates(folder: Path, resources: list[Resource]) -> dict[str, dict[str, str]]:
    """The Secrets that cert-manager would make of the chart's Certificates."""

    def openssl(*arguments: str) -> None:
        subprocess.run(("openssl", *arguments), cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    made = {}
    for one in resources:
        if one["kind"] != "Certificate" or one["spec"].get("isCA"):
            continue
        name = one["metadata"]["name"]
        names = ",".join(f"DNS:{dns}" for dns in one["spec"]["dnsNames"])
        usages = {"server auth": "serverAuth", "client auth": "clientAuth"}
        extended = ",".join(usages[use] for use in one["spec"]["usages"] if use in usages)
        (folder / f"{name}.ext").write_text(
            f"subjectAltName={names}\nextendedKeyUsage={extended}\n"
        )
        openssl(
            "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"
        )
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem"),
        )
        made[one["spec"]["secretName"]] = {
            "tls.crt": (folder / f"{name}.pem").read_text(),
            "tls.key": (folder / f"{name}.key").read_text(),
            "ca.crt": (folder / "ca.pem").read_text(),
        }
    return made


def worker(rank: int, **variables: str) -> Resource:
    """A pod of one rank, as a user of the chart writes it."""
    env = [{"name": name, "value": text} for name, text in variables.items()]
    env.append({"name": "RANK", "value": str(rank)})
    container = {"name": "worker", "command": ["python", "-c", SUM], "env": env}
    if "SUMPTER_TLS_CA" not in variables:
        return {"spec": {"containers": [container]}}
    mount = {"name": "tls", "mountPath": "/etc/sumpter/tls"}
    volumes = [{"name": "tls", "secret": {"secretName": "sumpter-worker-tls"}}]
    return {"spec": {"containers": [{**container, "volumeMounts": [mount]}], "volumes": volumes}}


def test_the_charts_service_sums_for_tenants_over_tls(pods: Cluster, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing, so this checks nothing: apt-get install openssl")
    resources = render(
        "--values", FULL, "--set-json", "servers.pools[1].interfaces=[]", "--set", "servers.lanes=2"
    )
    for resource in resources:
        if resource["kind"] in ("Secret", "ConfigMap"):
            pods.add(resource)
    pods.secrets["speech"] = {"token": _native.generate_token()}
    pods.secrets |= certificates(tmp_path, resources)
    pods.services["sumpter-coordinator.sumpter.svc"] = "sumpter-coordinator-0"

    def start(kind: str, name: str) -> Pod:
        template = only(resources, kind)["spec"]["template"]
        return pods.start(template, name, namespace="sumpter")

    servers = [start("Deployment", "sumpter-server-rack-a-x"), start("DaemonSet", "node-7")]
    coordinator = start("StatefulSet", "sumpter-coordinator-0")
    for one in (coordinator, *servers):
        one.probe()
    common = {
        "SUMPTER_COORDINATOR": "sumpter-coordinator.sumpter.svc:7700",
        **{
            f"SUMPTER_TLS_{part}": f"/etc/sumpter/tls/{file}"
            for part, file in (("CERT", "tls.crt"), ("KEY", "tls.key"), ("CA", "ca.crt"))
        },
        **{"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        **{"SUMPTER_SERVERS": "2", "SUMPTER_START_TIMEOUT_S": "150"},
    }
    jobs = {
        "vision-1": pods.secrets["sumpter-tenant-vision-697be61a"],
        "speech": pods.secrets["speech"],
    }
    for job, secret in jobs.items():
        own = {"SUMPTER_JOB": job, "SUMPTER_TOKEN": secret["token"]}
        ranks = [
            pods.start(worker(rank, **common, **own), f"{job}-{rank}", namespace="team-vision")
            for rank in range(2)
        ]
        assert [rank.wait() for rank in ranks] == [0, 0], pods.report()
        assert all("sum 3.0" in rank.log() for rank in ranks)
    # A tenant's token opens no other job, and a job that is not listed is no one's.
    stranger = {"SUMPTER_JOB": "speech", "SUMPTER_TOKEN": jobs["vision-1"]["token"]}
    refused = pods.start(worker(0, **common, **stranger), "stranger")
    assert refused.wait() == 1 and "token refused" in refused.log()

    shown = status(pods, **common, SUMPTER_TOKEN=pods.secrets["sumpter-token"]["token"])
    told = {one["host"]: one for one in shown["servers"]}
    assert set(told) == {"sumpter-server-rack-a-x", "node-7"}
    # Rack and bandwidth are those of the values.
    racked = told["sumpter-server-rack-a-x"]
    assert (racked["rack"], racked["trunk_gbps"]) == ("a", 25.0)
    assert all(one["bandwidth_gbps"] == 25.0 for one in told.values())
    for one in (*servers, coordinator):
        assert one.evict() == 128 + signal.SIGTERM, one.log()
