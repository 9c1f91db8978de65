"""What the user's pages print can be typed: every command and every program of theirs runs."""

from __future__ import annotations

import ast
import fcntl
import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import typer

import needs
from command_lines import parse, shell_text
from documents import (
    LANGUAGES,
    ROOT,
    Fence,
    console,
    fences,
    is_run,
    matches,
    name_of,
    own_commands,
    user_pages,
)
from jobs import PATIENCE
from sumpter._packages import missing

# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 600
# What pages refer to in a checkout.
LINKED = ("examples", "lab", "tests")
# Pages print ports that firewalls know, so two pages with the same one cannot run side by side.
FIXED_PORT = re.compile(r"(?<=:)\d{4,5}\b|--\w*-?port[ =]\d+|MASTER_PORT=\d+")

PAGES = user_pages()
OWN = ("sumpter", "sumpter_lab")
# What imports TensorFlow.
FRONTS = ("sumpter.tensorflow", "sumpter.keras")
DOTTED = re.compile(r"\w+(\.\w+)+")
per_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


def _runs(page: Path) -> bool:
    return any(
        fence.language in ("sh", "console", "python") and is_run(fence) for fence in fences(page)
    )


@per_page
def test_every_fence_says_what_it_is(page: Path) -> None:
    wrong = [fence.place for fence in fences(page) if fence.language not in LANGUAGES]
    assert not wrong, f"give these a language of {sorted(LANGUAGES)}"


@per_page
def test_every_command_has_options_that_exist(page: Path) -> None:
    for fence in fences(page):
        if fence.language in ("sh", "console"):
            for words in own_commands(shell_text(fence)):
                try:
                    parse(words)
                except Exception as error:
                    pytest.fail(f"{fence.place}: {shlex.join(words)}: {error}")


@per_page
def test_every_excerpt_names_what_exists(page: Path) -> None:
    aliases: dict[str, object] = {}
    for fence in fences(page):
        if fence.language == "python":
            try:
                aliases |= _imported(fence)
            except ImportError as error:
                if missing(error) is None:
                    raise
                pytest.skip(f"{fence.place} is not checked: {error}")
            tree = ast.parse(fence.text, fence.place)
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute):
                    path = ast.unparse(node)
                    if DOTTED.fullmatch(path):
                        _look_up(path.split("."), aliases, fence)


@pytest.mark.parametrize("page", [page for page in PAGES if _runs(page)], ids=name_of)
def test_every_command_runs_as_printed(page: Path, tmp_path: Path) -> None:
    for name in LINKED:
        (tmp_path / name).symlink_to(ROOT / name)
    script = tmp_path / ".page.sh"
    script.write_text("\n".join(["set -euo pipefail", *map(_script, fences(page))]))
    with _ports_of(script.read_text()):
        code, output = _run(script, tmp_path)
    assert code == 0, f"{name_of(page)} ends with {code}:\n{output[-6000:]}"
    for fence in fences(page):
        if fence.language == "console" and is_run(fence):
            _compare(fence, tmp_path)


def test_output_is_compared_with_what_is_printed() -> None:
    ((command, printed),) = console("$ sumpter plan \\\n    -n 4\nshares\n...\nend\n")
    assert command == "sumpter plan \\\n    -n 4\n"
    assert matches(printed, "shares\n1\n2\nend")
    assert not matches(printed, "shares\n1\n2\n")


def test_unknown_options_are_found_behind_other_programs() -> None:
    (words,) = own_commands("X=1 srun -n 2 sumpter serve --joyn here:1 &")
    with pytest.raises(typer.TyperException, match="--joyn"):
        parse(words)


def _script(fence: Fence) -> str:
    """What a fence adds to the script of its page."""
    if "file" in fence.marks:
        return _written(fence, fence.marks["file"])
    if not is_run(fence):
        return ""
    say = f"echo '-- {fence.place}'\n"
    if fence.language == "sh":
        return say + fence.text
    if fence.language == "console":
        return say + "".join(
            f"code=0; {{ {command.rstrip()}\n}} > {_output(fence, n)} 2>&1 || code=$?\n"
            f"cat {_output(fence, n)}; test $code = 0\n"
            for n, (command, _) in enumerate(console(fence.text))
        )
    if fence.language == "python":
        name = f"fence{fence.line}.py"
        options = fence.marks.get("run")
        start = f"sumpter run {options} -- " if options else ""
        return f"{_written(fence, name)}{say}{start}python {name}\n"
    return ""


def _written(fence: Fence, name: str) -> str:
    return f"cat > {name} <<'END_OF_FENCE'\n{fence.text}END_OF_FENCE\n"


def _output(fence: Fence, number: int) -> str:
    return f".output.{fence.line}.{number}"


def _compare(fence: Fence, folder: Path) -> None:
    for number, (command, printed) in enumerate(console(fence.text)):
        real = (folder / _output(fence, number)).read_text()
        real = "\n".join(line.rstrip() for line in real.splitlines())
        assert matches(printed, real), f"{fence.place}: {command}prints\n{real}"


def _run(script: Path, folder: Path) -> tuple[int, str]:
    run_folder = folder / ".run"
    run_folder.mkdir(mode=0o700)
    environment = {
        **{name: value for name, value in os.environ.items() if not _is_foreign(name)},
        **{f"SUMPTER_{name.upper()}": str(value) for name, value in PATIENCE.items()},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
        # Other tests run beside.
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(run_folder),
        # Where `--job last` looks: two pages must not find each other's jobs.
        "XDG_RUNTIME_DIR": str(run_folder),
    }
    log = folder / ".log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", str(script)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            code = 124
        finally:
            _end(process)
    return code, log.read_text(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what a page has left in the background; launchers end their own processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            continue
        _wait_for_group(process.pid)


def _wait_for_group(group: int) -> None:
    for _ in range(50):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)


def _is_foreign(name: str) -> bool:
    return name.startswith(("SUMPTER_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "DMLC_"))


@contextmanager
def _ports_of(script: str) -> Iterator[None]:
    if FIXED_PORT.search(script) is None:
        yield
        return
    with open(f"{tempfile.gettempdir()}/sumpter-docs-{os.getuid()}.ports", "a") as ports:
        fcntl.flock(ports, fcntl.LOCK_EX)
        yield


def _imported(fence: Fence) -> dict[str, object]:
    """What a program imports from Sumpter, by the names that it uses."""
    found: dict[str, object] = {}
    for node in ast.walk(ast.parse(fence.text)):
        if isinstance(node, ast.Import):
            for one in node.names:
                top = one.name.partition(".")[0]
                if top in OWN:
                    module = _module(one.name)
                    found[one.asname or top] = module if one.asname else sys.modules[top]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in OWN:
            module = _module(node.module)
            for one in node.names:
                if not hasattr(module, one.name):
                    importlib.import_module(f"{node.module}.{one.name}")
                found[one.asname or one.name] = getattr(module, one.name)
    return found


def _module(name: str) -> ModuleType:
    if name.startswith(FRONTS) and not needs.is_asked_for("tensorflow"):
        pytest.skip(needs.APART)
    return importlib.import_module(name)


def _look_up(path: list[str], aliases: dict[str, object], fence: Fence) -> None:
    """Follows a dotted name while it names modules and classes of Sumpter."""
    value = aliases.get(path[0])
    for name in path[1:]:
        if not isinstance(value, type | ModuleType):
            return
        assert hasattr(value, name), f"{fence.place}: {'.'.join(path)} does not exist"
        value = getattr(value, name)
