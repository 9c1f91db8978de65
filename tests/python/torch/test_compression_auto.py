"""`auto` in real jobs: what is chosen, what it does to results, and where one reads why."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from rich.console import Console

from jobs import FINDS_MISMATCHES_S, TOKEN, Job
from sumpter import _native
from sumpter.launch.status import CodecChoice, read_status
from sumpter.launch.summary import compression_lines, print_job

SETTINGS = {"compression_min_bytes": "4KiB", "partition_bytes": "16KiB", "chunk_bytes": "4KiB"}


def choices_of(job: Job) -> tuple[CodecChoice, ...]:
    (known,) = read_status(_native.status({"coordinator": job.address, "token": TOKEN}))
    return known.compression


@pytest.mark.parametrize("loops", [1, 2])
def test_over_slow_links_tensors_are_encoded_and_the_status_says_so(
    make_job: Callable[..., Job], loops: int
) -> None:
    settings = {"compression": "auto", "bandwidth_gbps": 0.05, "io_threads": loops, **SETTINGS}
    job = make_job(2, 1, **settings)
    job.start("compressed_by_auto.py", "encoded").finish()
    (large,) = choices_of(job)
    assert (large.codec, large.tensors, large.bytes) == ("int8", 1, 200_000)
    assert large.example.endswith("of 50000:sum") and "times as fast" in large.reason
    assert large.line.startswith("compression auto, 1 tensor of 195.3 KiB: int8: ")
    assert large.line in job.output(0)
    assert "compression auto" not in job.output(1)


@pytest.mark.parametrize(
    ("gbps", "codec", "said"),
    [
        # Half of the elements take three quarters of the bytes, and a core longer than copying.
        (10_000, "auto:codecs=topk:k=0.5", "the cores are the limit"),
        # Too little is sent to measure a link.
        (None, "auto", "not compressed: no link's speed is known until enough was sent"),
    ],
)
def test_where_no_codec_pays_tensors_travel_as_they_are_and_the_status_says_why(
    make_job: Callable[..., Job], gbps: float | None, codec: str, said: str
) -> None:
    settings = {"compression": codec, **SETTINGS}
    settings |= {} if gbps is None else {"bandwidth_gbps": gbps}
    job = make_job(2, **settings)
    job.start("compressed_by_auto.py", "plain").finish()
    (large,) = choices_of(job)
    assert large.codec == "" and said in large.reason, large.reason
    assert said in job.output(0)


def test_links_of_unknown_speed_are_measured_while_gradients_wait(
    make_job: Callable[..., Job],
) -> None:
    job = make_job(2, 1, compression="auto")
    job.start("compressed_once_measured.py").finish()
    (large,) = choices_of(job)
    # Which codec pays depends on this machine's cores and its loopback interface.
    assert " a round" in large.reason and "link " in large.reason, large.reason
    assert "Gb/s, as measured" in job.output(0)


def test_what_is_chosen_is_chosen_again_when_a_server_dies(make_job: Callable[..., Job]) -> None:
    job = make_job(2, 2, compression="auto", bandwidth_gbps=0.05, **SETTINGS)
    job.start("compressed_by_auto.py", "encoded", str(job.server_pid(0))).finish()
    (large,) = choices_of(job)
    assert (large.codec, large.tensors) == ("int8", 1)


def test_ranks_that_choose_differently_are_told_so(make_job: Callable[..., Job]) -> None:
    job = make_job(2, peer_timeout_s=FINDS_MISMATCHES_S)
    job.start("compressed_differently.py").finish()


def test_a_status_shows_what_was_chosen() -> None:
    choice = {
        "codec": "int8",
        "tensors": 12,
        "bytes": 98_000_000,
        "example": "fc6.weight",
        "reason": "int8: 1.00 ms a round instead of 4.00 ms",
        "line": "compression auto, 12 tensors of 93.5 MiB: int8: 1.00 ms",
    }
    plain = {**choice, "codec": "", "tensors": 1, "line": "compression auto, 1 tensor of 2 KiB"}
    document = {"jobs": [{"name": "j", "compression": [choice, plain]}]}
    (job,) = read_status(json.dumps(document))
    lines = compression_lines(job)
    assert lines == [
        "Compression auto, 12 tensors of 93.5 MiB: int8: 1.00 ms",
        "Compression auto, 1 tensor of 2 KiB",
    ]
    console = Console(record=True, width=200)
    print_job(console, job)
    assert lines[0] in console.export_text()
