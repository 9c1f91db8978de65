"""The manifests of deploy/kubernetes: a JobSet, a runtime of Kubeflow, a TrainJob, a plain Job."""

from __future__ import annotations

import subprocess

import pytest

from manifests import EXAMPLES, Resource, example, faults, only, pod_specs, render
from needs import server
from sumpter import _native

FILES = sorted(path.name for path in EXAMPLES.glob("*.yaml"))
SETTINGS = {row["env"] for row in _native.settings()}
ENDLESS = 1_000_000


def replicated(spec: Resource) -> dict[str, Resource]:
    return {one["name"]: one["template"] for one in spec["replicatedJobs"]}


def jobset() -> Resource:
    return only(example("jobset.yaml"), "JobSet")["spec"]


def runtime() -> Resource:
    return only(example("clustertrainingruntime.yaml"), "ClusterTrainingRuntime")["spec"]


def of_kubeflow() -> dict[str, object]:
    """What Kubeflow Trainer 2.2 adds to the nodes of our TrainJob for torchrun: EnforceMLPolicy of
    pkg/runtime/framework/plugins/torch."""
    job = only(example("trainjob.yaml"), "TrainJob")
    name, trainer = job["metadata"]["name"], job["spec"]["trainer"]
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    return {
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
        "PET_NODE_RANK": {"fieldRef": {"fieldPath": index}},
        "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
        "PET_MASTER_PORT": "29500",
    }


def _expanded(variable: Resource) -> object:
    """A variable's value in the JobSet's pods, which has the TrainJob's name."""
    name = only(example("jobset.yaml"), "JobSet")["metadata"]["name"]
    if "valueFrom" in variable:
        return variable["valueFrom"]
    return variable["value"].replace("$(JOBSET)", name)


@pytest.mark.parametrize("name", FILES)
def test_a_cluster_would_take_every_resource(name: str) -> None:
    resources = example(name)
    assert resources
    found = [fault for resource in resources for fault in faults(resource)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", FILES)
def test_every_variable_is_one_that_something_reads(name: str) -> None:
    specs = [spec for resource in example(name) for spec in pod_specs(resource)]
    names = {one["name"] for spec in specs for one in spec["containers"][0].get("env", ())}
    assert {one for one in names if one.startswith("SUMPTER_")} <= SETTINGS
    assert {one for one in names if not one.startswith(("SUMPTER_", "PET_"))} <= {
        "JOBSET",
        "POD_IP",
    }


@pytest.mark.parametrize("name", ["jobset.yaml", "clustertrainingruntime.yaml"])
@pytest.mark.parametrize("role", ["coordinator", "server"])
def test_the_server_takes_every_command_line(name: str, role: str) -> None:
    spec = jobset() if name == "jobset.yaml" else runtime()["template"]["spec"]
    (pod,) = pod_specs(replicated(spec)[role])
    (container,) = pod["containers"]
    line = [word.replace("$(POD_IP)", "127.0.0.1") for word in container["args"]]
    line = [word.replace("$(JOBSET)", "train") for word in line]
    assert container["command"] == ["sumpter-server"]
    done = subprocess.run(
        [str(server()), *line], capture_output=True, text=True, timeout=60, check=False
    )
    assert "token_file" in done.stderr and "/etc/sumpter/token/token" in done.stderr


def test_the_loss_of_a_server_or_a_coordinator_starts_no_node_anew() -> None:
    """A JobSet acts on Jobs that fail: those of servers and coordinators never do."""
    for spec in (jobset(), runtime()["template"]["spec"]):
        jobs = replicated(spec)
        assert list(jobs) == ["coordinator", "server", "node"]
        for role in ("coordinator", "server"):
            assert jobs[role]["spec"]["backoffLimit"] == ENDLESS
            assert jobs[role]["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure"
        assert jobs["node"]["spec"]["backoffLimit"] == 0
        assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["node"]}


def test_the_runtime_is_the_jobset_without_what_kubeflow_adds() -> None:
    own, theirs = jobset(), runtime()["template"]["spec"]
    node = own["replicatedJobs"][2]["template"]
    env = node["spec"]["template"]["spec"]["containers"][0]["env"]
    added = [one for one in env if one["name"].startswith("PET_")]
    assert {one["name"]: _expanded(one) for one in added} == of_kubeflow()
    for one in added:
        env.remove(one)
    # The number of nodes is the TrainJob's.
    del node["spec"]["parallelism"], node["spec"]["completions"]
    node["metadata"] = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    assert own == theirs


def test_the_trainjob_is_of_the_runtime() -> None:
    job = only(example("trainjob.yaml"), "TrainJob")["spec"]
    name = only(example("clustertrainingruntime.yaml"), "ClusterTrainingRuntime")["metadata"][
        "name"
    ]
    assert job["runtimeRef"]["name"] == name
    assert job["trainer"]["numNodes"] == runtime()["mlPolicy"]["numNodes"]


def test_the_plain_job_finds_the_service_of_the_chart() -> None:
    job = only(example("job.yaml"), "Job")
    (pod,) = pod_specs(job)
    env = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    resources = render()
    service = only(resources, "Service")
    host = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    port = next(one["port"] for one in service["spec"]["ports"] if one["name"] == "control")
    assert env["SUMPTER_COORDINATOR"] == f"{host}:{port}"
    (server_pod,) = pod_specs(only(resources, "Deployment"))
    assert env["SUMPTER_COORDINATOR"] in server_pod["containers"][0]["args"]
    assert env["PET_MASTER_ADDR"] == f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert only(example("job.yaml"), "Service")["metadata"]["name"] == pod["subdomain"]
