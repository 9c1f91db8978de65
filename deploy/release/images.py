"""Builds the container images, without a daemon, into files that every container engine loads.

    python deploy/release/images.py server worker      # or: make images

The server's image is the static program and nothing else. The worker's is a base with Python, and
the product's wheel with PyTorch in an environment of its own. With --debian SUITE the base is made
by mmdebstrap from Debian's packages instead of being pulled. Everything is under target/images:
the contexts, buildah's storage, and the images as archives (`docker load --input FILE`).
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import elf
import licences
from release import version

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "target" / "images"
RECIPES = ROOT / "deploy" / "images"
MACHINE = platform.machine()
PROGRAM = ROOT / "target" / f"{MACHINE}-unknown-linux-gnu" / "release" / "sumpter-server"
DIST = ROOT / "target" / "dist"
NOTICES = "THIRD-PARTY.txt"
# The Python of the bases: what is fetched for the worker must be for it.
PYTHON = (3, 11)
DEBIAN = "localhost/sumpter-debian"
# Compressing more than this to tell its size is not worth the time.
COMPRESSED_BYTES = 256 << 20


class Unbuildable(Exception):
    """An image cannot be built; the message says why, and what to do."""


@dataclass(frozen=True)
class Builder:
    """buildah with a storage of its own, so that it neither needs nor changes the system's."""

    storage: Path

    def build(self, recipe: str, context: Path, tag: str, **arguments: str) -> None:
        """Builds an image; in Docker's format, as the other has no health checks."""
        given = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        self._run(
            *("bud", "--quiet", "--isolation", "chroot", "--format", "docker"),
            *("--file", str(RECIPES / recipe), "--tag", tag, *given, str(context)),
        )

    def save(self, tag: str, file: Path) -> Path:
        """Writes an image as an archive."""
        draft = file.with_suffix(".part")
        draft.unlink(missing_ok=True)
        self._run("push", "--quiet", tag, f"docker-archive:{draft}:{tag}")
        # One that is there is whole.
        draft.rename(file)
        # Those that had the tag before.
        self._run("rmi", "--prune")
        return file

    def _run(self, *arguments: str) -> None:
        if shutil.which("buildah") is None:
            raise Unbuildable("buildah is not installed: `apt install buildah`")
        places = ("--root", str(self.storage / "root"), "--runroot", str(self.storage / "run"))
        _run("buildah", "--storage-driver", "vfs", *places, *arguments)


def server(builder: Builder, program: Path, folder: Path) -> Path:
    """The archive of the server's image."""
    if not program.exists():
        raise Unbuildable(f"{program} is not there: `make server` builds it")
    if complaint := elf.no_static_program(program.read_bytes(), MACHINE):
        raise Unbuildable(f"{program}: {complaint}: `make server` builds a static one")
    context = _context(folder / "server")
    shutil.copy2(program, context / "sumpter-server")
    return _image(builder, "server", context, folder)


def worker(builder: Builder, dist: Path, folder: Path, base: str | None) -> Path:
    """The archive of the worker's image."""
    number = version(ROOT)
    wheels = sorted(dist.glob(f"sumpter-*_{MACHINE}.whl")) if dist.is_dir() else []
    if len(wheels) != 1:
        raise Unbuildable(f"{dist} does not hold one wheel of sumpter {number}: `make wheel`")
    if sys.version_info[:2] != PYTHON:
        wanted = ".".join(map(str, PYTHON))
        raise Unbuildable(f"packages are fetched for Python {wanted}: PYTHON=python{wanted}")
    context = _context(folder / "worker")
    packages = context / "packages"
    packages.mkdir(exist_ok=True)
    for old in packages.glob("sumpter-*.whl"):
        old.unlink()
    _run(
        *(sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:"),
        *("--require-hashes", "--requirement", str(ROOT / "requirements" / "worker.txt")),
        *("--dest", str(packages)),
    )
    shutil.copy2(wheels[0], packages)
    return _image(builder, "worker", context, folder, **({"BASE": base} if base else {}))


def debian(builder: Builder, suite: str, folder: Path) -> str:
    """The tag of a base with Python, made from Debian's packages."""
    if shutil.which("mmdebstrap") is None:
        raise Unbuildable("mmdebstrap is not installed: `apt install mmdebstrap`")
    context = folder / "debian"
    context.mkdir(parents=True, exist_ok=True)
    include = "--include=ca-certificates,python3,python3-venv"
    _run("mmdebstrap", "--quiet", "--variant=minbase", include, suite, str(context / "base.tar"))
    tag = f"{DEBIAN}:{suite}"
    builder.build("debian.Dockerfile", context, tag)
    return tag


def _context(folder: Path) -> Path:
    """A folder with what every image holds."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy2(ROOT / "LICENSE", folder)
    (folder / NOTICES).write_text(licences.notices(licences.crates(MACHINE)))
    return folder


def _image(builder: Builder, role: str, context: Path, folder: Path, **more: str) -> Path:
    number = version(ROOT)
    tag = f"localhost/sumpter-{role}:{number}"
    builder.build(f"{role}.Dockerfile", context, tag, VERSION=number, **more)
    return builder.save(tag, folder / f"sumpter-{role}-{number}.tar")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        last = lines[-1] if lines else f"exit code {done.returncode}"
        raise Unbuildable(f"`{command[0]}` failed: {last}")


def size(archive: Path) -> str:
    """How large an image is, and if it is small how large its download."""
    total = archive.stat().st_size
    text = f"{total / 1e6:.1f} MB"
    if total > COMPRESSED_BYTES:
        return text
    return f"{text}, {len(zlib.compress(archive.read_bytes(), 6)) / 1e6:.1f} MB compressed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("roles", nargs="+", choices=("server", "worker"))
    parser.add_argument("--program", type=Path, default=PROGRAM, metavar="FILE")
    parser.add_argument("--dist", type=Path, default=DIST, metavar="DIR", help="holds the wheel")
    base = parser.add_mutually_exclusive_group()
    base.add_argument("--base", metavar="IMAGE", help="of the worker, with Python 3.11")
    base.add_argument("--debian", metavar="SUITE", help="make the base of the worker, not pull it")
    options = parser.parse_args()
    builder = Builder(FOLDER / "storage")
    try:
        for role in options.roles:
            if role == "server":
                archive = server(builder, options.program, FOLDER)
            else:
                suite, given = options.debian, options.base
                archive = worker(
                    builder,
                    options.dist,
                    FOLDER,
                    debian(builder, suite, FOLDER) if suite else given,
                )
            print(f"{archive.relative_to(ROOT)}: {size(archive)}")
    except Unbuildable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
