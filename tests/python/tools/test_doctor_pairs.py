"""What `sumpter doctor --hosts` makes of figures: machines that do not exist, and stand-in ways."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumpter import _native
from sumpter.doctor import ERROR, NOTE, OK, WARNING, Finding
from sumpter.doctor.pairs import agent, datagrams, findings
from sumpter.doctor.pairs.findings import Machine, Pair, Way
from sumpter.doctor.pairs.session import Host, rounds

VERSIONS = {"wire format": "4", "sumpter": "0.1.0", "python": "3.11.7", "torch": "2.15.0"}


def machine(name: str, **changes: Any) -> Machine:
    number = ord(name[0]) - ord("a") + 1
    whole = Machine(
        name=name,
        address=f"10.0.0.{number}",
        interface="eth0",
        mtu=1500,
        speed_mbit=10_000,
        ports=(40_000,),
        busy=(),
        fixed=False,
        udp=40_000,
        tls=False,
        cores=8,
        versions=VERSIONS,
    )
    return replace(whole, **changes)


def figures(**changes: Any) -> dict[str, Any]:
    return {
        "ports": [[40_000, "", ""]],
        "clock": {"offset_s": 0.001, "round_trip_s": 50e-6},
        "mtu": {"udp": True, "size": 1500, "largest": 1500, "told": False},
    } | changes


def speeds(to: float, back: float, both: float | None = None, cores: float = 1.0) -> dict:
    both_to = both_from = both
    if both is None:
        both_to, both_from = to, back
    return {
        "to": to,
        "from": back,
        "both_to": both_to,
        "both_from": both_from,
        "cores_used": cores,
    }


A, B = machine("a"), machine("b")


def pair(there: dict[str, Any], back: dict[str, Any], a: Machine = A, b: Machine = B) -> Pair:
    return Pair(Way("there", a, b, there), Way("back", b, a, back))


def says(found: list[Finding], check: str, state: str, *words: str) -> None:
    (finding,) = [each for each in found if each.check == check]
    assert finding.state == state, finding
    for word in words:
        assert word in finding.found + " / " + finding.remedy, finding


@pytest.mark.parametrize(
    ("name", "address", "title"),
    [
        ("a", "10.0.0.1", "a, 10.0.0.1"),
        ("10.0.0.1", "10.0.0.1", "10.0.0.1"),
        ("down", None, "down"),
    ],
)
def test_a_machine_is_called_by_its_name_and_its_address_once(
    name: str, address: str | None, title: str
) -> None:
    there = replace(machine("a"), name=name, address=address) if address else None
    assert Host(name, machine=there).title == title


def test_a_pair_in_good_order_has_nothing_to_mend() -> None:
    good = pair(figures(speeds=speeds(9.4, 9.3)), figures())
    found = findings.judge(good)
    assert {finding.state for finding in found} == {OK}, found
    checks = [finding.check for finding in found]
    assert checks == [
        *("ports there", "ports back", "MTU there", "MTU back"),
        *("clock", "round trip", "speed"),
    ]
    assert findings.check_outliers([good]) == []


class TestPorts:
    @pytest.mark.parametrize(
        ("why", "said", "words"),
        [
            (agent.REFUSED, "Connection refused", ("refused", "firewall", "another machine")),
            (agent.SILENT, "no answer", ("no answer", "drops TCP", "allow TCP from 10.0.0.1 to b")),
            (agent.STRANGER, "it closes it", ("another program answers", "10.0.0.2")),
            ("unreachable", "No route to host", ("No route to host", "SUMPTER_INTERFACES")),
        ],
    )
    def test_each_way_of_not_answering_has_its_remedy(
        self, why: str, said: str, words: tuple[str, ...]
    ) -> None:
        found = findings.judge(pair({"ports": [[40_000, why, said]]}, figures()))
        says(found, "ports there", ERROR, "a to b (10.0.0.2), port 40000", *words)
        says(found, "ports back", OK, "any free one")

    def test_ports_of_lanes_that_are_closed_are_named_and_the_others_are_not(self) -> None:
        fixed = machine("b", fixed=True, ports=(7000, 7001, 7002, 7003))
        closed = [[port, agent.SILENT, ""] for port in (7001, 7002)]
        there = {"ports": [[7000, "", ""], *closed, [7003, "", ""]]}
        found = findings.check_ports(Way("there", A, fixed, there))
        assert [finding.state for finding in found] == [OK, ERROR]
        assert "ports 7000, 7003: a connection opens" in found[0].found
        assert "ports 7001-7002" in found[1].found
        assert "SUMPTER_PORT" not in found[1].remedy, "it is set already"

    def test_ports_in_use_are_not_tried(self) -> None:
        found = findings.check_busy([A, machine("b", busy=(7000, 7001))])
        says(found, "ports", NOTE, "ports 7000-7001 of b", "in use")

    def test_a_measurement_that_failed_is_an_error(self) -> None:
        found = findings.judge(pair({"problem": "no end within 90 s"}, figures()))
        says(found, "way there", ERROR, "a to b", "no end within 90 s")


class TestMtu:
    def test_different_mtus_are_named_with_both_values(self) -> None:
        jumbo = machine("b", mtu=9000, interface="eth1")
        found = findings.judge(pair(figures(), figures(), b=jumbo))
        says(found, "MTU", WARNING, "eth0 of a has 1500", "eth1 of b has 9000", "eth1 mtu 1500")
        says(found, "MTU there", OK, "1500")

    def test_a_black_hole_is_an_error_and_a_router_that_says_so_is_not(self) -> None:
        lost = {"udp": True, "size": 1500, "largest": 1404, "told": False}
        found = findings.judge(pair(figures(mtu=lost), figures(mtu=lost | {"told": True})))
        says(found, "MTU there", ERROR, "black hole", "1404", "ICMP")
        says(found, "MTU back", WARNING, "1404", "TCP adapts")

    def test_without_udp_nothing_is_claimed(self) -> None:
        nothing = {"udp": False, "size": 1500, "largest": 0, "told": False}
        found = findings.judge(pair(figures(mtu=nothing), figures()))
        says(found, "MTU there", NOTE, "not known", "only TCP")


class TestClock:
    @pytest.mark.parametrize(
        ("offset", "tls", "state", "words"),
        [
            (10e-6, False, OK, ("b and a agree to within 25 us",)),
            (0.2, False, OK, ("b is 200 ms ahead of a", "25 us")),
            (-3.0, False, WARNING, ("b is 3 s behind a", "logs", "chrony")),
            (5 * 3600, False, WARNING, ("b is 5 h ahead of a", "do not depend on it")),
            (-5 * 3600, True, ERROR, ("TLS", "not yet valid", "expired")),
            (600, True, WARNING, ("b is 10 min ahead",)),
        ],
    )
    def test_an_offset_is_as_bad_as_what_breaks_by_it(
        self, offset: float, tls: bool, state: str, words: tuple[str, ...]
    ) -> None:
        clock = {"offset_s": offset, "round_trip_s": 50e-6}
        found = findings.judge(pair(figures(clock=clock), figures(), b=machine("b", tls=tls)))
        says(found, "clock", state, *words)

    def test_the_way_back_says_it_where_the_way_there_is_closed(self) -> None:
        closed = {"ports": [[40_000, agent.SILENT, ""]]}
        clock = {"offset_s": 2.0, "round_trip_s": 50e-6}
        found = findings.judge(pair(closed, figures(clock=clock)))
        says(found, "clock", WARNING, "b is 2 s behind a")


class TestSpeed:
    @pytest.mark.parametrize(
        ("measured", "state", "words"),
        [
            (speeds(4.9, 9.4), WARNING, ("less than half of what", "of 10", "ethtool")),
            (speeds(4.9, 4.9, cores=7.9), WARNING, ("all cores of a were busy",)),
            (speeds(0.0, 9.4), ERROR, ("stall", "MTU")),
            (speeds(9.4, 9.4, both=4.7), WARNING, ("no more than one", "duplex")),
        ],
    )
    def test_a_link_below_its_speed_is_named(
        self, measured: dict, state: str, words: tuple[str, ...]
    ) -> None:
        says(findings.judge(pair(figures(speeds=measured), figures())), "speed", state, *words)

    def test_without_a_nominal_speed_one_way_is_compared_with_the_other(self) -> None:
        unknown = machine("b", speed_mbit=0)
        for measured, state in ((speeds(1.0, 3.0), WARNING), (speeds(2.0, 3.0), OK)):
            found = findings.judge(pair(figures(speeds=measured), figures(), b=unknown))
            says(found, "speed", state, "unknown speed")

    def test_the_other_end_may_have_measured_it(self) -> None:
        closed = {"ports": [[40_000, agent.SILENT, ""]]}
        measured = pair(closed, figures(speeds=speeds(9.0, 3.0)))
        assert measured.gbps() == (3.0, 9.0)
        says(findings.judge(measured), "speed", WARNING, "a to b 3", "back 9")

    def test_a_long_way_is_worth_a_note(self) -> None:
        clock = {"offset_s": 0.0, "round_trip_s": 0.04}
        found = findings.judge(pair(figures(clock=clock), figures()))
        says(found, "round trip", NOTE, "40 ms", "LocalSGD")

    def test_the_machine_that_is_slow_with_all_others_is_named_alone(self) -> None:
        machines = [machine(name) for name in "abcd"]
        pairs = []
        for a, b in combinations(machines, 2):
            speed = 1.0 if "c" in (a.name, b.name) else 9.0
            pairs.append(pair(figures(speeds=speeds(speed, 9.0)), figures(), a, b))
        # Half of the pairs are slow: the median is between.
        (found,) = findings.check_outliers(pairs)
        assert found.state == WARNING
        assert found.found.startswith("c is slow with every other machine")

    def test_a_slow_pair_is_named(self) -> None:
        machines = [machine(name) for name in "abcd"]
        pairs = [
            pair(
                figures(speeds=speeds(1.0 if (a, b) == tuple(machines[:2]) else 9.0, 9.0)), {}, a, b
            )
            for a, b in combinations(machines, 2)
        ]
        (found,) = findings.check_outliers(pairs)
        assert found.found.startswith("a and b have 1 Gb/s, where 9 are usual")


class TestVersions:
    def test_all_alike(self) -> None:
        found = findings.check_versions([A, B])
        assert {finding.state for finding in found} == {OK}

    @pytest.mark.parametrize(
        ("package", "version", "state"),
        [
            ("wire format", "5", ERROR),
            ("sumpter", "0.2.0", WARNING),
            ("torch", "2.14.0", WARNING),
            ("torch", "not installed", NOTE),
            ("python", "3.12.1", NOTE),
        ],
    )
    def test_what_differs_is_named_with_its_machines(
        self, package: str, version: str, state: str
    ) -> None:
        other = machine("c", versions={**VERSIONS, package: version})
        found = findings.check_versions([A, B, other])
        says(found, package, state, f"{VERSIONS[package]} on a, b; {version} on c")


class TestRounds:
    @given(st.integers(2, 40))
    def test_every_pair_once_and_no_machine_twice_at_a_time(self, count: int) -> None:
        names = [str(number) for number in range(count)]
        plan = rounds(names, most=count)
        flat = [frozenset(pair) for each in plan for pair in each]
        assert len(flat) == len(set(flat)) == count * (count - 1) // 2
        for each in plan:
            machines = [name for pair in each for name in pair]
            assert len(machines) == len(set(machines))

    def test_few_machines_are_measured_one_pair_at_a_time(self) -> None:
        assert rounds(["a", "b", "c"]) == [[("a", "b")], [("a", "c")], [("b", "c")]]
        assert rounds(["a"]) == []

    def test_of_many_machines_each_meets_a_few(self) -> None:
        plan = rounds([str(number) for number in range(100)])
        assert len(plan) == 16
        assert all(len(each) == 50 for each in plan)


# The two ends, on this machine's loopback.


@pytest.fixture
def listener() -> Iterator[tuple[str, agent.Listener]]:
    token = _native.generate_token()
    listening = agent.Listener(token, "127.0.0.1", [])
    thread = threading.Thread(target=listening.serve, daemon=True)
    thread.start()
    yield token, listening
    listening.close()


def order(listening: agent.Listener, **changes: Any) -> dict[str, Any]:
    return {
        "target": "127.0.0.1",
        "ports": listening.ports,
        "udp": listening.udp,
        "mtu": 1500,
        "streams": 0,
        "seconds": 0.1,
    } | changes


def test_the_ends_measure_clock_packets_and_speed(listener: tuple[str, agent.Listener]) -> None:
    token, listening = listener
    found = agent.measure(token, order(listening, streams=2))
    assert found["ports"] == [[listening.ports[0], "", ""]]
    assert found["mtu"] == {"udp": True, "size": 1500, "largest": 1500, "told": False}
    assert abs(found["clock"]["offset_s"]) < 1.0
    assert 0 <= found["clock"]["round_trip_s"] < 1.0
    assert all(found["speeds"][way] > 0 for way in ("to", "from", "both_to", "both_from"))


def test_the_offset_is_that_of_the_clocks(
    listener: tuple[str, agent.Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ends read one clock here; the measuring one is set back by an hour."""
    token, listening = listener
    measuring, read = threading.get_ident(), agent.time.time_ns

    def clock() -> int:
        return read() - (3600 * 10**9 if threading.get_ident() == measuring else 0)

    monkeypatch.setattr(agent.time, "time_ns", clock)
    found = agent.Measurer(token, "127.0.0.1").clock(listening.ports[0])
    assert found["offset_s"] == pytest.approx(3600, abs=1.0)


def test_a_stranger_is_served_nothing(listener: tuple[str, agent.Listener]) -> None:
    token, listening = listener
    other = _native.generate_token()
    found = agent.measure(other, order(listening))
    assert found["ports"][0][1] == agent.STRANGER
    assert "clock" not in found
    assert found["mtu"]["udp"] is False, "datagrams of strangers are not answered"
    with socket.create_connection(("127.0.0.1", listening.ports[0])) as connection:
        nonce = connection.recv(16)
        connection.sendall(agent.proof(other, b"measure", nonce))
        assert connection.recv(1) == b""
    assert agent.measure(token, order(listening))["ports"][0][1] == "", "the others are served on"


def test_another_program_in_its_place_is_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        measurer = agent.Measurer(_native.generate_token(), "127.0.0.1")
        threading.Thread(target=lambda: silent.accept()[0].close(), daemon=True).start()
        assert measurer.reach(port)[0] == agent.STRANGER
    assert measurer.reach(port)[0] == agent.REFUSED


def test_a_port_that_is_taken_is_left_to_its_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listening = agent.Listener("token", "127.0.0.1", [port])
        assert listening.busy == [port]
        assert port not in listening.ports
        listening.close()


def test_the_largest_packet_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A way on which packets of more than 1404 bytes vanish."""
    monkeypatch.setattr(datagrams._Prober, "passes", lambda self, size: size <= 1404)
    found = datagrams.probe_size("token", "127.0.0.1", 9, 9000, 0.0)
    assert found == {"udp": True, "size": 9000, "largest": 1404, "told": False}
