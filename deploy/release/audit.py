"""Examines wheels: tags, symbols, the server's program, lists of crates, notices.

    python deploy/release/audit.py WHEEL ...

auditwheel says which glibc a wheel needs, abi3audit whether it uses only what the stable ABI of its
tag has; both are in requirements/release.txt. Every finding is a line that says what to do.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import elf
import licences

PLATFORM = "manylinux_2_28"
TAG = "cp311-abi3"
SERVER = "/scripts/sumpter-server"
TOOLS = ("auditwheel", "abi3audit")
_NAME = re.compile(r"(?P<name>\w+)-(?P<version>[^-]+)-(?P<tag>\w+-\w+)-(?P<platform>[\w.]+)\.whl")
_CONSISTENT = re.compile(r'platform\s+tag:\s+"(\w+)"')


@dataclass(frozen=True)
class Wheel:
    """A wheel by its name."""

    path: Path
    name: str
    version: str
    tag: str
    platform: str

    @property
    def machine(self) -> str:
        return self.platform.removeprefix(f"{PLATFORM}_")


class Unnamed(ValueError):
    """A file that is not named as a wheel."""


def parse(path: Path) -> Wheel:
    """The parts of a wheel's name."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise Unnamed(f"{path.name} is not the name of a wheel")
    return Wheel(path, **match.groupdict())


def findings(path: Path) -> list[str]:
    """What is wrong with a wheel; nothing if it can be released."""
    wheel = parse(path)
    found = []
    if wheel.tag != TAG or not wheel.platform.startswith(f"{PLATFORM}_"):
        found.append(f"its tag is {wheel.tag}-{wheel.platform}, not {TAG}-{PLATFORM}: `make wheel`")
    found += symbols(wheel)
    if wheel.name == "sumpter":
        found += contents(wheel)
    return [f"{path.name}: {finding}" for finding in found]


def missing_tools() -> list[str]:
    """Which examiners are not there."""
    return [name for name in TOOLS if importlib.util.find_spec(name) is None]


def symbols(wheel: Wheel) -> list[str]:
    """What its compiled module uses and other machines or Pythons may not have."""
    if missing := missing_tools():
        return [f"{', '.join(missing)} not installed: pip install -r requirements/release.txt"]
    found = []
    shown = _run("auditwheel", "show", str(wheel.path))
    match = _CONSISTENT.search(shown.stdout)
    if shown.returncode or match is None:
        found.append(f"auditwheel cannot read it: {_last(shown)}")
    elif _newer(match[1], wheel.platform):
        found.append(f"it needs {match[1]}, which is newer than its name says: build with zig")
    if "libgcc_s.so.1" not in shown.stdout:
        found.append(
            "its module brings an unwinder of its own, with which Python may crash when it "
            "ends: link it against libgcc_s, as `make wheel` does"
        )
    strict = _run("abi3audit", "--strict", str(wheel.path))
    if strict.returncode:
        found.append(f"abi3audit refuses it: {_last(strict)}")
    return found


def contents(wheel: Wheel) -> list[str]:
    """What the product's wheel must hold beside the Python package."""
    with zipfile.ZipFile(wheel.path) as archive:
        names = archive.namelist()
        held = [one for one in archive.infolist() if one.filename.endswith(SERVER)]
        programs = [archive.read(one) for one in held]
    found = []
    if any(not one.external_attr >> 16 & 0o100 for one in held):
        found.append("sumpter-server is not executable in it, so that pip would not make it so")
    if not programs:
        found.append("sumpter-server is not in it: build with `make wheel`, not with maturin alone")
    for program in programs:
        if complaint := elf.no_static_program(program, wheel.machine):
            found.append(f"sumpter-server: {complaint}: `make server`")
    for file in ("LICENSE", "THIRD-PARTY.txt"):
        if not any(name.endswith(f".dist-info/licenses/{file}") for name in names):
            found.append(f"{file} is not in it: `make wheel` adds it")
    if wheel.machine not in licences.MACHINES:
        return [*found, f"its crates are not known: add {wheel.machine} to licences.MACHINES"]
    listed = components(sboms(wheel.path))
    absent = [
        one for one in licences.crates(wheel.machine) if (one.name, one.version) not in listed
    ]
    if absent:
        some = ", ".join(f"{one.name} {one.version}" for one in absent[:3])
        found.append(f"its lists of crates lack {len(absent)} that it contains: {some}")
    return found


def sboms(wheel: Path) -> dict[str, bytes]:
    """The CycloneDX lists in a wheel, by their file names (PEP 770)."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name.rpartition("/")[2]: archive.read(name)
            for name in archive.namelist()
            if ".dist-info/sboms/" in name and not name.endswith("/")
        }


def components(lists: dict[str, bytes]) -> set[tuple[str, str]]:
    """The names and versions in CycloneDX lists."""
    return {
        (one["name"], one["version"])
        for content in lists.values()
        for one in json.loads(content).get("components", [])
    }


def _newer(needed: str, named: str) -> bool:
    """Whether `manylinux_X_Y_MACHINE` needs a newer glibc than the other."""
    numbers = [re.findall(r"_(\d+)_(\d+)_", tag)[:1] for tag in (needed, named)]
    if not all(numbers):
        return needed != named
    older, newer = (tuple(map(int, one[0])) for one in (numbers[1], numbers[0]))
    return newer > older


def _run(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", tool, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1].strip() if lines else f"exit code {done.returncode}"


def main(paths: list[str]) -> int:
    found = [finding for path in paths for finding in findings(Path(path))]
    for finding in found:
        print(f"error: {finding}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
