"""Codecs of users in Python, in real jobs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from jobs import FINDS_MISMATCHES_S, Job


@pytest.mark.parametrize(("ranks", "servers", "loops"), [(2, 0, 1), (3, 1, 1), (2, 1, 2)])
def test_own_codecs_sum_and_fail_by_name(
    make_job: Callable[..., Job], ranks: int, servers: int, loops: int
) -> None:
    settings = {"partition_bytes": "16KiB", "io_threads": loops, "codecs": "codecs_of_users"}
    job = make_job(ranks, servers, peer_timeout_s=FINDS_MISMATCHES_S, **settings)
    job.start("own_codecs.py", "knowing").finish()


def test_a_server_without_the_codec_says_what_to_do(make_job: Callable[..., Job]) -> None:
    settings = {"partition_bytes": "16KiB", "architecture": "ps"}
    knows_none = [{"SUMPTER_CODECS": ""}]
    job = make_job(
        2,
        1,
        peer_timeout_s=FINDS_MISMATCHES_S,
        of_servers=knows_none,
        codecs="codecs_of_users",
        **settings,
    )
    job.start("own_codecs.py").finish()


def test_a_module_that_cannot_be_imported_is_named() -> None:
    command = [sys.executable, "-c", "import sumpter; sumpter.init(codecs='no_such_module')"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "ConfigError: setting codecs: importing no_such_module" in ended.stderr, ended.stderr
