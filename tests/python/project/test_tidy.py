"""The rules of the repository that a program can check; each names what to do when it fails."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

LINES_PER_FILE = 800  # without tests
LINES_PER_FUNCTION = 80
COLUMNS = 100
TOP_LEVEL_ENTRIES = 22
FILES_PER_FOLDER = 20

# Raw memory: kernels, sockets' vectors, tensors of other processes' runtimes, the Python seam.
UNSAFE_CRATES = {
    *("crates/fabric", "crates/sum", "crates/transport", "crates/node", "crates/python"),
    "lab/crates/python",
}

# Pure functions and state machines: no sockets, threads, clock or environment.
PURE_CRATES = (
    *(f"crates/{n}" for n in ("types", "plan", "sum", "wire", "endpoint", "engine", "membership")),
    "crates/codec",
    "crates/elastic",
    "lab/crates/whatif",
)
IMPURE = re.compile(
    r"\bstd::(net|thread|env|fs|process|os)\b|\b(Instant|SystemTime)\b|\b(mio|tokio|socket2)::"
)
IMPURE_DEPENDENCIES = {
    "mio",
    "tokio",
    "socket2",
    "tonic",
    "prost",
    "crossbeam-channel",
    "getrandom",
}

# Who may look at the environment, and what for. Rust has one reader, the settings table.
RUST_ENVIRONMENT_READERS = {"crates/config/src/load.rs"}
PYTHON_ENVIRONMENT_READERS = {
    "python/sumpter/_environment.py",  # other launchers' words
    "python/sumpter/torch/store.py",  # torch's own rendezvous
    "python/sumpter/launch/attendant.py",  # what children inherit on any machine
    "python/sumpter/launch/environment.py",  # what is passed to other machines
    "python/sumpter/doctor/probe.py",  # what is set, to find what is wrong with it
}

# Lock files name the registry by design; the licence is quoted.
HOSTS_ALLOWED = {"Cargo.lock", "fuzz/Cargo.lock", "LICENSE"}
REGISTRY_HOST = re.compile(r"https?://(files|registry|index|proxy|static|pypi)\.")
MACHINE_PATH = re.compile(r"(?<![\w.])/(work|farm|root|home|Users)/\w")

ERROR_ENUM = re.compile(
    r"derive\([^)]*\bError\b[^)]*\)\]\s*(?:#\[[^\n]*\]\s*)*pub(?:\(crate\))? enum (\w+) \{\n"
    r"(.*?)\n\}",
    re.DOTALL,
)


def tracked(*suffixes: str) -> list[Path]:
    """Files that are, or are about to be, in the repository."""
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split("\0") if name]
    paths = sorted({ROOT / name for name in names if name.endswith(suffixes or "")})
    return [path for path in paths if path.is_file()]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()


def is_test(path: Path) -> bool:
    return "tests" in path.relative_to(ROOT).parts


def code_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of a Rust file without its tests and comments."""
    for number, line in enumerate(text_lines(path), 1):
        if line.startswith("#[cfg(test)]"):
            return
        if not line.lstrip().startswith("//"):
            yield number, line


def crate_sources(crate: str) -> list[Path]:
    return [path for path in tracked(".rs") if name_of(path).startswith(f"{crate}/src/")]


def found(findings: list[str], advice: str) -> None:
    assert not findings, "\n".join([advice, *findings])


def test_no_file_is_too_long() -> None:
    def length(path: Path) -> int:
        lines = text_lines(path)
        if path.suffix == ".rs" and "#[cfg(test)]" in lines:
            return lines.index("#[cfg(test)]")
        return len(lines)

    sizes = {name_of(path): length(path) for path in tracked(".rs", ".py", ".pyi")}
    long = [f"{name}: {size} lines" for name, size in sizes.items() if size > LINES_PER_FILE]
    found(long, f"split these files: over {LINES_PER_FILE} lines without tests")


def test_no_line_is_too_long() -> None:
    long = [
        f"{name_of(path)}:{number}: {len(line)} columns"
        for path in tracked(".rs", ".py", ".pyi", ".proto", ".sh")
        for number, line in enumerate(text_lines(path), 1)
        if len(line) > COLUMNS
    ]
    found(long, f"wrap these lines: over {COLUMNS} columns")


def test_no_python_function_is_too_long() -> None:
    long = [
        f"{name_of(path)}:{node.lineno}: {node.name} has {size} lines"
        for path in tracked(".py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (size := (node.end_lineno or 0) - node.lineno + 1) > LINES_PER_FUNCTION
    ]
    found(long, f"split these functions: over {LINES_PER_FUNCTION} lines")


def test_no_rust_function_is_too_long() -> None:
    start = re.compile(r"^(\s*)(pub(\([^)]*\))? )?(const |async |unsafe )*fn (\w+)")
    long = []
    for path in tracked(".rs"):
        lines = text_lines(path)
        for number, line in enumerate(lines):
            match = start.match(line)
            if match is None or line.rstrip().endswith((";", "}")):
                continue
            ends = (f"{match[1]}}}", f"{match[1]});")
            size = next(
                (i + 1 for i, later in enumerate(lines[number:]) if later.startswith(ends)), 0
            )
            if size > LINES_PER_FUNCTION:
                long.append(f"{name_of(path)}:{number + 1}: {match[5]} has {size} lines")
    found(long, f"split these functions: over {LINES_PER_FUNCTION} lines")


def test_the_top_level_fits_on_a_screen() -> None:
    entries = {path.relative_to(ROOT).parts[0] for path in tracked()}
    assert len(entries) <= TOP_LEVEL_ENTRIES, sorted(entries)


def test_unsafe_stays_where_raw_memory_is() -> None:
    used = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in tracked(".rs")
        if name_of(path).partition("/src/")[0] not in UNSAFE_CRATES and not is_test(path)
        for number, line in code_lines(path)
        if re.search(r"\bunsafe\b", line)
    ]
    found(used, f"unsafe code belongs into the crates {sorted(UNSAFE_CRATES)}")


@pytest.mark.parametrize("crate", PURE_CRATES)
def test_pure_crates_do_no_io_and_know_no_time(crate: str) -> None:
    sources = crate_sources(crate)
    assert sources, f"{crate} is gone: update this test"
    impure = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in sources
        for number, line in code_lines(path)
        if IMPURE.search(line)
    ]
    found(impure, f"{crate} must stay pure: pass in what it needs")
    assert not IMPURE_DEPENDENCIES & dependencies(crate)


def test_the_data_path_has_no_locks() -> None:
    """One thread owns each state machine; what others want of it comes by a queue."""
    locks = re.compile(r"\b(Mutex|RwLock|Condvar|OnceLock|LazyLock|parking_lot)\b")
    used = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for crate in ("crates/wire", "crates/engine", "crates/transport")
        for path in crate_sources(crate)
        for number, line in code_lines(path)
        if locks.search(line)
    ]
    found(used, "a chunk must not wait for a lock: give its state to one thread")


def dependencies(crate: str) -> set[str]:
    """What a crate needs, apart from its tests."""
    manifest = tomllib.loads((ROOT / crate / "Cargo.toml").read_text())
    return set(manifest.get("dependencies", {}))


def crates(room: str = "") -> list[str]:
    """The folders of all crates, or of those in a room."""
    manifests = [path for path in tracked("Cargo.toml") if "crates" in path.parts]
    folders = [path.relative_to(ROOT).parent.as_posix() for path in manifests]
    return [folder for folder in folders if folder.startswith(room)]


def test_only_the_seams_know_python() -> None:
    seams = [crate for crate in crates() if "pyo3" in dependencies(crate)]
    assert seams == ["crates/python", "lab/crates/python"]


def test_the_product_does_not_know_the_laboratory() -> None:
    importers = [
        name_of(path)
        for path in tracked(".py", ".pyi")
        if name_of(path).startswith("python/")
        and any(name.partition(".")[0] == "sumpter_lab" for _, name in imports(path))
    ]
    found(importers, "the laboratory imports the product, never the reverse: see lab/")
    names = {
        tomllib.loads((ROOT / crate / "Cargo.toml").read_text())["package"]["name"]
        for crate in crates("lab/")
    }
    users = [
        f"{crate}: {name}"
        for crate in crates("crates/")
        for name in sorted(names & dependencies(crate))
    ]
    found(users, "crates of the laboratory may use the product's, never the reverse")


def test_the_laboratory_asks_for_the_product_of_its_own_version() -> None:
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    project = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == [f"sumpter=={version}"]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines and full names of what a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: import by full names"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def test_nothing_below_the_command_line_imports_it() -> None:
    importers = [
        name_of(path)
        for path in tracked(".py")
        if name_of(path).startswith(("python/", "lab/python/"))
        and not name_of(path).startswith(("python/sumpter/cli/", "lab/python/sumpter_lab/cli/"))
        and name_of(path) != "python/sumpter/__main__.py"
        and any(f"{name}.".startswith("sumpter.cli.") for _, name in imports(path))
    ]
    found(importers, "move what these need of sumpter.cli to a module below it")


def test_rust_reads_the_environment_in_one_place() -> None:
    readers = {
        name_of(path)
        for path in tracked(".rs")
        if name_of(path).startswith(("crates/", "lab/crates/")) and not is_test(path)
        for _, line in code_lines(path)
        if re.search(r"\benv::(var|vars|var_os)\b|\benv = \"|\boption_env!", line)
    }
    assert readers <= RUST_ENVIRONMENT_READERS, "settings come from the table in crates/config"


def test_python_reads_the_environment_in_named_places() -> None:
    readers = {
        name_of(path)
        for path in tracked(".py")
        if name_of(path).startswith(("python/", "lab/python/"))
        and re.search(r"\bos\.environ\b|\bgetenv\b|\benvvar=", path.read_text())
    }
    assert readers == PYTHON_ENVIRONMENT_READERS, "settings come from the table in crates/config"


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    named = [
        f"{name_of(path)}:{number}: {line.strip()[:100]}"
        for path in tracked()
        if name_of(path) not in HOSTS_ALLOWED
        for number, line in enumerate(text_lines(path), 1)
        if REGISTRY_HOST.search(line) or MACHINE_PATH.search(line)
    ]
    found(named, "files must not depend on where they were written")


def test_nothing_is_left_unfinished() -> None:
    words = re.compile(r"\b(to" r"do!|unimplemented!|TO" r"DO|FIX" r"ME|XX" r"X)\b")
    left = [
        f"{name_of(path)}:{number}: {line.strip()[:100]}"
        for path in tracked(".rs", ".py", ".pyi", ".proto", ".md", ".toml", "Makefile")
        for number, line in enumerate(text_lines(path), 1)
        if words.search(line)
    ]
    found(left, "finish these")


def test_every_error_has_a_message() -> None:
    silent = []
    for path in tracked(".rs"):
        source = path.read_text()
        for match in ERROR_ENUM.finditer(source):
            variants = re.findall(r"^    [A-Z]\w*(?=[\s,({]|$)", match[2], re.MULTILINE)
            messages = re.findall(r"^    #\[error\(", match[2], re.MULTILINE)
            if len(variants) != len(messages):
                silent.append(
                    f"{name_of(path)}: {match[1]} has {len(variants)} variants "
                    f"and {len(messages)} messages"
                )
    found(silent, 'give each variant an #[error("...")] that says what to do')


def test_the_settings_page_is_up_to_date() -> None:
    from sumpter import _native
    from sumpter.cli.settings import as_markdown

    page = (ROOT / "docs" / "user" / "configuration.md").read_text()
    assert page == as_markdown(_native.settings()), "run `make docs`"


def test_prose_fits_the_lines() -> None:
    """Fenced code, tables and a link that is longer than a line are what they are."""
    long = []
    for path in tracked(".md"):
        prose = re.sub(r"^ *```.*?^ *```", _blank, path.read_text(), flags=re.MULTILINE | re.DOTALL)
        long += [
            f"{name_of(path)}:{number}: {line[:60]}..."
            for number, line in enumerate(prose.splitlines(), 1)
            if len(line) > COLUMNS and not line.lstrip().startswith(("|", "!["))
            if len(line.split()) > 1 and "](http" not in line
        ]
    found(long, f"wrap these at {COLUMNS} columns")


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{name_of(path)}: {target}"
        for path in tracked(".md")
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", path.read_text())
        if not (path.parent / target).exists()
    ]
    found(broken, "mend these links")


def test_every_make_target_the_documents_name_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = {
        target
        for path in [*tracked(".md"), ROOT / ".ci" / "run"]
        for target in re.findall(r"(?<=`make )[a-z-]+", path.read_text())
    }
    assert named <= targets


def test_the_bugs_that_mutants_plant_still_have_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "mutants"))
    import bugs

    lost = [
        f"{mutant.name}: {mutant.file}"
        for mutant in bugs.MUTANTS
        if (ROOT / mutant.finder.folder / mutant.file).read_text().count(mutant.sound) != 1
    ]
    found(lost, "tests/mutants/bugs: say where these lines are now")


# What each room of the Python package must not import, wherever in a file.
FRAMEWORKS = {"torch", "jax", "tensorflow", "mxnet"}
FRONTS = {
    *("sumpter._front", "sumpter._arrays", "sumpter.service"),
    *("sumpter.torch", "sumpter.jax", "sumpter.tensorflow", "sumpter.mxnet"),
}
# Fronts on NumPy arrays, which share what turns arrays into memory.
NUMPY_FRONTS = {
    *("sumpter._front", "sumpter._arrays", "sumpter.service"),
    *("sumpter.jax", "sumpter.tensorflow", "sumpter.mxnet"),
}


def forbidden(room: str, packages: set[str]) -> list[str]:
    """Imports of `packages` in a module or package of the Python package."""
    whole = ROOT / "python" / room.replace(".", "/")
    sources = [path for path in tracked(".py") if whole in path.parents]
    sources = sources or [whole.with_suffix(".py")]
    return [
        f"{name_of(path)}:{line}: {name}"
        for path in sources
        for line, name in imports(path)
        if any(f"{name}.".startswith(f"{package}.") for package in packages)
    ]


def test_the_core_knows_no_framework_and_no_front() -> None:
    found(forbidden("sumpter._core", FRAMEWORKS | FRONTS), "a front hands this to the core")


def test_the_core_knows_no_other_part_of_the_package() -> None:
    parts = {
        f"sumpter.{path.name}"
        for path in (ROOT / "python" / "sumpter").iterdir()
        if path.is_dir() and path.name != "_core"
    }
    found(forbidden("sumpter._core", parts), "register with the core from outside")


@pytest.mark.parametrize("front", sorted(FRONTS))
def test_fronts_do_not_import_each_other(front: str) -> None:
    others = FRONTS - {front} - ({"sumpter._arrays"} if front in NUMPY_FRONTS else set())
    found(forbidden(front, others), "what fronts share is in sumpter._core")


def test_folders_are_small() -> None:
    counts: dict[str, int] = {}
    for path in tracked(".py", ".rs"):
        folder = name_of(path.parent)
        counts[folder] = counts.get(folder, 0) + 1
    crowded = [
        f"{folder}: {count} files"
        for folder, count in sorted(counts.items())
        if count > FILES_PER_FOLDER
    ]
    found(crowded, f"make rooms: over {FILES_PER_FOLDER} files in a folder")
