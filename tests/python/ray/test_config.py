"""What a user may say of a run, and which nodes are for helpers."""

from __future__ import annotations

import pytest

from sumpter import ConfigError

pytest.importorskip(
    "ray",
    reason="Ray is not installed, so this checks nothing: make ray-check installs it and runs this",
)
from sumpter.launch.place import Facts  # noqa: E402
from sumpter.ray import SumpterConfig, nodes  # noqa: E402
from sumpter.ray.job import Introduction, seats  # noqa: E402


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"backend": "gloo"}, "must name the backend sumpter"),
        ({"backend": None}, "must name the backend sumpter"),
        ({"helpers": -1}, r"SumpterConfig\(helpers=-1\): it must be a number from 0 on"),
        ({"helpers": 1.5}, "it must be a number from 0 on"),
        ({"helpers": True}, "it must be a number from 0 on"),
        ({"resources_per_helper": {"CPU": "4"}}, "CPU is '4', not an amount"),
        ({"helpers": 1, "resources_per_helper": {"memory": 1e9}}, "a helper needs CPUs"),
        ({"settings": {"rank": 1}}, r"SumpterConfig\(settings\): rank: Ray Train decides it"),
        ({"settings": {"token": "x"}}, "token: Ray Train decides it"),
        ({"settings": {"bandwith": 1}}, "bandwith: there is no such setting; see `sumpter config`"),
        ({"settings": {"bandwidth_gbps": -1}}, "bandwidth_gbps"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(given: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SumpterConfig(**given)


def test_several_backends_are_accepted_with_sumpter_among_them() -> None:
    assert SumpterConfig(backend="cpu:sumpter,cuda:nccl").backend == "cpu:sumpter,cuda:nccl"


def test_what_ray_keeps_of_a_run_is_plain_data() -> None:
    config = SumpterConfig(helpers=2, settings={"pin_lanes": False, "interfaces": ["a", "b"]})
    kept = config.to_dict()
    assert kept["backend"] == "sumpter" and kept["helpers"] == 2
    assert kept["settings"] == {"pin_lanes": "false", "interfaces": "a,b"}


def entry(number: int, address: str, alive: bool = True, **resources: float) -> dict:
    return {
        "NodeID": f"{number:056x}",
        "NodeManagerAddress": address,
        "Alive": alive,
        "Resources": resources,
    }


CLUSTER = nodes.alive(
    [
        entry(1, "10.0.0.1", CPU=8, GPU=4),
        entry(2, "10.0.0.2", CPU=8, **{"accelerator_type:TPU-V6E": 1}),
        entry(3, "10.0.0.3", CPU=2),
        entry(4, "10.0.0.4", CPU=8),
        entry(5, "10.0.0.5", alive=False, CPU=8),
        entry(6, "10.0.0.6", CPU=8, GPU=0),
    ]
)


def test_helpers_keep_off_accelerators_and_ranks_but_not_off_nodes_to_come() -> None:
    ids = [node.id for node in CLUSTER]
    labels = nodes.selector(CLUSTER, {ids[3]})
    assert labels == {"ray.io/node-id": f"!in({ids[0]},{ids[1]},{ids[3]})"}
    assert nodes.selector(CLUSTER[2:3], set()) == {}


def test_why_there_is_no_place_is_said_of_every_node() -> None:
    said = nodes.no_place(2, {"CPU": 4}, CLUSTER, {CLUSTER[3].id}, None, 30)
    assert "no place for 2 helpers of 4 CPU, each on a node of its own, within 30 s" in said
    assert (
        "The cluster has 5 nodes: 10.0.0.1 has an accelerator (GPU); 10.0.0.2 has an accelerator "
        "(TPU-V6E); 10.0.0.3 does not have 4 CPU; 10.0.0.4 runs ranks of this job; 10.0.0.6 has "
        "the resources, unless they are in use. " in said
    )


def test_with_labels_of_the_users_own_they_decide() -> None:
    said = nodes.no_place(1, {"CPU": 4}, CLUSTER[:1], set(), {"pool": "cpu"}, 30)
    assert "10.0.0.1 has the resources, unless they are in use or it lacks the labels" in said
    assert "{'pool': 'cpu'}" in said


def test_of_a_large_cluster_some_nodes_are_named() -> None:
    many = nodes.alive(entry(n, f"10.0.1.{n}", CPU=1) for n in range(1, 31))
    said = nodes.no_place(1, {"CPU": 4}, many, set(), None, 30)
    assert "10.0.1.8 does not have 4 CPU; and 22 more." in said and "10.0.1.9" not in said


def test_nodes_of_one_address_stand_for_machines() -> None:
    shared = nodes.alive([entry(1, "127.0.0.1"), entry(2, "127.0.0.1"), entry(3, "10.0.0.3")])
    assert nodes.machine(shared, shared[0].id) == "node-00000000"
    assert nodes.machine(shared, shared[2].id) is None
    assert nodes.machine(shared, "unknown") is None


def test_seats_number_the_machines_of_each_local_rank() -> None:
    def worker(address: str, local_rank: int, local_size: int) -> Introduction:
        return Introduction("", None, local_rank, local_size, Facts(8, "", 0, "", address))

    made = seats([worker("a", 0, 2), worker("a", 1, 2), worker("b", 0, 1)])
    assert [seat.host for seat in made] == ["a", "a", "b"]
    assert [(seat.cross_rank, seat.cross_size) for seat in made] == [(0, 2), (0, 1), (1, 2)]
