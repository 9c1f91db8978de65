"""A simulated speed surface: what an iteration takes with given partitions and credit.

One worker's link, as ByteScheduler (SOSP'19, section 4) models it: gradients become ready in the
backward pass, the last layer's first; what is wanted first in the next forward pass is sent
first; a partition that has begun is not interrupted; each costs a fixed time of its own; and of
what has begun no more is unsent than the credit. The credit is no window: it does not wait for
answers, so a small one does not slow a link. A large one delays what is urgent, and lets all
workers have theirs under way to the same server at the end, while other links idle. The bytes of a
link and the size of partitions are those of the planning rule. It says how sizes trade off, not
what a cluster will do: `sumpter bench replay` measures that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sumpter import _native
from sumpter.tuning.points import Job, Point, link_bytes

# Steps of a simulation: partitions under a part so small of all bytes are sent several at once.
STEPS = 1024


@dataclass(frozen=True)
class Network:
    """What a job cannot know in advance."""

    partition_s: float = 20e-6  # each partition's own cost
    answer_s: float = 1e-3  # until a partition that was sent is summed and back
    crowd: float = 0.3  # the part of all workers' credit that one server has to receive at the end


def servers_that_sum(job: Job) -> int:
    """Workers' machines sum what CPU machines have no room for: nothing if there are as many."""
    if job.architecture == "allreduce":
        return job.workers
    if job.architecture == "ps":
        return max(job.servers, 1)
    return job.servers if job.servers >= job.workers else job.workers + job.servers


def iteration_s(job: Job, point: Point, network: Network) -> float:
    """The seconds of one iteration."""
    forward, backward, sizes = job.layers.T
    rate = min(job.up_gbps, job.down_gbps) * 1e9 / 8 / max(link_bytes(job), 1e-9)
    ready = np.cumsum(backward[::-1])[::-1]  # the last layer's gradient is ready first
    servers = servers_that_sum(job)
    cut = (_native.cut_bytes(point.partition, point.credit, round(size), servers) for size in sizes)
    done = _sent(ready, sizes, (np.array(list(cut)), point.credit), (rate, network.partition_s))
    done = done + network.answer_s + network.crowd * job.workers * point.credit / rate
    if not job.overlaps:
        return float(max(done.max(), ready[0]) + forward.sum())
    at = ready[0]
    for layer, took in enumerate(forward):
        at = max(at, done[layer]) + took
    return float(at)


def _sent(
    ready: np.ndarray, sizes: np.ndarray, plan: tuple[np.ndarray, int], link: tuple[float, float]
) -> np.ndarray:
    """When the last byte of each layer has been sent."""
    (partitions, credit), (rate, partition_s) = plan, link
    count = len(sizes)
    # Whole partitions, and few enough of them at once that all is done in so many steps.
    steps = partitions * np.ceil(sizes.sum() / STEPS / partitions)
    per_byte = 1 / rate + partition_s / partitions
    left, done = sizes.astype(float).copy(), np.zeros(count)
    queue: list[tuple[int, float]] = []  # admitted, in order
    admitted, now, unready = 0.0, float(ready[-1]), count - 1
    while True:
        while unready >= 0 and ready[unready] <= now + 1e-12:
            unready -= 1
        while admitted < credit:
            first = next((i for i in range(unready + 1, count) if left[i] > 0), None)
            if first is None:
                break
            size = min(steps[first], left[first])
            left[first] -= size
            admitted += size
            queue.append((first, size))
        if queue:
            layer, size = queue.pop(0)
            admitted -= size
            now += size * per_byte[layer]
            done[layer] = now
        elif unready >= 0:
            now = float(ready[unready])
        else:
            return done
