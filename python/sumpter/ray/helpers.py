"""Servers as actors of Ray, each on a bundle of a placement group of their own.

Ray starts an actor that died again, on another node if its node is gone, and calls its `serve`
anew: the server joins the running job as any other does. Helpers end with the process that made
them, however that ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import (
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from sumpter import _native
from sumpter._environment import rack
from sumpter._errors import StartError, SumpterError
from sumpter._words import counted
from sumpter.launch.environment import adopt
from sumpter.launch.status import read_servers
from sumpter.ray import nodes

# How often the coordinator is asked, at the start only, whether a helper has joined.
_ASK_EVERY_S = 0.1

# How long helpers may take to leave a job that is over.
_LEAVE_S = 2.0

# What Ray takes as options of an actor by other names than that of the resource.
_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


class Helper:
    """A server in a process of Ray's."""

    def __init__(self, defaults: Mapping[str, str], variables: Mapping[str, str | None]) -> None:
        here = nodes.machine(nodes.alive(ray.nodes()), ray.get_runtime_context().get_node_id())
        adopt(defaults, {**variables, "SUMPTER_MACHINE": here} if here else variables)

    def serve(self) -> None:
        """As `sumpter serve`: returns when the server is drained or the job is over."""
        _native.serve(rack({}))


class Helpers:
    """The helpers of one job."""

    def __init__(
        self,
        count: int,
        resources: Mapping[str, float],
        labels: Mapping[str, str] | None,
        occupied: set[str],
    ) -> None:
        """Asks Ray for places: on nodes with these labels or, by default, on CPU nodes that are
        not `occupied` by ranks.
        """
        self._count, self._resources, self._labels = count, dict(resources), labels
        self._occupied = occupied
        self._actors: list[ray.actor.ActorHandle] = []
        self._serving: list[ray.ObjectRef] = []
        if labels is None:
            labels = nodes.selector(nodes.alive(ray.nodes()), occupied)
        self._group = placement_group(
            [self._resources] * count,
            strategy="STRICT_SPREAD",
            bundle_label_selector=[dict(labels)] * count if labels else None,
        )

    def start(self, environment: Callable[[int], tuple[dict, dict]]) -> None:
        """Has helpers start when their places are there, each with its defaults and variables."""
        options: dict[str, object] = {"max_restarts": -1, "max_task_retries": -1, "num_cpus": 0}
        options["resources"] = {
            name: amount for name, amount in self._resources.items() if name not in _OPTIONS
        }
        options |= {
            _OPTIONS[name]: amount for name, amount in self._resources.items() if name in _OPTIONS
        }
        remote = ray.remote(**options)(Helper)
        for index in range(self._count):
            place = PlacementGroupSchedulingStrategy(self._group, index)
            actor = remote.options(scheduling_strategy=place).remote(*environment(index))
            self._actors.append(actor)
            self._serving.append(actor.serve.remote())

    def wait(self, settings: dict[str, str], patience_s: float) -> None:
        """Returns when all helpers have joined; StartError says why one does not."""
        if not self._group.wait(patience_s):
            raise StartError(
                nodes.no_place(
                    self._count,
                    self._resources,
                    nodes.alive(ray.nodes()),
                    self._occupied,
                    self._labels,
                    patience_s,
                )
            )
        deadline_s = time.monotonic() + patience_s
        while (joined := self.joined(settings)) < self._count:
            ended, _ = ray.wait(self._serving, timeout=_ASK_EVERY_S)
            if ended:
                index = self._serving.index(ended[0])
                raise StartError(f"{self._name(index)} cannot start: {_cause(ended[0])}")
            if time.monotonic() >= deadline_s:
                raise StartError(
                    f"{joined} of {counted(self._count, 'helper')} joined the job at "
                    f"{settings['coordinator']} within {patience_s:g} s (setting "
                    "start_timeout_s): see the logs of the actors `Helper` for the reason; a "
                    "firewall between their nodes and the driver's is one"
                )

    def joined(self, settings: dict[str, str]) -> int:
        """How many helpers are members of the job's coordinator."""
        return len(read_servers(_native.status(settings)))

    def end(self, settings: dict[str, str]) -> None:
        """Ends all helpers and gives their places back."""
        with suppress(SumpterError):
            for server in read_servers(_native.status(settings)):
                _native.drain(str(server.number), settings)
        # Of an actor whose `serve` has not returned Ray reports a task that failed.
        if self._serving:
            ray.wait(self._serving, num_returns=len(self._serving), timeout=_LEAVE_S)
        for actor in self._actors:
            ray.kill(actor, no_restart=True)
        remove_placement_group(self._group)

    def _name(self, index: int) -> str:
        """A helper's number, and where it is."""
        places = placement_group_table(self._group).get("bundles_to_node_id", {})
        addresses = {node.id: node.address for node in nodes.alive(ray.nodes())}
        where = addresses.get(places.get(index, ""))
        return f"helper {index} on {where}" if where else f"helper {index}"


def _cause(ended: ray.ObjectRef) -> str:
    """Why a helper has ended."""
    try:
        ray.get(ended)
    except RayTaskError as error:
        return str(error.cause)
    except RayError as error:
        return str(error)
    return "it was drained, or the coordinator said that its job is over"
