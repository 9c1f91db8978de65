"""Plants one bug after the other, and asks the simulation or another test to find it.

    python tests/mutants/mutants.py [--seeds 6000] [NAME ...]

The bugs are in the folder bugs. One that is not found fails this program: then the simulation, or
the test that is named, is blind there. Works on a copy of the sources.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from bugs import HELPERS, MUTANTS, Finder, Mutant

ROOT = Path(__file__).resolve().parents[2]
MISSED = "NOT FOUND"
# Of a finder, with the time that it takes to build; a bug that keeps a test from its end is found.
LIMIT_S = 1200


def look(tree: Path, finder: Finder, seeds: int) -> tuple[int, str]:
    """The exit code and the output of what is to find a bug in `tree`.

    Raises TimeoutExpired where that has no end.
    """
    environment = {
        **os.environ,
        "CARGO_TARGET_DIR": str(ROOT / "target" / "mutants"),
        "PYTHONPATH": str(tree / "python"),
        "SUMPTER_SIM_SEEDS": str(seeds),
        "SUMPTER_SIM_LARGE_SEEDS": "0",
        "RUST_BACKTRACE": "0",
    }
    command, pipe = finder.command, subprocess.PIPE
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=pipe,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=LIMIT_S)
    finally:
        # What it has started goes with it.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, said


def plant(tree: Path, mutant: Mutant) -> str:
    """Puts the bug into `tree`; the file's text without it."""
    path = tree / mutant.finder.folder / mutant.file
    sound = path.read_text()
    if sound.count(mutant.sound) != 1:
        sys.exit(f"{mutant.name}: {mutant.file} does not have this once: {mutant.sound}")
    helpers = [text for word, text in HELPERS.items() if word in mutant.broken]
    path.write_text(sound.replace(mutant.sound, mutant.broken) + "\n" + "".join(helpers))
    return sound


def judge(tree: Path, mutant: Mutant, seeds: int) -> str:
    """How the bug that is planted in `tree` was found, or that it was not."""
    try:
        code, said = look(tree, mutant.finder, seeds)
    except subprocess.TimeoutExpired:
        return f"found: no end within {LIMIT_S} s"
    failure = re.search(mutant.finder.failure, said)
    if failure is None and code:
        sys.exit(f"{mutant.name}: did not compile\n{said}")
    return f"found: {failure[0]}" if failure else MISSED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only bugs whose name contains one of these")
    parser.add_argument("--seeds", type=int, default=6000, help="worlds to simulate for each")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if not options.names or any(n in m.name for n in options.names)]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "sumpter"
        ignored = shutil.ignore_patterns("target", ".venv", ".git", "__pycache__")
        shutil.copytree(ROOT, tree, ignore=ignored)
        for mutant in chosen:
            sound, finder = plant(tree, mutant), mutant.finder
            found = judge(tree, mutant, options.seeds)
            (tree / finder.folder / mutant.file).write_text(sound)
            missed += found == MISSED
            print(f"{mutant.invariant:45} {mutant.name:65} {found}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} bugs found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
