"""Traces: a running job as a file for Perfetto, on one clock, and in words."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import TOKEN, Job
from sumpter import trace
from sumpter.cli import main

# The file that was written without the job's status.
REST = "rest.pftrace"

LAYERS = ("allreduce.layer0:sum", "allreduce.layer1:sum")  # of workers/traced.py


def run(*arguments: str) -> int | str | None:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, object]]]:
    """A file of a job of two workers and a server, made while it ran, and what was said of it."""
    folder = tmp_path_factory.mktemp("traced")
    # Half of the elements take three quarters of the bytes, and a core longer than copying.
    choosing = {"compression": "auto:codecs=topk:k=0.5", "bandwidth_gbps": 10_000}
    with Job(folder, 2, 1, partition_bytes="1MiB", **choosing) as job:
        job.make_pipe("busy")
        job.start("traced.py")
        job.wait_for("busy")
        path = folder / "run.pftrace"
        command = ["trace", "--steps", "4", "-o", str(path), "--json", "--token", TOKEN]
        printed = folder / "printed"
        with printed.open("w") as out, pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdout", out)
            code = run(*command, "--coordinator", job.address)
        said = folder / "said"
        with said.open("w") as err, pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stderr", err)
            command[command.index(str(path))] = "/dev/full"
            code_of_full = run(*command, "--coordinator", job.address)
        with connected_once(job.address) as address:
            code_of_rest = run(
                *("trace", "--steps", "4", "-o", str(folder / REST), "--token", TOKEN),
                *("--coordinator", address),
            )
        (folder / "stop").touch()
        job.finish()
    assert (code, code_of_rest, code_of_full) == (0, 0, 1)
    assert re.fullmatch(r".*cannot write the trace /dev/full: No space .*\n", said.read_text())
    yield path, json.loads(printed.read_text())


@contextlib.contextmanager
def connected_once(address: str) -> Iterator[str]:
    """An address that leads to another one for the first connection, and then to none."""
    host, port = address.rsplit(":", 1)
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def relay() -> None:
        client, _ = listener.accept()
        listener.close()
        with client, socket.create_connection((host, int(port))) as server:
            back = threading.Thread(target=pump, args=(server, client))
            back.start()
            pump(client, server)
            back.join()

    thread = threading.Thread(target=relay)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    thread.join()


def test_a_trace_is_written_where_the_coordinator_ends_before_it_says_what_was_chosen(
    recorded: tuple[Path, dict[str, object]],
) -> None:
    whole, rest = (trace.read(path) for path in (recorded[0], recorded[0].with_name(REST)))
    assert whole.remarks and not rest.remarks
    assert {one.process for one in whole.slices} == {one.process for one in rest.slices}


def test_a_running_job_is_traced_with_all_its_processes(
    recorded: tuple[Path, dict[str, object]],
) -> None:
    path, said = recorded
    read = trace.read(path)
    workers = {one.process for one in read.slices if one.process.startswith("rank ")}
    servers = {one.process for one in read.slices if one.process.startswith("server ")}
    assert (len(workers), len(servers)) == (2, 1)
    assert set(read.clock_error_s) == workers | servers
    assert all(0 < error_s < 0.5 for error_s in read.clock_error_s.values())
    assert (said["steps"], said["missing"]) == (4, [])
    assert said["slices"] == len(read.slices)
    of_workers = {one.activity for one in read.slices if one.process in workers}
    assert of_workers == {
        *("step", "queued", "sending", "waiting", "receiving", "copying", "summing")
    }
    of_servers = {one.activity for one in read.slices if one.process in servers}
    assert of_servers == {"receiving", "waiting", "summing", "sending"}
    layers = [one for one in read.slices if one.tensor in LAYERS]
    assert layers and all(0 < (one.bytes or 0) <= 1 << 20 for one in layers)
    partitions = {(one.round, one.tensor, one.partition): one.bytes for one in layers}
    full = [key for key in partitions if key[0] == layers[len(layers) // 2].round]
    assert sum(partitions[key] or 0 for key in full) == 2 * (12 << 20)


def test_the_file_says_what_auto_has_chosen(
    recorded: tuple[Path, dict[str, object]], capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = recorded
    (remark,) = trace.read(path).remarks
    assert remark.startswith("compression auto, 2 tensors of 24.0 MiB: not compressed: ")
    assert "the cores are the limit (allreduce.layer" in remark
    assert run("trace", "--read", str(path)) == 0
    assert remark in capsys.readouterr().out


def test_nothing_arrives_before_it_was_sent(recorded: tuple[Path, dict[str, object]]) -> None:
    read = trace.read(recorded[0])
    links = 0
    for chain in flows(read).values():
        sent = [one for one in chain if one.activity == "sending"]
        heard = [one for one in chain if one.activity == "receiving"]
        assert len(chain) <= 5
        up = [one for one in sent if one.process.startswith("rank ") and "lane" not in one.track]
        down = [one for one in sent if one not in up]
        for sender, receivers in ((up, "lane"), (down, "from")):
            for one in sender:
                ends = [h for h in heard if h.track.startswith(receivers)]
                for other in ends:
                    slack_s = sum(read.clock_error_s[s.process] for s in (one, other))
                    assert other.begin_s >= one.begin_s - slack_s
                    assert other.end_s >= one.begin_s - slack_s
                    links += 1
    assert links > 100


def flows(read: trace.Trace) -> dict[int, list[trace.Slice]]:
    found: dict[int, list[trace.Slice]] = defaultdict(list)
    for one in read.slices:
        for flow in one.flows:
            found[flow].append(one)
    return found


def test_flows_lead_from_a_gradient_through_its_sum_and_back(
    recorded: tuple[Path, dict[str, object]],
) -> None:
    read = trace.read(recorded[0])
    whole = defaultdict(int)
    for chain in flows(read).values():
        assert len({(one.tensor, one.round, one.partition) for one in chain}) == 1
        ways = {(one.process.split()[0], one.activity) for one in chain}
        if chain[0].tensor in LAYERS:
            whole[frozenset(ways)] += 1
    by_server = {("rank", "sending"), ("server", "receiving"), ("server", "summing")}
    by_server |= {("server", "sending"), ("rank", "receiving")}
    own = {("rank", "queued"), ("rank", "summing"), ("rank", "copying")}
    other = {("rank", activity) for activity in ("sending", "receiving", "summing")}
    # At the ends of the trace some ways are cut.
    assert all(whole[frozenset(ways)] >= 6 for ways in (by_server, own, other)), dict(whole)


def test_who_comes_late_is_named(recorded: tuple[Path, dict[str, object]]) -> None:
    read = trace.read(recorded[0])
    found = trace.explain(read)
    assert len(found) == 8 and {one.rank for one in found} == {0, 1}
    for one in found:
        assert sum(one.shares.values()) == pytest.approx(1.0, abs=1e-9)
        assert all(share >= 0 for share in one.shares.values())
        assert f"Step {one.step} of rank {one.rank} took" in one.sentences[0]
    waits = [one.shares.get("waiting for rank 1", 0) for one in found if one.rank == 0]
    # On a loaded machine a step takes longer, and the rank's lateness does not.
    assert max(waits) > 0.1, found
    assert not any("waiting for rank 1" in one.shares for one in found if one.rank == 1)
    assert trace.explain(read, found[0].step) == found[:2]
    with pytest.raises(trace.TraceError, match=r"step 99999: the trace has steps \d+ to \d+"):
        trace.explain(read, 99999)


def test_explain_prints_the_words(
    recorded: tuple[Path, dict[str, object]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("trace", "--read", str(recorded[0])) == 0
    words = capsys.readouterr().out
    lines = words.splitlines()
    assert words.count("Verdict:") == 1 and lines[0].startswith("Steps ")
    assert "of 2 ranks" in lines[0]
    # Once for all eight steps, and no line of nothing.
    assert words.count("  waiting for rank 1: all other contributions were in") == 1
    assert " 0.0%" not in words
    assert [line[:6] for line in lines if line.startswith("Rank ")] in (
        ["Rank 0", "Rank 1"],
        ["Rank 1", "Rank 0"],
    )
    assert run("trace", "--read", str(recorded[0]), "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 8


def test_perfettos_fields_have_their_official_numbers(
    recorded: tuple[Path, dict[str, object]],
) -> None:
    """Read by hand, with the numbers of Perfetto's own trace_packet.proto and track_event.proto."""
    read = trace.read(recorded[0])
    names: dict[int, str] = {}
    parents: dict[int, int] = {}
    open_slices: dict[int, int] = defaultdict(int)
    begun, ended, ways = 0, 0, 0
    for packet in fields(recorded[0].read_bytes())[1]:
        content = fields(packet)
        assert content[10] == [1]  # trusted_packet_sequence_id
        for descriptor in map(fields, content.get(60, [])):  # track_descriptor
            (uuid,) = descriptor[1]
            if 3 in descriptor:  # process
                names[uuid] = fields(descriptor[3][0])[6][0].decode()  # process_name
            else:
                names[uuid] = descriptor[2][0].decode()  # name
                (parents[uuid],) = descriptor[5]  # parent_uuid
        for event in map(fields, content.get(11, [])):  # track_event
            assert 8 in content  # timestamp
            (kind,), (track,) = event[9], event.get(11, [0])  # type, track_uuid
            if kind == 1:
                assert parents[track] in names and event[22][0].decode() in event[23][0].decode()
                open_slices[track] += 1
                begun, ways = begun + 1, ways + len(event.get(47, []))  # flow_ids
            elif kind == 2:
                open_slices[track] -= 1
                ended += 1
            assert 0 <= open_slices[track] <= 1
    assert begun == ended == len(read.slices)
    assert ways == sum(len(one.flows) for one in read.slices)
    assert set(read.clock_error_s) <= set(names.values())


def fields(data: bytes) -> dict[int, list[object]]:
    """The fields of an encoded Protocol Buffers message, undecoded, by number."""
    found: dict[int, list[object]] = defaultdict(list)
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        number, wire = divmod(varint(), 8)
        if wire == 0:
            found[number].append(varint())
        elif wire == 1:
            found[number].append(struct.unpack_from("<Q", data, at)[0])
            at += 8
        else:
            assert wire == 2
            length = varint()
            found[number].append(data[at : at + length])
            at += length
    return found


def error_of(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    code = run(*arguments)
    captured = capsys.readouterr()
    assert code in (1, 2) and "Traceback" not in captured.err
    assert len(captured.err.strip().splitlines()) == 1, captured.err
    return captured.err


def test_files_that_are_no_trace_are_one_line(
    recorded: tuple[Path, dict[str, object]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = recorded[0].read_bytes()
    path = tmp_path / "bad.pftrace"
    for content, words in (
        (data[: len(data) // 2], "cut off"),
        (b'{"traceEvents": []}', "no Perfetto trace"),
        (b"", "not written by `sumpter trace`"),
    ):
        path.write_bytes(content)
        error = error_of(["trace", "--read", str(path)], capsys)
        assert str(path) in error and words in error and "expected" in error
    missing = error_of(["trace", "--read", str(tmp_path / "none")], capsys)
    assert "No such file" in missing and "none" in missing


def test_jobs_that_cannot_be_traced_are_one_line(
    make_job: Callable[..., Job], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_job(1)
    there = ["--coordinator", job.address, "--token", TOKEN, "-o", str(tmp_path / "t")]
    assert "no job is running" in error_of(["trace", *there], capsys)
    error = error_of(["trace", "--job", "other", *there], capsys)
    assert "no job called 'other' is running" in error
    assert "expected 1 to" in error_of(["trace", "--steps", "0", *there], capsys)
    nowhere = str(tmp_path / "no" / "t")
    error = error_of(["trace", "-o", nowhere, "--coordinator", job.address], capsys)
    assert "there is no directory" in error
    error = error_of(["trace", "-o", str(tmp_path), "--coordinator", job.address], capsys)
    assert "it is a directory" in error
    error = error_of(["trace", "--read", "x", "--steps", "3"], capsys)
    assert "--read explains a file" in error


def one_step(cuts: list[float]) -> trace.Trace:
    """A step of rank 0 whose last partition passes its stages at these times."""
    ready, turn, sent, last, summed, back = cuts
    key = {"tensor": "t", "round": 3, "bytes": 8, "partition": 0, "tier": 0}

    def of(track: str, activity: str, times: tuple[float, float], peer: str, **more: object):
        process = "server 1 on c" if track.startswith("lane") else "rank 0 on a"
        return trace.Slice(process, track, activity, *times, peer=peer, **{**key, **more})

    whole = {"tensor": None, "bytes": None, "partition": None, "tier": None}
    step = replace(of("steps", "step", (0.0, 10.0), ""), peer=None, **whole)
    slices = (
        step,
        of("queue", "queued", (ready, turn), "server 1 lane 0"),
        of("to server 1 lane 0", "sending", (turn, sent), "server 1 lane 0"),
        of("lane 0 from rank 0", "receiving", (turn, sent), "rank 0"),
        of("lane 0 from rank 1", "receiving", (turn, last), "rank 1"),
        of("lane 0 summing", "summing", (turn, summed), "rank 1"),
        of("from server 1 lane 0", "receiving", (turn, back), "server 1 lane 0"),
    )
    return trace.Trace("job/1", slices, {"rank 0 on a": 0.0, "server 1 on c": 0.0})


def test_each_stage_of_the_critical_path_gets_its_time() -> None:
    (found,) = trace.explain(one_step([1.0, 1.5, 3.5, 7.5, 8.0, 9.0]))
    assert found.shares == pytest.approx(
        {
            "waiting for rank 1": 0.4,
            "computing": 0.2,
            "sending": 0.2,
            "receiving": 0.1,
            "queued": 0.05,
            "summing": 0.05,
        }
    )
    assert (found.step, found.rank, found.duration_s) == (3, 0, 10.0)
    assert list(found.shares)[0] == "waiting for rank 1"


def explained(step: int, rank: int, duration_s: float, **shares: float) -> trace.Explanation:
    causes = {cause.replace("_", " "): share for cause, share in shares.items()}
    return trace.Explanation(step, rank, duration_s, causes, (), "layer")


def test_the_verdict_is_one_whatever_the_number_of_steps() -> None:
    many = [explained(step, 0, 0.01, sending=0.7, computing=0.3) for step in range(50)]
    one, all_of_them = trace.verdict(many[:1]), trace.verdict(many)
    assert len(one) == len(all_of_them)
    assert one[0] == "Step 0 of 1 rank: 10.0 ms on average. Verdict: sending, 70% of the time."
    assert all_of_them[0].startswith("Steps 0 to 49 of 1 rank: 10.0 ms")


def test_the_verdict_weighs_steps_by_their_duration_and_names_the_straggler() -> None:
    found = [
        explained(1, 0, 0.03, waiting_for_rank_1=1.0),
        explained(1, 1, 0.01, computing=0.9996, summing=0.0004),
    ]
    lines = trace.verdict(found)
    assert "Verdict: waiting for rank 1 (a straggler), 75% of the time." in lines[0]
    assert [line[:6] for line in lines[1:3]] == [" 75.0%", " 25.0%"]
    assert not any("summing" in line for line in lines)
    assert lines[-2:] == (
        "Rank 0, 30.0 ms: 100.0% waiting for rank 1",
        "Rank 1, 10.0 ms: 100.0% computing",
    )


def test_the_verdict_of_a_job_that_computes_says_what_is_exposed() -> None:
    (first, *_) = trace.verdict([explained(1, 0, 0.01, computing=0.8, sending=0.15, queued=0.05)])
    assert first.endswith(
        "Verdict: computing, 80% of the time; of the 20% of exposed communication most is sending."
    )
    (hidden, *_) = trace.verdict([explained(1, 0, 0.01, computing=1.0)])
    assert hidden.endswith("Verdict: computing; communication is hidden behind it.")
    assert trace.verdict([]) == ("No step of this trace can be explained.",)


def test_many_ranks_are_counted() -> None:
    lines = trace.verdict([explained(1, rank, 1.0 - rank / 100, sending=1.0) for rank in range(20)])
    assert lines[-1] == "4 ranks with shorter steps left out."
    assert lines[-2].startswith("Rank 15,")


@given(st.lists(st.floats(0.0, 10.0, allow_subnormal=False), min_size=6, max_size=6))
def test_shares_sum_to_one_whatever_the_clocks_say(cuts: list[float]) -> None:
    (found,) = trace.explain(one_step(cuts))
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert all(0 < share <= 1 + 1e-12 for share in found.shares.values())
