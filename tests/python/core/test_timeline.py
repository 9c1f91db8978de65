"""Timelines: what operations did when, as a file for Chrome's tracing and Perfetto."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import sumpter.torch as hvd


def spans(path: Path) -> dict[str, list[str]]:
    """The names of a timeline's spans, in order, by tensor."""
    events = json.loads(path.read_text())
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found: dict[str, list[str]] = {name: [] for name in rows.values()}
    for event in events:
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0
            found[rows[event["tid"]]].append(event["name"])
    return found


@pytest.mark.usefixtures("alone")
def test_a_timeline_tells_of_what_was_done_between_start_and_stop(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    hvd.allreduce(torch.ones(4), name="before")
    hvd.start_timeline(str(path), mark_cycles=True)
    for _ in range(2):
        hvd.allreduce(torch.ones(4), name="layer")
    hvd.broadcast(torch.ones(4), 0, name="weights")
    hvd.stop_timeline()
    hvd.stop_timeline()
    hvd.allreduce(torch.ones(4), name="after")
    assert spans(path) == {
        "allreduce.layer": ["NEGOTIATE_ALLREDUCE", "ALLREDUCE"] * 2,
        "broadcast.weights": ["NEGOTIATE_BROADCAST", "BROADCAST"],
    }
    with pytest.raises(FileNotFoundError, match=r"cannot write the timeline .*nowhere"):
        hvd.start_timeline(str(tmp_path / "nowhere" / "t.json"))


@pytest.mark.parametrize("variable", ["SUMPTER_TIMELINE", "HOROVOD_TIMELINE"])
def test_a_timeline_from_the_environment_ends_with_the_session(
    unlaunched: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    path = tmp_path / "timeline.json"
    unlaunched.setenv(variable, str(path))
    hvd.init()
    hvd.allreduce(torch.ones(4), name="layer")
    hvd.shutdown()
    assert spans(path) == {"allreduce.layer": ["NEGOTIATE_ALLREDUCE", "ALLREDUCE"]}


def test_horovods_dynamic_timeline_waits_for_its_start(
    unlaunched: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unlaunched.chdir(tmp_path)
    unlaunched.setenv("HOROVOD_TIMELINE", "DYNAMIC")
    hvd.init()
    hvd.shutdown()
    assert not list(tmp_path.iterdir())
