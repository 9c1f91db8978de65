"""`sumpter console` without a browser: what it keeps, whom it answers, and how it is refused."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobs import TOKEN, Job
from sumpter import _native
from sumpter._failure import Failure, UsageError
from sumpter.cli import main
from sumpter.console.access import SECRET_HEADER, SESSION_S, TRIES, TRIES_S, Access, Refused
from sumpter.console.document import LONGEST
from sumpter.console.events import events
from sumpter.console.server import CONNECTIONS, Address, Console
from sumpter.console.watch import EVENTS, OLD_CURVES, POINTS, Watcher
from sumpter.launch.top import Top

PATIENCE_S = 60.0
NASTY = "<img src=x onerror=alert(1)>\n\u202e" + "x" * 1000


def member(number: int, **more: object) -> dict:
    counters = more.pop("counters", {})
    late = more.pop("late", [])
    return {
        "member": 10 + number,
        "rank": number,
        "host": f"gpu{number}",
        "machine": f"gpu{number}",
        "stats": {"counters": {"rounds": 1, **counters}, "late": late},
        **more,
    }


def server(number: int, **more: object) -> dict:
    return member(number) | {"member": number, "rank": None, "host": f"cpu{number}"} | more


def job(name: str = "red", workers: int = 2, **more: object) -> dict:
    entry = {"name": name, "state": "running", "epoch": 1, "world_size": workers, "servers": [5]}
    return entry | {"workers": [member(rank) for rank in range(workers)]} | more


def document(*jobs: dict, servers: list[dict] | None = None) -> str:
    return json.dumps({"jobs": jobs, "servers": [server(5)] if servers is None else servers})


class Source:
    """A coordinator that says one document after the other, the last one for ever."""

    def __init__(self, *said: str | Exception) -> None:
        self.said = list(said)

    def __call__(self) -> str:
        now = self.said.pop(0) if len(self.said) > 1 else self.said[0]
        if isinstance(now, Exception):
            raise now
        return now


def watched(*said: str | Exception, looks: int | None = None) -> Watcher:
    watcher = Watcher(Source(*said), 1.0, clock=iter(range(100_000)).__next__)
    for _ in range(len(said) if looks is None else looks):
        with suppress(_native.SumpterError, Failure):
            watcher.look()
    return watcher


def texts(watcher: Watcher) -> list[str]:
    rows = watcher.document()["events"]
    return [f"{row['kind']} {row['job']}: {row['text']}" for row in rows]


def test_epochs_and_faults_become_events() -> None:
    stalled = {"message": "gradient.3 waits for rank 1"}
    silent = job(epoch=2, last_change="the server on cpu5 was lost: connection closed", servers=[])
    silent["workers"][1]["silent_s"] = 4.0
    lonely = silent | {"workers": silent["workers"][:1], "stall": stalled}
    watcher = watched(
        document(job()),
        document(silent, servers=[]),
        document(lonely, servers=[server(6, draining=True)]),
        document(job(epoch=2, over=True, failure="rank 1 was lost"), servers=[]),
    )
    assert texts(watcher) == [
        "note red: running, 2 of 2 workers, epoch 1",
        "change red: epoch 2 began: the server on cpu5 was lost: connection closed",
        "fault red: rank 1 on gpu1 sends no heartbeats",
        "fault : server 5 on cpu5 was lost",
        "fault red: gradient.3 waits for rank 1",
        "fault red: rank 1 on gpu1 was lost",
        "note : server 6 on cpu6 joined",
        "fault red: failed: rank 1 was lost",
        "note : server 6 on cpu6 left",
    ]


def test_changed_settings_and_recovery_become_events() -> None:
    before = job(settings={"credit_bytes": "4194304", "tuner": "fixed"}, stall={"message": "stuck"})
    before["workers"][0]["silent_s"] = 9.0
    after = job(settings={"credit_bytes": "8388608", "tuner": "fixed"}, state="changing")
    watcher = watched(document(before), document(after, servers=[server(5, draining=True)]))
    assert texts(watcher)[1:] == [
        "fault red: stuck",
        "fault red: rank 0 on gpu0 sends no heartbeats",
        "change red: settings: credit_bytes 4 MiB -> 8 MiB",
        "note red: now changing, was running",
        "note red: no operation is stalled any more",
        "note red: rank 0 on gpu0 sends heartbeats again",
        "change : server 5 on cpu5 is drained",
    ]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"workers_lost": 0, "servers_lost": 3}, {"workers_lost": 0, "servers_lost": 3}, "left"),
        ({"workers_lost": 0, "servers_lost": 3}, {"workers_lost": 1, "servers_lost": 4}, "lost"),
        # It has restarted.
        ({"workers_lost": 5, "servers_lost": 3}, {"workers_lost": 0, "servers_lost": 0}, "left"),
        ({}, {}, "lost"),
    ],
)
def test_who_left_is_told_from_who_was_lost(before: dict, after: dict, said: str) -> None:
    smaller = job() | {"workers": [member(0)]}
    texts_of = [json.loads(document(job())), json.loads(document(smaller, servers=[]))]
    watcher = watched(
        *(json.dumps(d | {"events": e}) for d, e in zip(texts_of, (before, after), strict=True))
    )
    kind, verb = ("note", "left") if said == "left" else ("fault", "was lost")
    assert texts(watcher)[1:] == [
        f"{kind} red: rank 1 on gpu1 {verb}",
        f"{kind} : server 5 on cpu5 {verb}",
    ]


def test_refused_processes_are_faults() -> None:
    said = [json.dumps(json.loads(document()) | {"events": {"refused": n}}) for n in (1, 2, 4)]
    assert texts(watched(*said)) == [
        "fault : a process was refused, usually for a wrong token",
        "fault : 2 processes were refused, usually for a wrong token",
    ]


def test_without_a_coordinator_to_ask_the_page_says_what_to_do() -> None:
    watcher = watched(document(job()), Failure("the job has ended; start another"))
    assert watcher.document()["trouble"] == "the job has ended; start another"
    assert texts(watcher)[-1] == "note : the job has ended; start another"


def test_two_equal_views_have_no_event_between_them() -> None:
    top = Top(Source(document(job(), job("blue"))))
    assert events(top.look(), top.look()) == []


def test_a_coordinator_that_goes_away_leaves_its_last_figures_and_comes_back() -> None:
    away = _native.SumpterError("no coordinator at 10.0.0.1:7700")
    watcher = watched(document(job()), away, away, document(job()), looks=3)
    seen = watcher.document()
    assert seen["trouble"] == ("No figures from the coordinator: no coordinator at 10.0.0.1:7700")
    assert [row["name"] for row in seen["jobs"]] == ["red"] and seen["seen_s"] < seen["now_s"]
    watcher.look()
    assert watcher.document()["trouble"] == ""
    assert [text for text in texts(watcher) if "coordinator" in text] == [
        "fault : lost the coordinator: no coordinator at 10.0.0.1:7700",
        "note : the coordinator answers again",
    ]


def test_a_page_gets_only_what_is_new_to_it_and_all_of_another_console() -> None:
    watcher = watched(document(job()), document(job(epoch=2)), document(job(epoch=2)))
    first = watcher.document()
    assert len(first["points"]["red"]) == 3 and len(first["events"]) == 2
    again = watcher.document(first["session"], first["number"])
    assert again["points"] == {"red": []} and again["events"] == []
    watcher.look()
    assert len(watcher.document(first["session"], first["number"])["points"]["red"]) == 1
    assert len(watcher.document("another", first["number"])["points"]["red"]) == 4


def test_what_is_kept_is_bounded() -> None:
    names = [f"job-{number}" for number in range(2 * OLD_CURVES)]
    watcher = watched(*(document(job(name), servers=[]) for name in names))
    assert len(watcher.document()["points"]) == OLD_CURVES + 1
    epochs = (document(job(epoch=epoch)) for epoch in range(POINTS + 10))
    seen = watched(*epochs).document()
    assert len(seen["points"]["red"]) == POINTS and len(seen["events"]) == EVENTS


def test_texts_of_members_are_cut_and_stay_on_a_line() -> None:
    nasty = job(NASTY, failure=NASTY, stall={"message": NASTY}, last_change=NASTY)
    nasty["workers"][0]["host"] = NASTY
    seen = watched(document(nasty)).document()
    found: list[str] = []

    def collect(value: object) -> None:
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, dict | list | tuple):
            for inner in value.values() if isinstance(value, dict) else value:
                collect(inner)

    # The key names the job when it is tuned, and no reader sees it.
    del seen["jobs"][0]["key"], seen["points"]
    collect(seen)
    assert any("onerror" in text for text in found)
    assert all(len(text) <= LONGEST + 40 for text in found)
    assert all(text.isprintable() or "\ufffd" in text for text in found)
    assert not any(letter in text for text in found for letter in "\n\u202e")


def test_the_ranks_that_kept_others_waiting_are_of_the_time_between_looks() -> None:
    def waiting(first: float, second: float) -> str:
        late = [
            {"rank": 0, "count": 1, "seconds": first},
            {"rank": 1, "count": 1, "seconds": second},
        ]
        return document(job(late=late) | {"workers": [member(0, late=late), member(1)]})

    watcher = watched(waiting(9.0, 1.0), waiting(9.5, 2.5))
    (seen,) = watcher.document()["jobs"]
    assert seen["waits"] == [
        {"rank": 1, "time": "1.5 s", "share": 0.75},
        {"rank": 0, "time": "500 ms", "share": 0.25},
    ]
    assert seen["facts"]["waited for"] == "rank 1 (75%)"
    table = seen["members"]
    column = [one["name"] for one in table["columns"]].index("last")
    assert [row["cells"][column] for row in table["rows"]] == ["rank 1 (75%)", ""]


# Access


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def access(**options: object) -> tuple[Access, Clock]:
    """Access to a coordinator that knows one token."""
    clock = Clock()

    def check(settings: dict[str, str]) -> None:
        assert settings["coordinator"] == "there" and "token_file" not in settings
        if settings["token"] == "away":
            raise _native.SumpterError("no coordinator")
        if settings["token"] != TOKEN:
            raise _native.AuthError("token refused")

    own = {"coordinator": "there", "token_file": "secret"}
    wanted = {"read_only": False, "loopback": True, **options}
    return Access(lambda: own, check, clock=clock, **wanted), clock


def test_the_code_unlocks_with_the_consoles_own_token_and_a_token_with_itself() -> None:
    made, _ = access()
    by_code = made.unlock(made.code.lower().replace("-", " "))
    assert made.settings({SECRET_HEADER: by_code})["token_file"] == "secret"
    by_token = made.unlock(TOKEN)
    assert made.settings({SECRET_HEADER: by_token}) == {"coordinator": "there", "token": TOKEN}
    made.lock({SECRET_HEADER: by_token})
    for secret in (by_token, "", "another"):
        with pytest.raises(Refused, match="locked"):
            made.settings({SECRET_HEADER: secret})
    assert made.settings({SECRET_HEADER: by_code})


def test_a_secret_ends_and_tokens_cannot_be_guessed_fast() -> None:
    made, clock = access()
    secret = made.unlock(TOKEN)
    for _ in range(TRIES):
        with pytest.raises(_native.AuthError):
            made.unlock("wrong")
    with pytest.raises(Refused, match="wait a minute") as refused:
        made.unlock(TOKEN)
    assert refused.value.status == 429
    clock.now += TRIES_S + 1
    # What the coordinator has not judged is no guess.
    for _ in range(TRIES + 1):
        with pytest.raises(_native.SumpterError, match="no coordinator"):
            made.unlock("away")
    assert made.unlock(TOKEN) != secret
    clock.now += SESSION_S
    with pytest.raises(Refused, match="locked"):
        made.settings({SECRET_HEADER: secret})


@pytest.mark.parametrize(
    ("loopback", "host", "answered"),
    [
        (True, "127.0.0.1:7780", True),
        (True, "localhost:7780", True),
        (True, "LOCALHOST", True),
        (True, "[::1]:7780", True),
        (True, "evil.example:7780", False),
        (True, "10.0.0.1:7780", False),
        (True, "", False),
        (True, "[::1", False),
        (False, "10.0.0.1:7780", True),
        (False, "gpu1:7780", True),
        (False, "evil.example:7780", False),
    ],
)
def test_only_names_of_this_machine_are_answered(loopback: bool, host: str, answered: bool) -> None:
    made, _ = access(loopback=loopback, names=frozenset() if loopback else frozenset({"GPU1"}))
    if answered:
        made.may_read({"Host": host})
    else:
        with pytest.raises(Refused) as refused:
            made.may_read({"Host": host})
        assert refused.value.status == 421


@pytest.mark.parametrize(
    ("origin", "refused"),
    [
        ("http://127.0.0.1:7780", False),
        ("http://127.0.0.1:7781", True),
        ("http://evil.example", True),
        ("null", True),
        ("", True),
        ("file://127.0.0.1:7780", True),
    ],
)
def test_only_the_consoles_own_page_may_act(origin: str, refused: bool) -> None:
    made, _ = access()
    headers = {"Host": "127.0.0.1:7780", "Origin": origin}
    if refused:
        with pytest.raises(Refused, match="own page"):
            made.may_act(headers)
    else:
        made.may_act(headers)
        with pytest.raises(Refused, match="read-only"):
            access(read_only=True)[0].may_act(headers)


# Over HTTP


@dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> dict:
        return json.loads(self.body)


class Visitor:
    """Asks a console, as its own page would unless told otherwise."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.secret = ""

    def __call__(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        place = f"127.0.0.1:{self.port}"
        sent = {"Host": place}
        if body is not None:
            sent |= {"Origin": f"http://{place}", "Content-Type": "application/json"}
            sent[SECRET_HEADER] = self.secret
        sent |= {name.replace("_", "-"): text for name, text in headers.items()}
        text = body if isinstance(body, str | None) else json.dumps(body)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, text, sent)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., Visitor]]:
    """Serves a page of some documents, once for all tests that want the same one."""
    served: dict[str, Console] = {}

    def serve(*said: str, **options: object) -> Visitor:
        key = repr((said, options))
        if key not in served:
            made, _ = access(**options)
            watcher = watched(*said, looks=1)
            served[key] = Console(Address("127.0.0.1", 0), watcher, made, job="")
            served[key].start()
        return Visitor(served[key].address.port)

    yield serve
    for console in served.values():
        console.close()


def test_every_file_is_the_packages_own_and_under_a_strict_policy(serve) -> None:
    ask = serve(document(job()))
    page = ask("GET", "/").body.decode()
    names = re.findall(r'(?:href|src)="(/[^"]*)"', page)
    assert sorted(names) == ["/icon.svg", "/page.css", "/page.js"]
    assert not re.search(r"<style|style=|<script(?![^>]*src=)|\son\w+=|https?://", page)
    for name in ("/", "/chart.js", *names):
        answer = ask("GET", name)
        assert answer.status == 200 and answer.body
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
    assert ask("GET", "/../access.py").status == 404


def test_no_answer_holds_the_token_or_a_secret(serve) -> None:
    ask = serve(document(job()))
    secret = ask("POST", "/unlock", {"token": TOKEN}).json()["secret"]
    for name in ("/", "/page.js", "/view", f"/view?session={secret}"):
        assert TOKEN.encode() not in ask("GET", name).body
        assert secret.encode() not in ask("GET", name).body
        assert "Set-Cookie" not in ask("GET", name).headers


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "words"),
    [
        ("/drain", {"server": "5"}, {}, 401, "locked"),
        ("/drain", {"server": "5"}, {"Origin": "http://evil.example"}, 403, "own page"),
        ("/drain", {"server": "5"}, {"Host": "evil.example"}, 421, "under that name"),
        ("/drain", {"server": "5"}, {"Content_Type": "text/plain"}, 415, "JSON"),
        ("/drain", "{", {}, 400, "JSON"),
        ("/drain", "[" * 10_000, {}, 400, "JSON"),
        ("/drain", "[]", {}, 400, "object"),
        ("/drain", {}, {}, 400, "server"),
        ("/unlock", {"token": "x" * 20_000}, {}, 413, "at most"),
        ("/unlock", {"token": "wrong"}, {}, 403, "token refused"),
        ("/unlock", {"token": "away"}, {}, 502, "no coordinator"),
        ("/unlock", {"token": ""}, {}, 400, "give the job's token"),
        ("/unlock", {"token": 7}, {}, 400, "send a text"),
        ("/unlock", {"token": "\ud800"}, {}, 400, "send a text"),
        ("/unlock", "", {"Content_Length": "x"}, 413, "how many"),
        ("/nowhere", {}, {}, 404, "nothing"),
    ],
)
def test_what_is_refused_is_refused_in_words(serve, path, body, headers, status, words) -> None:
    answer = serve(document(job()))("POST", path, body, **headers)
    assert (answer.status, words in answer.json()["error"]) == (status, True), answer.body


def test_another_sites_name_for_this_machine_reads_nothing(serve) -> None:
    answer = serve(document(job()))("GET", "/view", Host="evil.example:80")
    assert answer.status == 421 and b"red" not in answer.body


def test_nonsense_numbers_are_no_error(serve) -> None:
    ask = serve(document(job()))
    for after in ("-1", "x", "9" * 400, "%00", "\u00b2".encode().hex()):
        assert ask("GET", f"/view?after={after}&session=%ff").status == 200


def test_a_read_only_console_does_nothing(serve) -> None:
    ask = serve(document(job()), read_only=True)
    assert ask("GET", "/view").json()["read_only"] is True
    for path in ("/unlock", "/drain", "/tune"):
        assert ask("POST", path, {"token": TOKEN}).status == 403


def test_connections_that_say_nothing_are_limited(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    # None of them ends by itself, however slow this machine is.
    monkeypatch.setattr("sumpter.console.server._Handler.timeout", 10 * PATIENCE_S)
    ask = serve(document(job("quiet")))
    silent = [socket.create_connection(("127.0.0.1", ask.port)) for _ in range(CONNECTIONS)]
    try:
        # The one too many is closed without an answer, and no thread waits for it.
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            ask("GET", "/view")
    finally:
        for one in silent:
            one.close()
    # Its threads see that in their own time.
    for _ in range(int(PATIENCE_S / 0.1)):
        with suppress(http.client.RemoteDisconnected, ConnectionError):
            assert ask("GET", "/view").status == 200
            return
        threading.Event().wait(0.1)
    raise AssertionError("no connection is free again")


def test_many_readers_at_once_are_answered(serve) -> None:
    ask = serve(document(*(job(f"job-{number}") for number in range(50))))
    found: list[int] = []
    readers = [
        threading.Thread(target=lambda: found.append(len(ask("GET", "/view").json()["jobs"])))
        for _ in range(16)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert found == [50] * 16


# The command


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["console", *arguments])
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1, error
    return int(ended.value.code or 0), error


def test_each_wrong_use_is_one_line_with_its_remedy(
    capsys: pytest.CaptureFixture[str], unlaunched: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unlaunched.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    coordinator = _native.Coordinator("127.0.0.1:0", {"token": TOKEN})
    try:
        here = ("--coordinator", coordinator.address)
        code, said = refused(capsys, *here, "--token", "a token that is not the job's")
        assert code == 1 and "token" in said
        code, said = refused(capsys, *here, "--token", TOKEN, "--listen", coordinator.address)
        assert code == 1 and "--listen" in said and "in use" in said
        for listen in ("here", "127.0.0.1:99999", "127.0.0.1:"):
            code, said = refused(capsys, *here, "--token", TOKEN, "--listen", listen)
            assert code == 2 and "HOST:PORT" in said
    finally:
        coordinator.stop()
    code, said = refused(capsys, *here, "--token", TOKEN)
    assert code == 1 and coordinator.address in said
    code, said = refused(capsys, "--job", "last")
    assert code == 1 and "--coordinator" in said
    code, said = refused(capsys, "--job", "last", "--token", TOKEN)
    assert code == 2 and "leave out" in said


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:7780", Address("127.0.0.1", 7780)),
        (":0", Address("127.0.0.1", 0)),
        ("[::1]:80", Address("::1", 80)),
        ("7780", Address("127.0.0.1", 7780)),
    ],
)
def test_addresses_are_read(text: str, parsed: Address) -> None:
    assert Address.parse(text) == parsed
    assert parsed.is_loopback


def test_a_port_of_another_is_a_failure_and_not_a_traceback() -> None:
    made, _ = access()
    watcher = watched(document(job()), looks=0)
    first = Console(Address("127.0.0.1", 0), watcher, made)
    try:
        with pytest.raises(Failure, match="in use"):
            Console(first.address, watcher, made)
        with pytest.raises(Failure, match="cannot listen"):
            Console(Address("no such host.invalid", 1), watcher, made)
    finally:
        first.close()
    with pytest.raises(UsageError):
        Address.parse("x")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_a_signal_and_is_read_only_for_others(
    number: signal.Signals, tmp_path: Path
) -> None:
    coordinator = _native.Coordinator("127.0.0.1:0", {"token": TOKEN})
    file = tmp_path / "token"
    file.write_text(TOKEN)
    listen = "127.0.0.1:0" if number == signal.SIGINT else "0.0.0.0:0"
    command = (sys.executable, "-u", "-m", "sumpter", "console", "--listen", listen)
    where = ("--coordinator", coordinator.address, "--token-file", str(file))
    console = subprocess.Popen(
        [*command, *where],
        stdout=subprocess.PIPE,
        text=True,
        # A job in the background of a shell ignores it, and what it starts does as well.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert console.stdout is not None
        lines = [console.stdout.readline() for _ in range(2)]
        port = int(re.search(r":(\d+)/", lines[0])[1])
        ask = Visitor(port)
        assert ask("GET", "/view").json()["read_only"] is (number == signal.SIGTERM)
        assert ("read-only" in lines[1]) == (number == signal.SIGTERM), lines
        assert TOKEN not in "".join(lines)
        console.send_signal(number)
        assert console.wait(PATIENCE_S) == 128 + number
    finally:
        console.kill()
        console.wait()
        coordinator.stop()


def test_a_page_drains_and_tunes_a_running_job(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    running = make_job(2, 1)
    stop = tmp_path / "stop"
    running.start("metered.py", str(stop))
    settings = {"coordinator": running.address, "token": TOKEN}
    watcher = Watcher(lambda: _native.status(settings), 0.2)
    watcher.look()
    made = Access(lambda: settings, _native.status, read_only=False, loopback=True)
    console = Console(Address("127.0.0.1", 0), watcher, made)
    console.start()
    try:
        ask = Visitor(console.address.port)
        seen = until(ask, lambda seen: any(row["state"] == "running" for row in seen["jobs"]))
        ask.secret = ask("POST", "/unlock", {"token": made.code}).json()["secret"]
        name = seen["jobs"][0]["key"]
        wrong = ask("POST", "/tune", {"job": name, "credit": "1", "reset": False})
        assert wrong.status == 400 and "credit" in wrong.json()["error"]
        nothing = ask("POST", "/tune", {"job": name, "credit": " "})
        assert nothing.status == 400 and "nothing to change" in nothing.json()["error"]
        tuned = ask("POST", "/tune", {"job": name, "partition": "1MiB", "credit": "8MiB"})
        assert tuned.status == 200 and "epoch" in tuned.json()["said"][0], tuned.body
        until(ask, lambda seen: seen["jobs"][0]["facts"]["epoch"] == "2")
        unknown = ask("POST", "/drain", {"server": "cpu-99"})
        assert unknown.status == 502 and "no server is called cpu-99" in unknown.json()["error"]
        server = str(seen["servers"]["rows"][0]["number"])
        drained = ask("POST", "/drain", {"server": server})
        assert "is drained" in drained.json()["said"][0]
        seen = until(ask, lambda seen: seen["jobs"][0]["facts"]["k"] == "0")
        said = [event["text"] for event in seen["events"]]
        sizes = "credit_bytes auto -> 8 MiB, partition_bytes 256 KiB -> 1 MiB"
        assert f"settings: {sizes}" in said, said
        assert any(text.startswith("epoch 3 began: the server on ") for text in said), said
    finally:
        stop.touch()
        console.close()
    running.finish()


def until(ask: Visitor, holds: Callable[[dict], bool]) -> dict:
    """What the page shows once it holds."""
    waited = threading.Event()
    for _ in range(int(PATIENCE_S / 0.2)):
        seen = ask("GET", "/view").json()
        if holds(seen):
            return seen
        waited.wait(0.2)
    raise AssertionError(seen)
