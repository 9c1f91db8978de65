"""The coordinator, the helpers and the environments of one group of Ray Train's workers.

It runs in Ray Train's controller, on the node of the driver. Each group has a job of its own: when
Ray starts the workers anew, be it after a failure or with another number, all of it is made anew.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import ray
import ray.train
from ray.exceptions import RayError

from sumpter import _native
from sumpter._core.rendezvous import start_timeout_s
from sumpter._errors import StartError
from sumpter._failure import Failure, UsageError
from sumpter.launch.attendant import free_port
from sumpter.launch.environment import Environment, adopt
from sumpter.launch.job import JobSpec, Meeting, meet
from sumpter.launch.layout import Layout, Seat
from sumpter.launch.place import Facts
from sumpter.launch.running import announced
from sumpter.ray import nodes
from sumpter.ray.config import SumpterConfig
from sumpter.ray.helpers import Helpers

if TYPE_CHECKING:
    from ray.train._internal.base_worker_group import BaseWorkerGroup

# A child of the logger of Ray Train, which shows what it says in the driver's output.
_log = logging.getLogger("ray.train.sumpter")


@dataclass(frozen=True)
class Introduction:
    """What a worker of Ray Train says of itself."""

    node: str
    machine: str | None  # the machine that its node stands for
    local_rank: int
    local_size: int
    facts: Facts


def introduce() -> Introduction:
    """Runs in a worker."""
    context = ray.train.get_context()
    node, address = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
    return Introduction(
        node,
        nodes.machine(nodes.alive(ray.nodes()), node),
        context.get_local_rank(),
        context.get_local_world_size(),
        Facts(
            cores=len(os.sched_getaffinity(0)),
            host_name=socket.gethostname(),
            port=free_port(),
            client="",
            server=address,
        ),
    )


def seats(workers: Sequence[Introduction]) -> tuple[Seat, ...]:
    """The seats of workers in the order of their ranks."""
    local_ranks = [worker.local_rank for worker in workers]
    return tuple(
        Seat(
            worker.facts.server,
            worker.machine,
            local_rank=worker.local_rank,
            local_size=worker.local_size,
            cross_rank=local_ranks[:rank].count(worker.local_rank),
            cross_size=local_ranks.count(worker.local_rank),
        )
        for rank, worker in enumerate(workers)
    )


def start(worker_group: BaseWorkerGroup, config: SumpterConfig, *, must_help: bool) -> ExitStack:
    """Makes a job of a group of workers; closing what is returned ends it.

    Without `must_help` the workers do not wait for helpers that find no place: they join when they
    do. Raises StartError for what is missing.
    """
    with ExitStack() as at_end:
        workers = _introductions(worker_group)
        layout = Layout(
            seats(workers),
            tuple(Seat(f"helper {index}") for index in range(config.helpers)),
            world_size=len(workers),
            all_servers=config.helpers,
        )
        meeting = _meet(config, layout)
        assert meeting.own is not None and meeting.token is not None
        at_end.callback(meeting.own.stop)
        _announce(meeting, at_end)
        master = workers[0].facts
        environment = Environment(
            layout,
            dict.fromkeys(layout.hosts, meeting.settings["coordinator"]),
            meeting.token,
            (master.server, master.port),
            _variables(config),
        )
        joined = _help(config, environment, meeting, workers, at_end, must_help)
        environment = replace(environment, layout=replace(layout, all_servers=joined))
        ray.get(
            [
                worker_group.execute_single_async(
                    rank, adopt, {}, environment.worker(rank, worker.facts)
                )
                for rank, worker in enumerate(workers)
            ]
        )
        return at_end.pop_all()


def _introductions(worker_group: BaseWorkerGroup) -> list[Introduction]:
    try:
        return worker_group.execute(introduce)
    except RayError as error:
        raise StartError(
            f"a worker of Ray Train cannot use Sumpter: {error}; it must be installed, in the same "
            "version, on every node (or be in the runtime environment)"
        ) from error


def _meet(config: SumpterConfig, layout: Layout) -> Meeting:
    """The job's coordinator, in this process."""
    spec = JobSpec(
        (),
        layout,
        config.texts,
        listen=config.listen,
        address=ray.util.get_node_ip_address(),
        metrics_port=config.metrics_port,
    )
    try:
        meeting = meet(spec)
    except (Failure, UsageError) as error:
        raise StartError(f"the job's coordinator cannot start: {error}") from error
    # As the other nodes reach this one, unless the user has said where it listens.
    port = meeting.settings["coordinator"].rpartition(":")[2]
    address = meeting.host or spec.address
    address = f"[{address}]" if ":" in address and not address.startswith("[") else address
    meeting.settings["coordinator"] = f"{address}:{port}"
    return meeting


def _announce(meeting: Meeting, at_end: ExitStack) -> None:
    """Lets `--job last` on this node find the job."""
    coordinator, token = meeting.settings["coordinator"], meeting.token
    assert token is not None
    try:
        file = at_end.enter_context(announced(coordinator, token, ("ray",)))
    except (Failure, OSError) as error:
        _log.warning("--job last will not find this job: %s", error)
    else:
        _log.info(
            "to observe this job, on the driver's node: sumpter top --coordinator %s "
            "--token-file %s",
            coordinator,
            file,
        )


def _variables(config: SumpterConfig) -> dict[str, str]:
    names = {row["name"]: row["env"] for row in _native.settings()}
    return {names[name]: text for name, text in config.texts.items()}


def _help(
    config: SumpterConfig,
    environment: Environment,
    meeting: Meeting,
    workers: Sequence[Introduction],
    at_end: ExitStack,
    must_help: bool,
) -> int:
    """Starts the helpers; how many have joined."""
    if not config.helpers:
        return 0
    cores = max(1, int(config.resources_per_helper["CPU"]))

    def variables(index: int) -> tuple[dict[str, str], dict[str, str | None]]:
        facts = Facts(cores, "", 0, "", "")
        return environment.server_defaults(index, facts), environment.server(index)

    helpers = Helpers(
        config.helpers,
        config.resources_per_helper,
        config.helper_label_selector,
        {worker.node for worker in workers},
    )
    known = {name: meeting.settings[name] for name in ("coordinator", "token")}
    at_end.callback(helpers.end, known)
    helpers.start(variables)
    try:
        helpers.wait(known, start_timeout_s(config.texts))
    except StartError as error:
        if must_help:
            raise
        _log.warning("training goes on without some helpers, which join when they can: %s", error)
    return helpers.joined(known)
