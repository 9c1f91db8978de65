"""The port that a launcher chooses for rank 0, which listens there only seconds later."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from sumpter.launch import attendant
from sumpter.launch.attendant import free_port


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The only port of which `free_port` can choose, without a mark."""
    port = free_port()
    monkeypatch.setattr(attendant, "PORTS", range(port, port + 1))
    attendant._marks.pop().close()
    monkeypatch.setattr(attendant, "_marks", [])
    yield port
    for mark in attendant._marks:
        mark.close()


def test_a_port_is_given_once(port: int) -> None:
    assert free_port() == port
    with pytest.raises(RuntimeError, match=f"every port from {port} to {port} is in use"):
        free_port()


def test_a_port_is_free_again_once_its_process_has_ended(port: int) -> None:
    free_port()
    # As its end does.
    attendant._marks.pop().close()
    assert free_port() == port


def test_a_port_where_something_listens_is_not_given(port: int) -> None:
    with socket.create_server(("", port)):
        with pytest.raises(RuntimeError, match="is in use"):
            free_port()
    assert free_port() == port


def test_no_outgoing_connection_takes_the_port() -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        lowest, _ = map(int, file.read().split())
    if lowest < attendant.PORTS.stop:
        pytest.skip(f"this system gives ports from {lowest} on to outgoing connections")
    assert free_port() < lowest
