"""A release from its checks to its checksums: everything but the upload.

    python deploy/release/release.py check     # may this commit be released?
    python deploy/release/release.py finish    # licences, `twine check`, SHA256SUMS of target/dist
    python deploy/release/release.py verify    # is target/dist still what `finish` examined?

`make release` runs `check`, builds, and runs `finish`; what is installed from target/dist is
verified before. With --rehearsal what speaks against a release is printed, and no reason to stop.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import audit
import licences

ROOT = Path(__file__).resolve().parents[2]
SUMS = "SHA256SUMS"
# Semantic Versioning 2.0.0, without the build metadata that registries refuse.
_NUMBER = r"(0|[1-9]\d*)"
SEMANTIC = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-(alpha|beta|rc)\.{_NUMBER})?")
_HEADING = re.compile(r"^## (\S+), (.+)$", re.MULTILINE)
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
# Where else a version is written: a file, and what surrounds it there.
COPIES = (
    ("lab/pyproject.toml", r'"sumpter==([^"]+)"'),
    ("deploy/helm/sumpter/Chart.yaml", r"^(?:version|appVersion): (\S+)$"),
    ("deploy/kubernetes/clustertrainingruntime.yaml", r"/sumpter-server:(\S+)"),
    ("deploy/kubernetes/jobset.yaml", r"/sumpter-server:(\S+)"),
)


def version(root: Path) -> str:
    """The version that the workspace declares."""
    return tomllib.loads((root / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def refusals(root: Path) -> Iterator[str]:
    """Why this commit must not be released, a line each, with what to do."""
    changed = git(root, "status", "--porcelain").splitlines()
    if changed:
        others = f" and {len(changed) - 1} others" if len(changed) > 1 else ""
        yield f"{changed[0][3:]}{others} changed since the commit: commit or stash them"
    wanted = version(root)
    if SEMANTIC.fullmatch(wanted) is None:
        yield f"Cargo.toml: {wanted} is no semantic version: use X.Y.Z, or X.Y.Z-rc.N"
    yield from of_changelog(root, wanted)
    for file, pattern in COPIES:
        for found in re.findall(pattern, (root / file).read_text(), re.MULTILINE):
            if found != wanted:
                yield f"{file} says {found}, and Cargo.toml {wanted}: make them equal"
    tags = git(root, "tag", "--points-at", "HEAD").split()
    if f"v{wanted}" not in tags:
        others = f" (its tags: {', '.join(tags)})" if tags else ""
        yield f"this commit has no tag v{wanted}{others}: git tag -s v{wanted}"


def of_changelog(root: Path, wanted: str) -> Iterator[str]:
    """What is wrong with the newest entry of the changelog."""
    heading = _HEADING.search((root / "CHANGELOG.md").read_text())
    if heading is None:
        yield f"CHANGELOG.md has no heading such as `## {wanted}, 2026-01-31`"
    elif heading[1] != wanted:
        yield f"CHANGELOG.md begins with {heading[1]}, and Cargo.toml says {wanted}"
    elif _DATE.fullmatch(heading[2]) is None:
        yield f"CHANGELOG.md: {wanted} is {heading[2]}: write the day of the release there"


def git(root: Path, *arguments: str) -> str:
    """What a git command prints."""
    command = ("git", *arguments)
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout


def unfinished(dist: Path) -> Iterator[str]:
    """What is wrong with what has been built, a line each."""
    packages = packages_of(dist) if dist.is_dir() else []
    if not any(path.suffix == ".whl" for path in packages):
        yield f"{dist} holds no wheels: `make wheel`"
        return
    allow = licences.allowed()
    for one in licences.crates(*machines_of(packages)):
        if not licences.permits(one.licence, allow):
            yield f"{one.name} {one.version}: {one.licence or 'no licence'} is not in deny.toml"
    for path in packages:
        if path.suffix == ".whl":
            yield from audit.findings(path)
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, packages)]
    checked = subprocess.run(command, capture_output=True, text=True)
    if checked.returncode:
        yield f"twine check: {' '.join(f'{checked.stdout} {checked.stderr}'.split())}"


def machines_of(packages: list[Path]) -> list[str]:
    """The machines that wheels are for."""
    return sorted({audit.parse(path).machine for path in packages if path.suffix == ".whl"})


def packages_of(dist: Path) -> list[Path]:
    """What is uploaded to an index of Python packages."""
    return sorted([*dist.glob("*.whl"), *dist.glob("*.tar.gz")])


def checksums(dist: Path) -> str:
    """A line for each file, as `sha256sum --check` reads them."""
    files = sorted(file for file in dist.iterdir() if file.name != SUMS)
    return "".join(
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files
    )


def check(root: Path, rehearsal: bool) -> int:
    found = list(refusals(root))
    report(found, "warning" if rehearsal else "error")
    return 1 if found and not rehearsal else 0


def finish(root: Path) -> int:
    dist = root / "target" / "dist"
    found = list(unfinished(dist))
    report(found, "error")
    if found:
        return 1
    (dist / SUMS).write_text(checksums(dist))
    print(f"{len(packages_of(dist))} packages of version {version(root)} in {dist}; upload them:")
    print(f"    twine upload {' '.join(str(p.relative_to(root)) for p in packages_of(dist))}")
    return 0


def verify(root: Path) -> int:
    """Compares packages with their checksums; those of `make wheel` alone have none."""
    dist = root / "target" / "dist"
    if not (dist / SUMS).exists():
        print(f"{dist} has no {SUMS}: it is of `make wheel`, not of `make release`")
        return 0
    stated, actual = set((dist / SUMS).read_text().splitlines()), checksums(dist).splitlines()
    differing = {line.split(maxsplit=1)[-1] for line in stated ^ set(actual) if line.strip()}
    said = "is not what SHA256SUMS says: make it anew: `make release`"
    report([f"{dist / one} {said}" for one in sorted(differing)], "error")
    return 1 if differing else 0


def report(lines: list[str], kind: str) -> None:
    for line in lines:
        print(f"{kind}: {line}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=("check", "finish", "verify"))
    parser.add_argument("--rehearsal", action="store_true")
    options = parser.parse_args()
    if options.step == "check":
        return check(ROOT, options.rehearsal)
    return {"finish": finish, "verify": verify}[options.step](ROOT)


if __name__ == "__main__":
    sys.exit(main())
