"""What is released: refused unless commit, versions and packages are in order."""

from __future__ import annotations

import io
import json
import re
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOLS = ROOT / "target" / "tools" / "release" / "bin"
DIST = ROOT / "target" / "dist"
WHEEL = "sumpter-0.1.0-cp311-abi3-manylinux_2_28_x86_64.whl"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "deploy" / "release"))


@pytest.fixture
def release() -> ModuleType:
    import release

    return release


@pytest.fixture
def audit() -> ModuleType:
    import audit

    return audit


@pytest.fixture
def elf() -> ModuleType:
    import elf

    return elf


def program(machine: int = 62, kinds: tuple[int, ...] = (1, 2)) -> bytes:
    """The header of an ELF program with segments of these kinds."""
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<H", header, 18, machine)
    struct.pack_into("<Q", header, 32, 64)
    struct.pack_into("<HH", header, 54, 56, len(kinds))
    return bytes(header) + b"".join(struct.pack("<I", kind).ljust(56, b"\0") for kind in kinds)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (program(), None),
        (program(kinds=(1, 3)), "dynamic linker"),
        (program(machine=183), "aarch64"),
        (program()[:100], "no ELF program"),
        (b"#!/bin/sh\n", "no ELF program"),
    ],
    ids=["static", "dynamic", "another machine", "cut off", "a script"],
)
def test_only_a_static_program_of_the_machine_is_taken(
    elf: ModuleType, content: bytes, complaint: str | None
) -> None:
    found = elf.no_static_program(content, "x86_64")
    assert found is None if complaint is None else complaint in found


def test_a_real_program_is_read(elf: ModuleType) -> None:
    found = elf.read(Path(sys.executable).resolve().read_bytes())
    assert found is not None and not found.static


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository that may be released as 1.2.0."""
    root = tmp_path / "project"
    for name, text in {
        "Cargo.toml": '[workspace.package]\nversion = "1.2.0"\n',
        "CHANGELOG.md": "# Changelog\n\n## 1.2.0, 2026-01-31\n\n- News.\n\n## 1.1.0, 2025-12-31\n",
        "lab/pyproject.toml": 'dependencies = ["sumpter==1.2.0"]\n',
        "deploy/helm/sumpter/Chart.yaml": "version: 1.2.0\nappVersion: 1.2.0\n",
        "deploy/kubernetes/clustertrainingruntime.yaml": "image: x/sumpter-server:1.2.0\n",
        "deploy/kubernetes/jobset.yaml": "image: x/sumpter-server:1.2.0\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "--quiet")
    commit(root)
    git(root, "tag", "v1.2.0")
    return root


def git(root: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "tag.gpgSign=false")
    subprocess.run(("git", *who, *arguments), cwd=root, check=True)


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--no-gpg-sign", "--message", "a change")


def changed(root: Path, file: str, before: str, after: str) -> None:
    """Commits and tags another text of a file."""
    text = (root / file).read_text()
    assert before in text
    (root / file).write_text(text.replace(before, after, 1))
    commit(root)
    git(root, "tag", "--force", "v1.2.0")


def test_a_tagged_commit_with_its_entry_in_the_changelog_may_be_released(
    release: ModuleType, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(release.refusals(project)) == []
    assert release.check(project, rehearsal=False) == 0


def test_a_tree_that_is_not_committed_is_refused(release: ModuleType, project: Path) -> None:
    (project / "Cargo.toml").write_text('[workspace.package]\nversion = "1.2.0"\n\n')
    (project / "new.py").touch()
    (found,) = release.refusals(project)
    assert found == "Cargo.toml and 1 others changed since the commit: commit or stash them"


@pytest.mark.parametrize(
    ("file", "before", "after", "says"),
    [
        ("CHANGELOG.md", "2026-01-31", "unreleased", "1.2.0 is unreleased"),
        ("CHANGELOG.md", "1.2.0,", "1.3.0,", "begins with 1.3.0"),
        ("CHANGELOG.md", "## 1", "# 1", "begins with 1.1.0"),
        ("lab/pyproject.toml", "1.2.0", "1.1.0", "lab/pyproject.toml says 1.1.0"),
        ("deploy/helm/sumpter/Chart.yaml", "appVersion: 1.2.0", "appVersion: 1.0.0", "says 1.0.0"),
        ("deploy/kubernetes/jobset.yaml", "1.2.0", "latest", "says latest"),
    ],
)
def test_a_version_that_another_file_does_not_confirm_is_refused(
    release: ModuleType, project: Path, file: str, before: str, after: str, says: str
) -> None:
    changed(project, file, before, after)
    (found,) = release.refusals(project)
    assert says in found and file.rpartition("/")[2] in found


def test_a_commit_without_the_tag_of_its_version_is_refused(
    release: ModuleType, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(project, "tag", "--delete", "v1.2.0")
    git(project, "tag", "v1.1.0")
    (found,) = release.refusals(project)
    assert "no tag v1.2.0 (its tags: v1.1.0)" in found
    assert release.check(project, rehearsal=False) == 1
    assert release.check(project, rehearsal=True) == 0
    assert capsys.readouterr().err == f"error: {found}\nwarning: {found}\n"


@pytest.mark.parametrize(
    ("number", "semantic"),
    [
        ("0.1.0", True),
        ("1.0.0-rc.1", True),
        ("1.0", False),
        ("01.0.0", False),
        ("1.0.0rc1", False),
        ("1.0.0+local", False),
    ],
)
def test_versions_are_semantic(release: ModuleType, number: str, semantic: bool) -> None:
    assert bool(release.SEMANTIC.fullmatch(number)) is semantic


def test_every_file_that_names_the_version_names_this_one(release: ModuleType) -> None:
    for file, pattern in release.COPIES:
        named = re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE)
        assert set(named) == {release.version(ROOT)}, f"{file}: {named}"


def test_checksums_are_read_by_sha256sum(release: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"a")
    (tmp_path / "b.tar.gz").write_bytes(b"b")
    (tmp_path / release.SUMS).write_text(release.checksums(tmp_path))
    command = ("sha256sum", "--check", "--strict", release.SUMS)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "a.whl: OK\nb.tar.gz: OK\n"


def test_a_release_without_wheels_is_not_finished(
    release: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "target" / "dist").mkdir(parents=True)
    (tmp_path / "target" / "dist" / "sumpter-1.2.0.tar.gz").touch()
    assert release.finish(tmp_path) == 1
    assert "holds no wheels: `make wheel`" in capsys.readouterr().err
    assert not (tmp_path / "target" / "dist" / release.SUMS).exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda dist: None, None),
        (lambda dist: (dist / "a.whl").write_bytes(b"other"), "a.whl"),
        (lambda dist: (dist / "b.tar.gz").unlink(), "b.tar.gz"),
        (lambda dist: (dist / "c.whl").touch(), "c.whl"),
    ],
    ids=["as it was", "changed", "missing", "added"],
)
def test_packages_that_are_not_those_of_the_checksums_are_named(
    release: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Path], object],
    named: str | None,
) -> None:
    dist = tmp_path / "target" / "dist"
    dist.mkdir(parents=True)
    (dist / "a.whl").write_bytes(b"a")
    (dist / "b.tar.gz").write_bytes(b"b")
    assert release.verify(tmp_path) == 0
    assert f"has no {release.SUMS}: it is of `make wheel`" in capsys.readouterr().out
    (dist / release.SUMS).write_text(release.checksums(dist))
    change(dist)
    assert release.verify(tmp_path) == (1 if named else 0)
    said = capsys.readouterr().err
    assert said.count("\n") == (1 if named else 0)
    assert named is None or f"dist/{named} is not what SHA256SUMS says: make it anew" in said


@pytest.mark.parametrize("finding", [None, "a.whl: its tag is wrong"])
def test_packages_are_where_they_are_released_from_only_if_nothing_is_wrong_with_them(
    audit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finding: str | None
) -> None:
    import wheels

    def build(servers: list[Path], out: Path) -> list[Path]:
        out.mkdir()
        (out / "a.whl").touch()
        return [out / "a.whl"]

    dist = tmp_path / "dist"
    dist.mkdir()
    (dist / "of_before.whl").touch()
    monkeypatch.setattr(wheels, "build", build)
    monkeypatch.setattr(audit, "findings", lambda _: [finding] if finding else [])
    monkeypatch.setattr(sys, "argv", ["wheels.py", "--servers", "x", "--out", str(dist)])
    assert wheels.main() == (1 if finding else 0)
    assert [one.name for one in tmp_path.glob("*/*")] == ["a.whl"]
    assert dist.exists() is (finding is None)


@pytest.fixture
def wheel(
    audit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Makes a wheel that may be released, with some of its files replaced or left out."""
    import licences

    monkeypatch.setattr(audit, "symbols", lambda _: [])
    crates = [{"name": one.name, "version": one.version} for one in licences.crates("x86_64")]

    def make(name: str = WHEEL, mode: int = 0o755, **replaced: bytes | None) -> Path:
        info = "sumpter-0.1.0.dist-info"
        files = {
            "server": ("sumpter-0.1.0.data/scripts/sumpter-server", program()),
            "licence": (f"{info}/licenses/LICENSE", b"text"),
            "notices": (f"{info}/licenses/THIRD-PARTY.txt", b"text"),
            "sbom": (f"{info}/sboms/a.cyclonedx.json", json.dumps({"components": crates}).encode()),
        }
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for key, (path, content) in files.items():
                if (kept := replaced.get(key, content)) is not None:
                    entry = zipfile.ZipInfo(path)
                    entry.external_attr = (mode if key == "server" else 0o644) << 16
                    archive.writestr(entry, kept)
        return tmp_path / name

    return make


def test_a_complete_wheel_has_no_findings(audit: ModuleType, wheel: Callable[..., Path]) -> None:
    assert audit.findings(wheel()) == []


@pytest.mark.parametrize(
    ("replaced", "says"),
    [
        ({"name": WHEEL.replace("2_28", "2_34")}, "its tag is cp311-abi3-manylinux_2_34_x86_64"),
        ({"name": WHEEL.replace("abi3", "cp311")}, "its tag is cp311-cp311"),
        ({"server": None}, "sumpter-server is not in it"),
        ({"mode": 0o644}, "sumpter-server is not executable"),
        ({"server": program(kinds=(3,))}, "needs a dynamic linker"),
        ({"server": program(machine=183)}, "a program for aarch64"),
        ({"notices": None}, "THIRD-PARTY.txt is not in it"),
        ({"sbom": b'{"components": []}'}, "its lists of crates lack"),
        ({"sbom": None}, "its lists of crates lack"),
        ({"name": WHEEL.replace("x86_64", "s390x")}, "add s390x to licences.MACHINES"),
    ],
)
def test_what_a_wheel_lacks_is_found(
    audit: ModuleType, wheel: Callable[..., Path], replaced: dict, says: str
) -> None:
    found = audit.findings(wheel(**replaced))
    assert any(says in one for one in found), found


@pytest.mark.parametrize(
    ("needed", "named", "newer"),
    [
        ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", True),
        ("manylinux_2_28_x86_64", "manylinux_2_28_x86_64", False),
        ("manylinux_2_5_x86_64", "manylinux_2_28_x86_64", False),
        ("linux_x86_64", "manylinux_2_28_x86_64", True),
    ],
)
def test_a_newer_glibc_than_the_name_promises_is_found(
    audit: ModuleType, needed: str, named: str, newer: bool
) -> None:
    assert audit._newer(needed, named) is newer


def test_sources_that_have_not_changed_are_not_compiled_again(tmp_path: Path) -> None:
    import wheels

    def archive(**files: str) -> Path:
        with tarfile.open(tmp_path / "sumpter-0.1.0.tar.gz", "w:gz") as made:
            for name, text in files.items():
                member = tarfile.TarInfo(f"sumpter-0.1.0/{name.replace('_', '.')}")
                member.size = len(text)
                made.addfile(member, io.BytesIO(text.encode()))
        return tmp_path / "sumpter-0.1.0.tar.gz"

    def staged(**files: str) -> dict[str, tuple[str, int]]:
        folder = wheels.stage(archive(**files), tmp_path / "staged", {}, {"[a]": "[a]\nb = 1"})
        return {one.name: (one.read_text(), one.stat().st_mtime_ns) for one in folder.iterdir()}

    first = staged(pyproject_toml="[a]", lib_rs="1", gone_rs="2")
    second = staged(pyproject_toml="[a]", lib_rs="3")
    assert {name: text for name, (text, _) in second.items()} == {
        "pyproject.toml": "[a]\nb = 1",
        "lib.rs": "3",
    }
    assert second["pyproject.toml"] == first["pyproject.toml"]
    assert second["lib.rs"][1] > first["lib.rs"][1]
    with pytest.raises(AssertionError, match="update wheels.py"):
        staged(pyproject_toml="[other]")


def test_the_wheels_that_have_been_built_can_be_released() -> None:
    built = sorted(DIST.glob("*.whl"))
    if not built or not (TOOLS / "auditwheel").exists():
        pytest.skip("no wheels in target/dist, so this checks nothing: `make wheel` builds them")
    command = [str(TOOLS / "python"), str(ROOT / "deploy/release/audit.py"), *map(str, built)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
