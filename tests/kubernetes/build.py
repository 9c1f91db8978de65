"""Builds the control plane that the tests of deploy/ install the chart into.

    python tests/kubernetes/build.py FOLDER

etcd, kube-apiserver and kube-controller-manager, compiled from the Go modules that control_plane/
pins: versions in go.mod, hashes in go.sum. That takes a quarter of an hour on two cores, and is
done once for each state of these files. Where it cannot be done, standard error says why, and the
exit code is 1.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tools import PINS, Missing, needs_go, put, run

MODULE = Path(__file__).parent / "control_plane"
PROGRAMS = {
    "etcd": "./etcd",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
}
# Only so that a hang ends.
LIMIT_S = 3600


def pins() -> str:
    """All that the programs are made of."""
    return "".join((MODULE / name).read_text() for name in ("go.mod", "go.sum", "etcd/main.go"))


def build(folder: Path) -> None:
    """Compiles the programs that are not in `folder` yet, or of other pins."""
    kept = folder / PINS
    if not kept.exists() or kept.read_text() != pins():
        for name in PROGRAMS:
            (folder / name).unlink(missing_ok=True)
    missing = [name for name in PROGRAMS if not (folder / name).exists()]
    if missing:
        needs_go()
    for name in missing:
        print(f"building {name}", flush=True)
        draft = folder / f"{name}.draft"
        run(
            *("go", "build", "-trimpath", "-ldflags", f"-s -w {_stamp()}"),
            *("-o", str(draft.resolve()), PROGRAMS[name]),
            folder=MODULE,
            limit_s=LIMIT_S,
            GOFLAGS="-mod=readonly",
            CGO_ENABLED="0",
        )
        draft.rename(folder / name)
        put(kept, pins().encode())


def _stamp() -> str:
    """Flags that tell the programs their version, without which they take themselves for 0.0."""
    (version,) = re.findall(r"^\tk8s.io/kubernetes (v\S+)$", (MODULE / "go.mod").read_text(), re.M)
    major, minor = version.lstrip("v").split(".")[:2]
    told = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return " ".join(f"-X k8s.io/component-base/version.{k}={v}" for k, v in told.items())


def main(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        build(folder)
    except Missing as missing:
        print(f"MISSING the control plane of Kubernetes: {missing}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
