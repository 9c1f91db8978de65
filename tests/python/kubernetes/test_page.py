"""docs/user/kubernetes.md against chart and manifests: its commands and values as printed.

No cluster is there, so `helm install` and `helm upgrade` are run as `helm template` with the same
arguments, and commands of kubectl are compared with the resources that they name.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from documents import commands, fences
from manifests import (
    CHART,
    GUIDE,
    ROOT,
    Resource,
    faults,
    helm,
    load,
    refusal,
    released,
    render,
)

ADAPTER = {"rules"}  # what configures prometheus-adapter, and is no value of the chart


def installed() -> list[Resource]:
    return template(*released("install"))


def template(*arguments: str) -> list[Resource]:
    done = helm("template", "sumpter", str(CHART), *arguments)
    assert done.returncode == 0, done.stderr
    return load(done.stdout)


def snippets() -> list[Resource]:
    """The page's values of the chart."""
    found = [yaml.safe_load(fence.text) for fence in fences(GUIDE) if fence.language == "yaml"]
    return [values for values in found if set(values) != ADAPTER]


def test_the_installation_as_printed_is_what_a_cluster_would_take() -> None:
    resources = installed()
    assert {one["metadata"]["namespace"] for one in resources} == {"sumpter"}
    found = [fault for resource in resources for fault in faults(resource)]
    assert not found, "\n".join(found)


def test_the_upgrade_as_printed_is_what_a_cluster_would_take() -> None:
    rest = released("upgrade")
    # The values of the installation, which only a cluster knows.
    rest.remove("--reuse-values")
    resources = template(*released("install"), *rest)
    found = [fault for resource in resources for fault in faults(resource)]
    assert not found, "\n".join(found)
    (image,) = set(re.findall(r"image: (.+)", yaml.safe_dump_all(resources)))
    assert image.endswith("/sumpter-server:0.2.0")


def names(words: list[str]) -> Iterator[str]:
    """The values that a command line sets."""
    for option, text in zip(words, words[1:], strict=False):
        if option == "--set":
            yield from re.findall(r"(?:^|,)([\w.]+)=", text)
        elif option == "--set-json":
            yield text.partition("=")[0]


def test_a_misspelled_value_of_a_printed_command_is_refused() -> None:
    words = released("install") + released("upgrade")
    words.remove("--reuse-values")
    assert len(list(names(words))) >= 5
    for name in names(words):
        first, second = name.split(".")[:2]
        for wrong in (f"{first}x.{second}", f"{first}.{second}x"):
            changed = [word.replace(f"{first}.{second}", wrong) for word in words]
            assert changed != words
            assert "x" in refusal(*changed)


@pytest.mark.parametrize("values", snippets(), ids=lambda values: "+".join(values))
def test_printed_values_are_what_a_cluster_would_take(values: Resource, tmp_path: Path) -> None:
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    found = [fault for one in render("--values", str(file)) for fault in faults(one)]
    assert not found, "\n".join(found)
    for path, misspelled in misspellings(values):
        file.write_text(json.dumps(misspelled))
        why = refusal("--set", "image.repository=x", "--values", str(file))
        assert f"{path}x" in why, f"{path}: {why}"


def misspellings(values: Resource) -> Iterator[tuple[str, Resource]]:
    """A key of the values, and these with the key misspelled; not those that a user chooses."""
    for key, value in values.items():
        yield key, {f"{key}x" if one == key else one: text for one, text in values.items()}
        if key == "nodeSelector":
            continue
        if isinstance(value, dict):
            for path, wrong in misspellings(value):
                yield path, {**values, key: wrong}
        elif isinstance(value, list):
            for index, item in enumerate(value):
                for path, wrong in misspellings(item):
                    yield path, {**values, key: [*value[:index], wrong, *value[index + 1 :]]}


def leaves(values: Resource, prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and value and name not in ("resources", "settings", "labels"):
            yield from leaves(value, f"{path}.")
        else:
            yield path


def test_the_page_describes_every_value() -> None:
    values = load((CHART / "values.yaml").read_text())[0]
    described = set(re.findall(r"`([\w.]+)`", "\n".join(table("Values"))))
    shared = {"resources", "nodeSelector", "tolerations", "affinity", "priorityClassName"}
    shared |= {"podAnnotations", "podLabels"}
    exist = {
        path
        for path in leaves(values)
        if path.rpartition(".")[2] not in shared or not path.startswith(("coordinator", "servers"))
    }
    assert described == exist | shared


def table(section: str) -> list[str]:
    """The first column of the tables of a section of the page."""
    text = GUIDE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]


def test_values_in_the_text_exist() -> None:
    values = load((CHART / "values.yaml").read_text())[0]
    exist = set(leaves(values))
    exist |= {f"{part}.{name}" for part in ("coordinator", "servers") for name in values[part]}
    exist |= {path.rpartition(".")[0] for path in exist}
    named = set(re.findall(rf"`((?:{'|'.join(values)})\.[\w.]+)`", GUIDE.read_text()))
    assert len(named) > 40
    # The files of a certificate's Secret.
    assert named - {"tls.crt", "tls.key"} <= exist


def test_every_applied_file_is_what_a_cluster_would_take() -> None:
    applied = [words for words in commands(GUIDE, "kubectl") if "apply" in words]
    assert applied
    for words in applied:
        file = ROOT / words[words.index("--filename") + 1]
        found = [fault for resource in load(file.read_text()) for fault in faults(resource)]
        assert not found, "\n".join(found)


def test_commands_of_kubectl_name_what_the_chart_makes() -> None:
    exist = {(one["kind"], one["metadata"]["name"]): one for one in installed()}
    lines = [shlex.join(words) for words in commands(GUIDE, "kubectl")]
    (secret,) = re.findall(r"--namespace sumpter get secret (\S+)", "\n".join(lines))
    (path,) = re.findall(r"jsonpath=\{\.data\.(\w+)\}", "\n".join(lines))
    assert path in exist["Secret", secret]["data"]
    ((service, port),) = re.findall(r"port-forward service/(\S+) (\d+)", "\n".join(lines))
    ports = {one["port"] for one in exist["Service", service]["spec"]["ports"]}
    assert int(port) in ports
    ((kinds, name, text),) = re.findall(
        r"rollout restart (\S+) --selector ([\w./]+)=(\w+)", "\n".join(lines)
    )
    full = str(Path(__file__).parent / "full.yaml")
    run = [one for one in render("--values", full) if "template" in one.get("spec", {})]
    assert {one["kind"].lower() for one in run} == set(kinds.split(","))
    assert {one["metadata"]["labels"][name] for one in run} == {text}


def test_helm_without_a_cluster_says_what_the_page_quotes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in [name for name in os.environ if name.startswith(("HELM_KUBE", "KUBERNETES_"))]:
        monkeypatch.delenv(variable)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        # Helm asks a cluster that a file describes, at which nothing listens.
        cluster = {"name": "gone", "cluster": {"server": f"http://127.0.0.1:{port}"}}
        context = {"name": "gone", "context": {"cluster": "gone", "user": ""}}
        known = {"clusters": [cluster], "contexts": [context], "current-context": "gone"}
        file = tmp_path / "config"
        file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **known}))
        monkeypatch.setenv("KUBECONFIG", str(file))
        done = helm("install", "sumpter", str(CHART), *released("install"))
    assert done.returncode == 1
    (quoted,) = re.findall(r"^\| `(kubernetes cluster [^`]+)` \|", GUIDE.read_text(), re.MULTILINE)
    assert quoted in done.stderr
