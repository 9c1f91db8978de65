"""Installs what `make wheel` has built in environments with its own dependencies only, and uses it.

    python tests/wheel/wheel.py target/dist      # or: make wheel-check

What needs torch, JAX, matplotlib, plotly or Jinja2 must not be in the way of what does not:
planning, the checks of a machine, servers, and a job of NumPy arrays. The laboratory's commands say
how to install it, and are there when its wheel is. The source distribution is built as an installer
does it, in an environment of its own, which takes minutes.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent
LIMIT_S = 300
ABSENT = ("jax", "jinja2", "matplotlib", "optax", "plotly", "sumpter_lab", "torch")
TRAIN = """
import numpy as np
import sumpter

sumpter.init()
total = sumpter.push_pull(np.full(1000, sumpter.rank() + 1.0), average=False, name="sum")
assert (total == 3.0).all(), total
sumpter.shutdown()
print("summed")
"""


@dataclass(frozen=True)
class Try:
    """A command, and what shows that it did its work."""

    arguments: tuple[str, ...]
    code: int
    shows: str


def tries(python: str, script: Path) -> list[Try]:
    """What an installation must be able to do, and what it must say."""
    absent = f"from importlib.util import find_spec; print([n for n in {ABSENT} if find_spec(n)])"
    sumpter = (python, "-m", "sumpter")
    job = ("run", "-n", "2", "-s", "1", "--", python, str(script))
    return [
        Try((python, "-c", absent), 0, "[]"),
        Try((*sumpter, "--help"), 0, "bench"),
        Try((*sumpter, "plan", "--workers", "4", "--servers", "2"), 0, "GPU machines"),
        Try((*sumpter, "doctor"), 0, "self-test"),
        Try((*sumpter, "serve", "--help"), 0, "--join"),
        Try((*sumpter, *job), 0, "summed"),
        Try((python, "-c", "import sumpter.jax"), 1, "pip install 'sumpter[jax]'"),
        Try((*sumpter, "bench", "emulate"), 2, "pip install target/dist/sumpter_lab-*.whl"),
        Try((*sumpter, "report", "run.csv"), 2, "pip install target/dist/sumpter_lab-*.whl"),
    ]


def of_the_wheel(python: str) -> list[Try]:
    """What only the wheel has: the static server."""
    program = str(Path(python).with_name("sumpter-server"))
    return [
        Try((program, "--version"), 0, "sumpter-server"),
        Try((program, "serve", "--help"), 0, "--join"),
        Try((program, "health"), 2, "--metrics-port"),
    ]


def of_old_pythons(package: Path) -> list[Try]:
    """What pip says where Python is too old; docs/user/install.md quotes it. Installs nothing."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    old = [folder / "bin" / "python" for minor in (9, 10) for folder in pyenv.glob(f"3.{minor}.*")]
    if not old:
        print("skipped  a Python that is too old: pyenv has neither 3.9 nor 3.10")
    shows = "Package 'sumpter' requires a different Python: 3."
    if package.suffix == ".whl":
        shows = f"{package.name} is not a supported wheel on this platform"
    install = ("-m", "pip", "install", "--dry-run", "--no-deps", str(package))
    return [Try((str(python), *install), 1, shows) for python in old]


def main() -> int:
    """Installs and tries; 1 if a command has failed."""
    if len(sys.argv) != 2 or not (dist := Path(sys.argv[1]).resolve()).is_dir():
        print("give the folder of packages, target/dist: `make wheel`", file=sys.stderr)
        return 2
    here = f"*_{platform.machine()}.whl"
    (wheel,), (source,) = dist.glob(f"sumpter-{here}"), dist.glob("sumpter-*.tar.gz")
    (laboratory,) = dist.glob(f"sumpter_lab-{here}")
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "sums.py"
        script.write_text(TRAIN)
        for package in (wheel, source):
            print(package.name, flush=True)
            python = environment(folder / package.suffix.strip("."), package)
            wanted = tries(python, script) + (of_the_wheel(python) if package is wheel else [])
            wanted += of_old_pythons(package)
            failed += sum(not works(one, folder) for one in wanted)
        print(laboratory.name, flush=True)
        python = environment(folder / "laboratory", wheel, laboratory)
        emulate = (python, "-m", "sumpter", "bench", "emulate", "--help")
        failed += not works(Try(emulate, 0, "--workers"), folder)
    return 1 if failed else 0


def environment(folder: Path, *packages: Path) -> str:
    """The Python of an environment of its own, in which packages are installed."""
    uv, python = str(TOOLS / "uv"), str(folder / "bin" / "python")
    made = [uv, "venv", "--quiet", "--python", sys.executable, str(folder)]
    subprocess.run(made, check=True)
    install = [uv, "pip", "install", "--quiet", "--python", python]
    subprocess.run([*install, *map(str, packages)], check=True)
    return python


def works(one: Try, folder: Path) -> bool:
    """Whether a command does what it should; prints a line, and its output if it does not."""
    # As a user's shell has it, not as the environment of this script.
    variables = {name: text for name, text in os.environ.items() if name != "VIRTUAL_ENV"}
    done = subprocess.run(
        one.arguments,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    well = done.returncode == one.code and one.shows in done.stdout
    print(f"{'works' if well else 'FAILED':8}{' '.join(one.arguments[1:])[:80]}")
    if not well:
        print(f"exit code {done.returncode}, expected {one.code} and {one.shows!r}:\n{done.stdout}")
    return well


if __name__ == "__main__":
    sys.exit(main())
