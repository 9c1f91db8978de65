"""Builds what a release consists of into a folder: wheels, source distributions, lists of crates.

    python deploy/release/wheels.py --servers WHEEL     # or: make wheel

Each wheel is built from its source distribution, so one that builds is known to be complete. zig
links it against the symbols of glibc 2.28, so that it is a manylinux_2_28 wheel wherever it is
built. The wheel of `sumpter` also holds the static `sumpter-server`, from the wheel that maturin
has made of crates/server, with its list of crates (SBOM), and the notices of its crates.

Each server's wheel is for one machine, and so are the wheels that are made with it: zig also links
for other machines than this one. The tools of requirements/release.txt must be beside its Python.
What has been built is examined by audit.py. The folder is there only if nothing is wrong with it:
what is built is in DIR.part until then, and the exit code is 1 if it stays there.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

import audit
import elf
import licences

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "target" / "wheel"
# The folder of the staged sources whose `scripts` end up in the environment's `bin`.
DATA = "wheel.data"
NOTICES = "THIRD-PARTY.txt"
# What the product's wheel has and its source distribution has not.
_ADDITIONS = {
    "[tool.maturin]\n": f'[tool.maturin]\ndata = "{DATA}"\n',
    'license-files = ["LICENSE"]': f'license-files = ["LICENSE", "{NOTICES}"]',
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", type=Path, nargs="+", required=True, metavar="WHEEL")
    parser.add_argument("--out", type=Path, default=ROOT / "target" / "dist", metavar="DIR")
    options = parser.parse_args()
    out = options.out.resolve()
    draft = out.with_name(f"{out.name}.part")
    for folder in (out, draft):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        wheels = build(options.servers, draft)
    except subprocess.CalledProcessError as error:
        print(f"error: {error.cmd[0]} ended with {error.returncode}", file=sys.stderr)
        return 1
    found = [finding for wheel in wheels for finding in audit.findings(wheel)]
    for finding in found:
        print(f"error: {finding}", file=sys.stderr)
    for file in sorted(draft.iterdir()):
        print(f"{file.stat().st_size / 1e6:7.2f} MB  {file.name}")
    if not found:
        draft.rename(out)
    return 1 if found else 0


def build(servers: list[Path], out: Path) -> list[Path]:
    """Wheels of product and laboratory, for the machine of each server, in a new folder."""
    out.mkdir(parents=True)
    programs = [of_server(server) for server in servers]
    notices = licences.notices(licences.crates(*sorted({one for _, _, one in programs}))).encode()
    (out / NOTICES).write_bytes(notices)
    product, laboratory = source(ROOT, out), source(ROOT / "lab", out)
    for program, crates, machine in programs:
        sbom = WORK / "sumpter-server.cyclonedx.json"
        sbom.write_bytes(crates)
        files = {f"{DATA}/scripts/sumpter-server": program, NOTICES: notices}
        staged = stage(product, WORK / "sumpter", files, _ADDITIONS)
        compiled(staged, machine, out, "--sbom-include", str(sbom))
        compiled(stage(laboratory, WORK / "sumpter_lab", {}, {}), machine, out)
    wheels = sorted(out.glob("*.whl"))
    for wheel in wheels:
        for name, content in audit.sboms(wheel).items():
            stem = name.removesuffix(".cyclonedx.json")
            (out / f"{stem}.{audit.parse(wheel).machine}.cyclonedx.json").write_bytes(content)
    return wheels


def of_server(wheel: Path) -> tuple[bytes, bytes, str]:
    """The program in the server's wheel, the list of what it consists of, and its machine."""
    with zipfile.ZipFile(wheel) as archive:
        (program,) = (n for n in archive.namelist() if n.endswith("/scripts/sumpter-server"))
        (crates,) = audit.sboms(wheel).values()
        content = archive.read(program)
    header = elf.read(content)
    assert header is not None, f"{wheel} holds no program"
    return content, crates, header.machine


def source(project: Path, out: Path) -> Path:
    """The source distribution of the project in a folder."""
    before = set(out.glob("*.tar.gz"))
    run(project, "sdist", "--out", str(out))
    (made,) = set(out.glob("*.tar.gz")) - before
    relock(made)
    return made


def relock(archive: Path) -> None:
    """Makes the Cargo.lock of a source distribution that of the crates which are in it.

    maturin copies the workspace's, and leaves out the crates that the package does not need, so
    that cargo refuses the file with `--locked` (https://github.com/PyO3/maturin/issues/2609).
    """
    with tempfile.TemporaryDirectory() as name:
        with tarfile.open(archive) as sources:
            members = [(member, sources.extractfile(member)) for member in sources]
            contents = {m.name: stream.read() for m, stream in members if stream is not None}
            # Python before 3.11.4 has no filters.
            sources.extraction_filter = getattr(tarfile, "data_filter", None)
            sources.extractall(name)
        (root,) = Path(name).iterdir()
        lock = root / "Cargo.lock"
        before = locked(lock)
        subprocess.run(("cargo", "update", "--quiet", "--workspace"), cwd=root, check=True)
        assert locked(lock) <= before, f"{archive.name} is not made of what Cargo.lock says"
        contents[f"{root.name}/Cargo.lock"] = lock.read_bytes()
    with (
        gzip.GzipFile(archive, "wb", mtime=int(committed())) as stream,
        tarfile.open(fileobj=stream, mode="w") as made,
    ):
        for member, _ in members:
            content = contents.get(member.name, b"")
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))


def locked(lock: Path) -> set[tuple[str, str]]:
    """Names and versions in a Cargo.lock."""
    packages = tomllib.loads(lock.read_text())["package"]
    return {(package["name"], package["version"]) for package in packages}


def stage(archive: Path, folder: Path, extra: dict[str, bytes], additions: dict[str, str]) -> Path:
    """Unpacks a source distribution, adds files, and lines to its pyproject.toml.

    A file that is as it was keeps its time, so that cargo compiles only what has changed.
    """
    wanted = dict(extra)
    with tarfile.open(archive) as sources:
        for member in sources:
            stream = sources.extractfile(member)
            if stream is not None:
                wanted[member.name.partition("/")[2]] = stream.read()
    project = wanted["pyproject.toml"].decode()
    for line, replacement in additions.items():
        assert project.count(line) == 1, f"pyproject.toml has not one {line!r}: update wheels.py"
        project = project.replace(line, replacement)
    wanted["pyproject.toml"] = project.encode()
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if path.relative_to(folder).as_posix() not in wanted:
            path.unlink()
    for name, content in wanted.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
        if name.startswith(f"{DATA}/scripts/"):
            # pip makes executable what is executable in the wheel.
            path.chmod(0o755)
    return folder


def compiled(project: Path, machine: str, out: Path, *more: str) -> None:
    """Builds the wheel of staged sources for a machine."""
    # For another machine maturin knows what such a Python is like; none has to be here.
    python = sys.executable if machine == platform.machine() else "python3.11"
    run(
        project,
        *("build", "--release", "--locked", "--zig", "--compatibility", audit.PLATFORM),
        *("--target", f"{machine}-unknown-linux-gnu"),
        *("--target-dir", str(WORK / "cargo"), "--interpreter", python),
        *("--out", str(out), *more, "--", "-C", f"link-arg={unwinder(machine)}"),
    )


def unwinder(machine: str) -> str:
    """The file of the system's unwinder, libgcc_s, which every machine has.

    zig would put one of its own into the module. Python before 3.14 ends a thread that asks for the
    interpreter while it goes away by `pthread_exit`, for which glibc unwinds with libgcc_s through
    the module's frames; with two unwinders, whose contexts differ, that is a segmentation fault.
    """
    compiler = "cc" if machine == platform.machine() else f"{machine}-linux-gnu-gcc"
    command = (compiler, "-print-file-name=libgcc_s.so.1")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run(folder: Path, *arguments: str) -> None:
    """Runs the maturin of this script's environment, where it also finds zig."""
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    # Archives then differ only where their contents do.
    environment.setdefault("SOURCE_DATE_EPOCH", committed())
    command = [str(tools / "maturin"), *arguments]
    if arguments[0] == "build":
        subprocess.run(command, cwd=folder, env=environment, check=True)
        return
    # It has no --quiet, and lists what each crate's manifest lacks for a registry of crates.
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
    done.check_returncode()


def committed() -> str:
    """When the last commit was made, in seconds of Unix time."""
    command = ("git", "log", "-1", "--format=%ct")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
