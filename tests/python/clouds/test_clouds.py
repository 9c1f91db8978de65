"""deploy/skypilot and deploy/dstack: read by the tools, and run as the tools' nodes run them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from command_lines import parse
from documents import ROOT, fences, own_commands, simple_commands
from pods import Cluster, Pod, address_of, cluster, eventually
from sumpter import _native

FILES = {
    "skypilot": ROOT / "deploy" / "skypilot" / "train.yaml",
    "dstack": ROOT / "deploy" / "dstack" / "train.dstack.yml",
}
PAGE = ROOT / "docs" / "user" / "choose-launcher.md"
# Made by `make clouds-check`.
PYTHON = ROOT / "target" / "clouds" / "bin" / "python"
OWN_PARSERS = Path(__file__).with_name("own_parsers.py")
both = pytest.mark.parametrize("tool", list(FILES))

TRAIN = f"""\
import runpy, sys
sys.argv += ["--epochs", "2", "--digest"]
runpy.run_path({str(ROOT / "examples" / "digits.py")!r}, run_name="__main__")
"""


@dataclass(frozen=True)
class Group:
    """Nodes of a file that run the same commands."""

    name: str
    nodes: int
    script: str
    environment: Mapping[str, str]
    secrets: tuple[str, ...]


def groups(tool: str) -> list[Group]:
    """What a file starts, read without its tool."""
    header, *tasks = yaml.safe_load_all(FILES[tool].read_text())
    if tool == "skypilot":
        return [
            Group(
                task["name"],
                task["num_nodes"],
                task["run"],
                {name: str(text) for name, text in task["envs"].items()},
                tuple(task["secrets"]),
            )
            for task in tasks
        ]
    pairs = [entry.partition("=") for entry in header["env"]]
    given = {name: text for name, sign, text in pairs if sign}
    secrets = tuple(name for name, sign, _ in pairs if not sign)
    return [
        Group(one["name"], one["nodes"], " && ".join(one["commands"]), given, secrets)
        for one in header["groups"]
    ]


def variables(tool: str, group: Group, index: int) -> dict[str, str]:
    """What the tool tells a node of a group, as its documentation says."""
    first, count = 0, 0
    for one in groups(tool):
        if one.name == group.name:
            first = count
        count += one.nodes
    if tool == "skypilot":  # ranks are those of the task
        addresses = [address_of(first + number + 1) for number in range(group.nodes)]
        return {
            "SKYPILOT_NODE_RANK": str(index),
            "SKYPILOT_NODE_IPS": "\n".join(addresses),
            "SKYPILOT_NUM_NODES": str(group.nodes),
            "SKYPILOT_NUM_GPUS_PER_NODE": "1",
            "SKYPILOT_JOBGROUP_NAME": "train",
        }
    return {  # ranks are those of the run
        "DSTACK_NODE_RANK": str(first + index),
        "DSTACK_NODES_IPS": "\n".join(address_of(number + 1) for number in range(count)),
        "DSTACK_NODES_NUM": str(count),
        "DSTACK_MASTER_NODE_IP": address_of(1),
        "DSTACK_GPUS_PER_NODE": "1",
    }


def answer(*words: str) -> subprocess.CompletedProcess[str]:
    """What the tools' own code says; skips a test where they are not installed."""
    if not PYTHON.exists():
        pytest.skip("SkyPilot and dstack are not installed: make clouds-check installs them")
    return subprocess.run(
        [str(PYTHON), str(OWN_PARSERS), *words],
        env={**os.environ, "SUMPTER_TOKEN": "s" * 16, "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@both
def test_the_tool_reads_the_file_as_these_tests_do(tool: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # SkyPilot makes a folder there
    read = answer(tool, str(FILES[tool]))
    assert read.returncode == 0, read.stderr
    found = json.loads(read.stdout.splitlines()[-1])
    expected = groups(tool)
    assert found["primary"] == ["trainer"]
    assert found["connected"] is True
    assert found["nodes"] == {group.name: group.nodes for group in expected}
    assert found["gpus"]["trainer"] > 0 and not found["gpus"]["helper"]
    assert found["scripts"] == {group.name: group.script for group in expected}
    assert found["environments"] == {group.name: dict(group.environment) for group in expected}
    assert found["secrets"] == {group.name: list(group.secrets) for group in expected}


@both
def test_the_tool_refuses_a_file_with_a_mistake(tool: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    mistakes = {
        "skypilot": ("[trainer]", "[worker]"),
        "dstack": ("type: task", "type: task\nnodes: 2"),
    }
    wrong = tmp_path / FILES[tool].name
    wrong.write_text(FILES[tool].read_text().replace(*mistakes[tool]))
    read = answer(tool, str(wrong))
    assert read.returncode == 1
    assert {"skypilot": "unknown job: worker", "dstack": "mutually exclusive"}[tool] in read.stderr


def test_the_command_line_of_skypilot_takes_what_the_page_prints(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    printed = [
        words[1:]
        for fence in fences(PAGE)
        for words in simple_commands(fence.text if fence.language == "sh" else "")
        if words[0] == "sky"
    ]
    assert printed
    for words in printed:
        read = answer("sky", *words)
        assert read.returncode == 0, read.stderr
    assert answer("sky", "jobs", "launch", "--secrets-of", "x").returncode != 0


@both
def test_the_commands_and_settings_exist(tool: str) -> None:
    known = {row["env"] for row in _native.settings()}
    for group in groups(tool):
        commands = list(own_commands(group.script))
        for words in commands:
            parse(words)
        names = {"trainer": ["coordinator"], "helper": ["serve"]}
        assert [words[1] for words in commands] == names[group.name]
        used = {*group.environment, *group.secrets, *re.findall(r"SUMPTER_\w+", group.script)}
        assert used <= known


@both
def test_the_job_waits_for_all_helpers(tool: str) -> None:
    trainer, helper = groups(tool)
    stated = re.search(r"SUMPTER_SERVERS=(\d+)", trainer.script)
    servers = stated[1] if stated else trainer.environment["SUMPTER_SERVERS"]
    assert int(servers) == helper.nodes
    # dstack tells the nodes of all groups together, so the file states those of the first.
    nodes = re.search(r"--nnodes (\S+)", trainer.script)[1]
    assert nodes == ('"$SKYPILOT_NUM_NODES"' if tool == "skypilot" else str(trainer.nodes))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path / "nodes", {"bash": ("bash",)}, files={"train.py": TRAIN}) as made:
        yield made


@both
def test_the_nodes_train_and_their_helpers_sum(tool: str, nodes: Cluster) -> None:
    """Every node runs the file's own commands, with the variables that the tool sets there."""
    token = _native.generate_token()
    trainer, helper = groups(tool)

    def start(group: Group, index: int) -> Pod:
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            **group.environment,
            **dict.fromkeys(group.secrets, token),
            **variables(tool, group, index),
        }
        container = {
            "name": group.name,
            # -u: a variable that the tool does not set is an error.
            "command": ["bash", "-u", "-c", group.script],
            "env": [{"name": name, "value": text} for name, text in environment.items()],
        }
        name = f"{group.name}-{index}"
        return nodes.start({"spec": {"containers": [container]}}, name, host=f"{name}.train")

    trainers = [start(trainer, index) for index in range(trainer.nodes)]
    helpers = [start(helper, index) for index in range(helper.nodes)]
    # A server that dies is started again by the file's commands.
    joined = re.compile(r"joined .* waiting for jobs|waiting for the coordinator")
    eventually(lambda: joined.search(helpers[0].log()), nodes.report)
    (server,) = psutil.Process(helpers[0].process.pid).children()
    server.kill()
    assert [node.wait() for node in trainers] == [0] * trainer.nodes, nodes.report()
    assert "accuracy on 360 held-out digits" in trainers[0].log(), nodes.report()
    digests = [re.findall(r"parameters (\w{64})", node.log()) for node in trainers]
    assert digests[0] and digests[0] == digests[1]
    for one in helpers:
        assert "summing for job 'default' of 2 workers" in one.log(), nodes.report()
    # They wait for another job until the tool, for which the run is done, ends them.
    assert all(one.running() for one in helpers)
