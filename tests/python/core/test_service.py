"""PHub's interface: variables on all ranks, and namespaces that are apart."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import sumpter
from jobs import Job
from sumpter import _native, service


@pytest.mark.parametrize(("ranks", "servers"), [(2, 0), (3, 1)])
def test_variables_do_the_same_on_all_ranks(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    job = make_job(ranks, servers, partition_bytes="4KiB", peer_timeout_s=8)
    job.start("service.py").finish()


def test_servers_that_die_change_no_variable(make_job: Callable[..., Job]) -> None:
    def results(die: bool) -> list[bytes]:
        job = make_job(3, 2, partition_bytes="16KiB")
        pids = [str(job.server_pid(index)) for index in range(2)] if die else []
        job.start("service_servers_die.py", *pids).finish()
        return [job.result(rank) for rank in range(3)]

    assert len(set(results(die=False) + results(die=True))) == 1, "not the same bytes"


def test_the_state_of_an_elastic_job_is_that_of_its_variables(make_job: Callable[..., Job]) -> None:
    job = make_job(2, 1, repeated=True, min_workers=1, partition_bytes="4KiB")
    job.start("service_elastic.py").finish()


def test_a_variable_beyond_the_quota_fails_alone(make_job: Callable[..., Job]) -> None:
    make_job(2, 1, max_job_bytes="16MiB").start("service_quota.py").finish()


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[str]:
    """The address of a coordinator that admits the namespaces red and blue."""
    rows = []
    for name in ("red", "blue"):
        (tmp_path / f"{name}.token").write_text(f"the token of {name}, for tests")
        rows.append(f'[[job]]\nname = "{name}"\ntoken_file = "{name}.token"\n')
    (tmp_path / "tenants.toml").write_text("\n".join(rows))
    settings = {"token": "the cluster's token", "tenants": str(tmp_path / "tenants.toml")}
    coordinator = _native.Coordinator("127.0.0.1:0", settings, repeated=True)
    yield coordinator.address
    coordinator.stop()


def test_a_connection_ends_with_its_close_though_others_use_the_job() -> None:
    with service.create_service("red", workers=1) as red:
        hub = service.connect(red.ticket, rank=0)
        sumpter.init()
        hub.init_variable("weights", np.ones(3), "sgd", lr=0.5)
        hub.close()
        assert hub.is_closed() and sumpter.is_initialized()
        with pytest.raises(sumpter.ClosedError, match="connect.. again"):
            hub.pull("weights")
        with service.connect(red.ticket, rank=0) as again:
            with pytest.raises(service.VariableError, match="no value"):
                again.pull("weights")
        assert sumpter.push_pull(np.ones(3)).tolist() == [1.0] * 3
        sumpter.shutdown()


def test_a_variable_belongs_to_its_namespace(tmp_path: Path) -> None:
    value = np.ones(3)
    with (
        service.create_service("red", workers=1) as red,
        service.create_service("blue", workers=1) as blue,
    ):
        with service.connect(red.ticket, rank=0) as hub:
            assert hub.namespace == "red"
            theirs = hub.init_variable("weights", value, "sgd", lr=0.5)
            assert hub.push_pull(theirs, value).tolist() == [0.5] * 3
            with pytest.raises(sumpter.StartError, match="connected to namespace 'red' already"):
                service.connect(blue.ticket, rank=0)
        with service.connect(blue.ticket, rank=0) as hub:
            for use in (hub.pull, hub.state, lambda v: hub.push(v, value)):
                with pytest.raises(service.VariableError, match="namespace 'red'.*is to 'blue'"):
                    use(theirs)
            with pytest.raises(service.VariableError, match="no value in namespace 'blue'"):
                hub.pull("weights")
            own = hub.init_variable("weights", value)
            assert hub.push_pull("weights", 2 * value).tolist() == [2.0] * 3
            again = hub.init_variable("weights", value)
            with pytest.raises(service.VariableError, match="has been replaced"):
                hub.pull(own)
            assert hub.pull(again).tolist() == value.tolist()
        with pytest.raises(sumpter.ClosedError, match="namespace 'blue' was closed"):
            hub.pull(again)


def test_a_namespace_needs_its_own_token(tenants: str) -> None:
    tokens = {name: f"the token of {name}, for tests" for name in ("red", "blue")}
    red = service.create_service("red", workers=1, coordinator=tenants, token=tokens["red"])
    with service.connect(red.ticket, rank=0) as hub:
        hub.init_variable("w", np.zeros(2), "sgd", lr=1.0)
        assert hub.push_pull("w", np.ones(2)).tolist() == [-1.0, -1.0]
    for name, token in (("red", tokens["blue"]), ("green", tokens["red"])):
        with pytest.raises(sumpter.AuthError):
            service.create_service(name, workers=1, coordinator=tenants, token=token)
        with pytest.raises(sumpter.AuthError):
            service.connect(service.Ticket(name, tenants, token, 1), rank=0)
    with pytest.raises(sumpter.ConfigError, match="pass the token"):
        service.create_service("red", workers=1, coordinator=tenants)


def test_a_ticket_is_a_secret_file(tmp_path: Path) -> None:
    ticket = service.Ticket("red", "10.0.0.1:7700", "a secret", 4, 2)
    assert "a secret" not in repr(ticket)
    path = tmp_path / "red.ticket"
    path.write_text("old")
    ticket.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert service.Ticket.load(path) == ticket
    assert [each.name for each in tmp_path.iterdir()] == ["red.ticket"]
    whole = json.loads(path.read_text())
    for wrong in ("{", "[]", json.dumps({**whole, "workers": "4"}), json.dumps({"namespace": "x"})):
        path.write_text(wrong)
        with pytest.raises(sumpter.ConfigError, match="red.ticket is not a ticket"):
            service.Ticket.load(path)


def test_a_service_is_described_well_or_not_made() -> None:
    with pytest.raises(sumpter.ConfigError, match="needs a name"):
        service.create_service("", workers=1)
    with pytest.raises(sumpter.ConfigError, match="workers=0"):
        service.create_service("red", workers=0)
    with pytest.raises(sumpter.ConfigError, match="name the address"):
        service.create_service("red", workers=1, listen="0.0.0.0:0")


def test_an_open_job_does_not_show_its_token() -> None:
    with service.create_service("red", workers=1) as red:
        settings = {"coordinator": red.ticket.coordinator, "job": "red", "rank": 0, "world_size": 1}
        sumpter.init(**settings, token=red.ticket.token)
        try:
            with pytest.raises(sumpter.StartError, match="another token") as refused:
                service.connect(service.Ticket("red", settings["coordinator"], "else", 1), rank=0)
            assert red.ticket.token not in str(refused.value)
        finally:
            sumpter.shutdown()
