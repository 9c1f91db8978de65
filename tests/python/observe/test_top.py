"""`sumpter top`: what it makes of two looks, and how it behaves in a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from rich.console import Console

from sumpter import _native
from sumpter._words import counted, listed
from sumpter.launch.figures import format_rate
from sumpter.launch.jobs import print_jobs, read_jobs
from sumpter.launch.status import Member, machine_names, read_status
from sumpter.launch.summary import print_job
from sumpter.launch.top import Top, View, render

TOKEN = "a token that only tests use"
PATIENCE_S = 60.0


def worker(rank: int, **counters: float) -> dict:
    return {
        "member": 10 + rank,
        "rank": rank,
        "host": f"gpu{rank}",
        "machine": f"gpu{rank}",
        "bandwidth_gbps": 8.0,
        "stats": {"counters": {"rounds": 1, **counters}, "late": []},
    }


def document(workers: list[dict], **job: object) -> str:
    server = worker(0, elapsed_s=10.0, summed_bytes=5e6) | {"machine": "cpu", "rank": None}
    entry = {"name": "red", "state": "running", "workers": workers, "servers": [10], **job}
    return json.dumps({"jobs": [{"world_size": 2, **entry}], "servers": [server]})


def looks(monkeypatch: pytest.MonkeyPatch, seconds: float, *documents: str) -> list[View]:
    """What is seen of each document, so many seconds apart."""
    texts, now = iter(documents), iter(seconds * index for index in range(len(documents)))
    monkeypatch.setattr("sumpter.launch.top.time.monotonic", lambda: next(now))
    top = Top(lambda: next(texts))
    return [top.look() for _ in documents]


def shown(view: View) -> str:
    """A view as a wide terminal shows it, without its line breaks."""
    console = Console(width=200, record=True, file=open(os.devnull, "w"))
    console.print(render(view, 200))
    return " ".join(console.export_text().split())


def test_figures_are_of_the_time_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(tensor_bytes: float, busy_s: float, sent: float) -> list[dict]:
        counts = {"tensor_bytes": tensor_bytes, "busy_s": busy_s, "bytes_sent_away": sent}
        return [worker(rank, elapsed_s=100.0, **counts, wait_send_s=busy_s) for rank in (0, 1)]

    before, after = both(1e9, 50.0, 7e9), both(2e9, 52.0, 9e9)
    first, second = looks(monkeypatch, 4.0, document(before), document(after))
    assert first.jobs[0].goodput_gbps == pytest.approx(0.16)
    assert first.jobs[0].members[0].sent_per_s == pytest.approx(7e7)
    job = second.jobs[0]
    # 1 GB in 2 s, where two machines and a helper at 8 Gb/s could move 1 GB in 1 s.
    assert job.goodput_gbps == pytest.approx(4.0)
    assert job.optimum_share == pytest.approx(0.5)
    assert job.members[0].sent_per_s == pytest.approx(5e8)
    assert job.members[0].busy == pytest.approx(0.5)
    assert job.members[0].waits_for == "send"


def test_the_drain_rate_is_of_the_time_in_which_contributions_were_queued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def both(drained: float, waited_s: float) -> list[dict]:
        # Rank 1 has never had a contribution in a queue.
        queued = {"drained_bytes": drained, "wait_send_s": waited_s}
        return [worker(0, elapsed_s=100.0, **queued), worker(1, elapsed_s=100.0)]

    before, after = document(both(1e9, 10.0)), document(both(1.5e9, 12.0))
    first, second, same = looks(monkeypatch, 4.0, before, after, after)
    rates = [view.jobs[0].members[0].drain_per_s for view in (first, second)]
    assert rates == [pytest.approx(1e8), pytest.approx(2.5e8)]
    assert first.jobs[0].members[1].drain_per_s is None
    assert same.jobs[0].members[0].drain_per_s is None
    assert [server.drain_per_s for server in first.servers] == [None]
    assert " 2 Gb/s " in shown(second)
    [job] = read_status(after)
    console = Console(width=100, record=True, file=open(os.devnull, "w"))
    print_job(console, job)
    assert "Send queues of workers drain at 1 Gb/s\n" in console.export_text()


def test_without_a_bandwidth_of_every_machine_there_is_no_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = [worker(rank, tensor_bytes=1e9, busy_s=1.0) for rank in (0, 1)]
    del workers[1]["bandwidth_gbps"]
    (view,) = looks(monkeypatch, 1.0, document(workers))
    assert view.jobs[0].optimum_share is None and view.jobs[0].goodput_gbps == pytest.approx(8.0)
    console = Console(width=80, record=True, file=open(os.devnull, "w"))
    console.print(render(view, 80))
    shown = console.export_text()
    assert "of the optimum -: no bandwidth is known of gpu1: set bandwidth_gbps there" in shown


@pytest.mark.parametrize(("trunk_gbps", "optimum_s"), [(2.0, 4.0), (16.0, 1.5), (None, 1.5)])
def test_narrow_trunks_of_racks_limit_the_optimum(
    monkeypatch: pytest.MonkeyPatch, trunk_gbps: float | None, optimum_s: float
) -> None:
    """Of 1 GB among two racks of two machines: the aggregate of a rack crosses its trunk."""
    workers = [worker(rank, tensor_bytes=1e9, busy_s=8.0) for rank in range(4)]
    for rank, each in enumerate(workers):
        each["rack"] = "ab"[rank // 2]
        # One machine of each rack says so.
        each["trunk_gbps"] = trunk_gbps if rank % 2 else None
    (view,) = looks(monkeypatch, 1.0, document(workers, servers=[], world_size=4))
    assert view.jobs[0].optimum_share == pytest.approx(optimum_s / 8.0)


def test_a_member_that_came_back_counts_from_its_new_start(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [worker(rank, elapsed_s=100.0, bytes_sent_away=1e9) for rank in (0, 1)]
    after = [worker(rank, elapsed_s=2.0, bytes_sent_away=6e6) for rank in (0, 1)]
    _, view = looks(monkeypatch, 1.0, document(before), document(after))
    assert view.jobs[0].members[0].sent_per_s == pytest.approx(3e6)


def test_who_is_gone_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [worker(0), worker(1) | {"gone": True}]
    here, over = looks(monkeypatch, 1.0, document(workers), document(workers, over=True))
    assert [member.number for member in here.jobs[0].members] == [0]
    assert over.jobs == ()


@pytest.mark.parametrize("width", (20, 40, 60, 80, 200))
def test_it_fits_every_width(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    late = [{"rank": 1, "count": 3, "seconds": 2.0}]
    workers = [worker(0, elapsed_s=1.0, queued_bytes=5e6), worker(1) | {"silent_s": 3.0}]
    workers[0]["stats"]["late"] = late
    job = {"stall": {"message": "waiting for rank 1"}, "late": late}
    (view,) = looks(monkeypatch, 1.0, document(workers, **job))
    console = Console(width=width, record=True, file=open(os.devnull, "w"))
    console.print(render(view, width))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert "red" in text and "rank 1 (100%)" in text and "waiting for rank 1" in text
    assert ("silent for 3 s" in text) == (width >= 200)


def test_workers_that_skip_nans_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [worker(0, elapsed_s=1.0, skipped_blocks=3.0), worker(1)]
    (view,) = looks(monkeypatch, 1.0, document(workers))
    assert [row.state for row in view.jobs[0].members[:2]] == ["3 blocks with NaNs skipped", ""]


def in_racks(
    hubs: float | None, names: str = "ab", on_workers: float = 0.0, on_servers: float = 0.0
) -> list[dict]:
    """Two workers in each rack, which report whether racks sum, and where."""
    where = {"rack_hubs_on_workers": on_workers, "rack_hubs_on_servers": on_servers}
    counters = {} if hubs is None else {"rack_hubs": hubs, **where}
    racks = [{"rack": name, "trunk_gbps": 4.0} for name in names for _ in range(2)]
    return [worker(rank, elapsed_s=1.0, **counters) | rack for rank, rack in enumerate(racks)]


SUM = "each sums its machines' contributions before they leave it"
NONE_SUMS = "their uplinks limit nothing that is known, so no rack sums by itself"


@pytest.mark.parametrize(
    ("workers", "hubs", "said"),
    [
        (in_racks(1.0), True, f"racks a, b: {SUM}"),
        (in_racks(1.0, on_workers=1.0), True, f"racks a, b: {SUM}"),
        (in_racks(1.0, on_servers=1.0), True, f"racks a, b: {SUM}, on 1 server"),
        (in_racks(1.0, "ab", 1.0, 4.0), True, f"racks a, b: {SUM}, on workers and 4 servers"),
        (in_racks(0.0), False, f"racks a, b: {NONE_SUMS}"),
        (in_racks(None), None, "racks a, b"),
        (in_racks(1.0, "abcdefghi"), True, f"9 racks: {SUM}"),
        ([worker(0), worker(1)], None, ""),
    ],
)
def test_what_the_plan_makes_of_racks_is_shown_where_racks_are_known(
    monkeypatch: pytest.MonkeyPatch, workers: list[dict], hubs: bool | None, said: str
) -> None:
    (view,) = looks(monkeypatch, 1.0, document(workers))
    (job,) = view.as_dict()["jobs"]
    assert (job["racks"], job["rack_hubs"]) == (said, hubs)
    assert [row["rack"] for row in job["members"]] == [w.get("rack", "") for w in workers]
    assert (said and said in shown(view)) or "rack" not in shown(view)
    (one,) = read_status(document(workers))
    console = Console(width=200, record=True, file=open(os.devnull, "w"))
    print_job(console, one)
    text = console.export_text()
    assert (f"\n{said[:1].upper()}{said[1:]}\n" in text) == ("rack" in text) == bool(said)


def recording(width: int, **more: bool) -> Console:
    return Console(width=width, record=True, file=open(os.devnull, "w"), **more)


def test_figures_are_whole_in_a_file_and_before_machines_are_cut_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = {"bytes_sent": 3.93 * 2**30, "bytes_received": 3.92 * 2**30, "lane_rounds": 32515}
    workers = [
        {**worker(rank, busy_s=1234.5, **counts), "machine": f"machine-{rank}" * 3}
        for rank in (0, 1)
    ]
    (job,) = read_status(document(workers))
    for console in (recording(80), recording(80, force_terminal=True)):
        print_job(console, job)
        text = console.export_text()
        assert text.count("1234.5 s\n") == text.count(" 32,515 ") == 2
        assert ("…" in text) == console.is_terminal


@pytest.mark.parametrize("width", (20, 40, 60, 80, 200))
def test_racks_fit_every_width(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    workers = in_racks(1.0)
    workers[3]["rack"] = "a-switch-with-a-long-name"
    (view,) = looks(monkeypatch, 1.0, document(workers))
    (job,) = read_status(document(workers))
    consoles = [recording(width, force_terminal=True) for _ in range(2)]
    consoles[0].print(render(view, width))
    print_job(consoles[1], job)
    for console in consoles:
        lines = console.export_text(clear=False).splitlines()
        assert max(map(len, lines)) <= width
        heads = [line.split() for line in lines if line.startswith(("rank ", "member"))]
        assert any("rack" in head for head in heads) == (width >= 60)
        assert SUM in " ".join(" ".join(lines).split())


@pytest.fixture
def coordinator() -> Iterator[_native.Coordinator]:
    made = _native.Coordinator("127.0.0.1:0", {"token": TOKEN})
    try:
        yield made
    finally:
        made.stop()


class Terminal:
    """`sumpter top` in a terminal of its own."""

    def __init__(self, coordinator: _native.Coordinator) -> None:
        address = coordinator.address
        command = (sys.executable, "-m", "sumpter", "top", "--coordinator", address)
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            # A job in the background of a shell ignores it, and what it starts does as well.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            variables = {**os.environ, "SUMPTER_TOKEN": TOKEN, "TERM": "xterm"}
            os.execve(sys.executable, [*command, "--interval", "0.2"], variables)
        size = struct.pack("HHHH", 30, 100, 0, 0)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)
        self.shown = b""

    def read_until(self, holds: Callable[[bytes], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds(self.shown):
            if time.monotonic() >= deadline:
                os.kill(self.pid, signal.SIGKILL)
                pytest.fail(repr(self.shown[-2000:]))
            if select.select([self._terminal], [], [], 0.2)[0]:
                self.shown += os.read(self._terminal, 65536)

    def press(self, key: bytes) -> None:
        os.write(self._terminal, key)

    def end(self) -> int:
        """The exit code, after everything has been read."""
        with suppress(OSError):  # the other end is closed
            self.read_until(lambda shown: False)
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.parametrize("key", (b"q", b"\x03"), ids=("q", "ctrl-c"))
def test_a_key_ends_it_and_the_terminal_is_as_before(
    coordinator: _native.Coordinator, key: bytes
) -> None:
    terminal = Terminal(coordinator)
    terminal.read_until(lambda shown: b"every 0.2 s; q ends" in shown)
    terminal.press(key)
    assert terminal.end() == 0
    # Back from the alternate screen, the cursor shown, and no traceback.
    assert b"\x1b[?1049l" in terminal.shown and b"\x1b[?25h" in terminal.shown
    assert b"Traceback" not in terminal.shown


def test_a_coordinator_that_goes_away_is_told_and_the_figures_stay(
    coordinator: _native.Coordinator,
) -> None:
    terminal = Terminal(coordinator)
    terminal.read_until(lambda shown: b"every 0.2 s" in shown)
    coordinator.stop()
    seen = len(terminal.shown)
    terminal.read_until(lambda shown: b"coordinator" in shown[seen:])
    terminal.press(b"q")
    assert terminal.end() == 0


def test_rates_have_one_family_of_units() -> None:
    rates = [format_rate(count) for count in (0, 1, 124.9, 125, 1e6, 124.9e6, 1.25e9, 1e15)]
    assert rates == [
        *("0 b/s", "8 b/s", "999 b/s", "1 kb/s"),
        *("8 Mb/s", "999 Mb/s", "10 Gb/s", "8,000,000 Gb/s"),
    ]


def test_a_view_has_no_rate_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"tensor_bytes": 1e9, "busy_s": 1.0, "elapsed_s": 1.0, "bytes_sent_away": 5e6}
    workers = [worker(rank, **counts) for rank in (0, 1)]
    (view,) = looks(monkeypatch, 1.0, document(workers))
    text = shown(view)
    assert "40 Mb/s" in text and "goodput 8.00 Gb/s" in text
    assert "B/s" not in text and "iB" not in text.replace("0 B", "")


def test_names_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    names = {"host": "fd00::ab:1", "machine": "fd00::ab:1", "rack": "[/x]"}
    text = document([worker(0, elapsed_s=1.0) | names], name="sweep[lr=0.1]\x1b[2J")
    view = Top(lambda: text).look()
    [job] = read_status(text)
    console = Console(width=200, record=True, file=open(os.devnull, "w"))
    print_job(console, job)
    print_jobs(read_jobs(text))
    for said in (shown(view), console.export_text(), capsys.readouterr().out):
        assert "sweep[lr=0.1]" in said
        assert "\x1b" not in said
    assert all(name in shown(view) for name in ("fd00::ab:1", "[/x]"))


def test_ended_jobs_are_labelled(monkeypatch: pytest.MonkeyPatch) -> None:
    (view,) = looks(monkeypatch, 1.0, document([worker(0)], over=True, state="running"))
    assert view.ended == ("red",)
    text = shown(view)
    assert "No job is running." in text and "Ended: red" in text
    [job] = read_status(document([worker(0), worker(1) | {"gone": True}], over=True))
    console = Console(width=100, record=True, file=open(os.devnull, "w"))
    print_job(console, job)
    text = console.export_text()
    assert "Job red (ended): 2 workers, 1 server\n" in text
    assert "worker 1 (left)" in text


def test_machines_without_a_configured_name_have_their_hosts_name() -> None:
    boot = "0d4a6a4e-2f0c-4a3e-9c53-6f2f1a9e8b11"
    machines = {f"{boot}/4026531840": "node7", "gpu-1": "node8"}
    members = [Member("worker", 0, host, machine) for machine, host in machines.items()]
    assert list(machine_names(members).values()) == ["node7", "gpu-1"]
    members.append(Member("worker", 2, "node7", f"{boot}/4026532999"))
    assert set(machine_names(members).values()) == {"node7/531840", "node7/532999", "gpu-1"}
    [job] = read_status(document([worker(0) | {"machine": f"{boot}/1", "host": "node7"}]))
    console = Console(width=80, record=True, file=open(os.devnull, "w"))
    print_job(console, job)
    text = console.export_text()
    assert "worker 0  node7" in text and "\u2026" not in text and boot not in text


def test_counts_agree_with_their_nouns() -> None:
    assert [counted(n, "server") for n in (0, 1, 2)] == ["0 servers", "1 server", "2 servers"]
    assert counted(2, "process", "processes") == "2 processes"
    assert [listed("rank", ranks) for ranks in ([1], [1, 2], [1, 2, 5])] == [
        *("rank 1", "ranks 1 and 2", "ranks 1, 2 and 5"),
    ]
