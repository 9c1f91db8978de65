"""Runs the Rust tests under a sanitizer: races between threads, or memory used wrongly.

    python tests/sanitize/sanitize.py [thread] [address] [-- ARGUMENTS OF THE TESTS]

Needs a nightly toolchain with the sanitizers' runtimes and the sources of the standard library
(`rustup toolchain install nightly --component rust-src`), and says so where there is none. The
standard library is compiled with the tests: a sanitizer that does not see what orders threads there
takes nearly every hand-over for a race.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
# All that hand memory from thread to thread, or hold raw memory.
CRATES = ["sum", "engine", "transport", "coordinator", "metrics", "node", "server"]
RUNTIME = {"thread": "tsan", "address": "asan"}
# Loom plays threads on one, so a sanitizer sees nothing there and makes it many times as slow.
LEFT_OUT = {"loom"}


def nightly(*command: str) -> str | None:
    """What `rustc +nightly` says; nothing if there is no nightly."""
    try:
        done = subprocess.run(["rustc", "+nightly", *command], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def target() -> str | None:
    """This machine's target, if its nightly can run sanitizers."""
    host = next((x[6:] for x in (nightly("-vV") or "").splitlines() if x.startswith("host: ")), "")
    folder = Path(nightly("--print", "sysroot") or "/") / "lib/rustlib" / host / "lib"
    found = all(list(folder.glob(f"librustc*_rt.{runtime}.a")) for runtime in RUNTIME.values())
    sources = folder.parents[1] / "src" / "rust" / "library" / "Cargo.lock"
    return host if host and found and sources.exists() else None


def test_programs() -> list[str]:
    """Names of the crates' test programs: files in `tests`, or folders with a `main.rs`."""
    folders = [ROOT / "crates" / crate / "tests" for crate in CRATES]
    files = (file for folder in folders for file in folder.glob("*.rs"))
    mains = (file.parent for folder in folders for file in folder.glob("*/main.rs"))
    return sorted({path.stem for path in (*files, *mains)} - LEFT_OUT)


def run(sanitizer: str, host: str, arguments: list[str]) -> int:
    """Runs all tests under one sanitizer."""
    environment = {
        **os.environ,
        # A sanitizer sees memory that is mapped and unmapped by libc's calls, not by a bare one.
        "RUSTFLAGS": f"-Zsanitizer={sanitizer} -Cunsafe-allow-abi-mismatch=sanitizer"
        " --cfg=rustix_use_libc",
        # Fast enough for the tests' own limits of time, and with names in reports.
        "CARGO_PROFILE_DEV_OPT_LEVEL": "1",
        "CARGO_PROFILE_DEV_DEBUG": "line-tables-only",
        # A process may end before the threads of its last worker do, which are not joined then.
        "TSAN_OPTIONS": f"suppressions={HERE / 'thread.txt'}:report_thread_leaks=0",
        "SUMPTER_SIM_SEEDS": os.environ.get("SUMPTER_SIM_SEEDS", "300"),
        "SUMPTER_SIM_LARGE_SEEDS": "0",
    }
    packages = [word for crate in CRATES for word in ("-p", f"sumpter-{crate}")]
    where = [
        "-Zbuild-std",
        "--target",
        host,
        "--target-dir",
        str(ROOT / "target" / "sanitize" / sanitizer),
    ]
    command = ["cargo", "+nightly", "test", "--locked", "--no-fail-fast", *where, *packages]
    command += ["--lib", "--bins", *(word for name in test_programs() for word in ("--test", name))]
    return subprocess.run([*command, "--", *arguments], cwd=ROOT, env=environment).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sanitizers", nargs="*", help="thread, address; both if none is given")
    words, arguments = sys.argv[1:], []
    if "--" in words:
        words, arguments = words[: words.index("--")], words[words.index("--") + 1 :]
    chosen = parser.parse_args(words).sanitizers or list(RUNTIME)
    if unknown := [name for name in chosen if name not in RUNTIME]:
        parser.error(f"no sanitizer {unknown[0]}: use {' or '.join(RUNTIME)}")
    host = target()
    if host is None:
        print(
            "SKIPPED: no nightly toolchain with sanitizers and rust-src here; get one with:"
            " rustup toolchain install nightly --component rust-src",
            file=sys.stderr,
        )
        return 0
    outcomes = {sanitizer: run(sanitizer, host, arguments) for sanitizer in chosen}
    for sanitizer, code in outcomes.items():
        print(f"{sanitizer} sanitizer: {'nothing found' if code == 0 else 'FAILED'}")
    return max(outcomes.values())


if __name__ == "__main__":
    sys.exit(main())
