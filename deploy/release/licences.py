"""Licences of the crates that are in a release: the notices that must go with them.

    python deploy/release/licences.py > THIRD-PARTY.txt

`deny.toml` beside this file says which licences may be there. A crate's notice is its own licence
file; one that has none is listed with the licence that it declares.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# The packages that are released; what only tests and the laboratory need is in neither.
RELEASED = ("sumpter-python", "sumpter-server")
# The machines that packages are built for.
MACHINES = ("x86_64", "aarch64")
_NOTICE = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|UNLICENSE)", re.IGNORECASE)
_TOKEN = re.compile(r"\(|\)|AND|OR|[\w.+-]+(?: WITH [\w.-]+)?")


@dataclass(frozen=True)
class Crate:
    """A crate of a registry."""

    name: str
    version: str
    licence: str
    folder: Path

    def notices(self) -> list[Path]:
        """The files in which it states its licences."""
        return sorted(path for path in self.folder.iterdir() if _NOTICE.match(path.name))


def allowed() -> set[str]:
    """The licences that a crate may have."""
    return set(tomllib.loads((HERE / "deny.toml").read_text())["licenses"]["allow"])


@functools.cache
def crates(*machines: str) -> list[Crate]:
    """What the packages for these machines consist of, apart from the project's own crates.

    Without machines: what those for any machine consist of.
    """
    command = ["cargo", "metadata", "--format-version=1", "--locked"]
    for machine in machines or MACHINES:
        command.append(f"--filter-platform={machine}-unknown-linux-gnu")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    metadata = json.loads(done.stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    needs = {node["id"]: list(_needed(node)) for node in metadata["resolve"]["nodes"]}
    found: set[str] = set()
    queue = [one["id"] for one in packages.values() if one["name"] in RELEASED]
    assert len(queue) == len(RELEASED), f"of {RELEASED} some are gone: update this script"
    while queue:
        if (current := queue.pop()) not in found:
            found.add(current)
            queue += needs[current]
    return sorted(
        (
            Crate(
                one["name"], one["version"], one["license"] or "", Path(one["manifest_path"]).parent
            )
            for one in (packages[name] for name in found)
            if one["source"]
        ),
        key=lambda crate: (crate.name, crate.version),
    )


def permits(licence: str, allow: set[str]) -> bool:
    """Whether an SPDX expression can be fulfilled by allowed licences."""
    tokens = _TOKEN.findall(licence.replace("/", " OR "))
    value = _any_of(tokens, allow)
    return value and not tokens


def _any_of(tokens: list[str], allow: set[str]) -> bool:
    value = _all_of(tokens, allow)
    while tokens and tokens[0] == "OR":
        tokens.pop(0)
        value = _all_of(tokens, allow) or value
    return value


def _all_of(tokens: list[str], allow: set[str]) -> bool:
    value = _one(tokens, allow)
    while tokens and tokens[0] == "AND":
        tokens.pop(0)
        value = _one(tokens, allow) and value
    return value


def _one(tokens: list[str], allow: set[str]) -> bool:
    if not tokens:
        return False
    token = tokens.pop(0)
    if token != "(":
        return token in allow
    value = _any_of(tokens, allow)
    return bool(tokens) and tokens.pop(0) == ")" and value


def _needed(node: dict) -> Iterator[str]:
    """What a package needs to run; build scripts and tests leave nothing in what is released."""
    for dependency in node["deps"]:
        if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
            yield dependency["pkg"]


def notices(released: list[Crate]) -> str:
    """All notices in one text, each once, under the crates that have it."""
    holders: dict[str, list[str]] = {}
    for one in released:
        for path in one.notices():
            text = path.read_text(errors="replace").strip()
            # Copies of a text differ in how it is wrapped.
            text = next((known for known in holders if known.split() == text.split()), text)
            holders.setdefault(text, []).append(f"{one.name} {one.version}")
    parts = ["Sumpter contains the following crates. Their licences and notices follow.\n"]
    parts += [f"{one.name} {one.version}: {one.licence}" for one in released]
    for text, names in holders.items():
        parts.append(f"\n{'=' * 80}\n{', '.join(dict.fromkeys(names))}\n\n{text}")
    return "\n".join(parts) + "\n"


def main() -> int:
    released, allow = crates(), allowed()
    refused = [one for one in released if not permits(one.licence, allow)]
    for one in refused:
        print(f"{one.name} {one.version}: {one.licence or 'no licence'} is not in deny.toml",
              file=sys.stderr)  # fmt: skip
    sys.stdout.write(notices(released))
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
