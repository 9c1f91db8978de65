"""Container images: what they hold, and that it runs as a container engine would run it.

No engine is needed: an archive's layers are unpacked, and its entry point runs under `chroot` as
the image's user, with the image's environment, on a read-only file system of its own.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from documents import fences
from jobs import PATIENCE, TOKEN, as_variables
from pods import eventually
from sumpter.launch.attendant import free_port

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / f"target/{platform.machine()}-unknown-linux-gnu/release/sumpter-server"
HANG_S = 200
# Arguments: the root, user:group, and what runs there. What a container has beside its image is a
# /proc, a /dev and an empty /tmp; everything else is mounted read-only.
ENTER = """
mount --bind "$0" "$0"
mount -t proc proc "$0/proc"
mount --rbind /dev "$0/dev"
mount -t tmpfs -o mode=1777 tmpfs "$0/tmp"
mount -o remount,bind,ro "$0"
root=$0; user=$1; shift
exec chroot --userspec="$user" --groups= "$root" "$@"
"""
SUM = """\
import numpy as np, sumpter
sumpter.init()
print("sum", sumpter.push_pull(np.ones(1000) + sumpter.rank(), average=False, name="x")[0])
sumpter.shutdown()
"""


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "deploy" / "release"))


@dataclass
class Image:
    """An image whose file system has been unpacked."""

    root: Path
    config: dict
    held: frozenset[str]
    logs: int = 0

    def start(self, *arguments: str, **variables: str) -> Container:
        """Runs what the image runs, with arguments, until the test ends it."""
        self.logs += 1
        log = self.root.parent / f"{self.logs}.log"
        given = dict(one.split("=", 1) for one in self.config["Env"])
        command = ("unshare", "--mount", "sh", "-ec", ENTER, str(self.root), self.config["User"])
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [*command, *self.config.get("Entrypoint", ()), *arguments],
                env={**given, "RUST_BACKTRACE": "1", **variables, **as_variables(PATIENCE)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return Container(process, log)


@dataclass
class Container:
    process: subprocess.Popen[bytes]
    log: Path

    def says(self, text: str) -> str:
        """Waits for a text, and gives the rest of its line."""
        eventually(
            lambda: text in self.log.read_text() or self.process.poll() is not None,
            self.log.read_text,
        )
        _, found, rest = self.log.read_text().partition(text)
        assert found, self.log.read_text()
        return rest.split("\n", 1)[0].strip()

    def ends(self) -> int:
        return self.process.wait(HANG_S)

    def status(self, name: str) -> str:
        """A line of what the kernel says of its process."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return line.partition(":")[2].strip()
        raise AssertionError(f"the kernel does not say {name}")


def unpacked(archive: Path, root: Path) -> Image:
    """The image in an archive as `docker save` writes them."""
    held = set()
    with tarfile.open(archive) as outer:

        def file(name: str) -> IO[bytes]:
            stream = outer.extractfile(name)
            assert stream is not None
            return stream

        (manifest,) = json.load(file("manifest.json"))
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=file(layer)) as content:
                for member in content:
                    place = Path(member.name)
                    if place.name.startswith(".wh."):
                        gone = root / place.with_name(place.name.removeprefix(".wh."))
                        shutil.rmtree(gone) if gone.is_dir() else gone.unlink(missing_ok=True)
                        continue
                    content.extract(member, root, filter="fully_trusted")
                    held |= {member.name} if member.isfile() else set()
        config = json.load(file(manifest["Config"]))["config"]
    for place in ("proc", "dev", "tmp", "etc"):
        (root / place).mkdir(exist_ok=True)
    # A container engine writes it, for every container.
    (root / "etc" / "hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
    return Image(root, config, frozenset(held))


def needs_root() -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a container's file system needs root and unshare, so this checks nothing")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    needs_root()
    if shutil.which("buildah") is None:
        pytest.skip("buildah is missing, so this checks nothing: `apt install buildah`")
    if not PROGRAM.exists():
        pytest.skip("the static server is missing, so this checks nothing: `make server`")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(ROOT / "deploy" / "release"))
        import images

        folder = tmp_path_factory.mktemp("images")
        archive = images.server(images.Builder(folder / "storage"), PROGRAM, folder)
    return unpacked(archive, folder / "root")


@pytest.fixture
def containers() -> Iterator[list[Container]]:
    started: list[Container] = []
    yield started
    for one in started:
        one.process.kill()
        one.process.wait()


def test_the_image_is_one_program_and_its_notices(image: Image) -> None:
    assert image.held == {
        "usr/local/bin/sumpter-server",
        "usr/share/doc/sumpter/LICENSE",
        "usr/share/doc/sumpter/THIRD-PARTY.txt",
    }
    assert image.config["User"] == "65532:65532"
    assert image.config["Healthcheck"]["Test"] == ["CMD", "/usr/local/bin/sumpter-server", "health"]


def test_containers_of_the_image_carry_a_job(
    image: Image, containers: list[Container], tmp_path: Path
) -> None:
    def start(*arguments: str, **variables: str) -> Container:
        ports = {"SUMPTER_TOKEN": TOKEN, "SUMPTER_METRICS_PORT": str(free_port())} | variables
        containers.append(image.start(*arguments, **ports))
        return containers[-1]

    port = str(free_port())
    coordinator = start("coordinator", "--listen", "127.0.0.1:0", SUMPTER_METRICS_PORT=port)
    address = coordinator.says("coordinating at ").split()[0].rstrip(",;")
    assert start("health", SUMPTER_METRICS_PORT=port).ends() == 0, coordinator.log.read_text()
    server = start("serve", "--join", address, "--lanes", "1")

    workers = [worker(address, rank) for rank in range(2)]
    said = [one.communicate(timeout=HANG_S)[0] for one in workers]
    assert all("sum 3.0" in one for one in said), said
    assert "summing for job" in server.log.read_text()

    assert server.status("Uid").split() == ["65532"] * 4
    assert int(server.status("CapEff"), 16) == 0
    mounts = Path(f"/proc/{server.process.pid}/mountinfo").read_text().splitlines()
    (root,) = (line.split() for line in mounts if line.split()[4] == "/")
    assert "ro" in root[5].split(",")

    for one in (server, coordinator):
        one.process.send_signal(signal.SIGTERM)
        assert one.ends() == 128 + signal.SIGTERM, one.log.read_text()
    ill = start("health", SUMPTER_METRICS_PORT=port)
    assert ill.ends() == 1 and "does not answer" in ill.log.read_text()


def worker(address: str, rank: int) -> subprocess.Popen[str]:
    """A rank of two, outside all containers."""
    environment = {
        **os.environ,
        "SUMPTER_COORDINATOR": address,
        "SUMPTER_TOKEN": TOKEN,
        "SUMPTER_SERVERS": "1",
        **{"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"},
    }
    return subprocess.Popen(
        [sys.executable, "-c", SUM],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_workers_image_runs_the_first_example_of_the_readme(
    containers: list[Container], tmp_path: Path
) -> None:
    needs_root()
    archives = sorted((ROOT / "target" / "images").glob("sumpter-worker-*.tar"))
    if not archives:
        pytest.skip("there is no image of a worker, so this checks nothing: `make images`")
    image = unpacked(archives[-1], tmp_path / "root")
    assert image.config["User"] == "65532:65532"
    shown = fences(ROOT / "README.md")
    first = next(index for index, fence in enumerate(shown) if "file" in fence.marks)
    (image.root / "workspace" / shown[first].marks["file"]).write_text(shown[first].text)
    # A container engine enters the image's working folder; chroot does not.
    commands = f"cd {image.config['WorkingDir']}\nexport HOME=/tmp\n{shown[first + 1].text}"
    commands += "sumpter-server --version\n"
    containers.append(image.start("bash", "-euo", "pipefail", "-c", commands))
    code = containers[-1].ends()
    assert code == 0, containers[-1].log.read_text()
    assert "rank 1: " in containers[-1].log.read_text()


def test_an_image_without_the_program_is_not_built(tmp_path: Path) -> None:
    import images

    builder, program = images.Builder(tmp_path), tmp_path / "sumpter-server"
    with pytest.raises(images.Unbuildable, match="is not there: `make server`"):
        images.server(builder, program, tmp_path)
    program.write_text("#!/bin/sh\n")
    with pytest.raises(images.Unbuildable, match="no ELF program: `make server`"):
        images.server(builder, program, tmp_path)
    with pytest.raises(images.Unbuildable, match="dynamic linker"):
        images.server(builder, Path(sys.executable).resolve(), tmp_path)


def test_a_workers_image_without_a_wheel_is_not_built(tmp_path: Path) -> None:
    import images

    with pytest.raises(images.Unbuildable, match="`make wheel`"):
        images.worker(images.Builder(tmp_path), tmp_path / "dist", tmp_path, None)


def test_a_builder_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import images

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(images.Unbuildable, match="apt install buildah"):
        images.Builder(tmp_path).save("none", tmp_path / "none.tar")
