"""Codecs of users in Python, in real jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import jobs
from jobs import FINDS_MISMATCHES_S, Job

SUPPORT = Path(jobs.__file__).parent


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


@pytest.mark.parametrize("codec", ["halves", "auto:codecs=halves"])
def test_the_setting_compression_takes_an_own_codec(
    make_job: Callable[..., Job], codec: str
) -> None:
    settings = {"bandwidth_gbps": 0.001, "compression_min_bytes": 65536, "compression": codec}
    job = make_job(2, 1, codecs="codecs_of_users", **settings)
    job.start("own_codecs.py", "by_setting").finish()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"compression": "halfs", "codecs": "codecs_of_users"}, "give one of fp16, "),
        ({"compression": "halfs", "codecs": "codecs_of_users"}, "halves, auto, or one of your own"),
        ({"compression": "halves"}, ", which a module of the setting codecs registers"),
        (
            {"compression": "halves:fail=never", "codecs": "codecs_of_users"},
            "its maker raised ValueError: fail=never: give encode or decode",
        ),
        ({"compression": "halves:two_way=true", "codecs": "codecs_of_users"}, "leave out two_way"),
    ],
)
def test_a_setting_compression_that_is_no_codec_is_an_error_that_lists_them(
    settings: dict[str, str], said: str
) -> None:
    command = [sys.executable, "-c", f"import sumpter; sumpter.init(**{settings})"]
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert "ConfigError: setting compression (argument): " in ended.stderr, ended.stderr
    assert said in ended.stderr, ended.stderr


def test_a_codec_that_was_registered_before_needs_no_module() -> None:
    code = "import codecs_of_users, sumpter; sumpter.init(compression='halves'); print('joined')"
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert ended.stdout == "joined\n", ended.stderr


def test_a_module_that_cannot_be_imported_is_named() -> None:
    command = [sys.executable, "-c", "import sumpter; sumpter.init(codecs='no_such_module')"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "ConfigError: setting codecs: importing no_such_module" in ended.stderr, ended.stderr
