"""The site that tests look at, built once for all processes of a run."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from documents import ROOT

# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 600


def built_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, which the first process to ask builds."""
    pytest.importorskip("sphinx", reason="no Sphinx: make setup installs it")
    base = tmp_path_factory.getbasetemp()
    # Under xdist each process has a folder of its own below that of the run.
    shared = base.parent if base.name.startswith("popen-") else base
    site = shared / "site"
    with (shared / "site.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        log = shared / "site.log"
        if not log.exists():
            command = [sys.executable, str(ROOT / "docs" / "site" / "build.py"), str(site)]
            ended = subprocess.run(
                command,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=HANG_S,
            )
            log.write_text("" if ended.returncode == 0 else ended.stdout or "it says nothing")
    assert log.read_text() == "", log.read_text()
    return site
