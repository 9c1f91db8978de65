"""Manifests of deploy/ as tests see them: the chart rendered by Helm, and what schemas say.

Built-in resources are checked against the schemas of the oldest and the newest Kubernetes that the
chart supports, custom ones against the definitions that tests/kubernetes/tools.py has fetched. Both
strictly: a field that a schema does not have is an error, where a server would drop it silently.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from documents import commands

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "helm" / "sumpter"
EXAMPLES = ROOT / "deploy" / "kubernetes"
GUIDE = ROOT / "docs" / "user" / "kubernetes.md"
TOOLS = ROOT / "target" / "tools" / "kubernetes"
HELM = TOOLS / "helm"
IMAGE = "image.repository=registry.example.com/sumpter-server"
# The oldest is that of kubeVersion in Chart.yaml.
VERSIONS = ("1.27", "1.37")
# Only so that a hang fails instead of blocking.
HANG_S = 120

Resource = dict[str, Any]


def needs(file: Path) -> None:
    """Skips a test, naming what it lacks."""
    if not file.exists():
        pytest.skip(f"{file.name} is missing, so this checks nothing: `make kubernetes-tools`")


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Helm."""
    needs(HELM)
    return subprocess.run(
        [str(HELM), *arguments], capture_output=True, text=True, timeout=HANG_S, check=False
    )


def render(*arguments: str, release: str = "sumpter", namespace: str = "sumpter") -> list[Resource]:
    """The chart's resources, with arguments of `helm template`."""
    done = helm(
        *("template", release, str(CHART), "--namespace", namespace, "--set", IMAGE, *arguments)
    )
    assert done.returncode == 0, done.stderr
    return load(done.stdout)


def refusal(*arguments: str) -> str:
    """Why Helm does not render the chart with these arguments."""
    done = helm("template", "sumpter", str(CHART), *arguments)
    assert done.returncode != 0, "it was rendered"
    return done.stderr


def released(verb: str) -> list[str]:
    """What the guide's one `helm install` or `helm upgrade` gives beside the chart."""
    (words,) = (
        words for words in commands(GUIDE, "helm") if words[1:2] == [verb] and len(words) > 2
    )
    _, _, release, chart, *rest = words
    assert release == "sumpter" and ROOT / chart == CHART
    return rest


def quotations(part: str) -> list[str]:
    """The messages of the guide's Troubleshooting with a part, as expressions."""
    quoted = re.findall(r"^\| `([^`]+)` \|", GUIDE.read_text(), re.MULTILINE)
    return [".*".join(map(re.escape, one.split("..."))) for one in quoted if part in one]


def load(text: str) -> list[Resource]:
    """The resources of a YAML text."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [resource for resource in yaml.load_all(text, loader) if resource]


def example(name: str) -> list[Resource]:
    """The resources of a file of deploy/kubernetes."""
    return load((EXAMPLES / name).read_text())


def only(resources: list[Resource], kind: str, name: str = "") -> Resource:
    """The one resource of a kind, or of a kind and a name."""
    (found,) = (
        one
        for one in resources
        if one["kind"] == kind and (not name or one["metadata"]["name"] == name)
    )
    return found


def definitions() -> list[Resource]:
    """The custom resource definitions that tests/kubernetes/tools.py has fetched."""
    return [json.loads(file.read_text()) for file in sorted(TOOLS.glob("*.crd.json"))]


def faults(resource: Resource) -> list[str]:
    """What the schemas have against a resource."""
    group = resource["apiVersion"].partition("/")[0]
    if "." in group and not group.endswith(".k8s.io"):
        return _faults_of_custom(resource)
    found = []
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(resource, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            place = ".".join(map(str, error.path))
            found.append(f"{_name(resource)} in Kubernetes {version}: {place}: {error.message}")
        except kubernetes_validate.SchemaNotFoundError as error:
            found.append(error.message)
    return found


def pod_specs(value: object) -> Iterator[Resource]:
    """Every pod's specification in a resource."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for inner in value.values():
            yield from pod_specs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pod_specs(inner)


def _name(resource: Resource) -> str:
    return f"{resource['kind']} {resource['metadata']['name']}"


def _faults_of_custom(resource: Resource) -> list[str]:
    schema = _custom_schemas().get(f"{resource['apiVersion']} {resource['kind']}")
    if schema is None:
        pytest.skip(
            f"the definition of {resource['apiVersion']} {resource['kind']} is missing, so this "
            "checks nothing: `make kubernetes-tools`"
        )
    validator = jsonschema.Draft202012Validator(schema)
    return [
        f"{_name(resource)}: {'.'.join(map(str, error.path))}: {error.message}"
        for error in validator.iter_errors(resource)
    ]


@cache
def _custom_schemas() -> dict[str, Resource]:
    return {
        f"{one['spec']['group']}/{version['name']} {one['spec']['names']['kind']}": _top(
            version["schema"]["openAPIV3Schema"]
        )
        for one in definitions()
        for version in one["spec"]["versions"]
    }


def _top(schema: Resource) -> Resource:
    """The schema of a whole resource: metadata is every resource's, and not described here."""
    strict = _strict(schema)
    return {**strict, "properties": {**strict["properties"], "metadata": {"type": "object"}}}


def _strict(schema: Any) -> Any:
    """An OpenAPI schema of a definition as a JSON schema that admits no unknown field."""
    if not isinstance(schema, dict):
        return schema
    strict = dict(schema)
    if schema.get("x-kubernetes-int-or-string"):
        strict.pop("type", None)
        strict["type"] = ["integer", "string"]
        strict.pop("anyOf", None)
    if "properties" in schema:
        strict["properties"] = {k: _strict(v) for k, v in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            strict.setdefault("additionalProperties", False)
    for name in ("items", "additionalProperties"):
        if name in schema:
            strict[name] = _strict(schema[name])
    if schema.get("nullable") and isinstance(strict.get("type"), str):
        strict["type"] = [strict["type"], "null"]
    return strict
