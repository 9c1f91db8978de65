"""Tries the wheel on every Python at hand with a new and an old PyTorch, and prints a table.

    python tests/matrix/matrix.py --wheel FILE        # or: make matrix
    python tests/matrix/matrix.py --wheel FILE --pythons 3.12,3.13 --torches newest,2.14.0

Each cell is an environment of its own: the wheel and that torch are installed from the configured
registry, then two ranks run the fronts and the backend on the loopback interface, and the first
example of the README runs as it is printed there. `newest` is what `pip install sumpter[torch]`
gives. A Python that is not here, or that an older torch has no build for, is a row that says so.
The exit code is 1 if any cell failed, or none was tried.

The registry's builds of torch for Linux on x86-64 bring CUDA's libraries, 3 to 5 GB unpacked for
each torch, which uv keeps in its cache and links into the environments. Set UV_CACHE_DIR to a
folder on the same file system as --folder, and remove it afterwards if space is short.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "python" / "support"))

from documents import fences  # noqa: E402 - the path above leads there

SMOKE = Path(__file__).resolve().parent

# The oldest that the wheel is made for, and some that do not exist yet, so that none is forgotten.
PYTHONS = tuple(f"3.{minor}" for minor in range(11, 18))
# None at all; one that came out two years before the newest; the first that has the backend; the
# newest.
TORCHES = ("none", "2.5.1", "2.14.0", "newest")

# What smoke_backend.py prints where torch is too old.
REFUSED = "refused with a clear message"

# A cell is a few seconds of work; only what hangs takes longer.
SMOKE_S = 300
INSTALL_S = 1800


# How uv says that the registry has no such torch, or none for this Python.
_NO_BUILD = re.compile(r"no\s+wheels\s+with\s+a\s+matching|no\s+version\s+of\s+torch")


class Failed(Exception):
    """A command failed; the message is the last line it wrote, and `said` all of them."""

    def __init__(self, message: str, said: str = "") -> None:
        super().__init__(message)
        self.said = said


@dataclass
class Cell:
    """One environment and what was seen in it."""

    python: str
    torch: str
    results: dict[str, str] = field(default_factory=dict)
    failed: bool = False


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="sumpter-matrix-", dir=options.folder) as name:
        folder, wheel = Path(name), options.wheel.resolve()
        print(f"wheel: {wheel.name}", flush=True)
        cells = []
        for python in options.pythons.split(","):
            if options.install and find_python(python) is None:
                works([tool("uv"), "python", "install", python])
            cells += try_python(folder, wheel, python, options.torches.split(","))
    print_table(cells)
    return exit_code(cells)


def exit_code(cells: list[Cell]) -> int:
    """0 if what was tried works, and something was tried."""
    if not any("doctor" in cell.results for cell in cells):
        print("error: nothing was tried: no such Python is here", file=sys.stderr)
        return 1
    return int(any(cell.failed for cell in cells))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pythons", metavar="X.Y,..", default=",".join(PYTHONS))
    parser.add_argument("--torches", metavar="VERSION,..", default=",".join(TORCHES))
    parser.add_argument(
        "--install", action="store_true", help="let uv install the Pythons that are missing"
    )
    parser.add_argument("--wheel", metavar="FILE", type=Path, required=True)
    parser.add_argument("--folder", metavar="DIR", type=Path, help="where to make environments")
    return parser.parse_args()


def try_python(folder: Path, wheel: Path, version: str, torches: list[str]) -> list[Cell]:
    """The cells of one Python; a single one that says why if there is no such Python."""
    interpreter = find_python(version)
    if interpreter is None:
        cells = [Cell(version, "-", {"wheel": "skipped: no such Python here"})]
    else:
        exact = run([interpreter, "-c", "import platform; print(platform.python_version())"], 60)
        cells = [Cell(exact, torch) for torch in torches]
    for cell in cells:
        if interpreter is not None:
            try_cell(folder / "environment", wheel, interpreter, cell)
        print(f"python {cell.python}, torch {cell.torch}: {cell.results}", flush=True)
    return cells


def find_python(version: str) -> str | None:
    """A working interpreter of this version: on PATH, of pyenv, or one that uv knows."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [
        *sorted(map(str, pyenv.glob(f"{version}.*/bin/python")), reverse=True),
        shutil.which(f"python{version}"),
    ]
    for candidate in candidates:
        # A shim of pyenv is on PATH even where the version it stands for is switched off.
        if candidate and works([candidate, "--version"]):
            return candidate
    find = [tool("uv"), "python", "find", "--no-project", "--no-python-downloads", version]
    return run(find, 60) if works(find) else None


def works(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


def try_cell(environment: Path, wheel: Path, interpreter: str, cell: Cell) -> None:
    """Fills in the results of one cell."""
    started = time.monotonic()
    try:
        install(environment, wheel, interpreter, cell)
        smoke(environment, cell)
    finally:
        shutil.rmtree(environment, ignore_errors=True)
    cell.results["seconds"] = f"{time.monotonic() - started:.0f}"


def install(environment: Path, wheel: Path, interpreter: str, cell: Cell) -> None:
    uv, python = tool("uv"), str(environment / "bin" / "python")
    step(cell, "environment", [uv, "venv", "--quiet", "--python", interpreter, str(environment)])
    step(cell, "wheel", [uv, "pip", "install", "--quiet", "--python", python, str(wheel)])
    if cell.torch == "none" or cell.failed:
        return
    wanted = f"sumpter[torch] @ {wheel.as_uri()}"
    if cell.torch != "newest":
        wanted = f"torch=={cell.torch}"
    command = [uv, "pip", "install", "--quiet", "--only-binary", ":all:", "--python", python]
    try:
        run([*command, wanted], INSTALL_S)
    except Failed as error:
        missing = cell.torch != "newest" and _NO_BUILD.search(error.said)
        cell.failed = not missing
        # What the registry does not have is no fault of the wheel.
        why = f"skipped: torch {cell.torch} has no build for it" if missing else f"FAILED: {error}"
        cell.results["fronts"] = cell.results["backend"] = why
        return
    cell.torch = run([python, "-c", "import torch; print(torch.__version__)"], SMOKE_S)
    cell.results["numpy"] = run([python, "-c", "import numpy; print(numpy.__version__)"], SMOKE_S)


def smoke(environment: Path, cell: Cell) -> None:
    """Runs the command without torch, then both fronts and the backend with it."""
    if cell.failed:
        return
    binaries = environment / "bin"
    sumpter, python = str(binaries / "sumpter"), str(binaries / "python")
    step(cell, "doctor", [sumpter, "doctor"])
    if "numpy" in cell.results:
        for what in ("fronts", "backend"):
            script = SMOKE / f"smoke_{what.removesuffix('s')}.py"
            command = [sumpter, "run", "-n", "2", "--", python, str(script)]
            step(cell, what, command)
        if cell.results["backend"] == "ok":
            folder = environment / "readme"
            folder.mkdir()
            (folder / "page.sh").write_text(readme_example())
            activate = f"cd {folder} && . {environment}/bin/activate && bash -euo pipefail page.sh"
            step(cell, "readme", ["bash", "-c", activate])


def readme_example() -> str:
    """The README's first example as a script: the file it shows, and the commands below it."""
    shown = fences(ROOT / "README.md")
    first = next(i for i, fence in enumerate(shown) if "file" in fence.marks)
    name, script, commands = shown[first].marks["file"], shown[first].text, shown[first + 1]
    assert commands.language == "sh" and name in commands.text, commands.place
    return f"cat > {name} <<'END'\n{script}END\n{commands.text}"


def step(cell: Cell, what: str, command: list[str]) -> None:
    try:
        said = run(command, SMOKE_S)
    except Failed as error:
        cell.results[what] = f"FAILED: {error}"
        cell.failed = True
    else:
        cell.results[what] = "refused, as it must be" if REFUSED in said else "ok"


def run(command: list[str], limit_s: float) -> str:
    """What a command prints; raises Failed with its last words, which also go to stderr in full."""
    # What is tested is the wheel, not the sources beside this script.
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, cwd=ROOT, env=environment
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"no end after {limit_s:g} s") from None
    if done.returncode != 0:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr, flush=True)
        words = (done.stderr or done.stdout).strip().splitlines()
        last = words[-1].strip() if words else f"exit code {done.returncode}"
        raise Failed(last, f"{done.stdout}\n{done.stderr}")
    return done.stdout.strip()


def tool(name: str) -> str:
    """A tool of the project's own environment, which is where this script's Python is."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else name


def print_table(cells: list[Cell]) -> None:
    columns = ["numpy", "wheel", "doctor", "fronts", "backend", "readme", "seconds"]
    print("\n| Python | torch | " + " | ".join(columns) + " |")
    print("|---|---|" + "---|" * len(columns))
    for cell in cells:
        texts = [cell.results.get(column, "-").replace("|", "/") for column in columns]
        print(f"| {cell.python} | {cell.torch} | " + " | ".join(texts) + " |")


if __name__ == "__main__":
    sys.exit(main())
